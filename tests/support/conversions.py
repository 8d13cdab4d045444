"""A conversion as the command does it."""

from dataclasses import replace
from unittest.mock import patch

from bitnet.convert.run import plan_conversion
from bitnet.tokenizer import export

_compare = export._compare
_COMPARED = set()  # pairs of tokenizers that were equal, as texts


def convert(source, output, options):
    """Write the model at *source* as the GGUF file *output*.

    That its tokenizer is the source's is proved once in a process for each pair of tokenizers: the
    proof takes longer than all else of a tiny model's conversion.
    """
    with patch.object(export, "_compare", _compare_once):
        return plan_conversion(source, options).write(output)


def _compare_once(spec, copied, form, *, extra_facts=()):
    contents = [replace(one, source="", fingerprint="") for one in (spec, copied)]
    pair = repr((contents, form, extra_facts))
    if pair not in _COMPARED:
        _compare(spec, copied, form, extra_facts=extra_facts)
        _COMPARED.add(pair)
