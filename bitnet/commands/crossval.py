"""``crossval``: compare a model with another engine, and check the reports of comparisons."""

from __future__ import annotations

import json
import logging
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from invoke.exceptions import Exit

from bitnet.base import settings
from bitnet.base.errors import (
    BitnetError,
    ReferenceUnavailable,
    UsageError,
    VerificationFailed,
    from_os_error,
)
from bitnet.base.files import check_writable
from bitnet.base.findings import render
from bitnet.base.invocation import shell_quote
from bitnet.base.outputs import OutputFile
from bitnet.base.tables import LiveLine, brief
from bitnet.commands.context import (
    FORCE,
    Context,
    load_model,
    open_file,
    open_tokenizer,
    read_text,
    say,
)
from bitnet.commands.declare import task
from bitnet.crossval.crossval_options import CrossvalOptions
from bitnet.runtime.model_options import ModelOptions

logger = logging.getLogger(__name__)


@task(group="Check", example="bitnet crossval smollm2-135m --against float64 --report-dir reports")
def crossval(c, requested=CrossvalOptions(), force=FORCE, model=ModelOptions(), common=Context()):
    """Compare a model's logits and tokens with another engine.

    The summary goes to stdout. The exit code is 15 if the results differ or the engine failed,
    and 22 if there is nothing to compare with or a check could not be made.
    """
    from bitnet.crossval.judge import judge

    if requested.check:
        _check(requested, model, common)
        return
    if requested.references:
        _list_references(requested, model, common)
        return
    texts = _texts(requested.prompts)

    # The outputs are checked before minutes are spent on computing.
    record, report = _outputs(requested, model, force=force)
    for output in (*record, *report):
        output.check()
        check_writable(output.path.parent)

    evidence = _compare(requested, texts, model, common, record=record, report=report)
    verdict = judge(evidence)
    _show(evidence, verdict, report, common.output)
    _end(evidence, verdict, requested, model.model, quiet=common.output.json)


def _list_references(requested, options, common):
    """``--references``: a line for each engine that reads the model."""
    from bitnet.crossval.references import references_for

    checkpoint = open_file(options, common)
    engines = [
        {"name": engine.name, "installed": engine.is_installed()}
        for engine in references_for(checkpoint)
        if requested.against in ("", engine.name)
    ]
    lines = [
        f"{engine['name']}: {'installed' if engine['installed'] else 'not installed'}"
        for engine in engines
    ]
    common.output.finish({"references": engines}, lines)


def _outputs(requested, model, *, force):
    """The trace and the report to write: two lists of files."""
    from bitnet.crossval.recording import TRACE
    from bitnet.crossval.report import report_files

    named = (model.model, model.tokenizer, model.chat_template)
    texts = (requested.prompts, requested.recording, *named)
    inputs = tuple(Path(text) for text in texts if text)
    record = []
    report = []
    if requested.record:
        record = [OutputFile(Path(requested.record), TRACE, "--record", inputs, force)]
    if requested.report_dir:
        report = report_files(Path(requested.report_dir), inputs, force=force)
    return record, report


def _texts(file):
    """The prompts in *file*, one per line, or the built-in ones."""
    from bitnet.crossval.plan import PROMPTS

    if not file:
        return PROMPTS
    texts = [line.rstrip("\r") for line in read_text(file).split("\n") if line.strip()]
    if not texts:
        raise UsageError(f"{file} has no prompt in it", hint="write one prompt a line")
    return texts


def _compare(requested, texts, options, common, *, record=(), report=()):
    """The evidence of the comparison that was *requested*; *record* gets the reference's trace.

    No file of the model may be one of *record* and *report*.
    """
    from bitnet.crossval.recording import recordable
    from bitnet.crossval.references import choose
    from bitnet.crossval.run import cross_validate
    from bitnet.store.root import make_cache

    if options.lora:
        raise UsageError(
            "crossval compares a model as its file is, without --lora", hint="leave --lora out"
        )
    tokenizer = open_tokenizer(options, common)[1] if requested.tokenizer_only else None
    checkpoint = open_file(options, common)
    for output in (*record, *report):
        replace(output, inputs=tuple(checkpoint.inventory.paths)).check()
    recording = Path(requested.recording) if requested.recording else None
    only = requested.tokenizer_only
    reference = choose(requested.against, checkpoint, recording=recording, tokenizer_only=only)
    inputs = {"texts": texts, "facts": _facts(checkpoint, common.cache.root)}
    if requested.tokenizer_only:
        inputs["tokenizer"] = tokenizer
        return cross_validate(None, checkpoint, reference, requested, **inputs)[0]
    make_cache(common.cache.root)
    with load_model(options, common, checkpoint) as model, _narrator(common.output) as notify:
        evidence, reference_trace = cross_validate(
            model, checkpoint, reference, requested, **inputs, notify=notify
        )
        if record and reference_trace:
            trace = recordable(reference_trace, model.tokenizer)
            record[0].write_text(json.dumps(trace.as_json()) + "\n")
    return evidence


@contextmanager
def _narrator(output):
    """Yield a function that shows a step on stderr, with the seconds since the beginning."""
    if output.progress in ("none", "json"):
        yield logger.info
        return
    started = time.monotonic()
    with LiveLine() as line:
        yield lambda text: line.tell(f"[{time.monotonic() - started:5.1f} s] {text}")


