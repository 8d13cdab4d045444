"""A model whose tokens are scripted; everything but the choice of tokens is real.

It has the vocabulary of GPT-2, a chat template with tools, a long context and random weights. An
answer to a conversation with tools is a step of a script: the number of results in the conversation
selects it.
"""

import json
import lzma
from pathlib import Path

import tiny_models
from builders import Tensor, write_gguf

from bitnet.formats.containers import open_checkpoint
from bitnet.runtime.piece import Piece
from bitnet.runtime.sequence import Sequence

VOCABULARY = Path(__file__).parents[1] / "data/vocab/ggml-vocab-gpt-2.gguf.xz"
RESULT = "<tool_response>"
TOOLS = "<tools>"
TEMPLATE = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}</tools>"
    "{% endif %}"
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>"
    "{% else %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}</{{ m.role }}>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_call(name, **arguments):
    """Text of a call of the function *name*, as the template has it."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def scripted_gguf(folder, monkeypatch):
    """A GGUF file in *folder* with such a model, whose tokens :func:`script` sets."""
    source = folder / "vocabulary.gguf"
    source.write_bytes(lzma.decompress(VOCABULARY.read_bytes()))
    vocabulary = {
        key: value if isinstance(value, str | int) else list(value)
        for key, value in open_checkpoint(source).metadata.items()
        if key.startswith("tokenizer.")
    }
    size = len(vocabulary["tokenizer.ggml.tokens"])
    monkeypatch.setattr(tiny_models, "VOCAB", size)
    sizes = {"embedding_length": 64, "feed_forward_length": 64, "block_count": 1}
    heads = {"attention.head_count": 1, "attention.head_count_kv": 1}
    model = tiny_models.tiny("llama", context_length=1 << 17, **sizes, **heads)
    tensors = [
        Tensor(weight.name, weight.shape, 0, weight.data.tobytes())
        for weight in model.weights.values()
    ]
    keys = {**model.metadata, **vocabulary, "tokenizer.chat_template": TEMPLATE}
    return write_gguf(folder / "scripted.gguf", keys, tensors)


def script(monkeypatch, tokenizer, steps, without_tools="ok"):
    """Make every answer one of *steps*, in ids of *tokenizer*; the last one repeats.

    *without_tools* is the answer to a conversation that offers no tools. Returns the list to which
    each prompt is appended.
    """
    prompts = []
    ids = {}

    def ids_of(sequence):
        if id(sequence) not in ids:
            prompt = tokenizer.decode(list(sequence.ids[: sequence.prompt_tokens]))
            prompts.append(prompt)
            text = without_tools
            if TOOLS in prompt:
                text = steps[min(prompt.count(RESULT), len(steps) - 1)]
            # With the sequence: another one could get the id of one that is no longer in memory.
            ids[id(sequence)] = sequence, tokenizer.encode(text, add_special=False)
        return ids[id(sequence)][1]

    def sample(self, _logits):
        answer = ids_of(self)
        end = min(self.request.stop_ids)
        return Piece(answer[self.tokens] if self.tokens < len(answer) else end)

    monkeypatch.setattr(Sequence, "_sample", sample)
    return prompts
