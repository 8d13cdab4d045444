"""Formats in which models write function calls: a table, selected by the chat template.

The formats come from the chat templates themselves: NousResearch's Hermes 2 Pro, Qwen 2.5 and 3
(``<tool_call>``), SmolLM2 1.7B (a list in it), Llama 3.1 and 3.2 (an object with ``parameters``),
Mistral 7B v0.3 and later (``[TOOL_CALLS]``), Phi-4 mini and Granite 3 (``<|tool_call|>``).
Qwen3-Coder, FunctionGemma, GLM 4.6 and 4.7, DeepSeek V3 and V3.1 write blocks, and gpt-oss messages
(``tool_calls.py``).
Gemma 3's template does not support tools; Google's guide has it write one with ``parameters``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAME = "\0"  # stands for the function's name in a head
ESCAPE = "<escape>"  # around texts in FunctionGemma's notation


@dataclass(frozen=True)
class CallFormat:
    """Format of the calls in an answer."""

    name: str
    opening: str = ""  # text before the calls, as the template writes it
    head: str = f'{{"name": "{NAME}", "arguments": '  # a call up to its arguments
    tail: str = "}"  # a call after its arguments
    closing: str = ""  # text after the calls
    between: str = "\n"  # text between two calls
    listed: bool = False  # one opening and one closing surround all calls; else each has its own
    marker: str = ""  # text that announces a call; empty: an answer is a call from its beginning
    dressing: tuple[str, ...] = ()  # texts around calls that have no meaning
    block: str = ""  # expression of a call's head, for calls read as a block up to *closing*
    arguments: str = "json"  # how such a call writes them: json, xml, notation, keys, ...
    channels: bool = False  # an answer is messages, as in ``tool_calls.py``, each of one call

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that are single tokens, some of them control tokens, in some vocabularies."""
        own = (self.marker, *self.dressing, "[ARGS]" if "[ARGS]" in self.head else "")
        return tuple(one for one in own if one)


@dataclass(frozen=True)
class CallRules:
    """Rules for finding the calls in an answer."""

    form: CallFormat  # of the model's calls
    schemas: Mapping[str, Mapping[str, Any]]  # of the arguments, by the name of the function
    guided: bool = False  # a grammar restricts the answer to calls, exactly in *form*
    parallel: bool = True  # several calls are allowed
    shown: Mapping[int, str] = field(default_factory=dict)  # control tokens read as text


_FENCES = ("```json", "```tool_code", "```")
_PARAMETERS = f'{{"name": "{NAME}", "parameters": '
HERMES = CallFormat(
    "hermes", "<tool_call>\n", closing="\n</tool_call>", marker="<tool_call>",
    dressing=("</tool_call>",),
)  # fmt: skip
DEEPSEEK = CallFormat(
    "deepseek", "<｜tool▁calls▁begin｜>", f"<｜tool▁call▁begin｜>{NAME}<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", between="", listed=True,
    marker="<｜tool▁calls▁begin｜>",
    dressing=(
        "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
    ),
    block=r"<｜tool▁call▁begin｜>(?P<name>[\w.-]+)<｜tool▁sep｜>",
)  # fmt: skip
HARMONY = CallFormat(
    "harmony", head=f"<|channel|>commentary to=functions.{NAME} <|constrain|>json<|message|>",
    tail="", dressing=("<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>"),
    channels=True,
)  # fmt: skip
GEMMA = CallFormat("gemma", head=_PARAMETERS, dressing=_FENCES)

