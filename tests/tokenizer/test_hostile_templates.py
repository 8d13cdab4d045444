"""Chat templates made to take long or fill the memory end in an error that says so."""

import contextlib
import marshal
import os
import signal
import subprocess
import sys

import pytest

from bitnet.base.errors import InvalidFormat, Unsupported, UsageError
from bitnet.tokenizer import chat, chat_child
from bitnet.tokenizer.chat import ChatTemplate
from bitnet.tokenizer.limits import TEMPLATE_CHARS

# Lists that share their parts: as text they would have 2 to the power 40 of them.
DOUBLED = "{% set n = namespace(x=[], y=[]) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}"
DOUBLED += "{% set n.y = [n.y, n.y] %}{% endfor %}"
# Many operations on a long text, in place of ???.
MANY = "{% set a = 'a' * 9999999 %}{% for i in range(99999) %}{% set b = ??? %}{% endfor %}"
STOPPED = {
    "rounds": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "a long text": "{{ 'a' * 10 ** 9 }}",
    **{
        what: MANY.replace("???", what)
        for what in ("'a' * 9999999", "a ~ a", "a[1:]", "'b' in a", "a | upper", "a.upper()")
    },
    "lists of lists": DOUBLED + "{{ n.x }}",
    "lists of lists as JSON": DOUBLED + "{{ n.x | tojson }}",
    "lists of lists in a format": DOUBLED + "{{ '%s' % n.x }}",
    "equal lists of lists": DOUBLED + "{{ n.x == n.y }}",
    "squares": "{% set n = namespace(x=3) %}"
    "{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "powers": "{{ 99999 ** 99999 }}",
    "recursion": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    **{
        f"a nested tuple in {use}": "{% set n = namespace(x=()) %}{% for i in range(40) %}"
        "{% set n.x = (n.x, n.x) %}{% endfor %}" + use
        for use in (
            "{{ {}[n.x] }}",
            "{{ {n.x: 1} }}",
            "{{ {}.get(n.x) }}",
            "{{ [n.x].index((n.x, n.x)) }}",
            "{{ [n.x].count([n.x, n.x]) }}",
        )
    },
    "letters one by one": "{% set a = 'ab' * 30000000 %}{{ a | title | length }}"
    "{{ a.translate({97: a}) | length }}",
    "a thousand million slices": "{{ 'abc' | slice(10 ** 9) | list | length }}",
    "a join": "{% set a = ['a' * 1000000] * 3000 %}{{ (a | join) ~ ''.join(a) }}",
    "a width among the values": "{{ '%*d' % (10 ** 9, 1) }}",
}
USER = [{"role": "user", "content": "Hello"}]


@pytest.fixture(autouse=True)
def _little_time(monkeypatch):
    """Stop templates after a tenth of the usual time."""
    monkeypatch.setattr(chat_child, "CPU_MS", 150)  # instead of 1,500, to end sooner


@pytest.mark.parametrize("name", STOPPED)
def test_a_costly_template_ends_and_the_next_one_is_rendered(name):
    with contextlib.suppress(InvalidFormat):
        ChatTemplate(STOPPED[name]).render(USER)
    assert ChatTemplate("{{ messages[0].content }}").render(USER) == "Hello"


def test_the_limit_that_stopped_a_template_is_named():
    with pytest.raises(InvalidFormat, match="processor time") as caught:
        ChatTemplate(STOPPED["rounds"]).render(USER)
    assert "--chat-template" in caught.value.hint
    with pytest.raises(InvalidFormat, match="MiB of memory"):
        ChatTemplate("{{ 'a' * 10 ** 9 }}").render(USER)
    with pytest.raises(InvalidFormat, match="characters"):
        # A product of two constants would be a text of the compiled template.
        ChatTemplate("{% set n = 17000000 %}{{ 'a' * n }}").render(USER)


