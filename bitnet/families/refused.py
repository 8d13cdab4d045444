"""Kinds of models that no family reads, by the names of GGUF and of transformers."""

from __future__ import annotations

_KINDS = {
    "an encoder and a decoder, which are not run together": "t5 t5encoder mt5 umt5 bart mbart "
    "pegasus marian led longt5 m2m_100 blenderbot blenderbot_small bigbird_pegasus mvp plbart "
    "prophetnet trocr moshi musicgen musicgen_melody",
    "a diffusion language model, which does not write token by token": "dream llada llada_moe rnd1",
    "a recurrent model (RWKV), whose state is not computed": "rwkv rwkv6 rwkv6qwen2 rwkv7 arwkv7",
    "a recurrent model, whose state is not computed": "recurrent_gemma xlstm",
    "a state space model of the first Mamba, whose scan is not computed": "mamba jamba "
    "falcon_mamba zamba plamo2",
    "a state space model without attention, which has no decoder here": "mamba2",
    "a mixture of states and attention whose blocks are not put together here": "bamba zamba2 "
    "olmo_hybrid lara_mini",
    "attention to chosen positions (sparse attention), which is not computed": "deepseek32 "
    "deepseek_v32 deepseek4 deepseek_v4 glm_dsa glm_moe_dsa glm5_next minimax_m3 "
    "minimax_m3_vl_text dots3note dots3_note dots3_note_text hy_v4 qwen4exp qwen4_exp "
    "qwen4_exp_text",
    "linear attention with a gate for each channel (KDA), which is not computed": "kimi_linear "
    "kimi_k3 bailingmoe3 bailing_hybrid",
    "linear attention without a delta rule (Lightning), which is not computed": "minimax "
    "minimax_01",
    "a gated delta net whose projections are one matrix, which is not split": "qwen3next "
    "qwen3_next",
    "attention in chunks, which is not computed": "llama4 llama4_text",
    "a gate for each head or column of the attention with weights of its own, which is not "
    "computed": "afmoe laguna muse_glimmer spark2_5 step35",
    "blocks that run more than once, with caches of their own": "hrm_text nanbeige",
    "blocks of several residual streams (AltUp), which are not computed": "gemma3n gemma3n_text",
    "attention over latents with keys and values of two widths, which is not computed": "minicpm3 "
    "plm",
    "a mixture of experts with groups of adjugate experts, which are not computed": "grovemoe",
    "experts beside a dense network in one block, which are not put together here": "arctic",
    "sinks of the attention beside windows and scales, which are not put together here": "mimo2 "
    "mimo_v2_flash granite_swa granitemoe_swa",
    "adapters that a token of the text switches on": "graniteswitch",
    "layers of which some have no attention (a pruned model)": "deci",
    "a classifier of texts beside a decoder": "clef",
    "bytes or patches instead of tokens": "blt",
    "a block that drafts tokens for another model": "eagle3 dflash gemma4_assistant "
    "gemma4_unified_assistant",
    "a model of images": "clip siglip vit chameleon cogvlm emu3 fuyu git got_ocr2 mllama",
    "a model of sound": "whisper wav2vec2 wavtokenizer_dec qwen3tts pockettts "
    "moss_transcribe_diarize",
    "a former model whose positions are in the attention itself": "xlnet reformer ctrl xlm",
    "a decoder made of an encoder's class, which is read as an encoder": "bert_generation big_bird "
    "data2vec_text electra ernie megatron_bert rembert roberta_prelayernorm roc_bert roformer "
    "xlm_roberta_xl xmod",
}
_BY_NAME = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def kind_of(architecture: str) -> str:
    """Kind of a model of *architecture*, in words; empty if it is not known."""
    return _BY_NAME.get(architecture.replace("-", "_"), "")


def list_refused() -> tuple[str, ...]:
    """Names of architectures that are refused with a reason of their own."""
    return tuple(sorted(_BY_NAME))
