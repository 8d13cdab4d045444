"""``inv crossval``."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from invoke.exceptions import Exit

from bitnet import settings
from bitnet.crossval.options import CrossvalOptions
from bitnet.errors import ReferenceUnavailable, UsageError, VerificationFailed
from bitnet.hub.options import FetchOptions
from bitnet.options import CacheOptions
from bitnet.runtime.options import ModelOptions
from bitnet.tasks.declare import Output, task
from bitnet.tasks.running import open_model, read_text, say

logger = logging.getLogger(__name__)


@task()
def crossval(
    c,
    wanted=CrossvalOptions(),
    model=ModelOptions(),
    fetch=FetchOptions(),
    cache=CacheOptions(),
    output=Output(),
):
    """Compare a model's logits and tokens with another engine.

    The summary goes to stdout. Exit code 15: they differ; 22: there is nothing to compare with.
    """
    from bitnet.crossval.report import as_markdown

    texts = _texts(wanted.prompts)
    with open_model(model, fetch=fetch, cache=cache, output=output) as running:
        report = _report(running, wanted, texts, cache.root)
    print(json.dumps(report) if output.json else as_markdown(report), end="\n" * output.json)
    _keep(report, wanted)
    _end(report, wanted, quiet=output.json)


def _texts(file):
    """The prompts in *file*, one a line; wrong ones are refused before a model is loaded."""
    from bitnet.crossval.run import PROMPTS

    if not file:
        return PROMPTS
    texts = [line.rstrip("\r") for line in read_text(file).split("\n") if line.strip()]
    if not texts:
        raise UsageError(f"{file} has no prompt in it", hint="write one prompt a line")
    return texts


def _report(model, wanted, texts, root):
    from bitnet.crossval.references import choose
    from bitnet.crossval.report import build_report
    from bitnet.crossval.run import cross_validate, recordable
    from bitnet.files import write_text
    from bitnet.formats.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(model.path)
    recording = Path(wanted.recording) if wanted.recording else None
    reference = choose(wanted.reference, checkpoint, recording=recording)
    kept = root / "reports"
    outcome = cross_validate(model, checkpoint, reference, wanted, texts=texts, cache=kept)
    if wanted.record and outcome.theirs:
        trace = recordable(outcome.theirs, model)
        write_text(Path(wanted.record), json.dumps(trace.as_json()) + "\n")
    origin = _origin(model.path, outcome.model_sha256)
    return build_report(outcome, model, reference=reference.name, origin=origin)


def _origin(path, sha256):
    """Where the file comes from: a package, a repository, or nobody knows."""
    from bitnet.hub.origin import Origin
    from bitnet.hub.package_index import PACKAGED

    for model in PACKAGED.values():
        if model.sha256 == sha256:
            return f"{model.id} from the Python package index"
    record = Origin.read(path)
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


def _end(report, wanted, *, quiet):
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
    hint = "bitnet crossval --bisect shows where they part; bitnet verify checks the file"
    if missing:
        hint = "pip install 'bitnet-xtask[crossval]', or --allow-missing"
    if verdict["reference_rejected"]:
        hint = "choose another engine: --reference NAME"
    raise kind(f"crossval {verdict['status']}: {reasons}", hint=hint)
