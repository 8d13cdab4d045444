"""Keys that transformers' class takes under another name, or not at all, beside those it reads."""

import copy
import json

import pytest

from bitnet.base.errors import BitnetError
from bitnet.families.config_defaults import list_defaults, read_table
from bitnet.families.config_json import describe
from bitnet.families.family import families

REASON = "transformers is not installed: pip install 'bitnet-xtask[parity]'"
CONFIG_MAPPING = pytest.importorskip("transformers", reason=REASON).CONFIG_MAPPING

from huggingface_hub.errors import StrictDataclassError  # noqa: E402 - a part of transformers


def default_config(kind):
    """The ``config.json`` of a model with the defaults of the class *kind*."""
    return json.loads(json.dumps(kind().to_dict())) | {"architectures": None}


def pairs_of_names():
    """Model types, each with the usual name and the class's own name of a key."""
    for model_type, pairs in read_table()["names"].items():
        if model_type in CONFIG_MAPPING:
            names = CONFIG_MAPPING[model_type].attribute_map
            yield from ((model_type, *pair) for pair in pairs if names.get(pair[0]) == pair[1])


def another(value):
    """A value that a configuration may have in place of *value*; None if there is none."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1 if value < 4 else value - 1
    return value / 2 if isinstance(value, float) else None


def computed(config):
    """Keys and numbers that are computed with, by *config*; an empty text if it is refused."""
    try:
        description = describe(config, model="m")
    except BitnetError:
        return ""
    return repr((description.metadata, description.freq_factors, description.tied))


@pytest.fixture(scope="module")
def expected_and_computed():
    """Pairs of :func:`computed`, as expected and actual, by names and the values at both."""
    outcomes = {}
    for model_type, usual, own in pairs_of_names():
        kind = CONFIG_MAPPING[model_type]
        config = default_config(kind)
        values = [config.pop(name) for name in (own, usual) if name in config]
        other = another(values[0])
        if other is None:
            continue
        for at_own, at_usual in ((values[0], other), (other, values[0])):
            both = config | {own: at_own, usual: at_usual}
            try:
                counts = getattr(kind.from_dict(dict(both)), own)
            except (ValueError, TypeError, StrictDataclassError):  # it refuses one of the values
                continue
            expected = computed(config | {own: counts, usual: counts})
            outcomes[model_type, usual, own, at_own, at_usual] = expected, computed(both)
    return outcomes


def test_of_two_names_the_one_that_transformers_takes_counts(expected_and_computed):
    accepted = {case: pair for case, pair in expected_and_computed.items() if pair[0]}
    assert len(accepted) > 100
    assert {case for case, (expected, actual) in accepted.items() if actual != expected} == set()


def aliases():
    """Model types, each with the family's name of a key and the class's own name."""
    for family in families():
        for model_type in {*family.model_types} & {*CONFIG_MAPPING}:
            of_class = list_defaults(model_type)
            for own, usual in family.aliases.items():
                if own in of_class:
                    yield model_type, usual, own


def test_an_alias_counts_as_transformers_reads_it():
    compared = 0
    for model_type, usual, own in aliases():
        kind = CONFIG_MAPPING[model_type]
        config = default_config(kind)
        for name in (own, usual, "rope_parameters"):
            config.pop(name, None)
        value = list_defaults(model_type)[own]
        other = another(value)
        if other is None:
            continue
        for case in ({usual: other}, {own: other}, {own: value, usual: other}):
            try:
                saved = kind.from_dict(copy.deepcopy(config | case)).to_dict()
            except (ValueError, TypeError, StrictDataclassError):  # it refuses the value
                continue
            actual = computed(config | case)
            if actual:
                compared += 1
                assert actual == computed(json.loads(json.dumps(saved)) | {"architectures": None})
    assert compared > 50


def bases(parameters):
    """Bases of the RoPE of layers without and with a window, in transformers' *parameters*."""
    full = parameters.get("full_attention", parameters)
    return full.get("rope_theta"), parameters.get("sliding_attention", full).get("rope_theta")


def test_a_rope_theta_without_tables_counts_where_the_class_reads_it():
    compared = 0
    for family in families():
        for model_type in {*family.model_types} & {*CONFIG_MAPPING}:
            kind = CONFIG_MAPPING[model_type]
            if "text_config" in (getattr(kind, "sub_configs", None) or {}):
                continue
            config = default_config(kind)
            for name in ("rope_parameters", "rope_scaling"):
                config.pop(name, None)
            config["rope_theta"] = 500.0
            parameters = getattr(kind.from_dict(dict(config)), "rope_parameters", None)
            try:
                values = describe(config, model="m").metadata
            except BitnetError:
                continue
            name = values["general.architecture"]
            base = values.get(f"{name}.rope.freq_base")
            if parameters and base is not None:
                compared += 1
                window_base = values.get(f"{name}.rope.freq_base_swa", base)
                assert (base, window_base) == bases(parameters), model_type
    assert compared > 30
