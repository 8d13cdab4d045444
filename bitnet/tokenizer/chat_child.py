"""The process that renders chat templates, see :mod:`bitnet.tokenizer.chat`.

Templates run in an immutable sandbox set up as in ``transformers``
(``utils/chat_template_utils.py``). The system ends this process at its limits, also in the middle
of one long operation. The script imports nothing of this package.

It reads jobs and writes answers as frames: a length in eight bytes, little-endian, and as many
bytes. A job is a marshalled tuple of its milliseconds of processor time and the arguments of
:func:`answer`; an answer is a byte for its kind, and a text in UTF-8.
"""

from __future__ import annotations

import contextlib
import functools
import json
import marshal
import re
import signal
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_MS = 1_500  # milliseconds of processor time of one rendering
MEMORY_BYTES = 384 << 20  # beyond those of a process that has rendered nothing
MAX_CHARS = 16 << 20  # of the text that a template renders

# First byte of an answer: the kind of the text behind it.
TEXT, REFUSED, INVALID, FAILED, STOPPED = b"TRIFS"

WITHOUT_JINJA = 3  # exit status if Jinja cannot be imported
_TOO_MUCH_MEMORY = f"more than {MEMORY_BYTES >> 20} MiB of memory"

# Filters of Jinja that take the name of an attribute: its index among their arguments. Each also
# takes it as ``attribute=``.
_ATTRIBUTE_AT = {
    **dict.fromkeys(("selectattr", "rejectattr", "groupby", "sum"), 0),
    **dict.fromkeys(("join", "unique", "min", "max"), 1),
    "sort": 2,
}
# Jinja's globals, and attributes of Python's objects, through which templates escape a sandbox.
# All other such attributes begin with an underscore.
_GLOBALS = frozenset({"cycler", "joiner", "lipsum", "self"})
_INTERNALS = frozenset(
    {
        *("mro", "func_globals", "func_code", "func_closure", "im_func", "im_self", "im_class"),
        *("gi_frame", "gi_code", "cr_frame", "cr_code", "ag_frame", "ag_code"),
        *("f_globals", "f_locals", "f_builtins", "f_back", "tb_frame", "tb_next"),
    }
)


class Refusal(Exception):
    """The template called ``raise_exception``."""


