"""Formats in which models write function calls: a table, selected by the chat template.

A format is a few texts: what opens the calls, what precedes and follows the arguments of one, and
what closes the calls. Its notation tells how the arguments are written. All formats come from the
chat templates themselves; those that llama.cpp publishes are read back by a test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

# Placeholders in the texts of a format.
NAME = "\0"  # of the function
ID = "\1"  # of the call; a grammar has the model write nine letters and digits
INDEX = "\2"  # of the call in its message, from 0; models may count on through a conversation
KEY = "\3"  # of an argument
TYPE = "\4"  # of an argument's value

_PLACEHOLDER = re.compile(f"[{NAME}{ID}{INDEX}{KEY}{TYPE}]")

_FENCES = ("```json", "```tool_code", "```")
_PARAMETERS = f'{{"name": "{NAME}", "parameters": '


@dataclass(frozen=True)
class Notation:
    """Notation of the arguments of a call.

    - ``json``: one JSON object.
    - ``elements``: each value between *begin* and *end*; a text as it is, the others as JSON.
    - ``nested``: as elements, in which objects and lists are elements again.
    - ``braces``: ``{key:value}`` with texts between *quote*.
    - ``keywords``: Python's keyword arguments, as in ``city='Rome', days=3``.
    """

    kind: Literal["json", "elements", "nested", "braces", "keywords"] = "json"
    begin: str = ""
    end: str = ""
    quote: str = ""
    # what TYPE in *begin* states: ``flag``, if the value is a text; ``name``, the name of its type
    types: Literal["", "flag", "name"] = ""
    cdata: bool = False  # a text may be in a CDATA section


@dataclass(frozen=True)
class Headers:
    """Format of answers that consist of messages with headers, each with one call or a text."""

    begins: tuple[str, ...]  # texts with which a header begins
    message: str  # text after a header
    ends: tuple[str, ...]  # texts after a message
    call: str  # regular expression of the header of a call; its group is the function
    routed: str  # regular expression of headers of messages that are not for the user
    dropped: str  # text before a header that is not part of it


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
    dressing: tuple[str, ...] = ()  # marks without a meaning around calls
    skipped: tuple[str, ...] = ()  # marks without a meaning around the text of an answer
    notation: Notation = Notation()  # how a call writes its arguments
    pattern: str = ""  # regular expression of a head, where it may differ from *head*
    call_id: str = ""  # text of a call's id with ID or INDEX, if the model writes an id
    headers: Headers | None = None  # an answer is messages, each of one call

    @property
    def has_json_calls(self) -> bool:
        """True if a call is a JSON object that contains its name and arguments."""
        return self.head.startswith("{")

    @property
    def end(self) -> str:
        """The text that ends a block: *closing* without the bracket of a list."""
        end = self.closing.strip()
        return end.removeprefix("]").lstrip() if self.opening.rstrip().endswith("[") else end

    @property
    def shapes_text(self) -> bool:
        """True if answers without calls have marks as well, which are not part of their text."""
        return self.headers is not None or bool(self.skipped)

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that an answer in this format may consist of, with placeholders."""
        notation = self.notation
        of_calls = (self.opening, self.head, self.tail, self.closing, self.between, self.marker)
        headers = self.headers
        of_headers = (headers.message, *headers.begins, *headers.ends) if headers else ()
        texts = (*of_calls, notation.begin, notation.end, notation.quote)
        return tuple(filter(None, (*texts, *of_headers, *self.dressing, *self.skipped)))


@dataclass(frozen=True)
class CallRules:
    """Rules for finding the calls in an answer."""

    form: CallFormat  # of the model's calls
    schemas: Mapping[str, Mapping[str, Any]]  # of the arguments, by the name of the function
    guided: bool = False  # a grammar restricts the answer to calls, exactly in *form*
    parallel: bool = True  # several calls are allowed
    shown: Mapping[int, str] = field(default_factory=dict)  # control tokens read as text
    opening_in_prompt: str = ""  # the beginning of the answer's first block, which ends the prompt


