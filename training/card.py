"""The card of a trained model: ``python -m training.card TEXTS OUT MODEL.gguf > MODEL.md``.

Every figure is computed from the file, the texts and the log of the training; the samples are
whatever the first seeds give.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import bitnet
from bitnet.base.errors import BitnetError
from bitnet.base.files import digest_of
from bitnet.formats.containers import open_checkpoint
from bitnet.quants import registry
from training.text import BEGIN, prepare, read_texts, read_tokenizer, split
from training.train import read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet import LanguageModel
    from training.text import Tokens

__all__ = ["card", "main"]

_PROMPTS = (
    "It is a truth universally acknowledged, that",
    "Emma",
    "Mr. Darcy",
    '"My dear',
    "She was",
    "The next morning",
    "When they",
    "There was nothing",
    "CHAPTER",
    "The computer",
)
_CAN = """\
It continues English prose in the manner of the texts it was trained on, and that is all. It is here
to be run: a real ternary model, trained as such, on which engines, tokenizers and installations
can be tried and compared in a second, without a network. Engines that are right agree on it
closely, which they do not on random weights.

It answers no questions, follows no instructions, knows no facts and writes nothing worth reading
for its own sake. Its grammar holds for a few words, its sense for fewer. It has no chat template.
Its context is {context} tokens. It read one author of two centuries ago, and writes with her
society's views of people. The samples below show what to expect."""


def card(texts: Path, out: Path, model: Path) -> str:
    """The card as Markdown.

    *texts* is the folder of the training texts, *out* the folder of the training, *model* the GGUF
    file.

    Raises:
        ValueError: a file of the training is missing or damaged, or it held out no text.
    """
    state = read_checkpoint(out)
    tokenizer = read_tokenizer(out / "tokenizer.json")
    texts_by_file = read_texts(texts)
    parts = [split(text, state["recipe"]["held_out"]) for text in texts_by_file.values()]
    seen = prepare([trained for trained, _ in parts], tokenizer, ends=False)
    unseen = prepare([held_out for _, held_out in parts], tokenizer, ends=True)
    if not len(unseen.ids):
        share = state["recipe"]["held_out"]
        raise ValueError(f"no text in {texts} was held out ({share}), so its loss cannot be stated")
    unseen_bytes = len("".join("\n\n".join(held_out) for _, held_out in parts).encode())
    with bitnet.load(model) as lm:
        loss = _loss(lm, unseen, tokenizer.token_to_id(BEGIN), state["recipe"]["length"])
        samples = list(_samples(lm))
        context = lm.context
    bits = loss * len(unseen.ids) / math.log(2) / unseen_bytes
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return "\n".join(
        [
            f"# {model.stem}",
            "",
            _CAN.format(context=context),
            "",
            "## Metrics",
            "",
            *_figures(model, state, len(seen.ids), lines[-1]),
            f"| loss on held-out text | {loss:.3f} nats per token: perplexity "
            f"{math.exp(loss):.1f}, {bits:.2f} bits per byte |",
            f"| from frequencies of tokens alone | {_frequencies(seen, unseen):.3f} nats |",
            "",
            "The loss is that of the file itself, run by this package, over the "
            f"{len(unseen.ids):,} tokens that no step saw: the last "
            f"{100 * state['recipe']['held_out']:.0f} % of every text.",
            "",
            "## Data and licence",
            "",
            f"Trained on {', '.join(name.partition('.')[0] for name in texts_by_file)}: novels of "
            "Jane Austen, in the public domain, from Project Gutenberg without its header and "
            "licence text. Nothing else, and no other model's output. The weights are given to "
            "the public domain as well (CC0-1.0).",
            "",
            "## Recipe",
            "",
            "`training/` in the repository, with these values:",
            "",
            f"    {json.dumps(state['recipe'])}",
            f"    {json.dumps(state['shape'])}",
            "",
            _length(state),
            "",
            "## Curve",
            "",
            "| step | tokens | seconds | loss in training | held out |",
            "|---|---|---|---|---|",
            *_curve(lines),
            "",
            "## Weights",
            "",
            "| matrices | -1 | 0 | +1 |",
            "|---|---|---|---|",
            *_histogram(model),
            "",
            "## Ten samples",
            "",
            "Temperature 0.8, seeds 1 to 10, 60 tokens each by the compiled kernels, none left "
            "out; the prompt is bold.",
            "",
            *samples,
        ]
    )


