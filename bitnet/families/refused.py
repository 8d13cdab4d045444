"""Kinds of models that no family reads, by the names of GGUF and of transformers."""

from __future__ import annotations

# Kinds, and the names of their architectures, separated by blanks.
_KINDS = {
    "an encoder and a decoder, which needs a second program and attention between both": "t5 "
    "t5encoder mt5 umt5 bart mbart "
    "pegasus marian led longt5 m2m_100 blenderbot blenderbot_small bigbird_pegasus mvp plbart "
    "prophetnet trocr moshi musicgen musicgen_melody",
    "an encoder whose queries and keys have parts for positions of their own, which are not "
    "computed": "deberta deberta_v2",
    "a diffusion language model, which does not write token by token": "dream llada llada_moe rnd1",
    "a recurrent model (RWKV), which mixes the input of a token with that of the one before, which "
    "is not computed": "rwkv rwkv6 rwkv6qwen2",
    "a recurrent model (RWKV 7), which mixes the input of a token with that of the one before, and "
    "removes from its state along another key than it writes, which is not computed": "rwkv7 "
    "arwkv7",
    "a recurrent model, whose state is not computed": "recurrent_gemma xlstm",
    "a mixture of the first Mamba and attention whose blocks are not put together here": "zamba "
    "plamo2",
    "a mixture of states and attention whose blocks are not put together here": "bamba zamba2 "
    "lara_mini",
    "attention to chosen positions (sparse attention), which is not computed": "deepseek32 "
    "deepseek_v32 axk2 deepseek4 deepseek_v4 glm_dsa glm_moe_dsa glm5_next minimax_m3 "
    "minimax_m3_vl_text dots3note dots3_note dots3_note_text hy_v4 qwen4exp qwen4_exp "
    "qwen4_exp_text",
    "linear attention with a decay for each channel (KDA) in blocks that are not put together "
    "here": "kimi_k3",
    "linear attention without a delta rule (Lightning), which is not computed": "minimax "
    "minimax_01",
    "attention in chunks, which is not computed": "llama4 llama4_text",
    "a gate for each head or column of the attention with weights of its own, which is not "
    "computed": "muse_glimmer step35",
    "attention with keys and values of two widths, which is not computed": "mimo2 mimo_v2_flash",
    "attention over latents whose keys and values are one matrix, which is not taken apart": "plm",
    "differential attention, which is not computed": "diffllama",
    "attention to positions that a mask made of the values chooses, which is not computed": "doge",
    "experts of the attention's heads, which are not computed": "jetmoe",
    "convolutions of queries, keys or values inside the attention, which are not computed": "zaya "
    "inkling_text inkling2_text inkling2_loop_text",
    "positions in the segments of a text, which are not computed": "cpmant",
    "positions as sines that no tensor holds, which are not computed": "xglm",
    "vectors of length one (nGPT), between which blocks turn, which is not computed": "dory",
    "residuals that are scaled at every sum, which is not computed": "beam",
    "experts chosen by logits with a correction before the sigmoid, which is not computed": (
        "kolibri1"
    ),
    "two attentions in a block, beside experts of which some give back their input": (
        "longcat_flash"
    ),
    "a bias of the attention in the last block alone, which is not put together here": (
        "gpt_neox_japanese"
    ),
    "a decoder made of an encoder's class, with a network and a norm in its head": (
        "modernbert_decoder"
    ),
    "a model of images, sound and text in one configuration, which is not taken apart": (
        "phi4_multimodal"
    ),
    "the text of a model that embeds images, too, with a rotation for each kind of layer": (
        "cohere_compass_text"
    ),
    "a mixture of experts with groups of adjugate experts, which are not computed": "grovemoe",
    "embeddings that are added again behind every block, which is not computed": "talkie",
    "adapters that a token of the text switches on": "graniteswitch",
    "layers of which some have no attention (a pruned model)": "deci",
    "a classifier of texts beside a decoder": "clef",
    "bytes or patches instead of tokens": "blt",
    "a block that drafts tokens for another model": "eagle3 dflash gemma4_assistant "
    "gemma4_unified_assistant",
    # got_ocr2 without a text_config; with one, outer_models.py reads it.
    "a model of images": "clip siglip vit chameleon cogvlm emu3 fuyu git got_ocr2 mllama",
    "a model of sound": "whisper wav2vec2 wavtokenizer_dec qwen3tts pockettts "
    "moss_transcribe_diarize",
    "a former model whose positions are in the attention itself": "xlnet",
    "a former model, which is not put together here": "reformer ctrl xlm",
    "a decoder made of an encoder's class, which is not put together here": "bert_generation "
    "big_bird data2vec_text electra ernie megatron_bert rembert roberta_prelayernorm roc_bert "
    "roformer xlm_roberta_xl xmod",
}
_BY_NAME = {name: kind for kind, names in _KINDS.items() for name in names.split()}

#: Architectures whose GGUF files are read, and the reason why their folders are not.
_FOLDERS = {
    "dbrx": "whose folders give two bases of the rotation, of which transformers and llama.cpp "
    "follow one each; its GGUF files are read",
}


def kind_of(architecture: str, *, is_folder: bool = False) -> str:
    """Kind of a model of *architecture*, in words for an error; empty if it is not known.

    A few architectures have one for folders only (*is_folder*), since their GGUF files are read.
    """
    own = _FOLDERS.get(architecture, "") if is_folder else ""
    return own or _BY_NAME.get(architecture.replace("-", "_"), "")


def list_refused() -> tuple[str, ...]:
    """Names of architectures that are refused with a reason of their own."""
    return tuple(sorted(_BY_NAME))
