"""Chat templates: render a conversation as the text that the model was trained to continue.

Templates are programs from the model's file, and what one costs cannot be told from its text. They
run in a process of their own, which is ended at its limits of time and memory and then replaced.
"""

from __future__ import annotations

import atexit
import json
import marshal
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import datetime
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat, Unsupported, UsageError
from bitnet.base.locks import renew_in_child
from bitnet.tokenizer import chat_child
from bitnet.tokenizer.limits import TEMPLATE_CHARS
from bitnet.tokenizer.template_facts import TemplateFacts, probe, reasoning_as_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bitnet.tokenizer.tokenizer import Tokenizer

Message = dict[str, Any]

# Most seconds of one rendering, in real time: the only limit of time where the system does not
# count processor time.
_WALL_S = 30
_HINT = "name another template with --chat-template FILE"

# Processes started before a fork; kept so that garbage collection does not close their pipes.
_abandoned: list[subprocess.Popen[bytes]] = []
_PROBED_DAY = "2026-01-01T00:00:00"  # the clock of probes: facts must not depend on the day


def chat_template(tokenizer: Tokenizer, *, tools: bool = False) -> ChatTemplate:
    """The chat template of a tokenizer, for conversations with *tools* or without."""
    source = tokenizer.template_for(tools=tools)
    if not source:
        problem = "has no chat template"
        if tokenizer.named_templates:
            names = ", ".join(tokenizer.named_templates)
            problem = f"has no chat template named default, only {names}"
        hint = "send a plain prompt, or name a template with --chat-template FILE"
        raise Unsupported(f"the tokenizer {tokenizer.source} {problem}", hint=hint)

    def text(role: str, id: int | None) -> str:
        if role in tokenizer.template_tokens:
            return tokenizer.template_tokens[role]
        return "" if id is None else tokenizer.token_bytes(id).decode("utf-8", "replace")

    return ChatTemplate(
        source,
        bos_token=text("bos_token", tokenizer.bos_id),
        eos_token=text("eos_token", tokenizer.eos_id),
        tokens=tokenizer.template_tokens,
        source=tokenizer.chat_template_source,
    )


