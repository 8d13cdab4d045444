"""Classes that a folder names: whether it writes text, makes vectors or scores labels."""

import pytest

from bitnet.base.errors import Unsupported
from bitnet.families.config_json import describe

# The class of the folder's own code that has an output head.
CHATGLM_WITH_HEAD = "modeling_chatglm.ChatGLMForConditionalGeneration"
# ``config.json`` of THUDM/chatglm3-6b without the keys that change nothing.
CHATGLM3 = {
    "model_type": "chatglm",
    "architectures": ["ChatGLMModel"],
    "auto_map": {
        "AutoConfig": "configuration_chatglm.ChatGLMConfig",
        "AutoModel": CHATGLM_WITH_HEAD,
        "AutoModelForCausalLM": CHATGLM_WITH_HEAD,
        "AutoModelForSeq2SeqLM": CHATGLM_WITH_HEAD,
        "AutoModelForSequenceClassification": "modeling_chatglm.ChatGLMForSequenceClassification",
    },
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "ffn_hidden_size": 13696,
    "hidden_size": 4096,
    "kv_channels": 128,
    "layernorm_epsilon": 1e-05,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 32,
    "num_layers": 28,
    "original_rope": True,
    "padded_vocab_size": 65024,
    "post_layer_norm": True,
    "rmsnorm": True,
    "seq_length": 32768,
    "tie_word_embeddings": False,
}
QWEN2 = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "tie_word_embeddings": False,
    "vocab_size": 96,
}
XLM_ROBERTA = {
    "model_type": "xlm-roberta",
    "hidden_act": "gelu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 66,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "vocab_size": 96,
}


def qwen2(architectures, auto_map=None):
    """The ``config.json`` of a tiny Qwen 2 that names these classes."""
    return QWEN2 | {"architectures": architectures, "auto_map": auto_map}


def test_chatglm_has_a_head_though_architectures_names_its_headless_class():
    description = describe(CHATGLM3, model="m")
    assert not description.headless
    assert description.vocab_size == 65024
    # Without its code's classes, the inner class of ``architectures`` counts.
    assert describe({**CHATGLM3, "auto_map": None}, model="m").headless


@pytest.mark.parametrize(
    ("config", "is_headless"),
    [
        (qwen2(["Qwen2ForCausalLM"]), False),
        (qwen2(None), False),
        (qwen2(["Qwen2Model"]), True),
        (qwen2(["Qwen2Model"], {"AutoModel": "modeling_qwen.Qwen2Model"}), True),
        # ``architectures`` names a class with a head; AutoModel makes one without.
        (qwen2(["Qwen2ForCausalLM"], {"AutoModel": "modeling_qwen.Qwen2Model"}), False),
    ],
)
def test_the_class_in_architectures_decides_whether_the_model_has_a_head(config, is_headless):
    assert describe(config, model="m").headless is is_headless


@pytest.mark.parametrize("name", ["XLMRobertaModel", "XLMRobertaForSequenceClassification"])
def test_the_own_classes_of_a_model_type_with_a_hyphen_are_known(name):
    head = "XLMRobertaForSequenceClassification"
    own = {
        "AutoConfig": "configuration_xlm_roberta.XLMRobertaConfig",
        "AutoModel": "modeling_xlm_roberta.XLMRobertaModel",
        "AutoModelForSequenceClassification": f"modeling_xlm_roberta.{head}",
    }
    xlm_roberta = XLM_ROBERTA | {"architectures": [name]}
    description = describe(xlm_roberta | {"auto_map": own}, model="m")
    assert description.metadata == describe(xlm_roberta, model="m").metadata
    # Jina's code has these names for its models, and another for their configuration.
    own["AutoConfig"] = "configuration_xlm_roberta.XLMRobertaFlashConfig"
    with pytest.raises(Unsupported, match="custom code"):
        describe(xlm_roberta | {"auto_map": own}, model="m")


def test_a_class_that_the_family_does_not_compute_is_refused():
    with pytest.raises(Unsupported, match="custom code"):
        describe(qwen2(["Qwen2ForCausalLM"], {"AutoModel": "modeling_own.OwnModel"}), model="m")
    with pytest.raises(Unsupported, match="neither generates text nor computes embeddings"):
        describe(qwen2(["Qwen2ForTokenClassification"]), model="m")
