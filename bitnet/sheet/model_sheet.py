"""One page about a model: what it needs here, tokenizer, chat templates, sampling and files.

``bitnet show`` prints it. Nothing is run, and no weight is read.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import BitnetError
from bitnet.base.files import read_bytes
from bitnet.base.findings import Finding, render
from bitnet.base.tables import quantity
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.generation import read_generation_settings
from bitnet.formats.gguf_header import printable
from bitnet.sheet.plan import plan_path
from bitnet.tokenizer.discover import model_facts, not_found, search
from bitnet.tokenizer.folder_files import compare_tokenizer_files, list_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.formats.generation import GenerationSettings
    from bitnet.sheet.plan import ModelPlan, Resources
    from bitnet.tokenizer.folder_files import FileUse
    from bitnet.tokenizer.tokenizer import Tokenizer

_LICENCE = re.compile(r"^license:[ \t]*(.*)$\n?((?:^[ \t]*-[ \t].*$\n?)*)", re.MULTILINE)
_LICENCE_NAME = re.compile(r"[\"']?([\w.+][\w.+ -]*)")
_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class SpecialToken:
    """A token with a meaning of its own."""

    role: str  # ``bos_token``, or ``ends an answer``
    id: int | None  # ``None`` if the text is not a token
    text: str


@dataclass(frozen=True)
class TokenizerSheet:
    """The tokenizer that is found for the model."""

    source: str  # file, or the GGUF file that embeds it
    place: str  # where it was found: ``embedded``, ``sibling``, ``cache`` ...
    model: str  # algorithm: ``bpe``, ``spm``, ``unigram`` ...
    vocab_size: int
    engine: str
    special: list[SpecialToken]
    templates: list[str]  # names of the chat templates, the usual one is ``default``
    # other tokenizer files of the folder, with the first difference; empty if there is none
    others: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelSheet:
    """The page about one model, as :meth:`facts` and :meth:`lines`."""

    path: str
    plan: ModelPlan
    files: list[FileUse]
    tokenizer: TokenizerSheet | None  # ``None`` if no file has one that fits
    generation: GenerationSettings
    writer: str = ""  # version of transformers that wrote a folder; empty if unknown
    findings: list[Finding] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """The page as JSON values."""
        tokenizer = None if self.tokenizer is None else asdict(self.tokenizer)
        settings = self.generation
        return {
            "path": self.path,
            "files": [asdict(use) for use in self.files],
            "tokenizer": tokenizer,
            "generation": {
                "sampling": {name: asdict(value) for name, value in settings.sampling.items()},
                "suppressed": sorted(settings.suppressed),
                "suppressed_first": sorted(settings.suppressed_first),
                "lengths": {name: asdict(value) for name, value in settings.lengths.items()},
                "not_followed": list(settings.not_followed),
                "unknown": list(settings.unknown),
            },
            "transformers_version": self.writer,
            "plan": self.plan.facts(),
            "findings": [finding.facts() for finding in self.findings],
        }

    def lines(self) -> Iterator[str]:
        """The page as text, safe to print on a terminal."""
        first, *rows = self.plan.lines()
        yield first
        tokenizer_rows = ("  tokenizer ", "  chat template ")  # described below
        yield from (row for row in rows if not row.startswith(tokenizer_rows))
        yield ""
        yield from self._tokenizer_lines()
        yield ""
        yield from self._generation_lines()
        yield ""
        read = sum(use.is_read for use in self.files)
        written = f", written by transformers {printable(self.writer)}" if self.writer else ""
        yield f"Files: {read:,} of {len(self.files):,} read{written}"
        yield from (f"  {printable(str(use))}" for use in self.files)
        yield from map(printable, render(self.findings))

    def _tokenizer_lines(self) -> Iterator[str]:
        tokenizer = self.tokenizer
        if tokenizer is None:
            yield "Tokenizer: none that fits"
            return
        where = printable(tokenizer.source)
        yield f"Tokenizer: {where}: {tokenizer.model}, {tokenizer.vocab_size:,} tokens"
        for token in tokenizer.special:
            id = "not a token" if token.id is None else str(token.id)
            yield f"  {token.role:<16}{id:<8}{printable(token.text)!r}"
        names = ", ".join(map(printable, tokenizer.templates))
        yield f"  {'chat templates':<16}{names or 'none: the model continues text'}"
        for name, difference in tokenizer.others.items():
            text = f"another tokenizer: {difference}" if difference else "the same tokenizer"
            yield f"  {printable(name)}: {printable(text)}"

    def _generation_lines(self) -> Iterator[str]:
        settings = self.generation
        yield "Sampling that the files recommend"
        values = {**settings.sampling, **settings.lengths}
        if not values:
            yield "  none"
        for name, value in values.items():
            yield f"  {name:<20}{value.text():<8}{printable(value.source)}"
        for text, ids in (
            ("never generated", settings.suppressed),
            ("never first", settings.suppressed_first),
        ):
            if ids:
                yield f"  {text:<20}{quantity(len(ids), 'token')}"
        for text, keys in (
            ("not followed", settings.not_followed),
            ("unknown keys", settings.unknown),
        ):
            if keys:
                yield printable(f"  {text:<20}{', '.join(keys)}")


def describe_model(path: Path, machine: Resources) -> ModelSheet:
    """The page about the model at *path*, a file or a folder, for *machine*."""
    checkpoint = open_checkpoint(path)
    outcome = search(model_facts(checkpoint))
    findings: list[Finding] = []
    tokenizer = None
    if outcome.tokenizer is None:
        findings.append(Finding.of("tokenizer", not_found(outcome)))
    else:
        others = {}
        if checkpoint.gguf is None:  # a folder, which may hold a tokenizer in several forms
            others = compare_tokenizer_files(checkpoint, outcome.tokenizer)
        tokenizer = _describe_tokenizer(outcome.tokenizer, outcome.place, others)
    # Reading the settings marks their file as read, which list_files reports below.
    generation = read_generation_settings(checkpoint)
    config = checkpoint.config or {}
    version = config.get("transformers_version")
    return ModelSheet(
        path=str(path),
        plan=plan_path(path, machine, licence=_licence(checkpoint)),
        files=list_files(checkpoint),
        tokenizer=tokenizer,
        generation=generation,
        writer=version if isinstance(version, str) else "",
        findings=findings,
    )


def _describe_tokenizer(tokenizer: Tokenizer, place: str, others: dict[str, str]) -> TokenizerSheet:
    texts = dict(tokenizer.template_tokens)
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    special = []
    for role in _ROLES:
        id = ids.get(role)
        text = texts.get(role, "")
        if id is not None:
            special.append(SpecialToken(role, id, _text_of(tokenizer, id)))
        elif text:
            special.append(SpecialToken(role, _id_of(tokenizer, text), text))
    ends = [id for id in sorted(tokenizer.stop_ids) if 0 <= id < tokenizer.vocab_size]
    special += [SpecialToken("ends an answer", id, _text_of(tokenizer, id)) for id in ends]
    default = ["default"] if tokenizer.chat_template is not None else []
    return TokenizerSheet(
        source=tokenizer.source,
        place=place,
        model=tokenizer.model,
        vocab_size=tokenizer.vocab_size,
        engine=tokenizer.engine,
        special=special,
        templates=[*default, *tokenizer.named_templates],
        others=others,
    )


def _text_of(tokenizer: Tokenizer, id: int) -> str:
    return tokenizer.token_bytes(id).decode("utf-8", "backslashreplace")


def _id_of(tokenizer: Tokenizer, text: str) -> int | None:
    """Id of the special token *text*, ``None`` if it is cut into several."""
    ids = tokenizer.encode(text, add_special=False)
    return ids[0] if len(ids) == 1 else None


def _licence(checkpoint: Checkpoint) -> str:
    """Licence in the head of a folder's ``README.md``; empty if there is none."""
    if checkpoint.gguf is not None or "README.md" not in checkpoint.inventory:
        return ""
    try:
        text = read_bytes(checkpoint.inventory.path("README.md")).decode("utf-8", "replace")
    except (OSError, BitnetError):
        return ""
    text = "\n".join(text.splitlines())
    head = text.split("\n---", 1)[0] if text.startswith("---") else ""
    match = _LICENCE.search(head)
    if match is None:
        return ""
    # A text, a list in brackets, or a list of lines.
    entries = match[1].strip(" []").split(",")
    entries += [line.strip(" \t").removeprefix("-") for line in match[2].splitlines()]
    names = (_LICENCE_NAME.match(entry.partition(" #")[0].strip()) for entry in entries)
    return ", ".join(name[1].strip() for name in names if name)
