"""Keys of a GGUF file outside of its architecture's: each is read, changes nothing, or is refused.

A key without a rule here is not refused: nothing reads it, and the audit of a file warns of it.
The keys are those of llama.cpp b11434 (``src/llama-arch.cpp``, as ``tests/data/
llama_cpp_keys.json`` lists them) and of gguf-py 0.19 (``constants.py``), with what
:mod:`bitnet.tokenizer.from_gguf` reads.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from bitnet.families.keys import HARMLESS, Rule, read, refusal
from bitnet.formats.samplers import read_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping

_SAMPLING = "general.sampling."
_GGML = "tokenizer.ggml."
#: Prefixes of the keys that :func:`find_unknown_keys` looks at.
PREFIXES = ("general.", "tokenizer.", "split.", "adapter.", "xielu.")

# With any value of such a key llama.cpp computes products with fewer bits.
_FEWER_BITS = Rule("products in llama.cpp with fewer bits", ())


_PATTERNS = (
    re.compile(
        r"general\.(base_model|dataset)\.\d+\."
        r"(name|author|version|organization|description|url|doi|uuid|repo_url)"
    ),
    re.compile(r"tokenizer\.chat_template\..+"),
)


def _under(prefix: str, names: str, rule: Rule) -> dict[str, Rule]:
    return {f"{prefix}{name}": rule for name in names.split()}


#: Rules of the keys, by their names.
RULES: dict[str, Rule] = {
    **_under("general.", "architecture alignment type file_type", read("container")),
    **_under(
        "general.",
        "quantization_version name author version organization finetune basename description "
        "quantized_by size_label license license.name license.link url doi uuid repo_url "
        "source.url source.doi source.uuid source.repo_url source.huggingface.repository "
        "base_model.count dataset.count tags languages datasets",
        HARMLESS,
    ),
    **_under(
        _SAMPLING,
        "temp top_k top_p min_p penalty_repeat penalty_last_n sequence xtc_probability "
        "xtc_threshold mirostat mirostat_tau mirostat_eta",
        read("default of an answer"),
    ),
    **_under("general.tensor_extra.", "name prec_a4", _FEWER_BITS),
    **_under(
        _GGML,
        "model pre tokens token_type scores merges bos_token_id eos_token_id eot_token_id "
        "eom_token_id unknown_token_id cls_token_id seperator_token_id add_bos_token "
        "add_eos_token add_sep_token add_space_prefix remove_extra_whitespaces "
        "precompiled_charsmap normalizer.lowercase normalizer.strip_accents fim_pad_token_id "
        "fim_rep_token_id fim_sep_token_id vocab_size",
        read("tokenizer"),
    ),
    f"{_GGML}suppress_tokens": read("ids that no answer has"),
    **_under(
        _GGML,
        "token_type_count padding_token_id mask_token_id fim_pre_token_id fim_suf_token_id "
        "fim_mid_token_id prefix_token_id suffix_token_id middle_token_id",
        HARMLESS,
    ),
    **_under("split.", "no count tensors.count", read("container")),
    # Keys of adapters, which ``adapters.py`` reads; no file is both an adapter and a model.
    **_under(
        "adapter.",
        "type lora.alpha lora.task_name lora.prompt_prefix alora.invocation_tokens",
        read("adapter"),
    ),
    # numbers of Apertus, whose names do not begin with the architecture
    **_under("xielu.", "alpha_n alpha_p beta eps", read("activation of Apertus")),
    **_under("tokenizer.", "chat_template chat_templates", read("conversations")),
    "tokenizer.huggingface.json": HARMLESS,  # the keys above count, as in llama.cpp
    "tokenizer.rwkv.world": HARMLESS,  # its model is refused by tokenizer.ggml.model
}


def find_unknown_keys(metadata: Mapping[str, Any]) -> list[str]:
    """Keys of *metadata* below :data:`PREFIXES` that no table has, in file order."""
    return [
        key
        for key in metadata
        if key.startswith(PREFIXES)
        and key not in RULES
        and not any(pattern.fullmatch(key) for pattern in _PATTERNS)
    ]


def find_not_followed(metadata: Mapping[str, Any]) -> list[str]:
    """Keys of *metadata* that name samplers which answers here do not have."""
    key = f"{_SAMPLING}sequence"
    sequence = metadata.get(key)
    if isinstance(sequence, str) and read_sequence(sequence)[1]:
        return [key]
    return []


def check_outside_keys(metadata: Mapping[str, Any], model: str) -> None:
    """Refuse a *model* with a key by which llama.cpp computes other logits."""
    for key, value in metadata.items():
        if RULES.get(key) is _FEWER_BITS:
            printable = value if isinstance(value, str | int | float) else list(value)
            why = "products with fewer bits, as llama.cpp computes them then, are not computed"
            raise refusal(key, printable, why, model=model)
