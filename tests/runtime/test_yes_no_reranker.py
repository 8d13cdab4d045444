"""Qwen3-Reranker: a decoder whose logits of "yes" and "no" score a document."""

import importlib.util
import json

import numpy as np
import pytest
from quiet_libraries import QUIET

REASON = "sentence-transformers is not installed: pip install 'bitnet-xtask[parity]'"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
sentence_transformers = pytest.importorskip("sentence_transformers", reason=REASON)

from builders import STRING, Tensor, Typed, vocabulary, write_gguf  # noqa: E402 - needs torch
from hf_folders import tokenizer_folder  # noqa: E402
from sentence_folders import change_json, randomize  # noqa: E402
from sentence_transformers.base.modules import Transformer  # noqa: E402
from sentence_transformers.cross_encoder.modules import LogitScore  # noqa: E402
from server_process import listening  # noqa: E402

from bitnet import load  # noqa: E402
from bitnet.base.errors import InvalidFormat, Unsupported  # noqa: E402
from bitnet.formats.containers import open_checkpoint  # noqa: E402
from bitnet.tokenizer.spec import byte_spelling  # noqa: E402

pytestmark = QUIET
MAX_DIFFERENCE = 2e-4  # of scores: the compiled module keeps keys and values in 16 bits
QUERY = "which animals eat"
DOCUMENTS = ["dogs eat", "", "the sky is blue {query}", "a man {document} " * 3, "Dogs eat food."]
TOKENS = [*(byte_spelling(bytes([byte])) for byte in range(256)), "yes", "no", "<pad>"]
YES = 256
NO = 257
# The prompt of a pair, in a GGUF file and as a chat template of a folder.
TEMPLATE = "judge only yes or no\nquery: {query}\ndocument: {document}\nanswer:\n\n"
CHAT = """{% for message in messages %}{% if message.role == "system" %}{{ message.content }}
{% endif %}{% endfor %}query: {{ messages | selectattr("role", "eq", "query") |
map(attribute="content") | first }}
document: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}
{% if add_generation_prompt %}answer:{% endif %}"""


