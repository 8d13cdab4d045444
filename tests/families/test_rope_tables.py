"""The tables of the position embedding in ``config.json``, as transformers reads them."""

import json
import warnings

import pytest
from config_mutants import MODELS

from bitnet.base.errors import BitnetError, InvalidFormat, Unsupported
from bitnet.families.config_json import describe

_OWN_BASE = 3e5  # of a table; not a default of any class


def config_of(name, **changes):
    """The configuration of the tiny model *name* with *changes*; a key of None is left out."""
    config = json.loads(json.dumps(MODELS[name]["config"])) | changes
    return {key: value for key, value in config.items() if value is not None}


def tables_of(config):
    """Tables of the position embedding that transformers makes of *config*, by kind of layers."""
    mapping = pytest.importorskip("transformers").CONFIG_MAPPING
    keys = {key: value for key, value in config.items() if key != "model_type"}
    with warnings.catch_warnings():  # on former names of keys
        warnings.simplefilter("ignore")
        parameters = mapping[config["model_type"]](**json.loads(json.dumps(keys))).rope_parameters
    nested = {kind: table for kind, table in parameters.items() if isinstance(table, dict)}
    return nested or {"": parameters}


def is_nested(name):
    """True if the tiny model *name* has tables for kinds of layers."""
    table = MODELS[name]["config"].get("rope_parameters") or {}
    return any(isinstance(own, dict) for own in table.values())


_WITH_TABLES = [name for name in MODELS if MODELS[name]["config"].get("rope_parameters")]
# Models that :func:`tables_of` cannot compare: transformers lacks their class, or the class takes
# other keys, or only some kinds of scaling.
_OTHER_CLASSES = ("granitehybrid", "minicpm", "ministral3", "phi3")
# The others that have one table for all layers.
_FLAT = [
    name for name in _WITH_TABLES if not is_nested(name) and not name.startswith(_OTHER_CLASSES)
]


@pytest.mark.parametrize("name", _FLAT)
def test_of_two_rope_tables_the_one_that_transformers_takes_counts(name):
    scaling = {"rope_type": "linear", "factor": 2.0}
    own = {"rope_type": "default", "rope_theta": _OWN_BASE}
    config = config_of(name, rope_parameters=own, rope_scaling=scaling)
    try:
        ours = describe(config, model="m")
    except BitnetError as error:
        assert "rope" in error.message  # noqa: PT017 - a class may not know such a scaling
        return
    table = tables_of(config)[""]
    assert ours.value("rope.scaling.type") == table["rope_type"] == "linear"
    base = ours.value("rope.freq_base")
    assert base == pytest.approx(table["rope_theta"])


@pytest.mark.parametrize("name", [name for name in _WITH_TABLES if is_nested(name)])
def test_rope_scaling_beside_tables_of_layers_counts_as_in_transformers(name):
    scaling = {"rope_type": "linear", "factor": 2.0}
    config = config_of(name, rope_scaling=scaling)
    table = tables_of(config).get("full_attention")
    if table is None or table["rope_type"] != "linear":
        with pytest.raises(Unsupported, match="rope_scaling"):
            describe(config, model="m")
        return
    try:
        ours = describe(config, model="m")
    except BitnetError as error:
        assert "rope" in error.message  # noqa: PT017 - leftovers of another scaling
        return
    assert ours.value("rope.scaling.type") == "linear"
    assert ours.value("rope.freq_base") == table["rope_theta"]


@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
@pytest.mark.parametrize("name", ["gemma3", "olmo3", "gemma4-e2b"])
def test_a_table_of_layers_without_rope_theta_has_the_default_or_is_refused(name, kind):
    config = config_of(name)
    del config["rope_parameters"][kind]["rope_theta"]
    key = {"full_attention": "rope.freq_base", "sliding_attention": "rope.freq_base_swa"}[kind]
    try:
        ours = describe(config, model="m")
    except BitnetError as error:
        assert "rope_theta" in error.message  # noqa: PT017 - versions differ, or have no default
        return
    assert ours.value(key) == tables_of(config)[kind]["rope_theta"]


def test_a_null_in_a_rope_table_counts_as_a_missing_key():
    config = config_of("llama")
    del config["rope_parameters"]["rope_theta"]
    without = describe(config, model="m").value("rope.freq_base")
    config["rope_parameters"]["rope_theta"] = None
    assert describe(config, model="m").value("rope.freq_base") == without


def test_gpt_oss_takes_the_scaling_of_the_former_table_and_its_default_base():
    tables = {"rope_parameters": {"rope_theta": _OWN_BASE}}
    scaling = {"rope_type": "linear", "factor": 2.0}
    ours = describe(config_of("gpt-oss", **tables, rope_scaling=scaling), model="m")
    assert ours.value("rope.scaling.type") == "linear"
    # The former table replaces the other, whose base is lost; the class has this default.
    assert ours.value("rope.freq_base") == 150000.0


def test_a_negative_attention_factor_is_refused_by_that_name():
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "mscale": -20}
    # (0.1 * mscale * ln 4 + 1) / (0.1 * mscale_all_dim * ln 4 + 1) is -1.6.
    config = config_of("llama", rope_parameters=yarn | {"mscale_all_dim": 1})
    with pytest.raises(InvalidFormat, match="an attention factor of -1"):
        describe(config, model="m")
