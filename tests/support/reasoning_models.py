"""Random models whose chat template opens a reasoning part."""

from tiny_keys import VOCAB
from tiny_models import letters, tiny_gguf

MARKS = ["<think>", "</think>"]
TOKENS = ["<s>", "</s>", *MARKS, *"abcdefghijklmnopqrstuvwxyz.", "\u0120"]
TOKENS += [f"Q{at}" for at in range(VOCAB - len(TOKENS))]
OPEN = "{% for m in messages %}{{ m.content }}.{% endfor %}<think>"
# The template opens the reasoning, and closes it at once if `enable_thinking` is false.
TEMPLATE = OPEN + "{% if enable_thinking is false %}</think>{% endif %}"


def reasoning_gguf(path, template=TEMPLATE, tokens=TOKENS):
    """A random model whose template has reasoning."""
    # Control tokens, then user-defined marks among normal tokens.
    kinds = [3, 3] + [4 if token in MARKS else 1 for token in tokens[2:]]
    words = letters(tokens) | {
        "tokenizer.chat_template": template,
        "tokenizer.ggml.token_type": kinds,
        "llama.context_length": 128,
    }
    return tiny_gguf(path, tokenizer=False, **words)
