"""chat from a pipe and on a terminal, with a tiny random model.

Exit codes: 2 wrong usage, 10 no space, 13 damaged or malformed data, 16 the model could not be run,
19 not found, 20 unsupported.
"""

import errno
import io
import json
import sys

import pytest
from tiny_models import tiny_gguf

from bitnet.base.errors import InferenceError
from bitnet.commands.context import recall_lines

#: A short template: the tiny model has a context of 64 tokens, one for a character.
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}.{% endfor %}a"


@pytest.fixture
def model(tmp_path):
    return tiny_gguf(tmp_path / "m.gguf", **{"tokenizer.chat_template": TEMPLATE})


@pytest.fixture
def talk(bitnet, model, monkeypatch):
    """Run ``chat`` with these bytes on stdin."""

    def run(raw, *words):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        return bitnet("chat", "--model", model, "--max-tokens", 3, *words)

    return run


@pytest.fixture
def typed(bitnet, model, monkeypatch):
    """Run ``chat`` on a terminal where these lines are typed; an exception stands for a key."""

    def run(*lines, max_tokens=3):
        waiting = iter(lines)

        def read(prompt):
            line = next(waiting, EOFError())
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        return bitnet("chat", "--model", model, "--max-tokens", max_tokens)

    return run


def test_every_line_of_a_pipe_is_a_message_or_a_command(talk, tmp_path):
    saved = tmp_path / "talk.json"
    done = talk(f"b\n\nc\n/save {saved}\n/stats\n/exit\nnever\n".encode(), "--system", "s")
    assert done.code == 0
    messages = json.loads(saved.read_text())
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 2]
    assert [message["content"] for message in messages[1::2]] == ["b", "c"]
    assert done.out == f"{messages[2]['content']}\n{messages[4]['content']}\n"
    assert "saved 5 messages" in done.err
    assert "reused" in done.err


def test_json_is_one_message_a_line(talk):
    answers = [json.loads(line) for line in talk(b"b\nc\n", "--json").out.splitlines()]
    assert [answer["role"] for answer in answers] == ["assistant", "assistant"]


def test_the_same_question_after_clear_gets_the_same_answer(talk):
    first, second = talk(b"b\n/clear\nb\n").out.splitlines()
    assert first == second


@pytest.mark.parametrize(
    ("raw", "code", "said"),
    [
        (b"/nonsense\n", 2, "no command '/nonsense'"),
        (b"/save\n", 2, "/save needs the name of a file"),
        (b"/save /nowhere/at/all\n", 19, "no such folder: /nowhere/at"),
        (b"/save ~nobody-at-all/x\n", 19, "no such folder: ~nobody-at-all"),
        (b"/save a\0b\n", 2, "NUL character"),
        (b"a\nb\xff\n", 2, "line 2 of stdin is not UTF-8: byte 0xff"),
        (b"a\0b\n", 2, "NUL character"),
        (b"b" * 99, 16, "the context holds 64"),
    ],
)
def test_the_first_error_ends_a_pipe(talk, raw, code, said):
    done = talk(raw)
    assert done.code == code
    assert said in done.err
    assert "Traceback" not in done.err
    assert not done.out.startswith("\n")


