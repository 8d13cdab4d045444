"""``inv crossval``."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from invoke.exceptions import Exit

from bitnet import settings
from bitnet.crossval.options import CrossvalOptions
from bitnet.errors import ReferenceUnavailable, UsageError, VerificationFailed
from bitnet.runtime.options import ModelOptions
from bitnet.tasks.context import Context
from bitnet.tasks.declare import task
from bitnet.tasks.running import open_model, open_tokenizer, read_text, say

logger = logging.getLogger(__name__)


@task()
def crossval(
    c,
    wanted=CrossvalOptions(),
    model=ModelOptions(),
    common=Context(),
):
    """Compare a model's logits and tokens with another engine.

    The summary goes to stdout. Exit code 15: they differ; 22: there is nothing to compare with.
    """
    from bitnet.crossval.report import as_markdown

    texts = _texts(wanted.prompts)
    _check_outputs(wanted)
    layout = model.i2_s_layout
    if wanted.tokenizer_only:
        report, hint = _report_of_tokens(*open_tokenizer(model, common), wanted, texts, layout)
    else:
        with open_model(model, common) as running:
            report, hint = _report(running, wanted, texts, layout, common.cache.root)
    as_json = common.output.json
    print(as_json(report) if as_json else as_markdown(report), end="\n" * as_json)
    _keep(report, wanted)
    _end(report, wanted, hint=hint, quiet=as_json)


def _check_outputs(wanted):
    """Refuse a place that cannot be written to before minutes are spent on computing."""
    from bitnet.files import check_writable

    if wanted.report_dir:
        check_writable(Path(wanted.report_dir))
    if wanted.record:
        check_writable(Path(wanted.record).parent)


def _texts(file):
    """The prompts in *file*, one a line; wrong ones are refused before a model is loaded."""
    from bitnet.crossval.run import PROMPTS

    if not file:
        return PROMPTS
    texts = [line.rstrip("\r") for line in read_text(file).split("\n") if line.strip()]
    if not texts:
        raise UsageError(f"{file} has no prompt in it", hint="write one prompt a line")
    return texts


def _report(model, wanted, texts, layout, root):
    from bitnet.crossval.run import cross_validate, recordable
    from bitnet.files import write_text

    checkpoint, reference = _sides(model.path, wanted, layout)
    kept = root / "reports"
    outcome = cross_validate(model, checkpoint, reference, wanted, texts=texts, cache=kept)
    if wanted.record and outcome.theirs:
        trace = recordable(outcome.theirs, model)
        write_text(Path(wanted.record), json.dumps(trace.as_json()) + "\n")
    return _built(outcome, checkpoint, model.tokenizer, reference)


def _report_of_tokens(path, tokenizer, wanted, texts, layout):
    from bitnet.crossval.run import compare_tokens

    checkpoint, reference = _sides(path, wanted, layout)
    outcome = compare_tokens(tokenizer, checkpoint, reference, texts=texts)
    return _built(outcome, checkpoint, tokenizer, reference)


def _sides(path, wanted, layout):
    """The model on disk, and the reference for it."""
    from bitnet.crossval.references import choose
    from bitnet.formats.containers import open_checkpoint

    checkpoint = open_checkpoint(path, i2_s_layout=layout)
    recording = Path(wanted.recording) if wanted.recording else None
    return checkpoint, choose(wanted.reference, checkpoint, recording=recording)


def _built(outcome, checkpoint, tokenizer, reference):
    """The report, and what to do about a reference that could not be asked."""
    from bitnet.crossval.report import build_report

    origin = _origin(checkpoint.path, outcome.model_sha256)
    report = build_report(outcome, checkpoint, tokenizer, reference=reference.name, origin=origin)
    return report, outcome.hint


def _origin(path, sha256):
    """Where the file comes from: a package, a repository, or nobody knows."""
    from bitnet.hub.origin import Origin
    from bitnet.hub.package_index import PACKAGED
    from bitnet.store import Store

    for model in PACKAGED.values():
        if model.sha256 == sha256:
            return f"{model.id} from the Python package index"
    known = [name for name in Store(settings.cache_dir()).names.of(sha256) if name.revision]
    record = known[0] if known else Origin.read(path)
    if record is None or not record.repo:
        return "a file"
    return f"{record.repo} {record.file} {record.commit or record.revision}"


def _keep(report, wanted):
    """The report files, and the summary of the CI job."""
    from bitnet.crossval.report import append_summary, write_report

    if wanted.report_dir:
        for path in write_report(report, Path(wanted.report_dir)):
            logger.info("wrote %s", path)
    summary = settings.step_summary()
    if summary is not None:
        append_summary(report, summary)


def _end(report, wanted, *, hint, quiet):
    """The exit code that the verdict amounts to, with its reasons."""
    verdict = report["verdict"]
    if verdict["status"] == "passed":
        return
    missing = verdict["status"] == "not run"
    kind = ReferenceUnavailable if missing else VerificationFailed
    reasons = "; ".join(verdict["reasons"])
    if missing and wanted.allow_missing and not verdict["reference_rejected"]:
        say(f"crossval was not run: {reasons}")
        return
    if quiet:
        raise Exit(code=kind.exit_code)
    if verdict["reference_rejected"] or (missing and not hint):
        hint = "choose another engine: --reference NAME"
    hint = hint or "bitnet crossval --bisect shows where they part; bitnet verify checks the file"
    raise kind(f"crossval {verdict['status']}: {reasons}", hint=hint)
