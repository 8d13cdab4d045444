"""rank and classify as commands, and the routes that do the same."""

import json

import pytest

REASON = "sentence-transformers is not installed: pip install 'bitnet-xtask[parity]'"
pytest.importorskip("torch", reason=REASON)
pytest.importorskip("transformers", reason=REASON)
pytest.importorskip("sentence_transformers", reason=REASON)

from sentence_folders import encoder_folder  # noqa: E402 - needs torch
from server_process import listening  # noqa: E402
from tiny_models import tiny_gguf  # noqa: E402

from bitnet import load  # noqa: E402

HEAD = "ForSequenceClassification"
QUERY = "dogs eating"
DOCUMENTS = ["a man", "dogs run", "never food ."]


@pytest.fixture(scope="module")
def ranker(tmp_path_factory):
    return encoder_folder(tmp_path_factory.mktemp("ranker") / "model", "Bert", HEAD, num_labels=1)


@pytest.fixture(scope="module")
def scores(ranker):
    """Scores of the documents, by the Python API."""
    with load(ranker) as model:
        return model.rank(QUERY, DOCUMENTS).tolist()


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / "docs.txt"
    path.write_text("\n".join(DOCUMENTS))
    return path


def best_first(scores):
    """Indices of *scores*, the highest score first."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])


def test_rank_prints_documents_the_best_first(bitnet, ranker, scores, documents):
    words = ("rank", "--model", ranker, "--query", QUERY, "--input", documents)
    done = bitnet(*words, "--json")
    assert done.code == 0
    results = json.loads(done.out)["results"]
    assert [entry["index"] for entry in results] == best_first(scores)
    for entry in results:
        assert entry["relevance_score"] == pytest.approx(scores[entry["index"]])
        assert entry["text"] == DOCUMENTS[entry["index"]]
    shown = bitnet(*words, "--top-n", 1).out.splitlines()
    assert DOCUMENTS[best_first(scores)[0]] in shown[-1]
    assert len(shown) == 2  # a heading and the best document
    assert shown[-1].split()[1] == str(best_first(scores)[0] + 1)  # the number of its line, from 1


def test_classify_prints_the_share_of_each_label(bitnet, tmp_path, documents):
    labels = {0: "sad", 1: "glad"}
    path = encoder_folder(tmp_path / "model", "Bert", HEAD, num_labels=2, id2label=labels)
    with load(path) as model:
        expected = model.classify(DOCUMENTS)
    done = bitnet("classify", "--model", path, "--input", documents, "--json")
    results = json.loads(done.out)["results"]
    for entry, row in zip(results, expected, strict=True):
        assert entry["label"] == labels[int(row.argmax())]
        assert entry["scores"] == pytest.approx({"sad": row[0], "glad": row[1]})


def test_a_model_without_such_a_head_is_refused_with_what_to_do(bitnet, tmp_path, documents):
    tiny = tiny_gguf(tmp_path / "tiny.gguf")
    for words in (("rank", "--query", "a"), ("classify",)):
        refused = bitnet(*words, "--model", tiny, "--input", documents)
        assert refused.code
        assert "has no head that scores texts" in refused.err
        assert "bitnet embed" in refused.err


def test_without_a_model_nothing_is_fetched(bitnet, documents, monkeypatch):
    monkeypatch.delenv("BITNET_GGUF", raising=False)
    for words in (("rank", "--query", "a"), ("classify",)):
        refused = bitnet(*words, "--input", documents)
        assert refused.code
        assert "no model is named" in refused.err
        assert "smollm2" not in bitnet(*words, "--help").out


@pytest.fixture
def worker(ranker):
    with listening(ranker) as worker:
        yield worker


def test_the_routes_of_rerankers_give_the_scores_of_the_command(worker, scores):
    body = {"query": QUERY, "documents": DOCUMENTS}
    order = best_first(scores)
    for path in ("/v1/rerank", "/rerank", "/v1/reranking", "/v2/rerank"):
        reply = worker.post(path, body).json()
        assert [entry["index"] for entry in reply["results"]] == order
        served = [entry["relevance_score"] for entry in reply["results"]]
        assert served == pytest.approx([scores[index] for index in order])
        assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] > 0
    objects = [{"text": text} for text in DOCUMENTS]
    more = {"documents": objects, "top_n": 2, "return_documents": True}
    reply = worker.post("/v1/rerank", body | more).json()
    shown = [entry["document"]["text"] for entry in reply["results"]]
    assert shown == [DOCUMENTS[index] for index in order[:2]]


def test_texts_in_place_of_documents_are_answered_with_a_list(worker, scores):
    body = {"query": QUERY, "texts": DOCUMENTS, "return_text": True}
    # What text-embeddings-inference documents, with its defaults.
    body |= {"raw_scores": False, "truncate": False, "truncation_direction": "right"}
    reply = worker.post("/rerank", body).json()
    order = best_first(scores)
    assert [(entry["index"], entry["text"]) for entry in reply] == [
        (index, DOCUMENTS[index]) for index in order
    ]
    assert [entry["score"] for entry in reply] == pytest.approx([scores[at] for at in order])


def test_score_pairs_one_text_with_each_or_two_lists(worker, scores):
    with_each = worker.post("/v1/score", {"text_1": QUERY, "text_2": DOCUMENTS}).json()
    lists = worker.post("/v1/score", {"text_1": [QUERY] * 3, "text_2": DOCUMENTS}).json()
    for reply in (with_each, lists):
        assert [entry["score"] for entry in reply["data"]] == pytest.approx(scores)
        assert [entry["index"] for entry in reply["data"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "texts": ["b"]}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [1]}, "documents.0"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"documents": ["b"]}, "query"),
        ("/v1/rerank", {"query": "a", "texts": ["b"], "raw_scores": True}, "raw_scores"),
        ("/v1/rerank", {"query": "a", "texts": ["b"], "truncate": True}, "truncate"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
    ],
)
def test_a_wrong_body_is_refused_by_its_field(path, body, field, worker):
    reply = worker.post(path, body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == field


def test_a_model_that_writes_refuses_to_rank_over_http(tmp_path):
    with listening(tiny_gguf(tmp_path / "tiny.gguf")) as worker:
        reply = worker.post("/v1/rerank", {"query": "a", "documents": ["b"]})
    assert reply.status_code in (400, 501)
    assert "no head that scores texts" in reply.json()["error"]["message"]
