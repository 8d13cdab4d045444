"""Train a small BitNet b1.58 on a folder of texts: ``python -m training.train TEXTS OUT``.

Started again with the same OUT, it continues from the last checkpoint. With ``--steps`` the result
is bit for bit that of a run without a stop. With ``--minutes`` the speed of the machine decides how
many steps there are, so two runs differ.
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from training.model import Shape, TinyBitNet
from training.text import (
    BEGIN,
    Tokens,
    prepare,
    read_texts,
    read_tokenizer,
    split,
    train_tokenizer,
)

__all__ = ["Recipe", "Trainer", "held_out_loss", "main", "read_checkpoint"]

MAX_SEED = 2**32 - 1  # its multiple in train_step fits into the 64 bits that PyTorch takes


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a run, besides the texts and the :class:`~training.model.Shape`.

    Attributes:
        steps: how many there are; 0: *minutes* decide.
        minutes: of training, all runs of a resumed training together.
        batch: sequences per step.
        length: tokens of a sequence.
        matrix_rate: learning rate of Muon, for the ternary matrices.
        other_rate: learning rate of Adam, for the embedding and the norms.
        weight_decay: of the ternary matrices.
        dropout: of what a block adds, and of the embedding.
        decay: last share of the run, in which the rates fall to zero; 0: they stay.
        warmup: first steps, in which they rise; 0: they begin at their highest.
        held_out: share of each text, its end, that is not trained on.
        seed: of everything.

    Raises:
        ValueError: a value is outside of its range.
    """

    steps: int = 0
    minutes: float = 60.0
    batch: int = 8
    length: int = 256
    matrix_rate: float = 1e-2
    other_rate: float = 4e-3
    weight_decay: float = 0.1
    dropout: float = 0.0
    decay: float = 0.6
    warmup: int = 30
    held_out: float = 0.03
    seed: int = 1

    def __post_init__(self) -> None:
        ranges = (
            ("1 or more", self.batch >= 1, "batch"),
            ("1 or more", self.length >= 1, "length"),
            ("0 or more", self.steps >= 0, "steps"),
            ("above 0 if steps is 0", self.steps or self.minutes > 0, "minutes"),
            ("0 or more", self.warmup >= 0, "warmup"),
            ("a finite number, 0 or more", 0 <= self.matrix_rate < math.inf, "matrix_rate"),
            ("a finite number, 0 or more", 0 <= self.other_rate < math.inf, "other_rate"),
            ("a finite number, 0 or more", 0 <= self.weight_decay < math.inf, "weight_decay"),
            ("0 or more, below 1", 0 <= self.dropout < 1, "dropout"),
            ("0 or more, below 1", 0 <= self.held_out < 1, "held_out"),
            ("0 to 1", 0 <= self.decay <= 1, "decay"),
            (f"0 to {MAX_SEED}", 0 <= self.seed <= MAX_SEED, "seed"),
        )
        for expected, is_right, name in ranges:
            if not is_right:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be {expected}")

    def rate(self, progress: float, step: int) -> float:
        """Factor of the learning rates, 0 to 1, at *step*; *progress* is the finished share."""
        falling = min(1.0, max(0.0, (1 - progress) / self.decay)) if self.decay else 1.0
        rising = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        return falling * rising


