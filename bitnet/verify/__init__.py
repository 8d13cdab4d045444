"""Checks whether a model is complete, authentic, consistent with its tokenizer, and working.

Each check is a method of ``_Examination``, decorated with its name; they run in the order of their
definition. A check that an earlier failure makes impossible is skipped, with the reason.

Only ``identity`` compares the content with an original: an attestation, a digest, or a model that
this package knows. Without one the other checks can only say that a model looks sound.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import BitnetError, TokenizerNotFound, from_os_error
from bitnet.base.files import digest_of
from bitnet.base.findings import Finding, worst
from bitnet.base.invocation import shell_quote
from bitnet.base.quantities import human_size
from bitnet.base.tables import quantity
from bitnet.families.keys import COMPARE
from bitnet.formats.containers import container_of, open_checkpoint
from bitnet.formats.generation import read_generation_settings
from bitnet.formats.gguf_audit import audit, code_counts
from bitnet.models.hidden_program import layout
from bitnet.models.load import config_from
from bitnet.models.transformer import differences
from bitnet.tokenizer.chat import chat_template
from bitnet.tokenizer.comparison import compatibility, measure_agreement
from bitnet.tokenizer.discover import resolve_tokenizer
from bitnet.tokenizer.folder_files import compare_tokenizer_files, find_unknown_stops, list_files
from bitnet.tokenizer.load import extract_tokenizer_from_gguf, read_files
from bitnet.tokenizer.template_origin import oddities_of, templates_of
from bitnet.verify.attest import HINT, compare, recognise, summarize, unread_files
from bitnet.verify.trace import forward_verdict
from bitnet.verify.vocabulary import vocabulary_anomalies
from bitnet.verify.weights import (
    code_anomalies,
    numbers_out_of_range,
    settings_out_of_range,
    weight_anomalies,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from bitnet.base.findings import Severity
    from bitnet.families.blocks import ModelConfig
    from bitnet.formats.checkpoint import Checkpoint, Inventory
    from bitnet.tokenizer.tokenizer import Tokenizer
    from bitnet.verify.attest import Attestation
    from bitnet.verify.manifest import FileManifest

    _Method = Callable[["_Examination"], Finding | str]  # a text means that the check passed

__all__ = ["Digest", "verdict", "verify_model"]

logger = logging.getLogger(__name__)

UNPINNED = "UNPINNED: nothing says these are the original bytes"

_CHECKS: dict[str, _Method] = {}


@dataclass(frozen=True)
class Digest:
    """The digest that a file must have, and who says so."""

    sha256: str  # lower-case hexadecimal digest
    source: str  # origin of the digest, for messages


def verdict(model: str | os.PathLike[str], findings: Iterable[Finding]) -> str:
    """One line about a model: failed checks, or else its identity and checks that were skipped."""
    findings = list(findings)
    failed, unusual, skipped = (
        ", ".join(finding.subject for finding in findings if finding.severity == severity)
        for severity in ("failed", "warning", "skipped")
    )
    identities = (
        finding.text
        for finding in findings
        if finding.subject == "identity" and finding.severity == "ok"
    )
    identity = next(identities, "")
    if failed:
        return f"{model} failed: {failed}"
    parts = [f"NOT CHECKED: {skipped}"] if skipped else []
    parts += [f"unusual: {unusual}"] if unusual else []
    if not parts and identity:
        return f"{model} is fine: {identity}"
    parts.append(f"otherwise {identity}" if identity else f"looks sound, {UNPINNED}")
    return f"{model} {'; '.join(parts)}"


class _Skipped(Exception):
    """The check is impossible; with the severity ``note``, the model has nothing to be checked."""

    def __init__(self, text: str, severity: Severity = "skipped") -> None:
        super().__init__(text)
        self.severity = severity


def _check(name: str) -> Callable[[_Method], _Method]:
    """Register a method of :class:`_Examination` as the check *name*."""
    return lambda method: _CHECKS.setdefault(name, method)


def verify_model(path: str | os.PathLike[str], **options: Any) -> Iterator[Finding]:
    """Check the model at *path* and its tokenizer; yields verdicts as they become known.

    A damaged model gets verdicts; a file that is not a model is refused. *options* are the fields
    of ``_Examination`` from ``tokenizer`` to ``ignore_keys``.
    """
    container_of(Path(path))
    return _Examination(Path(path), **options).run()


@dataclass
class _Examination:
    """The checks of one model, with their options and results."""

    path: Path
    tokenizer: str | Path | None = None  # checked instead of the model's own
    pre: str | None = None  # name of the pre-tokenizer
    # a missing tokenizer is not a failure, unless BITNET_STRICT_TOKENIZERS=1
    allow_mock: bool = False
    # returns the digest that a file must have; None: nothing says which
    find_pin: Callable[[Path], Digest | None] = lambda _: None
    against: Attestation | None = None  # the content must agree with it
    # every file must agree with it, and no file may be missing
    manifest: FileManifest | None = None
    # files of the model that a lock file names, with the name of that lock file; each must exist
    named: Mapping[Path, str] = field(default_factory=dict)
    # file with the expectations above. If there is one, they must cover the tokenizer and every
    # other file of the folder, even those that no reader opens
    proof: Path | None = None
    ignore_keys: Collection[str] = ()  # metadata keys that the model is opened without

    # results of earlier checks that later ones need
    trace: Mapping[str, Any] | None = None  # recorded pass of a model with the same content
    checkpoint: Checkpoint | None = None
    config: ModelConfig | None = None
    judged: Tokenizer | None = None  # the tokenizer, if it fits
    fits: bool = False  # every tensor has the shape that the architecture requires
    mock: bool = False  # a mock stands in for the missing tokenizer
    name: str = ""  # of the running check

    def run(self) -> Iterator[Finding]:
        for self.name, check in _CHECKS.items():
            started = time.perf_counter()
            try:
                result = check(self)
                finding = result if isinstance(result, Finding) else self._report("ok", result)
                if self.checkpoint is not None:
                    self.checkpoint.inventory.check()
            except _Skipped as reason:
                finding = self._report(reason.severity, str(reason))
            except BitnetError as error:
                finding = Finding.of(self.name, error)
            except OSError as error:
                finding = Finding.of(self.name, from_os_error(error, self.path))
            yield replace(finding, duration_s=time.perf_counter() - started)

    def _report(self, severity: Severity, text: str, hint: str = "") -> Finding:
        """A finding of the running check."""
        return Finding(severity, self.name, text, hint)

    @_check("file")
    def _file(self) -> str:
        self.checkpoint = open_checkpoint(self.path, ignore_keys=self.ignore_keys)
        size = sum(weight.size_bytes for weight in self.checkpoint.weights.values())
        return f"{human_size(size)} in {len(self.checkpoint.weights):,} tensors, complete"

    @_check("identity")
    def _identity(self) -> Finding:
        """Compare with everything known about the expected bytes."""
        checkpoint = self._require_checkpoint()
        agreements, problems = self._compare_pins(read_files(checkpoint))
        gone = [path.name for path in self.named if not path.exists()]
        if gone:
            source = " and ".join(sorted(set(self.named.values())))
            problems.append(f"{summarize(gone)}: not here any more, {source} names it")

        # The content: as attested, or as that of a model which is known by its content.
        rewritten: list[str] = []  # files whose content is compared, and not their bytes
        if self.against is not None:
            name = self.against.name
            if mismatches := compare(self.against, checkpoint):
                problems.append(f"not what {name} is attested to be: {summarize(mismatches)}")
            else:
                agreements.append(f"as {name} is attested ({self.against.digest[:16]})")
                self.trace = self.against.trace
                rewritten = [name for name in checkpoint.inventory.names if name.endswith(".json")]
        elif self.manifest is None and (recognition := recognise(checkpoint)) is not None:
            if recognition.differences:
                problems.append(recognition.text)
            else:
                agreements.append(recognition.text)
                self.trace = recognition.attestation.trace

        # The bytes of every file, as a manifest lists them.
        if self.manifest is not None:
            manifest = self.manifest
            files = checkpoint.inventory
            mismatches = manifest.differences(checkpoint.path, files, rewritten=rewritten)
            if mismatches:
                problems.append(summarize(mismatches))
            else:
                agreements.append(f"{manifest.titles} as {manifest.source} says")

        # Files beside the model that nothing vouches for, and that no reader opens.
        texts = agreements or [UNPINNED]
        unread = unread_files(checkpoint)
        beside: list[str] = []
        if self.proof is not None:
            proof = self.proof
            paths = {name: checkpoint.path / name for name in unread}
            unread = [
                name for name in unread if not (proof.exists() and paths[name].samefile(proof))
            ]
            attested = self.against.unread if self.against is not None else {}
            beside = [*self._find_uncovered(checkpoint.inventory, unread, attested)]
            missing = sorted(attested.keys() - set(unread))
            if missing:
                texts = [*texts, f"not here: {summarize(missing)}"]

        if problems:
            return self._report("failed", "; ".join([*problems, *beside]), HINT)
        if beside:
            text = f"{summarize(beside)} (no reader opens it); the model itself: {texts[0]}"
            return self._report("failed", text, HINT)
        if unread:
            texts = [*texts, f"not read: {summarize(unread)}"]
        return self._report("ok" if agreements else "note", "; ".join(texts))

    def _find_uncovered(
        self, files: Inventory, unread: list[str], attested: Mapping[str, str]
    ) -> Iterator[str]:
        """Messages about *unread* files that are not as pinned or *attested*, or are neither."""
        for name, sha256 in files.unread_sha256(unread).items():
            if self.manifest is not None and self.manifest.covers(name, files.root):
                continue  # compared with the manifest, or left out by its signer
            pin = self.find_pin(files.path(name))
            expected = pin.sha256 if pin is not None else attested.get(name)
            if expected is None:
                yield f"{name} is not covered, nothing says what it is"
            elif sha256 != expected:
                yield f"{name} was edited"

    def _compare_pins(self, files: Inventory) -> tuple[list[str], list[str]]:
        """A message if every file has its pinned digest; and a message for each other digest."""
        pin_by_name = {name: self.find_pin(files.path(name)) for name in files.names}
        pins = {name: pin for name, pin in pin_by_name.items() if pin is not None}
        wrong = [
            f"SHA-256 of {name} is {files.sha256[name]}, {pin.source} says {pin.sha256}"
            for name, pin in pins.items()
            if files.sha256[name] != pin.sha256
        ]
        if wrong or len(pins) < len(files.names):
            return [], wrong
        return [f"SHA-256 as {' and '.join(sorted({p.source for p in pins.values()}))} says"], []

    def _require_checkpoint(self) -> Checkpoint:
        """The checkpoint; the check is skipped if the model could not be opened."""
        if self.checkpoint is None:
            raise _Skipped("the file cannot be read")
        return self.checkpoint

    def _with_weights(self) -> Checkpoint:
        """The checkpoint; the check does not apply if it is a vocabulary without tensors."""
        if not self._require_checkpoint().weights:
            raise _Skipped("the file holds a vocabulary and no tensors", "note")
        return self._require_checkpoint()

    @_check("metadata")
    def _metadata(self) -> Finding | str:
        checkpoint = self._require_checkpoint()
        findings = audit(checkpoint.gguf) if checkpoint.gguf is not None else []
        # Findings that other checks report.
        later = ("no-tokenizer", "no-pre", "vocabulary-only", "ignored-key")
        errors = [f.text for f in findings if f.failed]
        warnings = [f.text for f in findings if f.severity == "warning" and f.subject not in later]
        hint = f"bitnet inspect-gguf {shell_quote(self.path)}"
        if errors:
            return self._report("failed", summarize(errors + warnings), hint)
        if checkpoint.gguf is None:
            hint = f"bitnet show {shell_quote(self.path)}"
            warnings += read_generation_settings(checkpoint).oddities()
        if not checkpoint.weights:
            return f"{checkpoint.architecture or 'no'} architecture, vocabulary only"
        self.config = config = config_from(checkpoint)
        warnings += [f"ignored: {key} = {value!r:.80}" for key, value in checkpoint.ignored.items()]
        if warnings:
            return self._report("warning", summarize(warnings), hint)
        return (
            f"{checkpoint.architecture}, {config.n_layers} layers of {config.dim}, "
            f"{config.vocab_size:,} tokens, context {config.context_length:,}"
        )

    @_check("tensors")
    def _tensors(self) -> Finding | str:
        checkpoint = self._with_weights()
        if self.config is None:
            raise _Skipped("the metadata does not say which tensors there should be")
        expected = layout(self.config)
        if wrong := list(differences(checkpoint, expected)):
            hint = "the file is incomplete or was converted for another architecture"
            if checkpoint.config is not None:
                hint = COMPARE
            return self._report("failed", summarize(wrong), hint)
        self.fits = True
        names = sorted({weight.quant.name for weight in checkpoint.weights.values()})
        return (
            f"all {len(expected.required):,} of architecture {self.config.architecture} with its "
            f"shapes, in {', '.join(names)}"
        )

    @_check("weights")
    def _weights(self) -> Finding | str:
        checkpoint = self._with_weights()
        matrices = (
            matrix for weight in checkpoint.weights.values() for matrix in weight.matrices()
        )
        anomalies = [anomaly for matrix in matrices for anomaly in weight_anomalies(matrix)]
        if checkpoint.gguf:
            for counts in code_counts(checkpoint.gguf, full=True):
                anomalies += code_anomalies(counts)
        if worst_first := worst(anomalies):
            command = f"bitnet crossval {shell_quote(self.path)}"
            hint = f"compare with another engine: {command}, or fetch it again"
            texts = [anomaly.text for anomaly in worst_first]
            return self._report(worst_first[0].severity, summarize(texts), hint)
        return "finite, no row of zeros outside the embedding"

    def _unusual(self, odd: Iterable[str]) -> Finding:
        command = f"bitnet verify {shell_quote(self.path)} --against FILE"
        hint = f"compare with an attestation of the original: {command}"
        return self._report("warning", summarize(list(odd)), hint)

    @_check("family")
    def _family(self) -> Finding | str:
        checkpoint = self._with_weights()
        if not self.fits:
            raise _Skipped("the tensors are not those of the architecture")
        odd = [*settings_out_of_range(checkpoint), *numbers_out_of_range(checkpoint)]
        text = "settings and sizes as models of this family have them, no part twice"
        return self._unusual(odd) if odd else text

    @_check("tokenizer")
    def _tokenizer(self) -> Finding | str:
        checkpoint = self._require_checkpoint()
        try:
            tokenizer = resolve_tokenizer(
                checkpoint, self.tokenizer, pre=self.pre, allow_mock=self.allow_mock
            )
        except TokenizerNotFound as error:
            hint = error.hint + ("" if self.allow_mock else "; --allow-mock leaves this check out")
            if self.tokenizer is not None:
                hint = "without --tokenizer, the model's own is judged"
            return self._report("failed", error.message, hint)
        if tokenizer.fingerprint == "mock":
            self.mock = True
            return self._report("skipped", "none; a MOCK takes its place, its ids mean nothing")
        judged = compatibility(checkpoint, tokenizer, pre=self.pre)
        if not judged.compatible:
            hint = f"bitnet explain-tokenizer {shell_quote(self.path)}"
            return self._report("failed", judged.verdict, hint)
        self.judged = tokenizer
        finding = self._agreement(tokenizer, judged.verdict)
        if self.proof is None or isinstance(finding, Finding) or self._covers(tokenizer):
            return finding
        text = f"{tokenizer.source} is not covered: nothing says what it is"
        return self._report("failed", text, HINT)

    def _covers(self, tokenizer: Tokenizer) -> bool:
        """True if *tokenizer* is of the model's own files, or of a pinned one."""
        source = Path(tokenizer.source)
        model = self._require_checkpoint().path
        is_embedded = tokenizer.source == f"embedded in {model.name}"
        if model in (source, source.parent) or (is_embedded and self.tokenizer is None):
            return True
        pin = self.find_pin(source)
        return pin is not None and source.is_file() and digest_of(source) == pin.sha256

    def _agreement(self, tokenizer: Tokenizer, verdict: str) -> Finding | str:
        """*verdict*, unless a tokenizer given by the user differs from the model's own."""
        gguf = self._require_checkpoint().gguf
        if self.tokenizer is None or gguf is None:
            return verdict
        try:
            own = extract_tokenizer_from_gguf(gguf, pre=self.pre)
        except BitnetError:  # the file has no other tokenizer to compare with
            return verdict
        agreement = measure_agreement(tokenizer.encode, own.encode)
        if agreement.first_difference is None:
            return f"{verdict}; {agreement}"
        text = agreement.describe_first_other("the embedded one")
        hint = (
            f"bitnet verify-tokenizer {shell_quote(self.path)} "
            f"--against {shell_quote(self.tokenizer)}"
        )
        return self._report("failed", text, hint)

    @_check("files")
    def _files(self) -> Finding:
        """Name each file with its purpose, and compare the tokenizers of a folder."""
        checkpoint = self._require_checkpoint()
        uses = list_files(checkpoint)
        if checkpoint.gguf is not None:
            text = f"{quantity(len(uses), 'file')} with weights, keys and tokenizer"
            return self._report("ok", text)
        lines = tuple(map(str, uses))
        count = sum(use.is_read for use in uses)
        text = f"{count:,} of {quantity(len(uses), 'file')} read"
        if self.judged is None or self.tokenizer is not None:
            return replace(self._report("ok", text), details=lines)
        differences = compare_tokenizer_files(checkpoint, self.judged)
        differing = [f"{name}: {text}" for name, text in differences.items() if text]
        if not differing:
            same = f"; the same tokenizer: {', '.join(differences)}" if differences else ""
            return replace(self._report("ok", text + same), details=lines)
        source = Path(self.judged.source)
        role = ", which transformers reads" if source.parent == checkpoint.path else ""
        hint = f"other programs may read another: name one with --tokenizer {shell_quote(source)}"
        text = f"{text}; not the tokenizer of {source}{role}: {'; '.join(differing)}"
        return replace(self._report("warning", text, hint), details=lines)

    @_check("vocabulary")
    def _vocabulary(self) -> Finding | str:
        odd = vocabulary_anomalies(self._require_checkpoint(), self.pre)
        if odd is None:
            self._require_tokenizer()  # without any tokenizer there is nothing to say
            text = "the tokenizer is not part of the model; nothing is known of it"
            return self._report("note", text)
        return self._unusual(odd) if odd else "its parts agree, and with what is known of it"

    def _require_tokenizer(self) -> Tokenizer:
        """The tokenizer that passed its check; without one, the check is skipped."""
        if self.judged is None:
            raise _Skipped("a mock has none" if self.mock else "there is no tokenizer")
        return self.judged

    @_check("template")
    def _template(self) -> Finding | str:
        tokenizer = self._require_tokenizer()
        if tokenizer.chat_template is None:
            return self._report("note", "the model has no chat template: it continues text")
        text = chat_template(tokenizer).render([{"role": "user", "content": "Hello"}])
        if "Hello" not in text:
            hint = "give another one: --chat-template FILE"
            return self._report("failed", f"it leaves the message out: {text!r}", hint)
        count = tokenizer.count(text, add_special=False)
        text = f"renders; one short message is {count} tokens"
        odd = [description for _, description in self._odd_templates(tokenizer)]
        if odd:
            hint = "use another one: --chat-template FILE"
            return self._report("warning", f"{summarize(odd)}; it {text}", hint)
        return text

    def _odd_templates(self, tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
        """Kind and description of what is odd about the templates of *tokenizer*."""
        gguf = self._require_checkpoint().gguf
        if gguf is not None and self.tokenizer is None:
            templates = templates_of(gguf.metadata)
            if templates:
                return oddities_of(templates, gguf)
        templates = dict(tokenizer.named_templates)
        if tokenizer.chat_template is not None:
            templates["default"] = tokenizer.chat_template
        return oddities_of(templates, None)

    @_check("stop ids")
    def _stop_ids(self) -> Finding | str:
        tokenizer = self._require_tokenizer()
        unknown = find_unknown_stops(self._require_checkpoint(), tokenizer)
        if unknown:
            text = f"no token has the id {unknown[0]}, which the folder names as an end of answers"
            return self._report("warning", text, COMPARE)
        if not tokenizer.stop_ids:
            text = "none is known: generation stops only at its limit"
            return self._report("warning", text, "stop at a text: --stop TEXT")
        return ", ".join(
            f"{id} {tokenizer.token_bytes(id).decode('utf-8', 'backslashreplace')}"
            for id in sorted(tokenizer.stop_ids)
        )

    @_check("forward pass")
    def _forward(self) -> Finding:
        checkpoint = self._with_weights()
        if not self.fits:
            raise _Skipped("the tensors are not those of the architecture")
        finding = forward_verdict(checkpoint, self.judged, self.trace)
        command = f"bitnet crossval {shell_quote(self.path)}"
        hint = f"fetch the model again, or compare it with another engine: {command}"
        return replace(finding, hint=hint) if finding.failed and not finding.hint else finding