def _raise_exception(message: str) -> NoReturn:
    raise Refusal(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as in the training data of models: not escaped for HTML, keys not sorted by default."""
    form = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **form)  # type: ignore[arg-type]


@functools.cache
def _sandbox() -> ImmutableSandboxedEnvironment:
    """The environment in which templates run."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks what the assistant said; it changes nothing in the text."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's own attribute

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_same"), [], [], body, lineno=line)

        def _same(self, caller: Callable[[], str]) -> str:
            return caller()

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    sandbox.filters["tojson"] = _to_json
    sandbox.globals["raise_exception"] = _raise_exception
    return sandbox


@functools.lru_cache(maxsize=8)
def _compile(source: str) -> Template:
    return _sandbox().from_string(source)


def reach(source: str) -> list[str]:
    """Names in *source* that lead out of the conversation, sorted; chat templates do not need them.

    These are internal attributes of Python's objects, the filter ``attr``, and statements that load
    other files. Keys that are computed at run time are not seen; the sandbox denies them.
    """
    from jinja2 import nodes

    tree = _sandbox().parse(source)
    names = set()
    for attribute in tree.find_all(nodes.Getattr):
        owner = attribute.node.name if isinstance(attribute.node, nodes.Name) else ""
        if _is_internal(attribute.attr):
            names.add(f".{attribute.attr}")
        elif owner in _GLOBALS:
            names.add(f"{owner}.{attribute.attr}")
    for item in tree.find_all(nodes.Getitem):
        if isinstance(item.arg, nodes.Const) and _is_internal(item.arg.value):
            names.add(f"[{item.arg.value!r}]")
    for call in tree.find_all(nodes.Filter):
        if call.name == "attr":
            names.add("|attr")
        arguments = [pair.value for pair in call.kwargs if pair.key == "attribute"]
        index = _ATTRIBUTE_AT.get(call.name)
        if index is not None:
            arguments += call.args[index : index + 1]
        if call.name == "map":  # an attribute, or a filter and its arguments
            arguments += [*call.args, *(pair.value for pair in call.kwargs)]
        texts = {text.value for text in arguments if isinstance(text, nodes.Const)}
        names |= {f"|{call.name}({text!r})" for text in texts if _names_internal(text)}
    for kind in (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends):
        if tree.find(kind) is not None:
            # FromImport is the statement ``from``; Import leaves an empty text.
            statement = kind.__name__.removesuffix("Import").lower() or "import"
            names.add(f"{{% {statement} %}}")
    return sorted(names)


def _names_internal(text: object) -> bool:
    """True if *text* names the filter ``attr``, or an internal attribute in a path or list."""
    parts = re.split("[.,]", text) if isinstance(text, str) else []  # ``a.b`` or ``a,b``
    return text == "attr" or any(map(_is_internal, parts))


def _is_internal(name: object) -> bool:
    """True if *name* is an internal attribute of Python's objects, not a field of a message."""
    return isinstance(name, str) and (name.startswith("_") or name in _INTERNALS)


def answer(
    source: str, variables: dict[str, Any] | None, now: str, reaches: bool = False
) -> tuple[int, str]:
    """The kind of the answer and its text, for the template *source*.

    Without *variables* it is only compiled. If *reaches*, the text is the list of :func:`reach` in
    JSON. *now* is the time in ISO 8601.
    """
    from jinja2 import TemplateSyntaxError

    try:
        template = _compile(source)
        if reaches:
            return TEXT, json.dumps(reach(source))
    except TemplateSyntaxError as error:
        return INVALID, f"{error.message} at line {error.lineno}"
    except MemoryError:
        return INVALID, "it takes too much memory to compile"
    except Exception as error:  # noqa: BLE001 - Python's own compiler refuses deep nesting, too
        return INVALID, f"{type(error).__name__}: {error}"
    if variables is None:
        return TEXT, ""
    clock = {"strftime_now": lambda form: datetime.fromisoformat(now).strftime(form)}
    try:
        text = template.render(**(clock | variables))
    except Refusal as error:
        return REFUSED, str(error)
    except MemoryError:
        return STOPPED, _TOO_MUCH_MEMORY
    except Exception as error:  # noqa: BLE001 - a template may fail in any way
        return FAILED, f"{type(error).__name__}: {str(error)[:1000]}"
    if len(text) > MAX_CHARS:
        return STOPPED, f"a text of more than {MAX_CHARS:,} characters"
    return TEXT, text


def _limit_memory() -> None:
    """Bound the address space, where the system can."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[0])
        most = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _limit_time(seconds: float) -> None:
    """End this process after *seconds* of processor time; 0 lifts the limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main() -> None:
    """Answer jobs from standard input until it ends."""
    jobs = sys.stdin.buffer
    answers = sys.stdout.buffer
    if hasattr(signal, "SIGPROF"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
    try:
        answer("{{ 1 }}", {}, "2000-01-01")  # imports everything
    except ImportError:
        raise SystemExit(WITHOUT_JINJA) from None
    _limit_memory()
    while header := jobs.read(8):
        try:
            frame = jobs.read(int.from_bytes(header, "little"))
            cpu_ms, *job = marshal.loads(frame)  # noqa: S302 - of the process that started this one
            _limit_time(cpu_ms / 1000)
            kind, text = answer(*job)
            content = bytes([kind]) + text.encode("utf-8", "surrogatepass")
        except MemoryError:  # of the job or its answer: the parent then ends this process
            content = bytes([STOPPED]) + _TOO_MUCH_MEMORY.encode()
        _limit_time(0)
        answers.write(len(content).to_bytes(8, "little") + content)
        answers.flush()


if __name__ == "__main__":
    sys.path[:0] = sys.argv[1:]
    main()
