"""Conversations with a tiny random model: what is remembered, computed again and forgotten."""

import pytest
from tiny_models import TOKENS, tiny_gguf

import bitnet
from bitnet.base.errors import InferenceError, Unsupported, UsageError
from bitnet.runtime.dialog import Conversation
from bitnet.runtime.request import Request

# A message is the first letter of its role, its content and a full stop.
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}.{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)
LETTER = TOKENS.index("x")
ALWAYS_X = {"logit_bias": {LETTER: 1e9}}


@pytest.fixture
def model(tmp_path):
    with bitnet.load(tiny_gguf(tmp_path / "m.gguf", **{"tokenizer.chat_template": TEMPLATE})) as m:
        yield m


def talk_with(model, *, count=4, **options):
    """A conversation in which every answer is "x" *count* times."""
    return Conversation(model, Request(max_tokens=count, **ALWAYS_X), **options)


def test_a_prompt_has_all_earlier_messages_and_reuses_their_computed_ids(model):
    talk = talk_with(model, system="s")
    assert "".join(talk.ask("b")) == "xxxx"
    assert talk.answer.sequence.reused_tokens == 0
    assert "".join(talk.ask("c")) == "xxxx"
    assert [message["content"] for message in talk.messages] == ["s", "b", "xxxx", "c", "xxxx"]
    # The last token of an answer is not run before the next message, so it is not reused.
    assert talk.answer.prompt_tokens == len("ss.ub.axxxx.uc.a")
    assert talk.answer.sequence.reused_tokens == len("ss.ub.axxx")


def test_answers_of_a_conversation_differ_and_its_seed_repeats_all_of_them(model):
    def answers(seed):
        sampling = {"temperature": 5.0, "seed": seed}
        talk = Conversation(model, Request(max_tokens=8, **sampling))
        texts = []
        for _ in range(2):
            texts.append("".join(talk.ask("b")))
            talk.turns.clear()  # so that both answers continue the same prompt
        return texts

    first = answers(1)
    assert first[0] != first[1]
    assert first == answers(1) != answers(2)
    assert answers(None) != answers(None)


def test_clearing_a_conversation_leaves_the_system_message_and_its_beginning(model):
    talk = talk_with(model, system="s")
    talk.beginning = [{"role": "user", "content": "b"}, {"role": "assistant", "content": "y"}]
    talk.clear()
    "".join(talk.ask("c"))  # adds a message and an answer
    talk.clear()
    assert [message["content"] for message in talk.messages] == ["s", "b", "y"]


def test_a_closed_answer_stays_in_the_conversation_as_far_as_it_was_read(model):
    talk = talk_with(model, count=9)
    pieces = talk.ask("b")
    assert [next(pieces), next(pieces)] == ["x", "x"]
    pieces.close()
    assert [message["content"] for message in talk.turns] == ["b", "xx"]
    assert "".join(talk.ask("c")) == "x" * 9


def test_a_refused_message_is_removed_from_the_conversation(model):
    talk = talk_with(model)
    with pytest.raises(UsageError, match="empty"):
        list(talk.ask(""))
    with pytest.raises(InferenceError, match="context holds 64"):
        list(talk.ask("b" * 80))
    assert talk.turns == []
    assert "".join(talk.ask("b")) == "xxxx"


def test_a_model_without_a_chat_template_is_refused(tmp_path):
    with (
        bitnet.load(tiny_gguf(tmp_path / "m.gguf")) as model,
        pytest.raises(Unsupported, match="no chat template"),
    ):
        talk_with(model)
