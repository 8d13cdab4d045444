"""The plan of a comparison: its prompts, its texts, and all that is known before an engine runs."""

from __future__ import annotations

import platform
import re
import unicodedata
from dataclasses import replace
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet import __version__
from bitnet.base import native
from bitnet.base.errors import BitnetError
from bitnet.base.files import digest_of
from bitnet.crossval.evidence import SCHEMA_VERSION, Evidence, Plan
from bitnet.crossval.trace import EngineFacts, Prompt
from bitnet.families.blocks import Experts
from bitnet.tokenizer.probes import probe_texts
from bitnet.tokenizer.spec import SPACE_SYMBOL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bitnet.crossval.crossval_options import CrossvalOptions
    from bitnet.crossval.evidence import TestedModel
    from bitnet.crossval.trace import Question, Reference, Trace
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.tokenizer import Tokenizer

# Of a prompt with more than LONG tokens, only the last COMPARED positions are compared: they attend
# to all others.
LONG = 128
COMPARED = 48

# Prose, a story, code, a fact with numbers, another language, digits: 137 tokens of SmolLM2's
# vocabulary. The last prompt has more than 544 tokens in every vocabulary we know: its compared
# positions are beyond the windows of 512 tokens that some models have.
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain, there lived a watchmaker who",
    'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n'
    "    if n < 2:\n        return",
    "Water boils at 100 degrees Celsius at sea level. At an altitude of 3,000 metres it boils at "
    "about",
    "Die Hauptstadt von Deutschland ist Berlin, und die Hauptstadt von Österreich ist",
    "1, 1, 2, 3, 5, 8, 13, 21, 34,",
    files("bitnet.crossval").joinpath("long_prompt.txt").read_text(encoding="utf-8").rstrip(),
)

_NO_TOKENS = "it has no tokens"
_LOOKS_SPECIAL = re.compile(r"</?s>|<\|?\w+\|?>")


def prompts_for(
    model: LanguageModel, recording: Trace | None, texts: Sequence[str], options: CrossvalOptions
) -> tuple[Prompt, ...]:
    """The prompts, cut to ``--max-positions`` in all; a *recording* brings its own, whole."""
    if recording is not None:
        return tuple(
            _with_error(
                Prompt(recorded.prompt, recorded.ids, recorded.first, len(recorded.greedy)),
                model.config.vocab_size,
            )
            for recorded in recording.prompts
        )
    steps = _steps(model, options.steps)
    uncut = [_prompt(model, text, steps) for text in texts]
    shares = spread([len(prompt.ids) - prompt.first for prompt in uncut], options.position_limit)
    prompts = []
    for prompt, share in zip(uncut, shares, strict=True):
        if not prompt.ids:
            prompts.append(prompt)  # its answer says why it has none
        elif share and prompt.first:  # of a long prompt the last positions
            prompts.append(replace(prompt, first=len(prompt.ids) - share))
        elif share:
            prompts.append(replace(prompt, ids=prompt.ids[:share]))
    return tuple(prompts)