#: GLM 4.7 and Spark: all on one line. GLM 4.6, Ling and Laguna write a line for each mark.
KEYS = CallFormat(
    "keys", "<tool_call>", NAME, "", "</tool_call>", between="", marker="<tool_call>",
    dressing=("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    block=r"\A\s*(?P<name>[\w.-]+)\s*(?=<arg_key>|\Z)", arguments="keys",
)  # fmt: skip
KEY_LINES = replace(KEYS, name="key-lines", head=f"{NAME}\n", between="\n", arguments="key-lines")

#: Formats, each with a text of the template that identifies it; the most specific first.
FORMATS: tuple[tuple[tuple[str, ...], CallFormat], ...] = (
    (
        ("[TOOL_CALLS]", "[ARGS]"),
        CallFormat("mistral-named", "[TOOL_CALLS]", f"{NAME}[ARGS]", "", between="",
                   marker="[TOOL_CALLS]",
                   block=r"(?P<name>[\w.-]+)\s*(?:\[CALL_ID\][^\[]*)?\[ARGS\]"),
    ),
    (
        ("[TOOL_CALLS] [",),
        CallFormat("mistral", "[TOOL_CALLS] [", closing="]", between=", ", listed=True,
                   marker="[TOOL_CALLS]"),
    ),
    (
        ("[TOOL_CALLS]",),
        CallFormat("mistral", "[TOOL_CALLS][", closing="]", between=", ", listed=True,
                   marker="[TOOL_CALLS]"),
    ),
    (
        ("<|/tool_call|>",),
        CallFormat("phi", "<|tool_call|>[", closing="]<|/tool_call|>", between=", ", listed=True,
                   marker="<|tool_call|>", dressing=("<|/tool_call|>",)),
    ),
    (
        ("<|tool_call|>",),
        CallFormat("granite", "<|tool_call|>[", closing="]", between=", ", listed=True,
                   marker="<|tool_call|>"),
    ),
    (("<arg_key>", "</arg_key>\n"), KEY_LINES),
    (("<arg_key>", "</arg_key>\\n"), KEY_LINES),  # in a text of the template
    (("<arg_key>",), KEYS),
    (
        ("<tool_call>[",),
        CallFormat("smollm", "<tool_call>[", closing="]</tool_call>", between=", ", listed=True,
                   marker="<tool_call>", dressing=("</tool_call>",)),
    ),
    (
        ("<tool_call>", "<function="),
        CallFormat("qwen-coder", "<tool_call>\n", f"<function={NAME}>\n", "</function>",
                   "\n</tool_call>", marker="<tool_call>", dressing=("</tool_call>",),
                   block=r"<function=(?P<name>[\w.-]+)>", arguments="xml"),
    ),
    (("<tool_call>",), HERMES),
    (
        ("<start_function_call>",),
        CallFormat("functiongemma", "<start_function_call>", f"call:{NAME}", "",
                   "<end_function_call>", between="", marker="<start_function_call>",
                   dressing=("<end_function_call>", "<escape>"),
                   block=r"call:(?P<name>[\w.-]+)", arguments="notation"),
    ),
    (
        ("tool▁calls▁begin", "```json"),
        replace(DEEPSEEK, head=f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{NAME}\n```json\n",
                tail="\n```<｜tool▁call▁end｜>", between="\n",
                block=r"<｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<name>[\w.-]+)\n```json\n"),
    ),
    (("tool▁calls▁begin",), DEEPSEEK),
    (("<|channel|>",), HARMONY),
    (
        ("<|python_tag|>",),
        CallFormat("llama", head=_PARAMETERS, between="; ",
                   dressing=("<|python_tag|>", ";", *_FENCES)),
    ),
    (
        ('"parameters": dictionary',),
        CallFormat("llama", head=_PARAMETERS, between="; ", dressing=(";", *_FENCES)),
    ),
    ((), CallFormat("json", dressing=(";", *_FENCES))),
)  # fmt: skip


def format_of(template: str) -> CallFormat:
    """The format of calls that the chat template *template*, which supports tools, asks for."""
    return next(form for signs, form in FORMATS if all(sign in template for sign in signs))


def without_branch(template: str) -> CallFormat:
    """Format of calls for a model whose *template* does not support tools."""
    return GEMMA if "<start_of_turn>" in template else HERMES


def explain_tools(form: CallFormat, tools: Sequence[Mapping[str, Any]]) -> str:
    """Instructions about *tools* for a model whose template has none."""
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    call = {"function": {"name": "NAME", "arguments": '{"ARGUMENT": VALUE}'}}
    example = write_call(form, call)
    return (
        "You may call functions. Each line describes one, as JSON:\n"
        + "\n".join(lines)
        + f"\n\nTo call a function, answer with nothing but\n{example}"
    )


def write_call(form: CallFormat, call: Any) -> str:
    """The text of *call*, which is one of a message, in the format *form*."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise UsageError("messages: a call in tool_calls has no function name", field="messages")
    arguments = function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    head = form.head.replace(NAME, function["name"])
    return f"{form.opening}{head}{arguments}{form.tail}{form.closing}"