def _figures(model: Path, state: dict[str, Any], seen: int, last: dict[str, Any]) -> Iterator[str]:
    """Yield the rows of the first table: the file, its shape and its training.

    *state* is the checkpoint, *seen* the number of tokens to learn from, *last* the last entry of
    the log.
    """
    weights = open_checkpoint(model).weights.values()
    count = sum(math.prod(weight.shape) for weight in weights)
    n_ternary = sum(math.prod(weight.shape) for weight in weights if weight.quant.name == "I2_S")
    shape = state["shape"]
    yield "| | |"
    yield "|---|---|"
    yield f"| file | `{model.name}`, {model.stat().st_size:,} bytes |"
    yield f"| SHA-256 | `{digest_of(model)}` |"
    yield (
        "| architecture | that of BitNet b1.58 2B-4T: W1.58A8, squared ReLU, sub-norms, rope, "
        "embedding (float16) = head |"
    )
    yield (
        f"| size | {count:,} weights, {n_ternary:,} of them ternary: {shape['num_hidden_layers']} "
        f"layers, {shape['hidden_size']} wide, {shape['num_attention_heads']} heads "
        f"({shape['num_key_value_heads']} for keys and values), "
        f"{shape['intermediate_size']} in the feed-forward network |"
    )
    yield f"| tokens | {shape['vocab_size']:,}, byte-level BPE of that text, cut as LLaMA-3 cuts |"
    yield (
        f"| training | {last['step']:,} steps, {last['tokens']:,} tokens "
        f"({last['tokens'] / seen:.1f} times {seen:,}), {last['seconds'] / 60:.0f} minutes of "
        "clock time on what other work left of two processor cores |"
    )


def _length(state: dict[str, Any]) -> str:
    """A sentence on whether the training can be repeated exactly."""
    if state["recipe"]["steps"]:
        return f"It took {state['step']:,} steps, as told: the run can be repeated bit for bit."
    return (
        "Its length was given in minutes, so the run cannot be repeated bit for bit: the machine "
        f"decided how many steps there were. `--steps {state['step']}` has as many."
    )


def _curve(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield about ten rows of the log, and the last one."""
    for line in lines[: -1 : max(1, len(lines) // 10)] + lines[-1:]:
        seen = f"{line['step']:,} | {line['tokens']:,} | {line['seconds']:,.0f}"
        held_out = "" if line["held_out"] is None else f"{line['held_out']:.3f}"
        yield f"| {seen} | {line['loss']:.3f} | {held_out} |"


def _loss(model: LanguageModel, tokens: Tokens, begin: int, length: int) -> float:
    """Mean loss of *tokens* in nats per token, in stretches of *length* after a *begin* token."""
    total = 0.0
    for first in range(0, len(tokens.ids), length):
        ids = tokens.ids[first : first + length].astype(np.int64)
        logits = model.logits([begin, *ids[:-1].tolist()]).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        total += float((np.log(np.exp(logits).sum(1)) - logits[np.arange(len(ids)), ids]).sum())
    return total / len(tokens.ids)


def _frequencies(seen: Tokens, unseen: Tokens) -> float:
    """Mean loss of *unseen* in nats per token, if tokens are as frequent as in *seen*.

    Each count is one higher, so that a token that was not seen has a probability.
    """
    counts = np.bincount(seen.ids, minlength=1 + int(max(seen.ids.max(), unseen.ids.max()))) + 1.0
    return float(-np.log(counts / counts.sum())[unseen.ids].mean())


def _histogram(model: Path) -> Iterator[str]:
    """Yield rows with the shares of the ternary weights by kind of matrix, and of all."""
    counts: dict[str, np.ndarray[Any, Any]] = {}
    for name, weight in open_checkpoint(model).weights.items():
        if weight.quant.name == "I2_S":
            codes = registry.unpack_ternary(weight).codes
            code_counts = np.bincount(codes.reshape(-1) + 1, minlength=3)
            for kind in (name.split(".")[2], "all"):
                counts[kind] = counts.get(kind, 0) + code_counts
    for kind in sorted(counts, key=lambda kind: (kind == "all", kind)):
        shares = counts[kind] / counts[kind].sum()
        yield f"| {kind} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |"


def _samples(model: LanguageModel) -> Iterator[str]:
    """Yield a sample for each of _PROMPTS as an item of a list in Markdown."""
    for seed, prompt in enumerate(_PROMPTS, 1):
        text = model.generate(prompt, max_tokens=60, temperature=0.8, seed=seed)
        escaped = " ".join(text.split()).replace("*", "\\*").replace("_", "\\_")
        space = " " if text[:1].isspace() else ""
        yield f"{seed}. **{prompt}**{space}{escaped}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m training.card", description=__doc__)
    parser.add_argument("texts", type=Path, help="folder with the texts of the training")
    parser.add_argument("out", type=Path, help="folder that training.train wrote")
    parser.add_argument("model", type=Path, help="the GGUF file")
    options = parser.parse_args()
    try:
        print(card(options.texts, options.out, options.model))
    except (OSError, ValueError, BitnetError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