def decoder():
    """A random Qwen3 of transformers, whose weights are the same in each call."""
    torch.manual_seed(2)
    config = transformers.Qwen3Config(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.Qwen3ForCausalLM(config).float().eval()
    randomize(model)
    return model


def reranker_file(path, **changes):
    """The decoder as llama.cpp's converter writes it: rows of the head, labels, a template."""
    model = decoder()
    config = model.config
    keys = {
        "general.architecture": "qwen3",
        "qwen3.attention.head_count": config.num_attention_heads,
        "qwen3.attention.head_count_kv": config.num_key_value_heads,
        "qwen3.attention.key_length": config.head_dim,
        "qwen3.attention.value_length": config.head_dim,
        "qwen3.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "qwen3.block_count": config.num_hidden_layers,
        "qwen3.classifier.output_labels": Typed(STRING, ["yes", "no"]),
        "qwen3.context_length": config.max_position_embeddings,
        "qwen3.embedding_length": config.hidden_size,
        "qwen3.feed_forward_length": config.intermediate_size,
        "qwen3.pooling_type": 4,
        "qwen3.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "tokenizer.chat_template.rerank": TEMPLATE,
        "tokenizer.chat_templates": Typed(STRING, ["rerank"]),
        **vocabulary(TOKENS, merges=[], token_types=[1] * len(TOKENS), pre="qwen2"),
    }
    keys = {key: value for key, value in (keys | changes).items() if value is not None}
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    inner = {
        "input_layernorm": "attn_norm",
        "mlp.down_proj": "ffn_down",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.k_norm": "attn_k_norm",
        "self_attn.k_proj": "attn_k",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.v_proj": "attn_v",
    }
    for layer in range(config.num_hidden_layers):
        names |= {
            f"model.layers.{layer}.{own}.weight": f"blk.{layer}.{gguf}.weight"
            for own, gguf in inner.items()
        }
    weights = {names[own]: tensor for own, tensor in model.state_dict().items() if own in names}
    weights["cls.output.weight"] = weights["token_embd.weight"][[YES, NO]]
    tensors = [
        Tensor(name, tuple(tensor.shape), 0, tensor.contiguous().numpy().tobytes())
        for name, tensor in weights.items()
    ]
    return write_gguf(path, keys, tensors)


def expected_scores(texts):
    """Probability of YES rather than NO after each text, by transformers, ``(N,)``."""
    model = decoder()
    scores = []
    for text in texts:
        ids = torch.tensor([list(text.encode())])
        with torch.no_grad():
            logits = model(ids).logits[0, -1, [YES, NO]]
        scores.append(float(logits.softmax(-1)[0]))
    return np.array(scores)


def filled(document):
    """TEMPLATE with QUERY and *document*; braces in the document stay as they are."""
    before, after = TEMPLATE.split("{query}")
    return f"{before}{QUERY}{after.replace('{document}', document)}"


def test_scores_of_a_file_are_those_of_transformers(tmp_path):
    file = reranker_file(tmp_path / "reranker.gguf")
    with load(file) as model:
        scores = model.rank(QUERY, DOCUMENTS)
    expected = expected_scores([filled(document) for document in DOCUMENTS])
    assert np.ptp(expected) > 0.01  # the documents have different scores
    np.testing.assert_allclose(scores, expected, atol=MAX_DIFFERENCE)


@pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason="xllamacpp is not installed: an extra of crossval",
)
def test_scores_of_a_file_are_those_of_llama_cpp(tmp_path):
    import xllamacpp

    file = reranker_file(tmp_path / "reranker.gguf")
    settings = xllamacpp.CommonParams()
    settings.model.path = str(file)
    settings.embedding = True
    settings.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    settings.n_ctx = 256
    settings.warmup = False
    # llama.cpp would also fill placeholders within a document.
    documents = [document for document in DOCUMENTS if "{" not in document]
    question = {"query": QUERY, "documents": documents, "model": "it"}
    answer = xllamacpp.Server(settings).handle_rerank(question)
    theirs = np.empty(len(documents))
    for entry in answer["results"]:
        theirs[entry["index"]] = entry["relevance_score"]
    with load(file) as model:
        np.testing.assert_allclose(model.rank(QUERY, documents), theirs, atol=1e-3)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"query": "a", "documents": ["b" * 400]}, "documents"),
        ("/v1/score", {"text_1": "a", "text_2": "b" * 400}, "text_2"),
    ],
)
def test_a_document_that_is_too_long_is_the_clients_error(tmp_path, path, body, param):
    with listening(reranker_file(tmp_path / "reranker.gguf")) as worker:
        reply = worker.post(path, body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == param


def test_texts_without_a_query_have_no_classes(tmp_path):
    file = reranker_file(tmp_path / "reranker.gguf")
    with load(file) as model, pytest.raises(Unsupported, match="no labels of texts") as refusal:
        model.classify(DOCUMENTS)
    assert refusal.value.hint == "bitnet rank --help"


def test_a_model_without_a_template_is_refused(tmp_path):
    template = {"tokenizer.chat_template.rerank": None, "tokenizer.chat_templates": None}
    file = reranker_file(tmp_path / "reranker.gguf", **template)
    with load(file) as model, pytest.raises(Unsupported, match="has no chat template"):
        model.rank(QUERY, DOCUMENTS)
    chat = {"tokenizer.chat_template": "{{ messages[0].content }}"}
    file = reranker_file(tmp_path / "chat.gguf", **template, **chat)
    with load(file) as model, pytest.raises(Unsupported, match="no place for a document"):
        model.rank(QUERY, DOCUMENTS)


@pytest.fixture
def folder(tmp_path):
    """Folder of a reranker as sentence-transformers writes it, and its CrossEncoder."""
    source = tmp_path / "source"
    decoder().save_pretrained(source)
    tokenizer_folder(source, TOKENS)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    (source / "chat_template.jinja").write_text(CHAT)
    modules = [
        Transformer(str(source), transformer_task="text-generation"),
        LogitScore(YES, NO),
    ]
    encoder = sentence_transformers.CrossEncoder(
        modules=modules,
        device="cpu",
        prompts={"web": "judge only yes or no"},
        default_prompt_name="web",
    )
    encoder.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    return tmp_path / "model", encoder


def test_scores_of_a_folder_are_those_of_the_cross_encoder(folder):
    path, encoder = folder
    expected = encoder.predict([(QUERY, document) for document in DOCUMENTS])
    assert np.ptp(expected) > 0.01
    with load(path) as model:
        np.testing.assert_allclose(model.rank(QUERY, DOCUMENTS), expected, atol=MAX_DIFFERENCE)


@pytest.mark.parametrize("function", [torch.nn.Identity(), torch.nn.Sigmoid()])
def test_the_activation_of_the_logit_difference_is_that_of_the_cross_encoder(
    folder, function, tmp_path
):
    _, encoder = folder
    encoder.activation_fn = function
    path = tmp_path / "saved"
    encoder.save_pretrained(str(path), create_model_card=False)
    expected = encoder.predict([(QUERY, document) for document in DOCUMENTS])
    with load(path) as model:
        scores = model.rank(QUERY, DOCUMENTS)
    # Differences of logits, without a sigmoid, are larger than probabilities.
    np.testing.assert_allclose(scores, expected, atol=10 * MAX_DIFFERENCE)


def test_an_unknown_activation_of_the_logit_difference_is_refused(folder):
    path, _ = folder
    change_json(path / "config_sentence_transformers.json", activation_fn="torch.nn.Tanh")
    with pytest.raises(Unsupported, match=r"activation_fn = .torch\.nn\.Tanh"):
        open_checkpoint(path)


def test_tokens_without_a_row_of_the_head_are_refused(folder):
    path, _ = folder
    change_json(path / "1_LogitScore/config.json", true_token_id=len(TOKENS))
    with pytest.raises(InvalidFormat, match="the head has 259 rows"):
        open_checkpoint(path)
    change_json(path / "1_LogitScore/config.json", true_token_id=YES, false_token_id=None)
    with pytest.raises(Unsupported, match="false_token_id"):
        open_checkpoint(path)
