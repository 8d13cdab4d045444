"""Defaults of transformers for keys that a ``config.json`` leaves out.

The table beside this file was read from its configuration classes (``tests/support/
config_defaults.py``) in the versions that it names, from 4.30 on. A key counts in those versions
that have it. Where they agree, a folder without the key means that value; where they differ, it has
no one meaning, and is refused.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import Unsupported
from bitnet.families.config_values import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bitnet.families.keys import Config

_OF_ROPE = {"rope_theta", "partial_rotary_factor"}
# Types whose configuration class assumes scaled positions where config.json has no table of them:
# transformers 5.24 by its own table whatever `rope_theta` says, 4.57 none for a null.
SCALED_BY_DEFAULT = frozenset({"apertus", "apertus1p5_text", "cwm", "gpt_oss", "ministral3"})
# Keys that the tensors of a folder decide, if config.json leaves them out.
_OF_TENSORS = {"vocab_size"}
_TABLE = Path(__file__).with_suffix(".json")


@cache
def read_table() -> Mapping[str, Any]:
    """The table, by model type below ``agreed``, ``differing`` and ``names``.

    The first two have values of keys, the last pairs of names of one key; ``versions`` lists where
    they are from.
    """
    table: Mapping[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return table


def with_defaults(config: Config, model_type: str) -> dict[str, Any]:
    """*config* with transformers' defaults for the keys that it leaves out.

    Raises:
        Unsupported: it leaves out a key for which versions of transformers have other defaults,
            or the table of positions that a class scales.
    """
    table = read_table()
    stated = _list_stated(config, table["names"].get(model_type, ()))
    for key, values in table["differing"].get(model_type, {}).items():
        if key not in stated | _OF_TENSORS:
            listed = ", ".join(f"{value} in {version}" for version, value in values.items())
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
    """Defaults by key on which the versions of transformers agree."""
    defaults: Mapping[str, Any] = read_table()["agreed"].get(model_type, {})
    return defaults


def _may_be_null(key: str) -> bool:
    """True if code that reads *key* knows null; elsewhere it is computed as a missing one is."""
    return key in KINDS and KINDS[key].may_be_null


def _list_stated(config: Config, names: Iterable[tuple[str, str]]) -> set[str]:
    """Keys that *config* has: by one of their *names*, or below its position embedding."""
    stated = set(config)
    for pair in names:
        if stated & {*pair}:
            stated.update(pair)
    for name in ("rope_parameters", "rope_scaling"):
        tables = [config.get(name)]
        for table in tables:
            if isinstance(table, dict):
                stated.update(_OF_ROPE & table.keys())
                tables.extend(table.values())
    return stated
