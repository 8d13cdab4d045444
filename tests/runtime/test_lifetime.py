"""A model is freed with the last reference to it, without the garbage collector."""

import gc
import weakref

import pytest
from tiny_keys import FAMILIES
from tiny_models import tiny, tiny_gguf

from bitnet import load
from bitnet.base.errors import UsageError
from bitnet.formats.mapped_file import MappedFile
from bitnet.kernels.native import select
from bitnet.models.load import load_model
from bitnet.runtime.scheduler import Scheduler
from bitnet.server.slot import Slot

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture
def path(tmp_path):
    path = tiny_gguf(tmp_path / "tiny.gguf", **{"tokenizer.chat_template": TEMPLATE})
    load(path).close()  # writes the compiled tokenizer to the cache, so that later loads read it
    return path


@pytest.fixture(autouse=True)
def no_collector():
    """Leave all freeing to reference counts."""
    gc.disable()
    yield
    gc.enable()


def nothing(model):
    pass


def a_text(model):
    assert model.generate("ab", max_tokens=3)


def a_stream_that_is_left(model):
    next(iter(model.stream("ab", max_tokens=9)))


def a_chat(model):
    assert list(model.chat([{"role": "user", "content": "ab"}], max_tokens=3))


def a_grammar(model):
    assert model.generate("ab", max_tokens=3, regex="[a-c]+")


def a_wrong_request(model):
    with pytest.raises(UsageError):
        model.logits([])


def a_scheduler(model):
    scheduler = model.scheduler(max_batch=2)
    with pytest.raises(UsageError):
        scheduler.check([])


def a_worker(model):
    slot = Slot("tiny", model.path, None, None)
    slot.fill(model, max_batch=8)
    slot.close()


# Ways to use a model, of which none may leave a reference to it.
USES = (
    nothing, a_text, a_stream_that_is_left, a_chat, a_grammar, a_wrong_request, a_scheduler,
    a_worker,
)  # fmt: skip


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_the_file_of_a_model_is_unmapped_after_any_use(path, use, closed):
    model = load(path)
    use(model)
    if closed:
        model.close()
    del model
    assert [
        each for each in gc.get_objects() if type(each) is MappedFile and each.path == path
    ] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_freed(family):
    model = load_model(tiny(family), ops=select())
    engine = Scheduler(model)
    if model.config.writes:
        engine.logits([1, 2, 3])
    freed = weakref.ref(model)
    del model, engine
    assert freed() is None
