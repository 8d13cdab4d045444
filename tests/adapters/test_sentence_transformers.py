"""A model of ours as a ``SentenceTransformer``."""

import numpy as np
import pytest

from bitnet import load
from bitnet.shipped import SHIPPED

pytest.importorskip("sentence_transformers")
adapter = pytest.importorskip("bitnet.adapters.sentence_transformers")
TEXTS = ["She was happy.", "Mr. Darcy", "a", "a" * 40]


@pytest.fixture
def model():
    with load(SHIPPED["bitnet-tiny"].path) as model:
        yield model


def test_vectors_are_those_of_the_model_in_any_order_of_length(model):
    made = adapter.sentence_transformer(model)
    assert np.array_equal(made.encode(TEXTS, batch_size=2), model.embed(TEXTS))
    assert np.array_equal(made.encode(TEXTS[0]), model.embed(TEXTS[0])[0])
    assert made.get_embedding_dimension() == model.config.dim
    assert made.encode(TEXTS, truncate_dim=16).shape == (4, 16)
    assert made.max_seq_length == model.context
    similar = made.similarity(made.encode(TEXTS), made.encode(TEXTS)).numpy()
    assert np.allclose(np.diag(similar), 1, atol=1e-5)


def test_prompts_stand_before_texts(model):
    from bitnet.formats.checkpoint import Prompts

    model.prompts = Prompts({"query": "Find: "}, "query")
    made = adapter.sentence_transformer(model)
    expected = model.embed("Find: Mr. Darcy", prompt_name="")[0]
    assert np.array_equal(made.encode("Mr. Darcy"), expected)
    assert np.array_equal(made.encode("Mr. Darcy", prompt_name="query"), expected)
    plain = made.encode("Mr. Darcy", prompt="")
    assert np.array_equal(plain, model.embed("Mr. Darcy", prompt_name="")[0])
    assert not np.array_equal(plain, expected)
