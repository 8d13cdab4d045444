"""Keys of ``generation_config.json``: each is read, changes nothing, or is named as not followed.

The keys are the attributes of transformers' ``GenerationConfig`` from 4.30 to 5.24.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Keys that :mod:`bitnet.formats.generation` or a tokenizer's stop ids read.
READ = {
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("max_new_tokens", "max_length", "suppress_tokens", "begin_suppress_tokens", "eos_token_id"),
}
# Values that switch off a number or a switch, and those that switch off a list or a table.
_NO = (None, False, 0, 0.0)
_NOTHING: tuple[Any, ...] = (None, [], {}, ())
#: Keys that change an answer of transformers and none here, with the values that change nothing.
NOT_FOLLOWED: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": _NOTHING,
    "constraints": _NOTHING,
    "dola_layers": _NOTHING,
    "encoder_no_repeat_ngram_size": _NO,
    "encoder_repetition_penalty": (None, 1.0),
    "epsilon_cutoff": _NO,
    "eta_cutoff": _NO,
    "exponential_decay_length_penalty": _NOTHING,
    "force_words_ids": _NOTHING,
    "forced_bos_token_id": (None,),
    "forced_decoder_ids": _NOTHING,
    "forced_eos_token_id": (None,),
    "guidance_scale": (None, 1.0),
    "max_time": (None,),
    "min_length": _NO,
    "min_new_tokens": _NO,
    "no_repeat_ngram_size": _NO,
    "num_beams": (None, 1),
    "penalty_alpha": _NO,
    "sequence_bias": _NOTHING,
    "stop_strings": _NOTHING,
    "token_healing": _NO,
    "top_h": (None,),
    "typical_p": (None, 1.0),
    "watermarking_config": _NOTHING,
}
#: Keys that change no token of an answer.
NEUTRAL = {
    # of the tokenizer, and of encoders with a decoder
    *("bos_token_id", "pad_token_id", "decoder_start_token_id"),
    # of beams, of which there is one
    *("diversity_penalty", "early_stopping", "length_penalty", "num_beam_groups"),
    *("num_return_sequences", "renormalize_logits", "low_memory"),
    # of a model's cache, its compilation and its batches
    *("cache_config", "cache_implementation", "compile_config", "continuous_batching_config"),
    *("disable_compile", "max_cache_len", "prefill_chunk_size", "return_legacy_cache", "use_cache"),
    # of drafts, which do not change an answer
    *("assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight"),
    *("assistant_lookbehind", "is_assistant", "max_matching_ngram_size", "num_assistant_tokens"),
    *("num_assistant_tokens_schedule", "prompt_lookup_num_tokens", "speculation_type"),
    *("target_lookbehind", "use_mtp"),
    # of what `generate` returns beside tokens
    *("output_attentions", "output_hidden_states", "output_logits", "output_scores"),
    *("remove_invalid_values", "return_dict_in_generate"),
    # of the file
    *("_from_model_config", "generation_kwargs", "transformers_version"),
}


def find_not_followed(config: Mapping[str, Any]) -> list[str]:
    """Keys of *config* that change an answer of transformers and none here, in file order."""
    return [
        key
        for key, value in config.items()
        if key in NOT_FOLLOWED and value not in NOT_FOLLOWED[key]
    ]


def find_unknown(config: Mapping[str, Any]) -> list[str]:
    """Keys of *config* that are not of transformers, in file order."""
    return [key for key in config if key not in READ | NEUTRAL | NOT_FOLLOWED.keys()]
