"""The process that renders chat templates, see :mod:`bitnet.tokenizer.chat`.

They run in an immutable sandbox set up as in ``transformers`` (``utils/chat_template_utils.py``);
the system ends this process at its limits, also in the middle of one long operation. The script
imports nothing of this package. It reads and writes frames: a length of eight bytes, and as many.
"""

from __future__ import annotations

import contextlib
import functools
import json
import marshal
import signal
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import Template

CPU_MS = 1_500  # milliseconds of processor time of one rendering
MEMORY_BYTES = 384 << 20  # beyond those of a process that has rendered nothing
MAX_CHARS = 16 << 20  # of the text that a template renders

# First byte of an answer: what the rest is.
TEXT, REFUSED, INVALID, FAILED, STOPPED = b"TRIFS"


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
    """JSON as in the training data of models: not escaped for HTML, keys in order."""
    form = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **form)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=8)
def _compile(source: str) -> Template:
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
    return sandbox.from_string(source)


def answer(source: str, variables: dict[str, Any] | None, now: str) -> tuple[int, str]:
    """The kind of the answer and its text; without *variables* the template is only compiled."""
    from jinja2 import TemplateSyntaxError

    try:
        template = _compile(source)
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
        return STOPPED, f"more than {MEMORY_BYTES >> 20} MiB of memory"
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
    """End this process after *seconds* of processor time; 0: no longer."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main() -> None:
    """Answer jobs from standard input until it ends."""
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    if hasattr(signal, "SIGPROF"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
    answer("{{ 1 }}", {}, "2000-01-01")  # imports everything
    _limit_memory()
    while header := jobs.read(8):
        frame = jobs.read(int.from_bytes(header, "little"))
        cpu_ms, *job = marshal.loads(frame)  # noqa: S302 - from the process that started this one
        _limit_time(cpu_ms / 1000)
        kind, text = answer(*job)
        content = bytes([kind]) + text.encode("utf-8", "surrogatepass")
        _limit_time(0)
        answers.write(len(content).to_bytes(8, "little") + content)
        answers.flush()


if __name__ == "__main__":
    sys.path[:0] = sys.argv[1:]
    main()
