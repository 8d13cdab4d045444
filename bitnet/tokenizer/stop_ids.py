"""Collect all ids that end a generation.

The list of texts is the one llama.cpp keeps (``special_eog_ids`` in ``src/llama-vocab.cpp``), since
few files name more than one of their end tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["END_OF_GENERATION", "stop_ids"]

END_OF_GENERATION = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
        "<|eot|>",  # LLaMA-4
        "<|eom|>",
        # Fill-in-the-middle models end with a marker of the next file or padding.
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<reponame>",
        "<|file_sep|>",
    }
)


def stop_ids(special: Mapping[str, int], declared: Iterable[int | None]) -> frozenset[int]:
    """Every id that ends a generation.

    Args:
        special: control and user-defined tokens by text.
        declared: stop ids in the file: EOS, end of turn, end of message,
            ``generation_config.json``'s list; ``None`` is skipped.
    """
    named = frozenset(id for id in declared if id is not None)
    found = {text: id for text, id in special.items() if text in END_OF_GENERATION}
    # In these vocabularies <|end|> closes a message in the middle of an answer, and </s> is an
    # HTML tag; a file that declares them stop tokens is believed nevertheless.
    harmony = "<|return|>" in found and "<|call|>" in found
    solar = "<|flush|>" in found and ("<|call|>" in found or "<|calls|>" in found)
    if harmony or solar:
        found.pop("<|end|>", None)
    if "<|tool_response>" in found or "<table>" in special:
        found.pop("</s>", None)
    return named | frozenset(found.values())
