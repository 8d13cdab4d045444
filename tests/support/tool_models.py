"""Tiny models that can spell JSON, with chat templates for the calls of several families."""

import string

from tiny_keys import VOCAB
from tiny_models import tiny_gguf

from bitnet.runtime.tool_detection import form_named_in
from bitnet.tokenizer.spec import byte_spelling

PLAIN = "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}assistant."
TOLD = (
    "{% for m in messages %}{{ m.role }}.{% if m.tool_calls %}{{ m.tool_calls | tojson }}"
    "{% endif %}{{ m.content }}.{% endfor %}{% if tools %}{{ tools | tojson }}EXAMPLE{% endif %}"
    "assistant."
)
#: Writes a call as a JSON object, the form of models whose template has no marks for it.
JSON_CALLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}."
    "{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% endif %}{{ m.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant.{% endif %}"
)
#: Writes tools and results, and no calls.
LISTING = (
    "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}assistant."
)
#: Text in a template by which its format of calls is recognised, by family.
SIGNS = {
    "hermes": "<tool_call>",
    "smollm": "<tool_call>[",
    "llama": "<|python_tag|>",
    "mistral": "[TOOL_CALLS] [",
    "mistral-named": "[TOOL_CALLS] and [ARGS]",
    "phi": "<|tool_call|> and <|/tool_call|>",
    "granite": "<|tool_call|>",
    "qwen-coder": "<tool_call> <function=",
    "keys": "<tool_call> <arg_key></arg_key><arg_value>",
    "key-lines": "<tool_call> <arg_key></arg_key>\n<arg_value>",
    "functiongemma": "<start_function_call>",
    "deepseek": "tool▁calls▁begin",
    "deepseek-v3": "tool▁calls▁begin ```json",
    "harmony": "<|channel|>",
    "json": "an object",
    "apertus": "<|tools_prefix|>",
    "apriel": "<tool_calls>[",
    "cohere": "<|START_ACTION|>",
    "command-r": "Action:\\n```json",
    "functionary": "<function=",
    "functionary-recipient": "'>>>all\\n'",
    "gemma-4": "<|tool_call>",
    "gigachat": "function call<|role_sep|>\\n",
    "gigachat-3.1": "<|function_call|>",
    "glimmer": "<atem:function_calls>",
    "hunyuan": "<tool_calls:opensource>",
    "kimi": "<|tool_calls_section_begin|>",
    "kimi-k3": "close_tag('tools')",
    "ling": "<arg_key> <role>ASSISTANT</role>",
    "minicpm": '<function name="',
    "minimax-m1": "<tool_calls>\n",
    "minimax-m2": "minimax:tool_call",
    "minimax-m3": "]<]minimax[>[",
    "mistral-with-ids": "[TOOL_CALLS] [CALL_ID] [ARGS]",
    "nemotron": "<TOOLCALL>",
    "pythonic": "<|tool_call_start|>",
    "seed": "<seed:tool_call>",
    "solar": "<|tool_calls|> <|tool_call:name|>",
    "dsml": "DSML",
    "dsml-functions": "DSML function_calls",
}
# Characters of calls as JSON, of names of tools and of marks such as [TOOL_CALLS] and [ARGS].
SYMBOLS = ' \n{}[]":,<>/_.|;=`'
LETTERS = string.ascii_lowercase + "TOLCARGS" + "0123"
#: Words and signs in the calls of the tests, besides the marks of a format.
_CALLED = (
    "weather clock city oslo rome zone exact kind word bad flag inner left x"
    ' null true false True False None 0123 {}[]":,=\n'
)


def template(family):
    """A template with a place for tools, or without one for ``plain``."""
    if family == "plain":
        return PLAIN
    written = TOLD.replace("EXAMPLE", SIGNS[family])
    return JSON_CALLS if family == "json" else written


def _characters(family, control):
    """Characters that spell the calls of *family*: those of JSON, or else only the needed ones."""
    common = list(dict.fromkeys(SYMBOLS + LETTERS))
    marks = "\n".join(form_named_in(SIGNS[family]).texts) if family in SIGNS else ""
    for mark in control:
        marks = marks.replace(mark, "")
    needed = {letter for letter in marks if letter >= "\n"}  # without placeholders: \0 and up
    return common if needed <= set(common) else sorted(needed | set(_CALLED))


def tool_gguf(path, family="hermes", *, control=()):
    """A tiny LLaMA that can spell JSON; *control*: texts that are one control token each."""
    tokens = ["<s>", "</s>", *control]
    tokens += [byte_spelling(letter.encode()) for letter in _characters(family, control)]
    types = [3] * (2 + len(control)) + [1] * (VOCAB - 2 - len(control))
    tokens += [f"<unused{number}>" for number in range(VOCAB - len(tokens))]
    assert len(tokens) == VOCAB
    keys = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.chat_template": template(family),
        "llama.context_length": 2048,
    }
    return tiny_gguf(path, **keys)


def tool(name, **properties):
    """A function with *properties*, all of them required."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


CITIES = ["oslo", "rome"]
WEATHER = tool("weather", city={"enum": CITIES})
CLOCK = tool("clock", zone={"enum": ["a", "b"]}, exact={"type": "boolean"})
