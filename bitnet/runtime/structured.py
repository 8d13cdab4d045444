"""Answers constrained by a JSON schema, to any JSON object, by a regular expression or a grammar.

The ``llguidance`` library says after every token which ones may follow. It sees the tokens as the
bytes that the model's own tokenizer decodes them to.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bitnet.base.errors import Unsupported, UsageError
from bitnet.base.invocation import extra_command
from bitnet.runtime.gbnf import to_lark
from bitnet.runtime.request_checks import check_numbers
from bitnet.runtime.tool_grammar import JSON_STYLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bitnet.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Twice what the deepest schema within the bounds of a request needs; reserved, not allocated.
STACK_BYTES = 1 << 29
_STACK_SIZE_LOCK = threading.Lock()  # that size is set for all new threads of the process
MOST_KEPT = 16  # compiled grammars; a large one takes tens of megabytes

#: Classes of regular expressions that the library would match in every script, as ASCII ones.
_ASCII_CLASSES = {
    r"\d": "[:digit:]",
    r"\D": "[:^digit:]",
    r"\w": "[:word:]",
    r"\W": "[:^word:]",
}

# An escaped character, a named class, the beginning of a class with a bracket in it, or any other.
_REGEX_PARTS = re.compile(r"\\.|\[:\^?\w+:\]|\[\^?\]?|.", re.DOTALL)

#: Names for messages, by the field of a request whose grammar cannot be compiled.
_KINDS = {
    "json_schema": "JSON schema",
    "regex": "regex",
    "grammar": "grammar",
    "tools": "schema of tools",
}


class Grammar:
    """A compiled grammar, in the state after the tokens of an answer so far."""

    def __init__(self, matcher: Any, vocab_size: int, rows: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._rows = rows  # ids that the model can choose

    def start(self) -> Grammar:
        """A clone for another answer, which takes microseconds."""
        return Grammar(self._matcher.deep_copy(), self._vocab_size, self._rows)

    @property
    def finished(self) -> bool:
        """True if the answer is complete and nothing may follow it."""
        return bool(self._matcher.is_stopped())

    def next_ids(self) -> NDArray[np.intp]:
        """Ids that may come next, ascending; stop ids where the answer may end."""
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        bits = np.unpackbits(packed, count=self._vocab_size, bitorder="little")
        ids = np.flatnonzero(bits)
        choosable = ids[ids < self._rows]
        if len(ids) and not len(choosable):
            raise _dead_end("no token of the model continues the answer")
        return choosable

    def accept(self, token: int) -> None:
        """Advance by *token*, one of those allowed."""
        self._matcher.consume_token(token)
        self._check()

    def count_valid(self, tokens: Sequence[int]) -> int:
        """Number of leading *tokens* that the grammar accepts in sequence."""
        return int(self._matcher.validate_tokens(list(tokens)))

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        message = _first_line(self._matcher.get_error())
        if message.startswith("NoExtension"):
            message = "no token of the model continues the answer"
        raise _dead_end(message)


def _dead_end(message: str) -> Unsupported:
    return Unsupported(
        f"the answer cannot follow its grammar any further: {message}",
        hint="simplify --json-schema or --regex, or use characters that the tokenizer knows",
    )


class Grammars:
    """Compiles grammars for one tokenizer; the model can choose token ids below *rows*."""

    def __init__(self, tokenizer: Tokenizer, *, rows: int | None = None) -> None:
        try:
            import llguidance
        except ImportError as error:
            raise Unsupported(
                f"answers with a grammar need llguidance, which is not installed: {error}",
                hint=extra_command("structured"),
            ) from error
        self._library: Any = llguidance
        self._tokenizer = tokenizer
        self._rows = tokenizer.vocab_size if rows is None else rows
        self._kept: OrderedDict[bytes, Grammar] = OrderedDict()  # by digest, oldest first

    def json_schema(self, schema: Mapping[str, Any]) -> Grammar:
        """Grammar of JSON that follows *schema*."""
        check_numbers("json_schema", schema)
        compile_schema = self._library.LLMatcher.grammar_from_json_schema
        # The library reads options from this key, and a client's would lift the guarantee.
        text = json.dumps({**schema, "x-guidance": JSON_STYLE})
        try:
            return self._grammar_of("json_schema", compile_schema(text, JSON_STYLE))
        except ValueError as error:
            raise _refusal("json_schema", str(error)) from None

    def tools(self, text: str) -> Grammar:
        """Grammar *text* of calls of tools, in the library's Lark form."""
        return self._grammar_of("tools", self._library.LLMatcher.grammar_from_lark(text))

    def regex(self, pattern: str) -> Grammar:
        r"""Grammar of text that *pattern* matches as a whole; ``\d`` and ``\w`` are ASCII."""
        compile_regex = self._library.LLMatcher.grammar_from_regex
        return self._grammar_of("regex", compile_regex(with_ascii_classes(pattern)))

    def gbnf(self, text: str) -> Grammar:
        """Grammar *text* in llama.cpp's form."""
        tokenizer = self._tokenizer

        def find_token(text: str) -> int | None:
            ids = tokenizer.encode(text, add_special=False)
            is_token = len(ids) == 1 and tokenizer.token_bytes(ids[0]) == text.encode()
            return ids[0] if is_token else None

        lark = to_lark(text, find_token, tokenizer.stop_ids, vocab_size=tokenizer.vocab_size)
        return self._grammar_of("grammar", lark)

    def _grammar_of(self, field: str, text: str) -> Grammar:
        """Grammar *text*, compiled on first use and cached; thread-safe."""
        digest = hashlib.sha256(text.encode()).digest()
        grammar = self._kept.pop(digest, None) or _on_deep_stack(lambda: self._compile(field, text))
        self._kept[digest] = grammar
        with suppress(KeyError):  # another thread was faster
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return grammar

    def _compile(self, field: str, text: str) -> Grammar:
        check = self._library.LLMatcher.validate_grammar_with_warnings
        wrong, messages = check(text, self._vocabulary)
        if wrong:
            raise _refusal(field, messages[0])
        for message in messages:
            logger.warning("%s: %s", field, message)
        matcher = self._library.LLMatcher(self._vocabulary, text, log_level=0)
        matcher.compute_bitmask()  # the first one is the slowest: not in a forward pass
        return Grammar(matcher, self._tokenizer.vocab_size, self._rows)

    @cached_property
    def _vocabulary(self) -> Any:
        """The vocabulary as the library needs it; creating it takes a tenth of a second."""
        tokenizer = self._tokenizer
        # If no id ends an answer, an id beyond the vocabulary stands for the end.
        ends = sorted(tokenizer.stop_ids) or [tokenizer.vocab_size]
        tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        if not tokenizer.stop_ids:
            tokens.append(b"")
        wrapper = self._library.TokenizerWrapper(_Tokens(tokenizer, tokens, ends[0]))
        slices = self._library.LLTokenizer.json_slices()
        return self._library.LLTokenizer(wrapper, eos_token=ends, slices=slices)


