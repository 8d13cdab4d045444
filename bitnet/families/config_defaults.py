"""Defaults of transformers for keys that a ``config.json`` leaves out.

``tests/support/config_defaults.py`` made the table beside this file from the configuration classes
of the versions that the table names, from 4.30 on. If all versions that know a key have the
same default, that value counts in a folder without the key. If they differ, the folder is refused.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import Unsupported
from bitnet.families.config_values import KINDS, show_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bitnet.families.keys import Config

# Keys that may be in the RoPE table instead.
_OF_ROPE = {"rope_theta", "partial_rotary_factor"}
# Types whose configuration class in transformers 5.24 scales positions if config.json has no RoPE
# table, whatever `rope_theta` says; 4.57 does not scale them if the table is null.
SCALED_BY_DEFAULT = frozenset({"apertus", "apertus1p5_text", "cwm", "gpt_oss", "ministral3"})
# Types with a RoPE table for each kind of layer, whose class in transformers 5.24 does not use the
# key `rope_theta` beside these tables for every layer. If a table lacks its own `rope_theta`, the
# key may only have the value given here, which changes nothing; None: it must be missing or null.
THETA_IN_TABLES = {
    **dict.fromkeys(("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")),
    "laguna": None,
    "lfm3": None,
    "mellum": None,
    "olmo3": 500_000,
}
# Types whose class in transformers 5.24 takes the value under the class's own name, not the usual
# one, for a key that has two names.
OWN_NAME_COUNTS = frozenset({"bailing_hybrid", "kimi_linear", "mellum", "qwen3_vl_moe_text"})
# Pairs of names that an older version of transformers took for one key. The class in 5.24 does not
# read the first of them, so they are not paired.
_FORMER_PAIRS = {"modernbert": ("rope_theta", "global_rope_theta")}
# Keys whose values follow from the tensors of a folder, if config.json leaves them out.
_OF_TENSORS = {"vocab_size"}
_TABLE = Path(__file__).with_suffix(".json")


@cache
def read_table() -> Mapping[str, Any]:
    """The table of defaults.

    ``agreed``, ``differing`` and ``names`` have an entry for each model type: ``agreed`` has the
    defaults by key, ``differing`` the defaults by key and then by version, ``names`` pairs of the
    usual name of a key and the one of the class. ``versions`` lists the versions of transformers.
    """
    table: Mapping[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return table


def with_usual_names(config: Config, model_type: str) -> dict[str, Any]:
    """*config* with one value for each key that it states under two names.

    The usual name has precedence over the one of the class of *model_type* (``n_embd``), as most
    classes of transformers set the former's value last; see :data:`OWN_NAME_COUNTS`.
    """
    names = list_names(model_type)
    if model_type in OWN_NAME_COUNTS:
        names = [(own, usual) for usual, own in names]
    replaced = {
        overridden: config[name]
        for name, overridden in names
        if name in config and overridden in config
    }
    return {**config, **replaced}


def with_defaults(config: Config, model_type: str) -> dict[str, Any]:
    """*config* with transformers' defaults for the keys that it leaves out.

    Raises:
        Unsupported: it leaves out a key whose default differs between versions of transformers,
            or the RoPE table if the class of *model_type* scales positions without one.
    """
    table = read_table()
    stated = _list_stated(config, list_names(model_type))
    for key, values in table["differing"].get(model_type, {}).items():
        if key not in stated | _OF_TENSORS:
            listed = ", ".join(
                f"{show_value(value)} in {version}" for version, value in values.items()
            )
            raise Unsupported(
                f"config.json has no {key}, for which versions of transformers assume different "
                f"values: {listed}",
                hint=f"write the {key} that the model was trained with into config.json",
            )
    tables = (config.get("rope_parameters"), config.get("rope_scaling"))
    if model_type in SCALED_BY_DEFAULT and not any(tables):
        raise Unsupported(
            "config.json has no rope_parameters, for which versions of transformers assume "
            f"different values: a scaling of its {model_type} class, or none",
            hint="write the rope_parameters that the model was trained with into config.json",
        )
    defaults = list_defaults(model_type)
    added = {
        key: value
        for key, value in defaults.items()
        if key not in stated | _OF_TENSORS and (value is not None or _may_be_null(key))
    }
    return {**added, **config}


def list_defaults(model_type: str) -> Mapping[str, Any]:
    """Defaults of *model_type*, by key, on which the versions of transformers agree."""
    defaults: Mapping[str, Any] = read_table()["agreed"].get(model_type, {})
    return defaults


def list_names(model_type: str) -> list[tuple[str, str]]:
    """Pairs of the usual name of a key and that of the class of *model_type*, for one value."""
    pairs = [(usual, own) for usual, own in read_table()["names"].get(model_type, ())]
    return [pair for pair in pairs if pair != _FORMER_PAIRS.get(model_type)]


def _may_be_null(key: str) -> bool:
    """True if *key* may be null; the default null of another key is not added to a config."""
    return key in KINDS and KINDS[key].may_be_null


def _list_stated(config: Config, names: Iterable[tuple[str, str]]) -> set[str]:
    """Keys that *config* states, directly or in a RoPE table.

    *names* are pairs of names of one key: if *config* has one of a pair, both are stated.
    """
    stated = set(config)
    for pair in names:
        if stated & {*pair}:
            stated.update(pair)
    return stated | {name for name in _OF_ROPE if _is_in_rope(name, config)}


def _is_in_rope(name: str, config: Config) -> bool:
    """True if *config* has the RoPE parameter *name* in a table that counts.

    ``rope_scaling`` hides ``rope_parameters``, unless the latter has a table for each kind of
    layer. A layer whose table lacks ``rope_theta`` has the default, so all of them must state it.
    """
    table = config.get("rope_parameters")
    of_layers = [own for own in table.values() if isinstance(own, dict)] if table else []
    if of_layers:
        has_name = [own.get(name) is not None for own in of_layers]
        return all(has_name) if name == "rope_theta" else any(has_name)
    counting = config.get("rope_scaling") or table or {}
    return counting.get(name) is not None
