"""The environment of chat templates: immutable, sandboxed, and bounded in steps and memory."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jinja2.parser import Parser

__all__ = ["MAX_CHARS", "MAX_STEPS", "Overrun", "Sandbox"]

MAX_STEPS = 1_000_000  # of one rendering: a loop iteration is one, a call or filter several
_CALL_STEPS = 10  # a call costs as much as this many iterations
MAX_CHARS = 64 << 20  # longest text that a template may produce
# Work on a text or list also counts as steps: one for so many characters or items.
_ITEMS_PER_STEP = 256
_MAX_BITS = 4096  # of a number that a template computes
# A width of six digits, or one given as an argument.
_WIDE = re.compile(r"[0-9]{6,}|\*|\{[^{}]*:[^{}]*\{")
# Filters that are called often and read only the first level of a value.
_READING = frozenset(
    {"do_default", "do_first", "do_last", "do_list", "do_map", "do_reject", "do_rejectattr"}
    | {"do_select", "do_selectattr", "do_items", "do_reverse", "do_attr", "do_batch", "do_slice"}
    | {"len"}
)
# Methods that produce long texts from short ones.
_GROWING = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})


class Overrun(Exception):
    """A template exceeded the bounds on steps or memory."""


class _Generation(Extension):
    """``{% generation %}`` marks what the assistant said; it changes nothing in the text."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own attribute

    def parse(self, parser: Parser) -> nodes.CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body, lineno=line)

    def _same(self, caller: Callable[[], str]) -> str:
        return caller()


class _Generator(CodeGenerator):
    """Compiles loops and concatenations so that the sandbox can count them."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        counted = nodes.EnvironmentAttribute("counted", lineno=node.lineno)
        node.iter = nodes.Call(counted, [node.iter], [], None, None, lineno=node.lineno)
        super().visit_For(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        if isinstance(node.arg, nodes.Slice):
            sliced = nodes.EnvironmentAttribute("sliced", lineno=node.lineno)
            node.node = nodes.Call(sliced, [node.node], [], None, None, lineno=node.lineno)
        super().visit_Getitem(node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        weighed = nodes.EnvironmentAttribute("weighed", lineno=node.lineno)
        sides: tuple[Any, ...] = (node, *node.ops)
        for side in sides:
            side.expr = nodes.Call(weighed, [side.expr], [], None, None, lineno=node.lineno)
        super().visit_Compare(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat([str(part) for part in (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")])")


class _Counted:
    """An iterable whose iterations count as steps."""

    def __init__(self, items: Any, step: Callable[[], None]) -> None:
        self._items = items
        self._step = step

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._step()
            yield item


class Sandbox(ImmutableSandboxedEnvironment):
    """As ``transformers`` sets it up, with bounds."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            finalize=self._shown,
        )
        self._steps = 0
        self.concat = self._concat  # type: ignore[method-assign]
        self.filters["center"] = _narrow(self.filters["center"])
        self.filters["indent"] = _narrow(self.filters["indent"])
        self.filters["format"] = _narrow(self.filters["format"])
        del self.globals["lipsum"]
        for slow in ("striptags", "urlize"):  # quadratic for malicious texts
            del self.filters[slow]
        self.filters = {name: self.counting(one) for name, one in self.filters.items()}

    def restart(self) -> None:
        """Begin counting one rendering."""
        self._steps = 0

    def counted(self, items: Any) -> _Counted:
        """*items* of a loop, with each iteration counted."""
        return _Counted(items, self._step)

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose work counts as steps."""
        writes = getattr(function, "__name__", "") not in _READING

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            for value in args:
                self._weigh(value)
                if writes:
                    self._shown(value)
            result = function(*args, **kwargs)
            self._weigh(result)
            return result

        return counted

    def weighed(self, value: Any) -> Any:
        """*value* of a comparison, whose length counts as steps."""
        self._weigh(value)
        self._shown(value)
        return value

    def _weigh(self, value: Any) -> None:
        """Count the work on *value* by its size alone."""
        if isinstance(value, (str, list, tuple, dict)):
            self._step(1 + len(value) // _ITEMS_PER_STEP)

    def _shown(self, value: Any) -> Any:
        """*value* that becomes text; nested lists may exceed any memory."""
        if isinstance(value, (list, tuple, dict)):
            _count(value)
        return value

    def sliced(self, value: Any) -> Any:
        """*value* of a slice, whose length counts as steps."""
        self._weigh(value)
        return value

    def _step(self, count: int = 1) -> None:
        self._steps += count
        if self._steps > MAX_STEPS:
            raise Overrun(f"more than {MAX_STEPS:,} steps")

    def _concat(self, parts: Iterable[str]) -> str:
        parts = list(parts)
        length = sum(map(len, parts))
        _check(length)
        self._step(1 + length // _ITEMS_PER_STEP)
        return "".join(parts)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Also refuse the methods that produce long texts from short ones."""
        growing = attr in _GROWING and isinstance(obj, str)
        return not growing and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Any:
        """``str.format`` with bounded widths."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE.search(value.__self__):
            raise Overrun("a format with an enormous width")
        return wrapped

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Count calls as steps, and refuse those that would produce enormous texts."""
        self._step(_CALL_STEPS)
        function = args[1] if len(args) > 1 else None
        bound = getattr(function, "__self__", None)
        if isinstance(bound, str):
            name = getattr(function, "__name__", "")
            self._weigh(bound)
            for value in args[2:]:
                self._shown(value)
            if name == "replace" and len(args) >= 4:
                _check(len(bound) + bound.count(str(args[2])) * len(str(args[3])))
            if name == "join":
                return self._concat(_joined(bound, list(args[2])))
        return super().call(*args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse results that would not fit into memory."""
        if operator == "*":
            for text, times in ((left, right), (right, left)):
                if isinstance(text, (str, list, tuple)) and isinstance(times, int):
                    _check(len(text) * times)
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() + right.bit_length())
        elif operator == "+" and isinstance(left, (str, list)) and isinstance(right, (str, list)):
            _check(len(left) + len(right))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * max(right, 0))
        elif operator == "%" and isinstance(left, str):
            if _WIDE.search(left):
                raise Overrun("a format with an enormous width")
            self._shown(right)
        result = super().call_binop(context, operator, left, right)
        self._weigh(result)
        return result


def _check_bits(length: int) -> None:
    if length > _MAX_BITS:
        raise Overrun(f"a number of more than {_MAX_BITS:,} bits")


def _count(value: Any) -> None:
    """Refuse lists and mappings with more items than steps, even shared ones."""
    left = MAX_STEPS // 4
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            items = [*value, *value.values()]
        elif isinstance(value, (list, tuple)):
            items = list(value)
        else:
            continue
        left -= 1 + len(items)
        if left < 0:
            raise Overrun("a list of lists that is too long to be written")
        waiting.extend(items)


def _check(length: int) -> None:
    if length > MAX_CHARS:
        raise Overrun(f"a text of more than {MAX_CHARS:,} characters")


def _joined(separator: str, parts: list[str]) -> list[str]:
    return [piece for part in parts for piece in (separator, part)][1:]


def _narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that does not convert huge numbers to text."""

    def bounded(value: Any, *args: Any, **kwargs: Any) -> Any:
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, int) and not isinstance(argument, bool):
                _check(abs(argument) * (str(value).count("\n") + 1))
        if isinstance(value, str) and _WIDE.search(value) and "%" in value:
            raise Overrun("a format with an enormous width")
        return function(value, *args, **kwargs)

    return bounded