def test_a_save_that_fails_leaves_the_file_of_the_save_before(talk, tmp_path, monkeypatch):
    saved = tmp_path / "talk.json"
    assert talk(f"b\n/save {saved}\n".encode()).code == 0
    before = saved.read_text()

    def refuse(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    assert talk(f"c\n/save {saved}\n".encode()).code == 10
    assert saved.read_text() == before
    assert [path.name for path in tmp_path.glob("*talk*")] == ["talk.json"]


def test_a_system_message_or_line_that_is_not_utf8_is_refused(talk, typed):
    done = talk(b"b\n", "--system", "\udcff")
    assert (done.code, "--system is not UTF-8" in done.err) == (2, True)
    assert "the line is not UTF-8" in typed("\udcff").err


def test_on_a_terminal_errors_and_ctrl_c_do_not_end_the_conversation(typed):
    done = typed("/nonsense", "b" * 99, KeyboardInterrupt(), "/system s", "/help", "b", "/stats")
    assert done.code == 0
    assert "no command '/nonsense'" in done.err
    assert "the context holds 64" in done.err
    assert "(stopped; /exit leaves)" in done.err
    assert "/clear" in done.err
    assert "| 3 tokens" in done.err
    assert done.out.strip()
    assert typed("/exit", AssertionError("read on after /exit")).code == 0


def test_a_message_of_several_lines_is_typed_between_triple_quotes(typed, tmp_path):
    saved = tmp_path / "talk.json"
    assert typed('"""a', "b", 'c"""', '"""d"""', f"/save {saved}").code == 0
    messages = json.loads(saved.read_text())
    assert [one["content"] for one in messages if one["role"] == "user"] == ["a\nb\nc", "d"]


def test_a_message_that_begins_like_a_command_is_quoted_or_has_two_slashes(typed, tmp_path):
    saved = tmp_path / "talk.json"
    lines = ('"""/exit"""', '"""', "/set x", '"""', "//help", f"/save {saved}")
    assert typed(*lines).code == 0
    messages = json.loads(saved.read_text())
    said = [message["content"] for message in messages if message["role"] == "user"]
    assert said == ["/exit", "/set x", "/help"]


def test_a_command_or_option_of_a_similar_name_is_suggested(typed):
    done = typed("/set temprature 1", "/sett temperature 1", "/usr/bin is a folder")
    assert "did you mean /set temperature 1?" in done.err
    assert "did you mean /set? /help lists them" in done.err
    assert "//usr/bin sends it as a message" in done.err


def test_options_are_set_and_shown(typed):
    done = typed("/set max-tokens 2", "/set stop [\"zz\"]", "/set temperature hot", "b", "/show",
                 "/set messages 1", "/set", "/stats")  # fmt: skip
    assert "| 2 tokens" in done.err
    assert "max_tokens: 2" in done.err
    assert 'stop: ["zz"]' in done.err
    assert "temperature is of type str, expected a number" in done.err
    assert "messages is not an option of a conversation" in done.err
    assert "/set needs a name and a value" in done.err


def test_a_saved_conversation_is_loaded_and_a_wrong_file_refused(typed, tmp_path):
    saved = tmp_path / "talk.json"
    again = tmp_path / "again.json"
    assert typed("/system s", "b", f"/save {saved}").code == 0
    assert typed(f"/load {saved}", f"/save {again}").code == 0
    assert json.loads(again.read_text()) == json.loads(saved.read_text())
    for content in (b"{", b"[]", b'[{"role": "tool", "content": "a"}]', b'[{"role": "user"}]'):
        saved.write_bytes(content)
        assert "Error: " in typed(f"/load {saved}").err


def test_a_byte_order_mark_begins_no_message(talk):
    assert talk(b"\xef\xbb\xbfb\n").out == talk(b"b\n").out
    assert talk(b"\xef\xbb\xbf/exit\nb\n").out == ""


def test_an_error_that_is_not_a_full_context_keeps_its_own_hint(typed, monkeypatch):
    from bitnet.runtime.language_model import LanguageModel

    answer = LanguageModel.answer
    calls = []

    def fails_later(self, *arguments, **named):
        calls.append(1)
        if len(calls) > 1:
            raise InferenceError("the logits are not finite numbers", hint="fetch it again")
        return answer(self, *arguments, **named)

    monkeypatch.setattr(LanguageModel, "answer", fails_later)
    done = typed("b", "c")
    assert "hint: fetch it again" in done.err
    assert "/clear" not in done.err


def test_an_answer_that_was_cut_off_says_why(typed):
    assert "(cut off: --max-tokens allows no more)" in typed("b").err
    done = typed("b" * 20, "c", max_tokens=60)
    assert "(cut off: the context is full; /clear forgets the conversation)" in done.err
    assert "hint: /clear forgets the conversation" in done.err


def test_ctrl_c_stops_an_answer_and_keeps_its_text(typed, tmp_path, monkeypatch):
    from bitnet.commands import generate

    def interrupted(piece):
        monkeypatch.setattr(generate, "write", lambda piece: None)
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "write", interrupted)
    saved = tmp_path / "talk.json"
    assert typed("b", f"/save {saved}").code == 0
    question, answer = json.loads(saved.read_text())
    assert question["content"] == "b"
    assert len(answer["content"]) == 1  # the piece at which the key was pressed


def test_a_model_without_a_template_can_be_given_one(bitnet, tmp_path, monkeypatch):
    bare = tiny_gguf(tmp_path / "bare.gguf")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"b\n")))
    refused = bitnet("chat", "--model", bare)
    assert refused.code == 20
    assert "--chat-template FILE" in refused.err
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    words = ("--chat-template", template, "--max-tokens", 2)
    assert bitnet("chat", "--model", bare, *words).code == 0
    template.write_text("{{")
    wrong = bitnet("chat", "--model", bare, *words)
    assert wrong.code == 13
    assert f"the chat template of {template} is not valid" in wrong.err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal of Unix")
def test_lines_are_recalled_in_the_next_session(model, tmp_path):
    from terminals import OnTerminal

    history = tmp_path / "state" / "history"
    saved = tmp_path / "talk.json"
    words = [sys.executable, "-m", "bitnet", "chat", "--model", model, "--max-tokens", 2]
    # In the second session, "up" twice recalls the line before /exit.
    for first in ("b\n", f"\x1b[A\x1b[A\n/save {saved}\n"):
        terminal = OnTerminal(words, BITNET_HISTORY=str(history))
        terminal.until("/help lists commands")
        terminal.until("> ")
        terminal.type(f"{first}/exit\n")
        assert terminal.end() == 0, terminal.shown
    question, _ = json.loads(saved.read_text())
    assert question["content"] == "b"
    assert history.read_text().split()[:2] == ["b", "/exit"]
    assert history.stat().st_mode & 0o077 == 0  # only its owner may read it


@pytest.mark.parametrize("lacking", ["append_history_file", "clear_history", "neither"])
def test_a_readline_library_with_fewer_functions_keeps_the_history_file(
    lacking, tmp_path, monkeypatch
):
    readline = pytest.importorskip("readline")
    # As with libedit; there is no function "neither", so then none is removed.
    monkeypatch.delattr(readline, lacking, raising=False)
    path = tmp_path / "history"
    path.write_text("first\n")
    monkeypatch.setenv("BITNET_HISTORY", str(path))

    with recall_lines():
        readline.add_history("last")
        path.write_text("first\nof another session\n")
    lines = path.read_text().splitlines()
    expected = ["first", "of another session", "last"]
    # Without clear_history nothing is recalled or added.
    assert lines == (expected[:2] if lacking == "clear_history" else expected)


def test_a_message_is_written_in_an_editor(typed, tmp_path, monkeypatch):
    saved = tmp_path / "talk.json"
    editor = tmp_path / "editor.py"
    editor.write_text("import sys; open(sys.argv[1], 'w').write('c\\nd\\n')")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"'{sys.executable}' '{editor}'")
    assert typed("!edit", f"/save {saved}").code == 0
    assert json.loads(saved.read_text())[0]["content"] == "c\nd"
    for broken, said in (("false", "failed"), ("true", "the message is empty"), ("", "an editor")):
        monkeypatch.setenv("EDITOR", broken)
        assert said in typed("!edit").err
