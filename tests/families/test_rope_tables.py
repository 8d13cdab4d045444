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
    own = {key: value for key, value in config.items() if key != "model_type"}
    with warnings.catch_warnings():  # of former names
        warnings.simplefilter("ignore")
        found = mapping[config["model_type"]](**json.loads(json.dumps(own))).rope_parameters
    nested = {kind: table for kind, table in found.items() if isinstance(table, dict)}
    return nested or {"": found}


def is_nested(name):
    """True if the tiny model *name* has tables for kinds of layers."""
    table = MODELS[name]["config"].get("rope_parameters") or {}
    return any(isinstance(own, dict) for own in table.values())


_WITH_TABLES = [name for name in MODELS if MODELS[name]["config"].get("rope_parameters")]
# Those whose class transformers lacks, or makes of other keys or kinds of scaling only.
_OTHER_CLASSES = ("granitehybrid", "minicpm", "ministral3", "phi3")
_FLAT = [
    name for name in _WITH_TABLES if not is_nested(name) and not name.startswith(_OTHER_CLASSES)
]


@pytest.mark.parametrize("name", _FLAT)
def test_of_two_tables_that_count_which_transformers_takes(name):
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
    stretched = ours.value("rope.freq_base")
    assert stretched == pytest.approx(table["rope_theta"])


@pytest.mark.parametrize("name", [name for name in _WITH_TABLES if is_nested(name)])
def test_a_former_table_beside_those_of_layers_counts_as_in_transformers(name):
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
def test_layers_whose_table_has_no_base_have_the_default_or_are_refused(name, kind):
    config = config_of(name)
    del config["rope_parameters"][kind]["rope_theta"]
    key = {"full_attention": "rope.freq_base", "sliding_attention": "rope.freq_base_swa"}[kind]
    try:
        ours = describe(config, model="m")
    except BitnetError as error:
        assert "rope_theta" in error.message  # noqa: PT017 - versions differ, or have no default
        return
    assert ours.value(key) == tables_of(config)[kind]["rope_theta"]


def test_a_null_in_a_table_is_as_if_it_were_not_there():
    config = config_of("llama")
    del config["rope_parameters"]["rope_theta"]
    without = describe(config, model="m").value("rope.freq_base")
    config["rope_parameters"]["rope_theta"] = None
    assert describe(config, model="m").value("rope.freq_base") == without


def test_gpt_oss_may_have_the_kind_of_scaling_in_the_former_table():
    tables = {"rope_parameters": {"rope_theta": _OWN_BASE}}
    scaling = {"rope_type": "linear", "factor": 2.0}
    ours = describe(config_of("gpt-oss", **tables, rope_scaling=scaling), model="m")
    assert ours.value("rope.scaling.type") == "linear"
    assert ours.value("rope.freq_base") == 150000.0


def test_a_factor_on_rotated_queries_is_not_called_a_base():
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "mscale": -20}
    config = config_of("llama", rope_parameters=yarn | {"mscale_all_dim": 1})
    with pytest.raises(InvalidFormat, match="an attention factor of -1"):
        describe(config, model="m")
