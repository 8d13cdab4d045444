"""Defaults of transformers' configuration classes, from which a table of the package is written.

Run by any interpreter with transformers, without bitnet,

    python config_defaults.py < keys.json     # {"llama": ["rms_norm_eps", ...], ...}

prints the version of transformers and, for each model type that it knows, the defaults of these
keys. With interpreters as arguments this program, which then needs bitnet, runs itself by each of
them, and writes the table from all results:

    python tests/support/config_defaults.py PYTHON PYTHON ...
"""

import dataclasses
import inspect
import json
import logging
import subprocess
import sys
import warnings
from pathlib import Path

TABLE = Path(__file__).parents[2] / "bitnet" / "families" / "config_defaults.json"
#: Keys that an object of the class computes from others, or has in its ``rope_parameters``.
_OF_AN_INSTANCE = ("tie_word_embeddings", "rope_theta", "partial_rotary_factor")
#: Keys that the table leaves out: what a class declares for them says nothing about a model.
_NOT_OF_A_CLASS = {
    *("architectures", "auto_map", "quantization_config", "rope_parameters", "rope_scaling"),
    *("is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder", "pruned_heads"),
}


def _declared(kind):
    """Defaults in the declaration of the class *kind*, by name."""
    defaults = {}
    if dataclasses.is_dataclass(kind):
        for entry in dataclasses.fields(kind):
            if entry.default is not dataclasses.MISSING:
                defaults[entry.name] = entry.default
            elif entry.default_factory is not dataclasses.MISSING:
                defaults[entry.name] = entry.default_factory()
        return defaults
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            defaults[name] = parameter.default
    return defaults


def _of_instance(kind, declared):
    """Values of _OF_AN_INSTANCE that an object of the class *kind* has, made without arguments."""
    try:
        instance = kind()
    except Exception:  # noqa: BLE001 - classes that need arguments have what they declare
        return {name: declared[name] for name in _OF_AN_INSTANCE if name in declared}
    rope = getattr(instance, "rope_parameters", None)
    tied = getattr(instance, "tie_word_embeddings", None)  # parts of some models lack it
    values = {} if tied is None else {"tie_word_embeddings": tied}
    for name in ("rope_theta", "partial_rotary_factor"):
        stated = _in_tables(name, rope if isinstance(rope, dict) else {})
        if stated is not None:
            values[name] = stated
        elif getattr(instance, name, None) is not None:
            values[name] = getattr(instance, name)
        elif declared.get(name) is not None:
            values[name] = declared[name]
    return values


def _in_tables(name, rope):
    """Value of *name* in *rope*, a table or one for each kind of layers; None if they differ."""
    tables = [table for table in rope.values() if isinstance(table, dict)] or [rope]
    values = {table.get(name) for table in tables}
    return values.pop() if len(values) == 1 else None


def _is_plain(value):
    """True for a number, a word or a flag: lists and tables depend on the size of a model."""
    return value is None or isinstance(value, bool | int | float | str)


def read_defaults(keys_by_type):
    """Defaults of the keys of each model type that the installed transformers knows."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from transformers import CONFIG_MAPPING

    rows = {}
    for model_type, keys in keys_by_type.items():
        if model_type not in CONFIG_MAPPING:
            continue
        kind = outer = CONFIG_MAPPING[model_type]
        parts = getattr(kind, "sub_configs", None) or {}
        if isinstance(parts.get("text_config"), type):
            kind = parts["text_config"]  # older folders have its keys beside the outer model's type
        declared = _declared(kind)
        values = declared | _of_instance(kind, declared)
        if outer is not kind:
            tied = _of_instance(outer, _declared(outer)).get("tie_word_embeddings")
            if tied is not None:
                values["tie_word_embeddings"] = tied
        names = sorted({*keys} - _NOT_OF_A_CLASS)
        defaults = {key: values[key] for key in names if key in values and _is_plain(values[key])}
        pairs = [pair for pair in kind.attribute_map.items() if {*pair} <= {*keys}]
        rows[model_type] = {"defaults": defaults, "names": pairs}
    return rows


def version():
    """Version of the installed transformers."""
    import transformers

    return transformers.__version__


def keys_to_read():
    """Keys of ``config.json`` that can change each model type's computation, by model type."""
    from bitnet.families.config_json import CHANGES, READ
    from bitnet.families.family import families

    keys = {}
    for family in families():
        rules = {**CHANGES, **READ, **family.config_rules}
        names = [name for name, rule in rules.items() if rule.is_read or rule.values is not None]
        for model_type in family.model_types:
            keys[model_type] = sorted({*keys.get(model_type, ()), *names})
    return keys


def _comparable(value):
    """*value* as a text that equal values share: 10000 and 10000.0, but not 1 and true."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return json.dumps(float(value) if is_integer else value)


def merge(by_version):
    """The table of the defaults of each version of transformers.

    It has the values in which versions agree, those in which they differ, and pairs of names for
    the same key.
    """
    agreed = {}
    differing = {}
    names = {}
    for model_type in sorted({name for table in by_version.values() for name in table}):
        rows = {v: table[model_type] for v, table in by_version.items() if model_type in table}
        pairs = sorted({tuple(pair) for row in rows.values() for pair in row["names"]})
        if pairs:
            names[model_type] = pairs
        columns = {v: row["defaults"] for v, row in rows.items()}
        agreed[model_type] = {}
        for key in sorted({key for column in columns.values() for key in column}):
            values = {v: column[key] for v, column in columns.items() if key in column}
            distinct = {_comparable(value) for value in values.values()}
            if len(distinct) == 1:
                agreed[model_type][key] = next(iter(values.values()))
            else:
                differing.setdefault(model_type, {})[key] = values
    return {"versions": [*by_version], "agreed": agreed, "differing": differing, "names": names}


def render(table):
    """The text of the file with *table*: a line for each model type."""
    parts = [f'"versions": {json.dumps(table["versions"])}']
    for name in ("agreed", "differing", "names"):
        lines = [
            f"{json.dumps(model_type)}: {json.dumps(row)}"
            for model_type, row in table[name].items()
        ]
        parts.append(f'"{name}": {{\n' + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _write(pythons):
    """Write the table from the defaults that each of the interpreters *pythons* prints."""
    keys = json.dumps(keys_to_read())
    by_version = {}
    for python in pythons:
        done = subprocess.run(
            [python, __file__], input=keys, capture_output=True, text=True, check=True
        )
        reply = json.loads(done.stdout.splitlines()[-1])
        by_version[reply["version"]] = reply["defaults"]
    TABLE.write_text(render(merge(by_version)))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _write(sys.argv[1:])
    else:
        reply = {"defaults": read_defaults(json.load(sys.stdin)), "version": version()}
        print(json.dumps(reply))