class ChatTemplate:
    """A chat template, compiled once to find errors in its syntax.

    *template* is its Jinja source, which the attribute ``text`` keeps. It sees the texts of BOS and
    EOS, and *tokens*, texts of other special tokens by their names in templates (``pad_token``).
    *source* is where the template is from, for messages, *now* the clock of ``strftime_now``.
    """

    def __init__(
        self,
        template: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        tokens: Mapping[str, str] | None = None,
        source: str = "the model",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self.text = template
        self._now = now
        seen = {**(tokens or {}), "bos_token": bos_token, "eos_token": eos_token}
        self._tokens = {name: text for name, text in seen.items() if text}
        if len(template) > TEMPLATE_CHARS:
            raise InvalidFormat(
                f"the chat template of {source} has {len(template):,} characters, at most"
                f" {TEMPLATE_CHARS:,} are supported",
                hint=_HINT,
            )
        template_process().render(template, None, now="", source=source)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation, oldest message first.

        Content is a text, or a list of ``{"type": "text", "text": ...}`` parts; a message that
        calls tools needs none. Arguments of a call are a JSON text or the object. *tools* are JSON
        schemas, *documents* ``{"title": ..., "text": ...}``, *variables* what the template sees
        besides, such as ``enable_thinking``.
        """
        if tools is None and self.facts.needs_list:
            tools = []
        values = {"tools": tools, "documents": documents, **(variables or {})}
        return self._render([*map(self.adapt, messages)], add_generation_prompt, **values)

    def render_pair(self, prompt: str = "") -> str:
        """The rendered pair, with ``{query}`` and ``{document}`` in the places of the two texts.

        As in sentence-transformers, each is a message with the role of its name, after a system
        message with *prompt* unless that is empty, and no generation prompt is added.
        """
        messages: list[Message] = [{"role": "system", "content": prompt}] if prompt else []
        messages += [{"role": role, "content": f"{{{role}}}"} for role in ("query", "document")]
        return self._render(messages, False)

    @cached_property
    def facts(self) -> TemplateFacts:
        """Parts of a conversation that the template writes, and the form in which it takes them."""
        tokens = tuple(sorted(self._tokens.items()))
        return _facts_of(self.text, tokens)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the template and the special tokens that it sees."""
        form = json.dumps([self.text, sorted(self._tokens.items())])
        return sha256(form.encode()).hexdigest()

    def adapt(self, message: Message) -> Message:
        """*message* with its content, calls and reasoning in the form that the template takes."""
        facts = self.facts
        adapted = dict(message)
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            change = _with_object if facts.arguments == "object" else _with_text
            adapted["tool_calls"] = [change(call) for call in calls]
        content = message.get("content")
        reasoning = message.get("reasoning_content")
        has_reasoning = bool(facts.reasoning and isinstance(reasoning, str) and reasoning)
        if content is None and (message.get("role") == "assistant" or has_reasoning):
            content = ""
        if isinstance(content, list):
            text = flatten(content)  # refuses content other than text
            content = content if facts.takes_parts else text
        elif isinstance(content, str) and not facts.takes_text:
            content = [{"type": "text", "text": content}]
        if "content" in message or content is not None:
            adapted["content"] = content
        if has_reasoning:
            self._add_reasoning(adapted, str(reasoning))
        return adapted

    def _add_reasoning(self, message: Message, reasoning: str) -> None:
        """Put *reasoning* where the template looks for it in *message*, which is changed."""
        facts = self.facts
        content = message["content"]
        if not isinstance(content, (str, list)):
            kind = type(content).__name__
            raise UsageError(f"content is of type {kind}, expected a text or a list of parts")
        text = content if isinstance(content, str) else flatten(content)
        if facts.reasoning == "parts":
            message["content"] = reasoning_as_parts(reasoning, text)
            return
        is_either = facts.text_beside_calls and not facts.reasoning_beside_text
        if is_either and message.get("tool_calls") and text:
            # gpt-oss: "Put the analysis message in one or the other, but not both."
            reasoning = f"{reasoning}\n\n{text}"
            message["content"] = ""
        message[facts.reasoning] = reasoning

    def _render(self, messages: Sequence[Message], is_open: bool, /, **variables: Any) -> str:
        """The text of adapted *messages*, with the generation prompt if it *is_open*."""
        seen = {"tools": None, "documents": None, **self._tokens, **variables}
        seen |= {"messages": messages, "add_generation_prompt": is_open}
        now = self._now().isoformat()
        return template_process().render(self.text, seen, now=now, source=self.source)


@lru_cache(maxsize=64)
def _facts_of(template: str, tokens: tuple[tuple[str, str], ...]) -> TemplateFacts:
    """Facts about *template*, which sees *tokens* by name and is run once for each probe."""

    def attempt(messages: Sequence[Message], is_open: bool, **variables: Any) -> str | None:
        seen = {"tools": None, "documents": None, **dict(tokens), **variables}
        seen |= {"messages": messages, "add_generation_prompt": is_open}
        return template_process().attempt(template, seen, now=_PROBED_DAY)

    return probe(attempt)


def _with_object(call: Any) -> Any:
    """*call* of a tool with its arguments as an object, if they are the JSON text of one."""
    try:
        function = call["function"]
        arguments = json.loads(function["arguments"])
    except (LookupError, TypeError, ValueError, RecursionError):
        return call
    changed = {**call, "function": {**function, "arguments": arguments}}
    return changed if isinstance(arguments, dict) else call


def _with_text(call: Any) -> Any:
    """*call* of a tool with its arguments as a JSON text, if they are an object."""
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(arguments, dict):
        return call
    try:
        text = json.dumps(arguments, ensure_ascii=False)
    except (TypeError, ValueError):
        raise _not_json() from None
    except RecursionError:
        raise _too_deep() from None
    return {**call, "function": {**function, "arguments": text}}  # type: ignore[dict-item]


def _not_json() -> UsageError:
    return UsageError(
        "the messages or variables hold something that is not a JSON value",
        hint="use texts, numbers, true, false, null, lists and objects",
    )


def _too_deep() -> UsageError:
    return UsageError(
        "the messages or variables are nested too deep for a chat template",
        hint="use fewer lists and objects inside of each other, below 1,000",
    )


def flatten(parts: Sequence[Any]) -> str:
    """The texts of the *parts* of a message, joined by line breaks.

    A part of the type ``text`` that has no text is refused, and so is a part of another type.
    """
    texts: list[Any] = [part.get("text") if isinstance(part, dict) else part for part in parts]
    for part, text in zip(parts, texts, strict=True):
        is_object = isinstance(part, dict)
        kind = part.get("type", "text") if is_object else type(part).__name__
        if isinstance(text, str) and kind in ("text", "str"):
            continue
        if is_object and kind == "text":
            actual = "nothing" if text is None else f"a value of type {type(text).__name__}"
            raise UsageError(
                f"a part of content has {actual} as its text, expected a string",
                hint='write it as {"type": "text", "text": "..."}',
            )
        raise Unsupported(f"content of type {kind!r} is not supported; only text is")
    return "\n".join(texts)


class TemplateProcess:
    """The child process that renders templates; started again after it was ended."""

    def __init__(self) -> None:
        self._renew()
        renew_in_child(self, TemplateProcess._abandon)
        atexit.register(self.close)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def _abandon(self) -> None:
        """Leave the process to the parent of this fork."""
        if self._process is not None:
            self._process.returncode = 0  # Popen takes it for ended and never waits for it
            # A thread of the parent may have been writing: a close here would write the rest to the
            # pipe, too, or wait for that thread.
            null = os.open(os.devnull, os.O_RDWR)
            for pipe in (self._process.stdin, self._process.stdout):
                os.dup2(null, pipe.fileno(), inheritable=False)  # type: ignore[union-attr]
            os.close(null)
            _abandoned.append(self._process)
        self._renew()

    def render(
        self, template: str, variables: dict[str, Any] | None, *, now: str, source: str
    ) -> str:
        """The text of *template*, which sees the JSON values *variables*; None only compiles it.

        *now* is the time in ISO 8601, *source* where the template is from, for messages.
        """
        kind, text = self._run(template, variables, now)
        if kind == chat_child.TEXT:
            return text
        if kind == chat_child.REFUSED:
            raise UsageError(
                f"the chat template of {source} refuses the conversation: {text}",
                hint="check the roles of the messages and their order",
            )
        problems = {chat_child.INVALID: "is not valid", chat_child.STOPPED: "was stopped"}
        raise InvalidFormat(
            f"the chat template of {source} {problems.get(kind, 'failed')}: {text}",
            hint=_HINT if kind in problems else f"check the messages, or {_HINT}",
        )

    def attempt(self, template: str, variables: dict[str, Any], *, now: str) -> str | None:
        """As :meth:`render`, but None if the template fails or refuses."""
        kind, text = self._run(template, variables, now)
        if kind == chat_child.STOPPED:
            raise InvalidFormat(f"the chat template was stopped: {text}", hint=_HINT)
        return text if kind == chat_child.TEXT else None

    def reaches(self, template: str) -> list[str]:
        """Names in *template* that lead out of the conversation, such as ``.__class__``.

        ``chat_child.reach`` finds them. The list is empty if *template* cannot be compiled.
        """
        kind, text = self._run(template, None, "", reaches=True)
        if kind == chat_child.STOPPED:
            raise InvalidFormat(f"the chat template was stopped: {text}", hint=_HINT)
        names: list[str] = json.loads(text) if kind == chat_child.TEXT else []
        return names

    def _run(
        self, template: str, variables: dict[str, Any] | None, now: str, *, reaches: bool = False
    ) -> tuple[int, str]:
        """The kind of the answer and its text."""
        try:
            job = marshal.dumps((chat_child.CPU_MS, template, variables, now, reaches))
        except ValueError as error:
            # CPython's message is "object too deeply nested to marshal".
            raise (_too_deep() if "nested" in str(error) else _not_json()) from None
        with self._lock:
            content = self._answer(job)
        return content[0], content[1:].decode("utf-8", "surrogatepass")

    def _answer(self, job: bytes) -> bytes:
        """The answer to *job*, kind and text; closes the process if it ended or reached a limit."""
        process = self._start()
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            process.kill()

        overdue = threading.Timer(_WALL_S, end)
        overdue.start()
        try:
            process.stdin.write(len(job).to_bytes(8, "little") + job)
            process.stdin.flush()
            size = int.from_bytes(process.stdout.read(8), "little")
            most = 4 * chat_child.MAX_CHARS + 1  # bytes of the text in UTF-8, and one for the kind
            content: bytes = process.stdout.read(size) if size <= most else b""
            if len(content) < size:  # it ended while it wrote
                content = b""
        except OSError:  # it has ended
            content = b""
        except BaseException:  # an interrupt: the next job must not read this answer
            self.close()
            raise
        finally:
            overdue.cancel()
        if content and content[0] != chat_child.STOPPED:
            return content
        status = None if content else _exit_status(process)
        self.close()  # after reaching a limit, its state is unknown
        if content:
            return content
        if status == chat_child.WITHOUT_JINJA:
            raise Unsupported(
                f"chat templates cannot be rendered: {sys.executable} finds no jinja2 where this"
                " program would import it",
                hint="pip install jinja2",
            )
        reason = f"more than {_WALL_S} s" if is_late.is_set() else _reason_of_end(status)
        return bytes([chat_child.STOPPED]) + reason.encode()

    def _start(self) -> Any:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            flags = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", chat_child.__file__, *_paths()],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # an interrupt of the terminal is for the parent
                    creationflags=flags,
                )
            except OSError as error:
                raise Unsupported(
                    f"the process that renders chat templates cannot be started: {error}",
                    hint="send a plain prompt; or free memory or processes, and try again",
                ) from error
        return self._process

    def close(self) -> None:
        """End the process."""
        process = self._process
        self._process = None
        if process is not None:
            process.kill()
            process.wait()
            _close_pipes(process)


def _exit_status(process: Any) -> int | None:
    """Exit status of *process*, which has closed its output; ``None`` if it still runs."""
    try:
        status: int = process.wait(timeout=_WALL_S)
    except subprocess.TimeoutExpired:
        return None
    return status


def _reason_of_end(status: int | None) -> str:
    """Reason to stop a template whose process ended with the exit *status* without an answer."""
    if status is not None and -status == getattr(signal, "SIGPROF", None):
        return f"more than {chat_child.CPU_MS / 1000:g} s of processor time"
    ended = "did not answer" if status is None else f"ended with status {status}"
    memory = chat_child.MEMORY_BYTES >> 20
    return f"its process {ended}: something else ended it, or it took more than {memory} MiB"


def _close_pipes(process: Any) -> None:
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            pipe.close()


def _paths() -> list[str]:
    """The folders from which this process would import Jinja."""
    origins = (getattr(find_spec(name), "origin", None) for name in ("jinja2", "markupsafe"))
    return list(dict.fromkeys(str(Path(origin).parents[1]) for origin in origins if origin))


@cache
def template_process() -> TemplateProcess:
    """The one process for templates."""
    return TemplateProcess()