def spread(lengths: Sequence[int], limit: int) -> list[int]:
    """Number of positions of each prompt to compare, at most *limit* in all.

    *lengths* are the positions of each prompt. Short prompts are compared whole, and the others
    share the rest of *limit* evenly; if there are more prompts than *limit*, evenly chosen ones
    have one position each.
    """
    filled = [at for at, length in enumerate(lengths) if length]
    if len(filled) > limit:
        filled = [filled[at * len(filled) // limit] for at in range(limit)]
    share = dict.fromkeys(filled, 0)
    left = limit
    for done, at in enumerate(sorted(filled, key=lambda at: lengths[at])):
        share[at] = min(lengths[at], left // (len(filled) - done))
        left -= share[at]
    return [share.get(at, 0) for at in range(len(lengths))]


def _steps(model: LanguageModel, requested: int) -> int:
    """Tokens of each continuation of *model*, as *requested*, or 0 if none is compared.

    In a mixture of experts a rounding may change every later token, and a model that makes vectors
    of texts does not continue them.
    """
    return requested if model.config.writes and not has_experts(model) else 0


def has_experts(model: LanguageModel) -> bool:
    """True if a layer of *model* is a mixture of experts."""
    return any(isinstance(mixer, Experts) for mixer in model.config.mixers())


def _prompt(model: LanguageModel, text: str, steps: int) -> Prompt:
    """Prompt of *text*, cut so that *steps* more tokens fit into the context of *model*."""
    try:
        ids = tuple(model.tokenizer.encode(text))[: max(model.engine.context - steps, 1)]
    except BitnetError as error:
        return Prompt(text, (), error=f"it cannot be encoded: {error.message}")
    first = len(ids) - COMPARED if len(ids) > LONG else 0
    return _with_error(Prompt(text, ids, first, steps), model.config.vocab_size)


def _with_error(prompt: Prompt, vocabulary: int) -> Prompt:
    """*prompt*, or one with an error and without ids if the model cannot run it."""
    if not prompt.ids:
        return Prompt(prompt.text, (), error=_NO_TOKENS)
    if max(prompt.ids) >= vocabulary:
        error = f"id {max(prompt.ids)} is outside the vocabulary of {vocabulary}"
        return Prompt(prompt.text, (), error=error)
    return prompt


def texts_for(
    reference: Reference, tokenizer: Tokenizer, texts: Sequence[str]
) -> tuple[tuple[str, bool], ...]:
    """Texts to tokenize, each with True if special tokens are added.

    A recording brings its own texts; a reference that uses our own tokenizer gets none.
    """
    if reference.recording is not None:
        return tuple((answer.prompt, True) for answer in reference.recording.prompts)
    if not reference.independent:
        return ()
    probes = probe_texts()
    candidates = [(text, True) for text in texts]
    candidates += [(text, False) for text in probes]
    candidates += [(text, True) for text in probes]
    id_of = {tokenizer.token_bytes(id): id for id in reversed(range(len(tokenizer)))}
    return tuple(
        (text, special)
        for text, special in candidates
        if _is_judged(tokenizer, id_of, text, special)
    )


def _is_judged(tokenizer: Tokenizer, id_of: Mapping[bytes, int], text: str, special: bool) -> bool:
    """False if correct engines read *text* differently, on purpose, or ours cannot read it.

    *id_of* is the lowest id of each token, by its bytes.

    - U+2581 stands for a space inside SentencePiece vocabularies, and engines split a literal one
      differently;
    - decomposed characters, if our tokenizer composes them as the model's own does (NFC; Qwen2's):
      the C++ engines do not;
    - text that looks like a special token but is an ordinary one in the vocabulary (Qwen2's
      ``</s>``): the C++ engines make it special;
    - a text that spells BOS itself may get another BOS, or not.
    """

    def encode(part: str) -> list[int]:
        return tokenizer.encode(part, add_special=False)

    composed = unicodedata.normalize("NFC", text)
    try:
        if SPACE_SYMBOL in text or (composed != text and encode(composed) == encode(text)):
            return False
        for name in _LOOKS_SPECIAL.findall(text):
            id = id_of.get(name.encode())
            if id is not None and encode(name) != [id]:
                return False
        return not (special and encode(text)[:1] == [tokenizer.bos_id])
    except BitnetError:  # a prompt that cannot be encoded: its answer reports the error
        return False


def begin_evidence(
    model: LanguageModel | None,
    tokenizer: Tokenizer,
    reference: Reference,
    question: Question,
    options: CrossvalOptions,
    facts: TestedModel,
    texts: Sequence[str],
) -> Evidence:
    """Evidence with its plan and the facts that are known before an engine runs."""
    recording = reference.recording
    steps = options.steps
    if recording is not None:
        steps = max((len(answer.greedy) for answer in recording.prompts), default=0)
    backend = "none"
    if model is not None:
        # The form of its keys and values is added, unless it is the default.
        kind = model.config.kv_type
        backend = model.backend if kind == "f16" else f"{model.backend}, {kind} keys and values"
    ours = EngineFacts("bitnet", __version__)
    if module := getattr(native.module(), "__file__", None):
        ours = replace(ours, library=Path(module).name, library_sha256=digest_of(Path(module)))
    return Evidence(
        schema_version=SCHEMA_VERSION,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        plan=Plan(
            against=reference.name,
            float64=recording is None or recording.exact is not None,
            asked=tuple(texts),
            limit=options.position_limit,
            greedy=0 if model is None else _steps(model, steps),
            texts=len(question.texts),
            tokenizer_only=model is None,
            require_real=options.require_real,
            recorded_sha256="" if recording is None else recording.model_sha256,
        ),
        machine={
            "system": platform.system(),
            "processor": platform.machine(),
            "python": platform.python_version(),
            "features": ", ".join(native.cpu_features()),
        },
        model=replace(
            facts,
            tokenizer=Path(tokenizer.source).name,  # without folders of the machine
            tokenizer_sha256=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            layers=0 if model is None else model.config.n_layers,
            has_experts=model is not None and has_experts(model),
        ),
        ours=ours,
        backend=backend,
        reference=EngineFacts(reference.name),
        prompts=question.prompts,
    )