def _facts(checkpoint, root):
    """Identity of the model: its bytes, its content, and its origin by the cache in *root*."""
    from bitnet.crossval.evidence import TestedModel
    from bitnet.tokenizer.load import read_files
    from bitnet.verify.attest import attest, recognise

    sha256 = read_files(checkpoint).digest
    match = recognise(checkpoint)
    differs = match is not None and match.differences
    return TestedModel(
        checkpoint.path.name,
        sha256,
        checkpoint.architecture,
        _origin(sha256, root),
        attestation=attest(checkpoint, trace=False).digest,
        original=match.attestation.name if match and not differs else "",
        problem=match.text if match and differs else "",
        ignored_keys=tuple(sorted(checkpoint.ignored)),
    )


def _origin(sha256, root):
    """Origin of the file: this or another package, a repository in the cache *root*, or unknown."""
    from bitnet.shipped import SHIPPED
    from bitnet.sources import PACKAGED
    from bitnet.store import Store

    for own in SHIPPED.values():
        if own.sha256 == sha256:
            return f"{own.id}, part of bitnet"
    for model in PACKAGED.values():
        if model.sha256 == sha256:
            return f"{model.name} from the Python package index"
    # A version only records bytes that an address once sent.
    entries = (pin for pin in Store(root).index if pin.kind != "version")
    record = next((pin for pin in entries if pin.sha256 == sha256), None)
    if record is None:
        return "a file"
    return f"{record.repo} {record.file} {record.commit or record.revision}"


def _show(evidence, verdict, files, output):
    """Show the result on stdout, in the report *files*, and in the summary of the CI job."""
    from bitnet.crossval import report

    page = report.as_markdown(evidence, verdict)
    output.finish(report.as_json(evidence, verdict), brief(page).splitlines())
    if files:
        report.write(evidence, verdict, files)
        for file in files:
            logger.info("wrote %s", file.path)
    summary = settings.step_summary()
    if summary is None:
        return
    try:
        with summary.open("a", encoding="utf-8", newline="\n") as out:
            out.write(page + "\n")
    except OSError as error:
        raise from_os_error(error, summary) from error


def _end(evidence, verdict, requested, name, *, quiet):
    """Raise the error for a *verdict* on *evidence* other than passed.

    With --allow-missing, an engine that is not installed is only a note.
    """
    no_answer = evidence.no_answer
    if verdict.status == "passed":
        return
    is_missing = no_answer is not None and no_answer.severity == "skipped"
    reasons = "; ".join(verdict.reasons)
    if verdict.status == "not run" and is_missing and requested.allow_missing:
        say(f"crossval was not run: {reasons}")
        say("NOT CHECKED: nothing was compared")
        return
    kind = VerificationFailed if verdict.status == "failed" else ReferenceUnavailable
    if quiet:
        raise Exit(code=kind.exit_code)
    hint = f"check the file: bitnet verify {shell_quote(name or 'smollm2-135m')}"
    hint = _with_folders(verdict.hint, evidence) or hint
    raise kind(f"crossval {verdict.status}: {reasons}", hint=hint)


def _with_folders(hint, evidence):
    """*hint* of the verdict on *evidence*, with the folders of this machine that a report lacks."""
    from bitnet.crossval.references import installation_hint
    from bitnet.crossval.run import without_folders

    complete = installation_hint(evidence.plan.against)
    return complete if hint == without_folders(complete) else hint


def _recording_of(evidence, requested):
    """The recording for the replay of a report: it needs one if and only if the report had one."""
    if evidence.plan.live and requested.recording:
        raise UsageError(
            f"{requested.check} is not about a recording, but about {evidence.plan.against}",
            hint="leave --recording out",
        )
    if not evidence.plan.live and not requested.recording:
        raise UsageError(
            f"{requested.check} is about a recording, which a replay needs",
            hint="name the recording: --recording FILE",
        )
    return requested.recording


def _check(requested, options, common):
    """``--check``: derive the verdict of a report again, and compare it with the report's."""
    from bitnet.crossval.check import check_report, compare_again, options_of, read_report
    from bitnet.crossval.judge import judge

    evidence, claimed = read_report(Path(requested.check))
    findings = check_report(evidence, claimed)
    if requested.replay:  # the whole cross-validation again
        replay_options = options_of(evidence)
        replay_options = replace(replay_options, reference_timeout=requested.reference_timeout)
        replay_options = replace(replay_options, recording=_recording_of(evidence, requested))
        repeated = _compare(replay_options, evidence.plan.asked, options, common)
        findings.append(compare_again(evidence, repeated))
    wrong = [finding for finding in findings if finding.severity == "failed"]
    verdict = judge(evidence)
    status = verdict.status
    output = common.output
    facts = {"file": requested.check, "holds": not wrong, "status": status}
    facts["findings"] = [finding.facts() for finding in findings]
    state = "does not hold" if wrong else "holds"
    lines = [*render(findings), f"the report {state}; its verdict is: {status}"]
    failure: BitnetError | None = None
    if wrong:
        failure = VerificationFailed(
            f"{requested.check} does not hold: {'; '.join(finding.text for finding in wrong)}",
            hint="compare again: bitnet crossval MODEL --report-dir DIR",
        )
    elif skipped := next((finding for finding in findings if finding.severity == "skipped"), None):
        text = f"{requested.check}: {skipped.subject} {skipped.text}"
        failure = ReferenceUnavailable(text, hint=skipped.hint)
    output.finish(facts, lines, failure)
    _end(evidence, verdict, requested, evidence.model.file, quiet=output.json)
