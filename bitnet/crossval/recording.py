"""Recordings: a trace in a file, which is used instead of asking its engine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet.base.files import read_json
from bitnet.base.outputs import OutputKind, json_in
from bitnet.crossval.compare import divergence
from bitnet.crossval.trace import RECORD_HINT, Reference, trace_from

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.crossval.trace import Question, Trace
    from bitnet.tokenizer import Tokenizer

# Largest KL divergence between two float64 passes over one model, on any machine.
_SAME_PASS = 1e-8


class Recorded(Reference):
    """A recorded trace, which brings its own prompts."""

    name = "recorded"
    recording: Trace

    def __init__(self, path: Path) -> None:
        self.recording = trace_from(read_json(path, hint=RECORD_HINT), name=path.name)

    def trace(self, question: Question) -> Trace:
        """The recorded trace; with its own prompts if *question* has any, else without prompts."""
        tokenized = self.recording.tokenized
        prompts = self.recording.prompts
        if tokenized is None:
            tokenized = tuple(prompt.ids for prompt in prompts)
        if not question.prompts:
            prompts = ()
        return replace(self.recording, prompts=prompts, tokenized=tokenized)


def _is_trace(path: Path) -> bool:
    values = json_in(path)
    return isinstance(values, dict) and {"engine", "prompts", "model_sha256"} <= set(values)


TRACE = OutputKind("a recorded trace", _is_trace)


def recordable(trace: Trace, tokenizer: Tokenizer) -> Trace:
    """*trace* as it is stored: with all ids of each prompt's text, and without failed prompts.

    A run may have been limited to the first ids of a text. The decoded texts are included only if
    the reference decoded the ids of every prompt.
    """
    prompts = tuple(prompt for prompt in trace.prompts if not prompt.error)
    ids_of_texts = tuple(tuple(tokenizer.encode(prompt.prompt)) for prompt in prompts)
    texts = dict(zip(trace.tokenized or (), trace.decoded or (), strict=False))
    is_complete = all(ids in texts for ids in ids_of_texts)
    decoded = tuple(texts[ids] for ids in ids_of_texts) if is_complete else None
    return replace(trace, prompts=prompts, tokenized=ids_of_texts, decoded=decoded)


def changes_of(today: Trace, recorded: Trace) -> tuple[str, ...]:
    """Faults of the float64 pass of *today* if it differs from the *recorded* one; else empty."""
    for number, (answer, before) in enumerate(zip(today.prompts, recorded.prompts, strict=False)):
        pairs = zip(answer.positions, before.positions, strict=False)
        for at, (position, recorded_position) in enumerate(pairs, before.first):
            kl = divergence(recorded_position, position)
            if kl is None or kl > _SAME_PASS:
                distance = "without numbers" if kl is None else f"KL {kl:.1e}"
                return (
                    f"today's pass is not the recorded one: {distance} at position {at} of prompt "
                    f"{number}, at most {_SAME_PASS:.0e}",
                )
    return ()