def test_an_interrupt_ends_an_endless_template():
    script = (
        "from bitnet.tokenizer import chat_child\nfrom bitnet.tokenizer.chat import ChatTemplate\n"
        "chat_child.CPU_MS = 10**6\nendless = ChatTemplate(" + repr(STOPPED["rounds"]) + ")\n"
        "print('rendering', flush=True)\nendless.render([])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "rendering\n"
        errors = ""
        try:
            # Again and again: one just before the process waits is noticed only after the wait.
            for _ in range(60):
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    _, errors = process.communicate(timeout=1)
                    break
        finally:
            process.kill()  # without effect if it has ended
    assert "KeyboardInterrupt" in errors
    assert process.returncode != 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_a_template_process_of_its_own():
    template = ChatTemplate("{{ messages[0].content }}")
    assert template.render(USER) == "Hello"
    child = os.fork()
    if child == 0:
        try:
            os._exit(template.render(USER) != "Hello")
        finally:
            os._exit(1)  # an error must not go on with the other tests in this process
    assert template.render(USER) == "Hello"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_template_process_that_has_ended_is_started_again():
    template = ChatTemplate("{{ messages[0].content }}")
    process = chat.template_process()._process
    process.kill()
    process.wait()
    assert template.render(USER) == "Hello"


def test_values_that_are_not_of_json_are_refused():
    with pytest.raises(UsageError, match="JSON"):
        ChatTemplate("x").render(USER, variables={"x": object()})


def _nested(depth):
    """A list within lists, *depth* deep."""
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [5_000, 100_000])
def test_values_that_are_nested_too_deep_are_refused_as_such(depth):
    nested = _nested(depth)
    with pytest.raises(UsageError, match="nested too deep"):
        ChatTemplate("x").render(USER, variables={"x": nested})
    call = {"function": {"name": "f", "arguments": {"x": nested}}}
    with pytest.raises(UsageError, match="nested too deep"):
        ChatTemplate("{% for m in messages %}{{ m.tool_calls }}{% endfor %}").render(
            [*USER, {"role": "assistant", "tool_calls": [call]}]
        )


@pytest.fixture
def child(monkeypatch, tmp_path):
    """A function that puts a script in place of the one that renders templates."""

    def use(script):
        path = tmp_path / "child.py"
        path.write_text(script)
        monkeypatch.setattr(chat_child, "__file__", str(path))
        chat.template_process().close()

    yield use
    chat.template_process().close()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise SystemExit(5)", "its process ended with status 5: something else ended it"),
        (
            "import sys; sys.stdin.buffer.read(8); out = sys.stdout.buffer; "
            "out.write((100).to_bytes(8, 'little') + bytes(40)); out.flush(); sys.exit(5)",
            "its process ended with status 5: something else ended it",
        ),
        ("raise MemoryError", "its process ended with status 1: .* more than 384 MiB"),
        ("import os; os.kill(os.getpid(), 9)", "its process ended with status -9"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGPROF)", "0.15 s of processor time"),
    ],
)
def test_a_process_that_ends_without_an_answer_is_named_with_its_status(script, reason, child):
    child(script)
    with pytest.raises(InvalidFormat, match=f"was stopped: .*{reason}"):
        ChatTemplate("x")


def test_a_template_that_waits_is_stopped_by_the_clock(child, monkeypatch):
    monkeypatch.setattr(chat, "_WALL_S", 0.1)
    child("import sys; sys.stdin.buffer.read()")
    with pytest.raises(InvalidFormat, match=r"was stopped: more than 0\.1 s"):
        ChatTemplate("x")


def test_without_jinja_the_message_says_so(monkeypatch):
    chat.template_process().close()
    monkeypatch.setattr(chat, "_paths", list)
    with pytest.raises(Unsupported, match="finds no jinja2") as caught:
        ChatTemplate("x")
    assert caught.value.hint == "pip install jinja2"
    monkeypatch.undo()
    assert ChatTemplate("x").render(USER) == "x"


def test_a_process_that_cannot_be_started_is_an_error_with_the_reason(monkeypatch):
    chat.template_process().close()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Unsupported, match=r"cannot be started: .*No such file"):
        ChatTemplate("x")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_while_a_job_is_written_does_not_write_its_beginning_twice():
    process = chat.template_process()._start()
    # Limit in milliseconds, template, variables, date, and True to look for reaches into Python.
    job = marshal.dumps((1_000, "{{ 6 * 7 }}", {}, "2000-01-01", False))
    process.stdin.write(len(job).to_bytes(8, "little"))  # buffered
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    process.stdin.write(job)
    process.stdin.flush()
    size = int.from_bytes(process.stdout.read(8), "little")
    assert process.stdout.read(size) == b"T42"  # a text, the product


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "(" * 9999,
        "a" * (TEMPLATE_CHARS + 1),
    ],
    ids=["blocks", "parentheses", "characters"],
)
def test_a_template_that_is_too_deep_or_long_is_refused(source):
    with pytest.raises(InvalidFormat):
        ChatTemplate(source)
