"""Tiny models whose letters are those of JSON, with chat templates of several families."""

import string

from tiny_models import VOCAB, tiny_gguf

from bitnet.tokenizer.spec import byte_spelling

PLAIN = "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}assistant."
TOLD = (
    "{% for m in messages %}{{ m.role }}.{% if m.tool_calls %}{{ m.tool_calls | tojson }}"
    "{% endif %}{{ m.content }}.{% endfor %}{% if tools %}{{ tools | tojson }}EXAMPLE{% endif %}"
    "assistant."
)
#: Writes tools and results, and no calls.
LISTING = (
    "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}assistant."
)
#: What tells the form of a family in its template.
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
}
SYMBOLS = ' \n{}[]":,<>/_.|;=`'
LETTERS = string.ascii_lowercase + "TOLCARGS" + "0123"


def template(family):
    """A template with a place for tools, or without for families that have none."""
    return PLAIN if family == "plain" else TOLD.replace("EXAMPLE", SIGNS[family])


def tool_gguf(path, family="hermes", *, control=()):
    """A tiny LLaMA that can spell JSON; *control*: texts that are one control token each."""
    tokens = ["<s>", "</s>", *control]
    tokens += [byte_spelling(one.encode()) for one in SYMBOLS]
    tokens += list(dict.fromkeys(LETTERS))
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
