"""Random folders of every family that transformers loads, which a comparison has to pass."""

from functools import partial

from dense_models import DENSE
from hf_folders import tokenizer_folder
from hf_models import TINY, make, torch, transformers
from mixed_models import MIXED
from tiny_models import TOKENS

# Class and options of each decoder, by case. transformers has no MiniCPM: the code of those
# repositories is their own.
WRITERS = {case: model for case, model in (DENSE | MIXED).items() if model[0] != "MiniCPM"}
# The epsilon of its configuration, 1e-8, is too small for a mistake in it to be seen.
WRITERS["helium"] = ("Helium", DENSE["helium"][1] | {"rms_norm_eps": 1e-6})
# transformers 5.24 sets the row of a padding token to zero when it loads this model.
WRITERS["youtu"] = ("Youtu", DENSE["youtu"][1] | {"pad_token_id": None})

# For encoders that read it from their configuration; DistilBERT always has 1e-12.
_EPSILON = {"layer_norm_eps": 1e-5}
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
_OF_MODERN = _SPECIAL | {"cls_token_id": 2, "sep_token_id": 3}
# Class and options of each encoder, by case.
ENCODERS = {
    "bert": ("Bert", _EPSILON),
    "bert-one-text": ("Bert", _EPSILON | {"type_vocab_size": 1}),
    "roberta": ("Roberta", _EPSILON | {"pad_token_id": 0}),
    "xlm-r": ("XLMRoberta", _EPSILON | {"pad_token_id": 0}),
    "mpnet": ("MPNet", _EPSILON | {"pad_token_id": 1, "max_position_embeddings": 66}),
    "distilbert": ("DistilBert", {"dim": 64, "n_heads": 4, "n_layers": 3, "hidden_dim": 128}),
    "modernbert": ("ModernBert", _OF_MODERN | {"local_attention": 8}),
    "modernbert-silu": (
        "ModernBert",
        _OF_MODERN | {"local_attention": 7, "hidden_activation": "silu", "num_hidden_layers": 5},
    ),
    "eurobert": ("EuroBert", _SPECIAL | {"num_key_value_heads": 2, "mask_token_id": 4}),
    "nomic": ("NomicBert", _SPECIAL),
    "gte": ("Gte", _SPECIAL),
    "gte-without-types": ("Gte", _SPECIAL | {"type_vocab_size": 0}),
    "jina-v3": ("JinaEmbeddingsV3", _SPECIAL),
}
_ENCODER_SIZES = {
    "vocab_size": TINY["vocab_size"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}

# Tokens, as many as the embeddings of the models have rows.
WORDS = (*TOKENS, *(f"<more {number}>" for number in range(TINY["vocab_size"] - len(TOKENS))))


def _write_encoder(kind, options, folder):
    """Write a random encoder of the class *kind* into *folder*."""
    torch.manual_seed(4)
    config = getattr(transformers, f"{kind}Config")(**(_ENCODER_SIZES | options))
    model = getattr(transformers, f"{kind}Model")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)


_BOTH_WAYS = ("HrmText", DENSE["hrm-text"][1] | {"prefix_lm": True})
#: Function that writes each of them into a folder, by the name of the case.
FOLDERS = {
    **{case: partial(make, *model) for case, model in WRITERS.items()},
    **{case: partial(_write_encoder, *model) for case, model in ENCODERS.items()},
    # transformers attends in both directions where ``token_type_ids`` mark the prompt, which
    # crossval passes.
    "hrm-text-both-ways": partial(make, *_BOTH_WAYS),
}


def compared_folder(case, folder):
    """The model *case* in *folder*, with a tokenizer."""
    FOLDERS[case](folder)
    return tokenizer_folder(folder, WORDS)
