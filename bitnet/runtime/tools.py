"""Functions that a request offers, and the grammar by which an answer can only call them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.base.trust import encodable
from bitnet.runtime.request_checks import ALLOWED, check_json, check_numbers, is_call_required
from bitnet.runtime.tool_detection import opening_at_end
from bitnet.runtime.tool_formats import CallRules
from bitnet.runtime.tool_grammar import control_tokens, write_grammar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.runtime.tool_formats import CallFormat
    from bitnet.tokenizer import Tokenizer

#: OpenAI's names have at most 64 characters, Anthropic's 128.
_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tools:
    """The functions of a request, and its ``tool_choice``."""

    offered: tuple[Mapping[str, Any], ...]  # as the template receives them
    callable: tuple[Mapping[str, Any], ...]  # those that may be called
    required: bool  # the answer must be a call
    parallel: bool  # it may contain several calls

    def rules(self, form: CallFormat, tokenizer: Tokenizer, prompt: str = "") -> CallRules:
        """Rules for finding the calls in an answer to *prompt* of the model with *tokenizer*."""
        texts = {token: text for text, token in control_tokens(form, tokenizer).items()}
        opening = opening_at_end(form, prompt)
        return CallRules(form, self._schemas(), self.required, self.parallel, texts, opening)

    def grammar(
        self,
        form: CallFormat,
        tokenizer: Tokenizer,
        schema: Mapping[str, Any] | bool | None = None,
        *,
        begun: str = "",
    ) -> str:
        """Grammar of calls, in the grammar library's Lark form.

        *schema* is that of an answer without calls, if one is allowed. *begun* is the beginning of
        the first call, which ends the prompt.
        """
        check_numbers("json_schema", schema)
        for arguments in self._schemas().values():
            check_numbers("tools", arguments)
        tokens = control_tokens(form, tokenizer)
        return write_grammar(
            form, self._schemas(), tokens, parallel=self.parallel, schema=schema, begun=begun
        )

    def _schemas(self) -> dict[str, Mapping[str, Any]]:
        """Schemas of the arguments by the names of the functions that may be called."""
        functions = [tool["function"] for tool in self.callable]
        return {each["name"]: each.get("parameters") or _NOTHING for each in functions}


# Keywords of a schema that readers or writers of calls look at, and the type of each.
_SCHEMAS = ("properties", "$defs", "definitions")
_BRANCHES = ("anyOf", "oneOf", "allOf", "prefixItems")
_KEYWORDS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(_SCHEMAS, ((Mapping,), "an object")),
    **dict.fromkeys(_BRANCHES, ((list, tuple), "a list")),
    "type": ((str, list, tuple), "a text or a list of texts"),
    # An older draft has it at each property, as a boolean.
    "required": ((list, tuple, bool), "a list of texts"),
    "enum": ((list, tuple), "a list"),
}

NO_TOOLS = Tools((), (), required=False, parallel=True)


def read_tools(definitions: Any, choice: Any, *, parallel: bool = True) -> Tools | None:
    """Tools in the *definitions* of a request; ``None`` if none may be called."""
    if not isinstance(definitions or (), list | tuple):
        raise UsageError("tools: expected a list of functions", field="tools")
    tools = tuple(definitions or ())
    for number, tool in enumerate(tools):
        _check(tool, f"tools.{number}")
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise UsageError("tools: two functions have one name", field="tools")
    if choice in (None, "auto", "none"):
        return Tools(tools, tools, False, parallel) if tools and choice != "none" else None
    if isinstance(choice, Mapping) and choice.get("type") == ALLOWED:
        allowed = _find_allowed(tools, choice)
        if is_call_required(choice):
            return Tools(tools, allowed, True, parallel)
        # As with none, the model is not told of tools that it must not call.
        return Tools(allowed, allowed, False, parallel)
    named = tools
    problem = "there are no tools"
    if choice != "required":
        chosen = _name_in(choice)
        named = tuple(tool for tool in tools if tool["function"]["name"] == chosen)
        problem = "expected none, auto, required, or the name of one of the tools"
        parallel = False
    if not named:
        raise UsageError(f"tool_choice: {problem}", field="tool_choice")
    return Tools(tools, named, True, parallel)


def _name_in(choice: Any) -> str | None:
    """Name of the function that *choice* names; None if it has another form."""
    function = choice.get("function") if isinstance(choice, Mapping) else None
    if not isinstance(function, Mapping) or choice.get("type") != "function":
        return None
    _check_keys("tool_choice", choice, ("type", "function"))
    _check_keys("tool_choice.function", function, ("name",))
    name = function.get("name")
    return name if isinstance(name, str) else None


def _check_keys(where: str, entries: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse what *entries*, which are at *where*, have besides *names*."""
    for key, value in entries.items():
        if key not in names and value is not None:
            field = encodable(f"{where}.{str(key)[:80]}")
            raise UsageError(f"{field}: this field is not known here", field=field)


