"""The section of a ``tokenizer.json`` that puts ids around a text and joins two texts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bitnet.tokenizer.spec import read_steps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bitnet.tokenizer.spec import TokenizerSpec

# Types of post-processors that put ids around a text.
_AROUND = ("TemplateProcessing", "BertProcessing", "RobertaProcessing")


def write_post_processor(spec: TokenizerSpec) -> dict[str, Any] | None:
    """The section for *spec*; None if nothing is put around or between texts.

    It is that of the ``tokenizer.json`` that *spec* was read from, if that one puts ids around a
    text: it may join two in a way that a specification cannot express.
    """
    own = json.loads(spec.document).get("post_processor") if spec.document else None
    if any(step.type in _AROUND for step in read_steps(own, "processors")):
        return own
    if any(spec.affixes) or spec.middle_ids is not None:
        return _write_template(spec)
    return None


def _write_template(spec: TokenizerSpec) -> dict[str, Any]:
    """Template with the affixes of *spec* and its ids between two texts.

    If *spec* has none between two, each of them has the affixes, with its own type, as transformers
    usually writes it.
    """
    before, after = spec.affixes
    if spec.middle_ids is None:
        second_type = 1
        between = [*_list_items(spec, after), *_list_items(spec, before, second_type)]
    else:
        second_type = spec.second_type
        between = _list_items(spec, spec.middle_ids)

    first = [*_list_items(spec, before), {"Sequence": {"id": "A", "type_id": 0}}]
    second = {"Sequence": {"id": "B", "type_id": second_type}}
    end = _list_items(spec, after, second_type)
    ids_by_text = {spec.tokens[id]: id for id in (*before, *(spec.middle_ids or ()), *after)}
    return {
        "type": "TemplateProcessing",
        "single": [*first, *_list_items(spec, after)],
        "pair": [*first, *between, second, *end],
        "special_tokens": {
            text: {"id": text, "ids": [id], "tokens": [text]} for text, id in ids_by_text.items()
        },
    }


def _list_items(spec: TokenizerSpec, ids: Iterable[int], type_id: int = 0) -> list[dict[str, Any]]:
    """Items of a template for the tokens *ids*, which have the type *type_id*."""
    return [{"SpecialToken": {"id": spec.tokens[id], "type_id": type_id}} for id in ids]