def fill(text: str, values: Mapping[str, str]) -> str:
    """*text* of a format with *values* for its placeholders, which may contain such characters."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[0], found[0]), text)


def _list(name: str, opening: str, closing: str, **more: Any) -> CallFormat:
    """Format of JSON calls in one block; *more* are other fields.

    *opening* and *closing* surround the block. They include the brackets if it is a JSON list.
    """
    end = closing.lstrip("] \n")
    defaults: dict[str, Any] = {
        "between": ", ",
        "marker": opening.rstrip("[ \n"),
        "dressing": (end,) if end else (),
    }
    return CallFormat(name, opening, closing=closing, listed=True, **{**defaults, **more})


def _elements(begin: str, end: str, **more: Any) -> Notation:
    """Notation of arguments as elements between *begin* and *end*; *more* are other fields."""
    return Notation("elements", begin, end, **more)


HERMES = CallFormat(
    "hermes", "<tool_call>\n", closing="\n</tool_call>", marker="<tool_call>",
    dressing=("</tool_call>",),
)  # fmt: skip
GEMMA = CallFormat("gemma", head=_PARAMETERS, dressing=_FENCES)
JSON = CallFormat("json", dressing=(";", *_FENCES))
LLAMA = CallFormat("llama", head=_PARAMETERS, between="; ", dressing=(";", *_FENCES))

DEEPSEEK = CallFormat(
    "deepseek", "<｜tool▁calls▁begin｜>", f"<｜tool▁call▁begin｜>{NAME}<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", between="", listed=True,
    marker="<｜tool▁calls▁begin｜>", dressing=("```",),
)  # fmt: skip
DEEPSEEK_V3 = replace(
    DEEPSEEK, name="deepseek-v3",
    head=f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{NAME}\n```json\n",
    tail="\n```<｜tool▁call▁end｜>", between="\n",
)  # fmt: skip
DSML = CallFormat(
    "dsml", "<｜DSML｜tool_calls>\n", f'<｜DSML｜invoke name="{NAME}">\n', "</｜DSML｜invoke>",
    "\n</｜DSML｜tool_calls>", listed=True, marker="<｜DSML｜tool_calls>",
    notation=_elements(
        f'<｜DSML｜parameter name="{KEY}" string="{TYPE}">', "</｜DSML｜parameter>\n", types="flag"
    ),
)  # fmt: skip
HARMONY = CallFormat(
    "harmony", head=f"<|channel|>commentary to=functions.{NAME} <|constrain|>json<|message|>",
    tail="", dressing=("<|constrain|>",),
    headers=Headers(
        ("<|start|>", "<|channel|>", "to="), "<|message|>",
        ("<|end|>", "<|call|>", "<|return|>", "<|start|>"), r"to=functions\.([\w.-]+)",
        r"to=|<\|channel\|>analysis", "<|start|>assistant",
    ),
)  # fmt: skip
GLIMMER = CallFormat(
    "glimmer", head=f' to={NAME}<|message|><atem:function_calls>\n<atem:invoke name="{NAME}">\n',
    tail="</atem:invoke>\n</atem:function_calls>",
    notation=_elements(f'<atem:parameter name="{KEY}">', "</atem:parameter>\n"),
    headers=Headers(
        ("<|start|>", "to="), "<|message|>", ("<|eom|>", "<|eot|>", "<|start|>"),
        r"to=([\w.-]+)", r"to=(?!user\b)", "<|start|>assistant",
    ),
)  # fmt: skip
#: GLM 4.7 and Spark: all on one line. GLM 4.6 and Laguna write a line for each mark.
KEYS = CallFormat(
    "keys", "<tool_call>", NAME, "", "</tool_call>", between="", marker="<tool_call>",
    dressing=("</tool_call>",),
    notation=_elements(f"<arg_key>{KEY}</arg_key><arg_value>", "</arg_value>"),
)  # fmt: skip
KEY_LINES = replace(
    KEYS, name="key-lines", head=f"{NAME}\n", between="\n",
    notation=_elements(f"<arg_key>{KEY}</arg_key>\n<arg_value>", "</arg_value>\n"),
)  # fmt: skip
HUNYUAN = CallFormat(
    "hunyuan", "<tool_calls:opensource>\n", f"<tool_call:opensource>{NAME}<tool_sep:opensource>\n",
    "</tool_call:opensource>", "\n</tool_calls:opensource>", listed=True,
    marker="<tool_calls:opensource>",
    notation=_elements(
        f"<arg_key:opensource>{KEY}</arg_key:opensource>\n<arg_value:opensource>",
        "</arg_value:opensource>\n",
    ),
)  # fmt: skip
MISTRAL_NAMED = CallFormat(
    "mistral-named", "[TOOL_CALLS]", f"{NAME}[ARGS]", "", between="", marker="[TOOL_CALLS]",
    pattern=r"(?P<name>[\w.-]+)\s*(?:\[CALL_ID\](?P<id>[^\[]*))?\[ARGS\]",
)  # fmt: skip
QWEN_CODER = CallFormat(
    "qwen-coder", "<tool_call>\n", f"<function={NAME}>\n", "</function>", "\n</tool_call>",
    marker="<tool_call>", dressing=("</tool_call>",),
    notation=_elements(f"<parameter={KEY}>\n", "\n</parameter>\n"),
)  # fmt: skip
FUNCTION_GEMMA = CallFormat(
    "functiongemma", "<start_function_call>", f"call:{NAME}", "", "<end_function_call>", between="",
    marker="<start_function_call>", dressing=("<end_function_call>",),
    notation=Notation("braces", quote="<escape>"),
)  # fmt: skip
KIMI = CallFormat(
    "kimi", "<|tool_calls_section_begin|>",
    f"<|tool_call_begin|>functions.{NAME}:{INDEX}<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<|tool_calls_section_end|>", between="", listed=True,
    marker="<|tool_calls_section_begin|>", call_id=f"functions.{NAME}:{INDEX}",
)  # fmt: skip
KIMI_K3 = CallFormat(
    "kimi-k3", "<|open|>tools<|sep|>", f'<|open|>call tool="{NAME}" index="{INDEX}"<|sep|>',
    "<|close|>call<|sep|>", "<|close|>tools<|sep|>", between="", listed=True,
    marker="<|open|>tools<|sep|>",
    skipped=(
        "<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ),
    notation=_elements(
        f'<|open|>argument key="{KEY}" type="{TYPE}"<|sep|>', "<|close|>argument<|sep|>",
        types="name",
    ),
)  # fmt: skip
COHERE = _list(
    "cohere", "<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>", between=",\n    ",
    head=f'{{"tool_call_id": "{INDEX}", "tool_name": "{NAME}", "parameters": ',
    skipped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)  # fmt: skip
COMMAND_R = _list(
    "command-r", "Action:\n```json\n[\n    ", "\n]```", between=",\n    ",
    marker="Action:\n```json", head=f'{{"tool_name": "{NAME}", "parameters": ', dressing=(),
)  # fmt: skip
PYTHONIC = CallFormat(
    "pythonic", "<|tool_call_start|>[", f"{NAME}(", ")", "]<|tool_call_end|>", between=", ",
    listed=True, marker="<|tool_call_start|>", notation=Notation("keywords"),
)  # fmt: skip
MINIMAX_M2 = CallFormat(
    "minimax-m2", "<minimax:tool_call>\n", f'<invoke name="{NAME}">\n', "</invoke>",
    "\n</minimax:tool_call>", listed=True, marker="<minimax:tool_call>",
    notation=_elements(f'<parameter name="{KEY}">', "</parameter>\n"),
)  # fmt: skip
MINIMAX_M3 = CallFormat(
    "minimax-m3", "]<]minimax[>[<tool_call>\n", f']<]minimax[>[<invoke name="{NAME}">',
    "]<]minimax[>[</invoke>", "\n]<]minimax[>[</tool_call>", listed=True,
    marker="]<]minimax[>[<tool_call>",
    notation=Notation("nested", f"]<]minimax[>[<{KEY}>", f"]<]minimax[>[</{KEY}>"),
)  # fmt: skip
MINICPM = CallFormat(
    "minicpm", head=f'<function name="{NAME}">', tail="", closing="</function>",
    marker="<function name=",
    notation=_elements(f'<param name="{KEY}">', "</param>", cdata=True),
)  # fmt: skip
FUNCTIONARY = CallFormat(
    "functionary",
    head=f"<function={NAME}>",
    tail="",
    closing="</function>",
    between="",
    marker="<function=",
)
SOLAR = CallFormat(
    "solar", "<|tool_calls|>",
    f"<|tool_call:begin|>{ID}<|tool_call:name|>{NAME}<|tool_call:args|>", "<|tool_call:end|>",
    "<|calls|>", between="", listed=True, marker="<|tool_calls|>", call_id=ID,
    skipped=("<|begin|>assistant", "<|content|>", "<|end|>"),
)  # fmt: skip

#: Formats, each with texts of the template that identify it; the most specific first.
FORMATS: tuple[tuple[tuple[str, ...], CallFormat], ...] = (
    (
        ("[CALL_ID]", "[ARGS]"),
        replace(MISTRAL_NAMED, head=f"{NAME}[CALL_ID]{ID}[ARGS]", call_id=ID,
                name="mistral-with-ids"),
    ),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL_NAMED),
    (("[TOOL_CALLS] [",), _list("mistral", "[TOOL_CALLS] [", "]")),
    (("[TOOL_CALLS]",), _list("mistral", "[TOOL_CALLS][", "]")),
    (("<|/tool_call|>",), _list("phi", "<|tool_call|>[", "]<|/tool_call|>")),
    (("<|tool_call|>",), _list("granite", "<|tool_call|>[", "]")),
    (("<tool_calls:opensource>",), HUNYUAN),
    (("<tool_calls{{",), HUNYUAN),
    (("<seed:tool_call>",), replace(
        QWEN_CODER, name="seed", opening="<seed:tool_call>\n", closing="\n</seed:tool_call>",
        marker="<seed:tool_call>", dressing=("</seed:tool_call>",),
        notation=_elements(f"<parameter={KEY}>", "</parameter>\n"),
    )),
    (("]<]minimax[>[",), MINIMAX_M3),
    (("minimax:tool_call",), MINIMAX_M2),
    (("DSML", "function_calls"), replace(
        DSML, name="dsml-functions", opening="<｜DSML｜function_calls>\n",
        closing="\n</｜DSML｜function_calls>", marker="<｜DSML｜function_calls>",
    )),
    (("DSML",), DSML),
    (("<arg_key>", "<role>ASSISTANT</role>"), replace(
        KEY_LINES, name="ling", closing="\n</tool_call>",
        notation=_elements(f"<arg_key>{KEY}</arg_key>\n<arg_value>", "</arg_value>"),
    )),
    (("<arg_key>", "</arg_key>\n"), KEY_LINES),
    (("<arg_key>", "</arg_key>\\n"), KEY_LINES),  # an escape in a string of the template
    (("<arg_key>",), KEYS),
    (("<tool_call>[",), _list("smollm", "<tool_call>[", "]</tool_call>")),
    (("<tool_call>", "<function="), QWEN_CODER),
    (("<tool_calls>[",), _list("apriel", "<tool_calls>[", "]</tool_calls>")),
    (("<tool_calls>\n",), _list("minimax-m1", "<tool_calls>\n", "\n</tool_calls>", between="\n")),
    (("<tool_calls>\\n",), _list("minimax-m1", "<tool_calls>\n", "\n</tool_calls>", between="\n")),
    (("<tool_call>",), HERMES),
    (("<TOOLCALL>",), _list("nemotron", "<TOOLCALL>[", "]</TOOLCALL>")),
    (("<|tools_prefix|>",), _list(
        "apertus", "<|tools_prefix|>[", "]<|tools_suffix|>", head=f'{{"{NAME}": '
    )),
    (("<start_function_call>",), FUNCTION_GEMMA),
    (("<|tool_call>",), replace(
        FUNCTION_GEMMA, name="gemma-4", opening="<|tool_call>", closing="<tool_call|>",
        marker="<|tool_call>", dressing=("<tool_call|>",),
        notation=Notation("braces", quote='<|"|>'),
    )),
    (("tool▁calls▁begin", "```json"), DEEPSEEK_V3),
    (("tool▁calls▁begin",), DEEPSEEK),
    (("<atem:function_calls>",), GLIMMER),
    (("<|tool_calls_section_begin|>",), KIMI),
    (("close_tag('tools')",), KIMI_K3),
    (("<|START_ACTION|>",), COHERE),
    (("Action:\\n```json",), COMMAND_R),
    (("<|tool_call_start|>",), PYTHONIC),
    (("<|tool_list_start|>",), PYTHONIC),  # LFM2
    (("List of tools: [", "keep_past_thinking"), PYTHONIC),  # LFM2.5
    (("function call<|role_sep|>\\n",), CallFormat(
        "gigachat", "<|message_sep|>\n\nfunction call<|role_sep|>\n", skipped=("<|message_sep|>",),
        marker="function call<|role_sep|>\n",
    )),
    (("<|function_call|>",), CallFormat(
        "gigachat-3.1", "<|function_call|>", marker="<|function_call|>",
    )),
    (("<|tool_calls|>", "<|tool_call:name|>"), SOLAR),
    (('<function name="',), MINICPM),
    (("<function=",), FUNCTIONARY),
    (("'>>>all\\n'",), CallFormat(
        "functionary-recipient", ">>>", f"{NAME}\n", "", between="", marker=">>>",
        skipped=(">>>all\n",),
    )),
    (("<|channel|>",), HARMONY),
    (
        ("<|python_tag|>",),
        replace(LLAMA, dressing=("<|python_tag|>", ";", *_FENCES)),
    ),
    (('"parameters": dictionary',), LLAMA),
    ((), JSON),
)  # fmt: skip