def _find_allowed(
    tools: Sequence[Mapping[str, Any]], choice: Mapping[str, Any]
) -> tuple[Mapping[str, Any], ...]:
    """Those of *tools* that *choice*, of the type allowed_tools, names."""
    allowed = choice.get("allowed_tools")
    entries = allowed.get("tools") if isinstance(allowed, Mapping) else None
    if not isinstance(allowed, Mapping) or not isinstance(entries, list | tuple) or not entries:
        raise UsageError("tool_choice: expected a list of allowed tools", field="tool_choice")
    _check_keys("tool_choice", choice, ("type", "allowed_tools"))
    _check_keys("tool_choice.allowed_tools", allowed, ("mode", "tools"))
    if allowed.get("mode") not in ("auto", "required"):
        raise UsageError(
            "tool_choice: expected auto or required as the mode of allowed tools",
            field="tool_choice",
        )
    names = [_name_in(each) for each in entries]
    offered = {tool["function"]["name"] for tool in tools}
    for number, name in enumerate(names):
        if name not in offered:
            raise UsageError(
                f"tool_choice: allowed tool {number} is not the name of one of the tools",
                field="tool_choice",
            )
    return tuple(tool for tool in tools if tool["function"]["name"] in names)


def _check(tool: Any, where: str) -> None:
    """Check the form of a *tool*, which errors call *where*; schemas are checked elsewhere."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
        raise UsageError(f"{where}: expected a tool of the type function", field=where)
    name = function.get("name")
    schema = function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        field = f"{where}.function.name"
        raise UsageError(f"{field}: expected 1 to 128 letters, digits, and . _ -", field=field)
    if schema is not None and not isinstance(schema, Mapping):
        field = f"{where}.function.parameters"
        raise UsageError(f"{field} is not an object", field=field)


def check_schemas(definitions: Sequence[Mapping[str, Any]]) -> None:
    """Check the schemas of tools that :func:`read_tools` accepts, and that the tools are JSON."""
    for number, tool in enumerate(definitions):
        check_json(f"tools.{number}", tool)
        schema = tool["function"].get("parameters")
        _check_schema(schema, f"tools.{number}.function.parameters")


def _check_schema(schema: Any, where: str) -> None:
    """Check the types of the keywords of *schema*, and of the schemas in it."""
    if schema is None or isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise UsageError(f"{where}: expected a schema", field=where)
    for name, (types, expected) in _KEYWORDS.items():
        value = schema.get(name)
        is_right = value is None or isinstance(value, types)
        if isinstance(value, list | tuple) and name in ("type", "required"):
            is_right = all(isinstance(each, str) for each in value)
        if not is_right:
            field = f"{where}.{name}"
            raise UsageError(f"{field}: expected {expected}", field=field)
    for name in _SCHEMAS:
        for key, inner in (schema.get(name) or {}).items():
            _check_schema(inner, f"{where}.{name}.{key}")
    for name in (*_BRANCHES, "items"):
        branches = schema.get(name)
        if not isinstance(branches, list | tuple):
            continue
        for index, inner in enumerate(branches):
            _check_schema(inner, f"{where}.{name}.{index}")
    if not isinstance(schema.get("items"), list | tuple):
        _check_schema(schema.get("items"), f"{where}.items")