class _Tokens:
    """A tokenizer with the attributes that the library expects."""

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], end: int) -> None:
        self.tokens = tokens
        self.eos_token_id = end
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = sorted({*tokenizer.special_ids, end})
        self._tokenizer = tokenizer
        special = set(self.special_token_ids)
        self._ids = {raw: token for token, raw in enumerate(tokens) if token not in special}
        self._longest = max(map(len, tokens))

    def __call__(self, text: str) -> list[int]:
        """Ids of *text*, a part of an answer: no space is put before it."""
        ids = self._tokenizer.encode(text, add_special=False, parse_special=False)
        raw = text.encode()
        if b"".join(self.tokens[token] for token in ids) == raw:
            return ids
        return list(self._longest_first(raw))

    def _longest_first(self, raw: bytes) -> Iterator[int]:
        """Ids whose bytes are *raw*, longest tokens first, as far as they exist."""
        while raw:
            lengths = range(min(self._longest, len(raw)), 0, -1)
            token = next((self._ids[raw[:n]] for n in lengths if raw[:n] in self._ids), None)
            if token is None:
                return
            yield token
            raw = raw[len(self.tokens[token]) :]


def _on_deep_stack(work: Callable[[], T]) -> T:
    """Result of *work*, in a thread with a stack large enough for the deepest grammar of a request.

    The library recurses, and a stack overflow would end the process.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again below
            outcome.set_exception(error)

    with _STACK_SIZE_LOCK:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="bitnet-grammar-stack", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    return outcome.result()


def with_ascii_classes(pattern: str) -> str:
    r"""*pattern* in which ``\d`` and ``\w`` match ASCII alone, as in JSON Schema's expressions."""
    parts: list[str] = []
    depth = 0  # of brackets: a class may contain another one
    for part in _REGEX_PARTS.findall(pattern):
        if part in _ASCII_CLASSES:
            ascii_class = _ASCII_CLASSES[part]
            parts.append(ascii_class if depth else f"[{ascii_class}]")
            continue
        if part[0] == "[" and not part.startswith("[:"):
            depth += 1
        elif part == "]" and depth:
            depth -= 1
        parts.append(part)
    return "".join(parts)


def _refusal(field: str, message: str) -> UsageError:
    """The error about a grammar of *field* that the library refused with *message*."""
    return UsageError(
        f"the {_KINDS[field]} cannot be used: {_reason(message)}",
        hint="correct it, or leave out what is not supported",
        field=field,
    )


def _reason(message: str) -> str:
    """The reason in a *message* of the library about a grammar."""
    if "WordUnicode" in message or "WordAscii" in message:
        return r"word boundaries (\b) are not supported"
    # An error of a regular expression ends with its reason, below a drawing of the position.
    _, drawn, reason = message.partition("\nerror: ")
    return _first_line(reason if drawn else message)


def _first_line(message: str) -> str:
    """First part of a message of the library, without its drawing of the position."""
    return " ".join(message.split("<state>")[0].split("\n  ")[0].split())[:200]
