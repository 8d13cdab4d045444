"""A model of ours as a ``SentenceTransformer``."""

import numpy as np
import pytest

from bitnet import load
from bitnet.base.errors import WrongType
from bitnet.shipped import SHIPPED

pytest.importorskip("sentence_transformers")
adapter = pytest.importorskip("bitnet.adapters.sentence_transformers")
TEXTS = ["She was happy.", "Mr. Darcy", "a", "a" * 40]


@pytest.fixture
def model():
    with load(SHIPPED["bitnet-tiny"].path) as model:
        yield model


def test_vectors_are_those_of_the_model_in_any_order_of_length(model):
    """``encode`` sorts texts by length before it makes batches of them."""
    encoder = adapter.sentence_transformer(model)
    assert np.array_equal(encoder.encode(TEXTS, batch_size=2), model.embed(TEXTS))
    assert np.array_equal(encoder.encode(TEXTS[0]), model.embed(TEXTS[0])[0])
    assert encoder.get_embedding_dimension() == model.config.dim
    assert encoder.encode(TEXTS, truncate_dim=16).shape == (4, 16)
    assert encoder.max_seq_length == model.context
    similar = encoder.similarity(encoder.encode(TEXTS), encoder.encode(TEXTS)).numpy()
    assert np.allclose(np.diag(similar), 1, atol=1e-5)  # cosines of float32


@pytest.mark.parametrize("limit", [None, 8, 4096])
def test_texts_beyond_the_limit_lose_their_ends(model, limit):
    long = "She was happy. " * 200
    model.text_limit = limit
    encoder = adapter.sentence_transformer(model)
    # 4096 is beyond the context, which then is the limit.
    assert encoder.max_seq_length == (8 if limit == 8 else model.context)
    ids = model.embedding_ids(long, truncate=True)
    assert len(ids) == encoder.max_seq_length
    assert np.array_equal(encoder.encode(long), model.embed([ids])[0])
    encoder.max_seq_length = 5
    assert np.array_equal(encoder.encode(long), model.embed([model.tokenizer.encode(long)[:5]])[0])


def test_inputs_that_are_not_texts_are_refused(model):
    with pytest.raises(WrongType, match="expected texts"):
        adapter.Embedding(model).preprocess([["a", "b"]])


def test_prompts_stand_before_texts(model):
    from bitnet.formats.checkpoint import Prompts

    model.prompts = Prompts({"query": "Find: "}, "query")
    encoder = adapter.sentence_transformer(model)
    expected = model.embed("Find: Mr. Darcy", prompt_name="")[0]
    assert np.array_equal(encoder.encode("Mr. Darcy"), expected)
    assert np.array_equal(encoder.encode("Mr. Darcy", prompt_name="query"), expected)
    plain = encoder.encode("Mr. Darcy", prompt="")
    assert np.array_equal(plain, model.embed("Mr. Darcy", prompt_name="")[0])
    assert not np.array_equal(plain, expected)