def batch_of(tokens: Tokens, begin: int, recipe: Recipe, step: int) -> Tensor:
    """The ids of *step*, shape ``(batch, length + 1)``, each row after a begin token.

    Each epoch cuts the text into stretches of *length* tokens, at an offset of its own, and takes
    each stretch once, in an order of its own. A row begins at the paragraph in which its stretch
    begins.
    """
    count = max(1, len(tokens.ids) // recipe.length)
    rows = []
    for n in range(step * recipe.batch, (step + 1) * recipe.batch):
        epoch, place = divmod(n, count)
        random = np.random.default_rng((recipe.seed, epoch))
        offset = random.integers(recipe.length)
        at = min(int(random.permutation(count)[place]) * recipe.length + offset, len(tokens.ids))
        first = tokens.starts[np.searchsorted(tokens.starts, at, side="right") - 1]
        first = max(0, min(first, len(tokens.ids) - recipe.length))
        rows.append(np.concatenate([[begin], tokens.ids[first : first + recipe.length]]))
    return torch.from_numpy(np.stack(rows).astype(np.int64))


@torch.no_grad()
def held_out_loss(model: TinyBitNet, tokens: Tokens, begin: int, length: int) -> float:
    """Mean loss of *tokens* in nats per token, in float32, in stretches of *length* tokens.

    Each stretch follows a *begin* token. NaN if *tokens* is empty.
    """
    if not len(tokens.ids):
        return math.nan
    model.eval()
    total = 0.0
    for first in range(0, len(tokens.ids), length):
        ids = np.concatenate([[begin], tokens.ids[first : first + length]]).astype(np.int64)
        row = torch.from_numpy(ids)[None]
        total += float(cross_entropy(model(row[:, :-1])[0], row[0, 1:], reduction="sum"))
    model.train()
    return total / len(tokens.ids)


def read_checkpoint(out: Path) -> dict[str, Any]:
    """The state of a training that :meth:`Trainer.save` wrote into *out*.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    path = out / "checkpoint.pt"
    if not path.is_file():
        raise ValueError(f"{out} has no checkpoint.pt, which training.train writes")
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    # Which error it is depends on the damage.
    except (RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return state


class Trainer:
    """A training in a folder: ``checkpoint.pt``, ``tokenizer.json``, ``log.jsonl``.

    Raises:
        ValueError: texts, shape and recipe do not fit each other, or the folder has another model.
    """

    def __init__(self, texts: Path, out: Path, shape: Shape, recipe: Recipe) -> None:
        if recipe.length > shape.max_position_embeddings:
            raise ValueError(
                f"length is {recipe.length}; the model has {shape.max_position_embeddings} "
                "positions (max_position_embeddings)"
            )
        parts = [split(text, recipe.held_out) for text in read_texts(texts).values()]
        if not any(paragraph for seen, _ in parts for paragraph in seen):
            raise ValueError(f"{texts} has no text to train on beside what is held out")
        out.mkdir(parents=True, exist_ok=True)
        self.out = out
        self.recipe = recipe
        vocabulary = out / "tokenizer.json"
        if not vocabulary.is_file():
            train_tokenizer([seen for seen, _ in parts], shape.vocab_size).save(str(vocabulary))
        self.tokenizer = read_tokenizer(vocabulary)
        size = self.tokenizer.get_vocab_size()
        if size > shape.vocab_size:
            raise ValueError(
                f"{vocabulary} has {size} tokens, more than vocab_size ({shape.vocab_size}); "
                "name another folder"
            )
        self.begin = self.tokenizer.token_to_id(BEGIN)
        self.seen = prepare([seen for seen, _ in parts], self.tokenizer, ends=False)
        self.unseen = prepare([unseen for _, unseen in parts], self.tokenizer, ends=True)
        torch.manual_seed(recipe.seed)
        self.model = TinyBitNet(shape)
        matrices = [p for p in self.model.blocks.parameters() if p.ndim == 2]
        others = [p for p in self.model.parameters() if all(p is not m for m in matrices)]
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (
                torch.optim.Muon(
                    matrices, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
                ),
                recipe.matrix_rate,
            ),
            (torch.optim.Adam(others, betas=(0.9, 0.98)), recipe.other_rate),
        ]
        self.step = 0
        self.seconds = 0.0
        if (out / "checkpoint.pt").is_file():
            self.load()

    @property
    def progress(self) -> float:
        """Finished share of the training, 0 to 1."""
        recipe = self.recipe
        return self.step / recipe.steps if recipe.steps else self.seconds / 60 / recipe.minutes

    def load(self) -> None:
        """Continue from the checkpoint.

        Raises:
            ValueError: it is damaged, or its model has another shape.
        """
        state = read_checkpoint(self.out)
        if state["shape"] != asdict(self.model.shape):
            raise ValueError(f"{self.out} holds a model of another shape; name another folder")
        self.model.load_state_dict(state["model"])
        for (optimizer, _), saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step = state["step"]
        self.seconds = state["seconds"]

    def save(self) -> None:
        """Write the checkpoint; if this is interrupted, the previous one remains."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer, _ in self.optimizers],
            "step": self.step,
            "seconds": self.seconds,
            "shape": asdict(self.model.shape),
            "recipe": asdict(self.recipe),
        }
        torch.save(state, self.out / "checkpoint.new")
        (self.out / "checkpoint.new").replace(self.out / "checkpoint.pt")

    def train_step(self, dtype: torch.dtype) -> float:
        """Train one step, and return the loss of its batch before the step."""
        recipe = self.recipe
        factor = recipe.rate(self.progress, self.step)
        ids = batch_of(self.seen, self.begin, recipe, self.step)
        # For dropout: a resumed run draws as one without a stop. The prime separates runs whose
        # seeds are neighbours.
        torch.manual_seed(recipe.seed * 1_000_003 + self.step)
        logits = self.model(ids[:, :-1], recipe.dropout, dtype)
        loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        for optimizer, rate in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return float(loss.detach())

    def run(self, *, every: int, stop: int = 0, dtype: torch.dtype) -> None:
        """Train to the end, or to step *stop*.

        Args:
            every: steps between checkpoints.
            stop: pause at this step; 0: at the end.
            dtype: of the products.
        """
        losses: list[float] = []
        started = time.monotonic() - self.seconds
        while self.progress < 1 and not (stop and self.step >= stop):
            losses.append(self.train_step(dtype))
            self.seconds = time.monotonic() - started
            if not math.isfinite(losses[-1]):
                raise SystemExit(
                    f"step {self.step}: the loss is {losses[-1]}; train with lower rates"
                )
            if self.step % every == 0:
                self.note(losses)
                losses = []
        if losses:
            self.note(losses)

    def note(self, losses: list[float]) -> None:
        """Save the checkpoint, and append the mean of *losses* and other numbers to the log."""
        self.save()
        held_out = held_out_loss(self.model, self.unseen, self.begin, self.recipe.length)
        entry = {
            "step": self.step,
            "tokens": self.step * self.recipe.batch * self.recipe.length,
            "seconds": round(self.seconds, 1),
            "loss": round(sum(losses) / len(losses), 4),
            "held_out": None if math.isnan(held_out) else round(held_out, 4),
            "rate": round(self.recipe.rate(self.progress, self.step), 4),
        }
        line = json.dumps(entry)
        with (self.out / "log.jsonl").open("a") as log:
            log.write(line + "\n")
        print(line, flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m training.train", description=__doc__)
    parser.add_argument("texts", type=Path, help="folder with .txt or .txt.xz files")
    parser.add_argument(
        "out", type=Path, help="folder for the checkpoint, the tokenizer and the log"
    )
    for defaults in (Shape(), Recipe()):
        for name, value in asdict(defaults).items():
            option = f"--{name.replace('_', '-')}"
            parser.add_argument(option, type=type(value), default=value, metavar=str(value))
    parser.add_argument("--every", type=int, default=200, help="steps between checkpoints")
    parser.add_argument("--stop", type=int, default=0, help="pause at this step")
    parser.add_argument("--threads", type=int, default=0, help="of PyTorch; 0: its default")
    parser.add_argument("--float32", action="store_true", help="slower: no bfloat16 products")
    options = vars(parser.parse_args())
    for name, least in (("every", 1), ("stop", 0), ("threads", 0)):
        if options[name] < least:
            parser.error(f"{name} is {options[name]}; it must be {least} or more")
    if options["threads"]:
        torch.set_num_threads(options["threads"])
    try:
        shape = Shape(**{name: options[name] for name in asdict(Shape())})
        recipe = Recipe(**{name: options[name] for name in asdict(Recipe())})
        trainer = Trainer(options["texts"], options["out"], shape, recipe)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(
        f"{len(trainer.seen.ids):,} tokens to learn from, {len(trainer.unseen.ids):,} held out",
        flush=True,
    )
    dtype = torch.float32 if options["float32"] else torch.bfloat16
    trainer.run(every=options["every"], stop=options["stop"], dtype=dtype)


if __name__ == "__main__":
    main()
