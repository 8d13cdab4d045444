"""Commands that check a model, a project, this machine, or the program itself."""

from __future__ import annotations

import json
from pathlib import Path

from invoke.exceptions import Exit

from bitnet.base import settings, tables
from bitnet.base.errors import (
    EXIT_CODES,
    BitnetError,
    InvalidFormat,
    NotFound,
    TokenizerNotFound,
    UsageError,
    VerificationFailed,
)
from bitnet.base.files import path_of, read_bytes
from bitnet.base.findings import SEVERITIES, Finding, render, status_of
from bitnet.base.invocation import extra_command, program, shell_quote
from bitnet.base.options import CacheOptions, option
from bitnet.base.outputs import OutputFile, begins_with
from bitnet.base.tables import show, table, wrap
from bitnet.commands.context import CHECKED_TOKENIZER, FORCE, IGNORE_KEY, PRE, Context, model_option
from bitnet.commands.declare import Output, task

MODEL = model_option(
    "GGUF file, folder with config.json, or name of a model; default: BITNET_GGUF",
    "",
    needs_text=True,
)
ALLOW_MOCK = option(
    False, "a model without a tokenizer does not fail, and is reported as NOT CHECKED"
)


@task(group="Check", example="bitnet verify smollm2-135m")
def verify(
    c,
    model=MODEL,
    tokenizer=CHECKED_TOKENIZER,
    pre=PRE,
    against=option(
        None,
        "attestation, bundle, original or known model to compare with",
        metavar="FILE|NAME",
        needs_text=True,
    ),
    key=option(
        "", "public key (PEM) with which the bundle must be signed", metavar="FILE", needs_text=True
    ),
    sha256=option(None, "digest the file must have", metavar="DIGEST"),
    ignore_key=IGNORE_KEY,
    allow_mock=ALLOW_MOCK,
    cache=CacheOptions(),
    output=Output(),
):
    """Verify a model, its tokenizer and a forward pass.

    Prints a verdict for each check: file, identity, metadata, tensors, weights, family,
    tokenizer, files, vocabulary, template, stop ids, one forward pass. If a check fails, the
    exit code is 15. For a file that is not a model it is 13 or 19, as in every command. A model
    without an attestation or a known digest is UNPINNED at best.
    """
    from bitnet.verify import Digest

    hint = "bitnet verify bitnet-tiny, or set BITNET_GGUF"
    path = _find_model(model, "verify needs MODEL", hint, Context(cache=cache))
    digest = "" if sha256 is None else sha256.lower()
    if sha256 is not None and (len(digest) != 64 or set(digest) - set("0123456789abcdef")):
        raise UsageError("--sha256 expects 64 hexadecimal digits", hint="sha256sum FILE")
    if key and against is None:
        raise UsageError("--key belongs to a bundle", hint="name it: --against BUNDLE --key FILE")
    expected = _expectations_here(path, cache.root, beside_it=against is None)
    if against is not None:
        expected |= _read_expectations(against, key)
    if digest:
        if path.is_dir():
            raise UsageError(
                f"--sha256 is the digest of a file, and {path} is a folder",
                hint="compare with an attestation or the original: --against FILE",
            )
        expected["find_pin"] = _pin_of(path, Digest(digest, "--sha256"), expected["find_pin"])
    allowed = {"allow_mock": allow_mock, "ignore_keys": ignore_key}
    chosen = {"tokenizer": tokenizer or None, "pre": pre or None}
    report = examine(path, output, **chosen, **allowed, **expected)
    if _is_accepted(report, allow_mock=allow_mock):
        output.finish(report, [report["verdict"]])
        return
    hints = [check["hint"] for check in report["findings"] if check["severity"] == "failed"]
    failure = VerificationFailed(report["verdict"], hint=next(iter(hints), ""))
    output.finish(report, [], failure)


def _pin_of(path, digest, find_pin):
    """A function like *find_pin*, which returns *digest* for the file at *path*."""

    def find(file):
        return digest if file.resolve() == path.resolve() else find_pin(file)

    return find


def _find_model(model, missing, hint, context):
    """The path of *model* or, if it is empty, of the model in ``BITNET_GGUF``.

    Without either, the error is *missing* with *hint*.
    """
    if named := model or settings.gguf():
        return context.model(named)
    raise UsageError(missing, hint=hint)


def _is_accepted(report, *, allow_mock):
    """True if *report* passed, or with *allow_mock* if some check was made and none failed."""
    results = [check["severity"] for check in report["findings"] if check["severity"] != "skipped"]
    return report["passed"] or (allow_mock and bool(results) and "failed" not in results)


def examine(path, output, *, show=True, **options):
    """The checks of *path* as JSON values; with *show*, each is printed once it is made.

    With --json, nothing is printed here. *options* are those of ``verify_model``.
    """
    from bitnet.verify import verify_model

    checks = []
    for check in verify_model(path, **options):
        checks.append(check)
        if show and not output.json:
            tables.show(*render([check]))
    return report_of(path, checks, ignored=options["ignore_keys"])


def report_of(path, checks, ignored=()):
    """Results of *checks* for the model at *path*, as JSON values."""
    from bitnet.verify import verdict

    return ({"ignored_keys": list(ignored)} if ignored else {}) | {
        "model": str(path),
        "passed": status_of(checks) == "passed",
        "pinned": any(check.subject == "identity" and check.severity == "ok" for check in checks),
        "not_checked": [check.subject for check in checks if check.severity == "skipped"],
        "verdict": verdict(path, checks),
        "findings": [check.facts() for check in checks],
    }


def _read_expectations(against, key):
    """Expectations of --against, a file or a name, for :func:`bitnet.verify.verify_model`."""
    from bitnet.verify.attest import attestation_of
    from bitnet.verify.bundle import is_bundle, open_bundle

    path = Path(against)
    is_document = path.is_file() and begins_with(path, b"{")
    if is_document and is_bundle(read_bytes(path)):
        attestation, manifest = open_bundle(path, Path(key) if key else None)
        return {"against": attestation, "manifest": manifest, "proof": path}
    if key:
        raise UsageError(f"{against} is not a bundle", hint="leave --key out")
    return {"against": attestation_of(against), "proof": path}


def _expectations_here(model, cache, *, beside_it=True):
    """Expectations that this machine has of *model*, for :func:`bitnet.verify.verify_model`.

    These are the digests that this package, a lock file or the cache has recorded for its files,
    and, with *beside_it*, the attestation that a download wrote next to it. The lock file may be in
    or above the working folder, or above the model, whose path may be given as a link.
    """
    from bitnet.verify.attest import Attestation, beside

    pins, named = _pins_for(model, cache)
    expected = {"find_pin": lambda file: pins.get(file.resolve()), "named": named}
    if not beside_it:
        return expected
    for written in (beside(model), beside(model.resolve())):
        if written.exists() or written.is_symlink():
            # With a proof, the file of these expectations, they must also cover unread files.
            proof = beside(model) if model.is_dir() else None
            return expected | {"against": Attestation.read(written), "proof": proof}
    return expected


def _pins_for(model, cache):
    """Pinned digests by real path, and the paths in the folder *model* that a lock file names."""
    from bitnet.shipped import SHIPPED
    from bitnet.store import Store
    from bitnet.store.records import LOCK_FILE
    from bitnet.verify import Digest

    digests = Store(cache).digests().items()
    pins = {Path(path).resolve(): Digest(sha256, "the cache's record") for path, sha256 in digests}
    named = {}
    for locked_path, entry in _list_locked(model):
        pins[locked_path.resolve()] = Digest(entry.sha256, LOCK_FILE)
        if model.resolve() in locked_path.parents:
            named[locked_path] = LOCK_FILE
    pins |= {each.path.resolve(): Digest(each.sha256, "this package") for each in SHIPPED.values()}
    return pins, named


def _list_locked(path):
    """Paths and entries of the lock files in or above the working folder, and above *path*.

    A path is below the real folder of its lock file; the file there may be a link, or missing.
    """
    from bitnet.store.records import LOCK_FILE, read_lock

    # x stands for any file of the working folder, which is then one of its parents.
    starts = (Path.cwd() / "x", Path.cwd() / path, path.resolve())
    # Outermost first, so that the nearest lock file wins in a dict by path.
    for folder in dict.fromkeys(folder for start in starts for folder in reversed(start.parents)):
        for entry in read_lock(folder / LOCK_FILE):
            if entry.place is not None:
                yield folder.resolve() / path_of(entry.place), entry


@task(group="Check", example="bitnet health --model-dir models")
def health(
    c,
    model_dir=option("models", "folder with models, searched recursively", metavar="DIR"),
    list_=option(False, "print the path of each model that would be verified, and verify none"),
    ignore_key=IGNORE_KEY,
    allow_mock=ALLOW_MOCK,
    cache=CacheOptions(),
    output=Output(),
):
    """Verify every model in a folder.

    Prints a line for each model. If one fails, the exit code is 15; `bitnet verify` shows the
    checks of a single model.
    """
    from bitnet.formats.model_files import find_models

    models = find_models(Path(model_dir), broken=True)
    if list_:
        paths = [_as_argument(model) for model in models]
        output.finish(paths, paths)
        return
    reports = []
    options = {"allow_mock": allow_mock, "ignore_keys": ignore_key}
    for model in models:
        try:
            expected = _expectations_here(model, cache.root)
            report = examine(model, output, show=False, **options, **expected)
        except BitnetError as error:  # a file that is not a model counts as a model that failed
            report = report_of(model, [Finding.of("file", error)])
        reports.append(report)
        if not output.json:
            show(f"Validating: {model}: {_line(report)}")
    for report in _report_missing(Path(model_dir), models):
        reports.append(report)
        if not output.json:
            show(f"Validating: {report['model']}: {_line(report)}")
    failed = [
        report["model"] for report in reports if not _is_accepted(report, allow_mock=allow_mock)
    ]
    if not failed:
        output.finish(reports, [_verdict(reports)])
        return
    text = f"❌ Health check failed: {', '.join(failed)}"
    failure = VerificationFailed(text, hint=f"bitnet verify {shell_quote(failed[0])}")
    output.finish(reports, [f"❌ Failed: {model}" for model in failed], failure)


def _as_argument(path):
    """*path* as an argument that no program takes for an option."""
    text = str(path)
    if "\n" in text:
        raise InvalidFormat(f"a line cannot list {text!r}", hint="rename it")
    return f"./{text}" if text.startswith("-") else text


def _report_missing(folder, models):
    """Reports about missing model files below *folder* that a lock file names, but for *models*."""
    listed = {model.absolute() for model in models}  # links to files that are gone are models
    for locked_path, entry in _list_locked(folder / "x"):  # in *folder* and above
        is_below = folder.resolve() in locked_path.parents and locked_path not in listed
        if entry.kind == "model" and is_below and not locked_path.exists():
            gone = NotFound(f"{locked_path} is gone, bitnet.lock.json names it", hint="bitnet sync")
            yield report_of(locked_path, [Finding.of("file", gone)])


def _verdict(reports):
    """The last line if no check failed: checks that were not made, or models without a pin."""
    if unchecked := [report["model"] for report in reports if report["not_checked"]]:
        count = f"{len(unchecked)} of {len(reports)} models"
        return f"NOT CHECKED: {count} ran without some check: {', '.join(unchecked)}"
    unpinned = sum(not report["pinned"] for report in reports)
    count = f"; {unpinned} of {len(reports)} UNPINNED: nothing says these are the original bytes"
    return f"✅ All models healthy{count if unpinned else ''}"


def _line(report):
    """The worst finding of *report*; ``ok`` if it is only a note."""
    first = min(report["findings"], key=lambda check: SEVERITIES.index(check["severity"]))
    if first["severity"] in ("note", "ok"):
        return "ok"
    return f"{first['severity']}: {first['subject']}: {first['text']}"


@task(group="Check", example="bitnet attest smollm2-135m --output smollm2.json")
def attest(
    c,
    model=MODEL,
    output=option(
        "", "file to write; without it the attestation is printed", metavar="FILE", writes=True
    ),
    bundle=option(
        "", "file for the in-toto statement in model-signing's format", metavar="FILE", writes=True
    ),
    key=option(
        "",
        "private key (PEM, elliptic curve) to sign the bundle with",
        metavar="FILE",
        needs_text=True,
    ),
    name=option("", "name of the model; default: its file name", metavar="NAME"),
    tokenizer=option(
        "", "tokenizer file or folder for the trace; default: the model's own", metavar="PATH"
    ),
    trace=option(True, "run both backends over a few tokens and record what they compute"),
    force=FORCE,
    show=Output(),
):
    """Record a model's identity by its content.

    Prints a digest of each tensor, metadata key, token list and template, and the results of
    both backends at a few positions. The order, alignment and splitting of the file do not
    change the attestation; any other bit does. Compare a model with it: `bitnet verify
    --against FILE`.
    """
    from bitnet.formats.containers import open_checkpoint
    from bitnet.tokenizer.discover import resolve_tokenizer
    from bitnet.verify import attest as attesting
    from bitnet.verify.attest import ATTESTATION
    from bitnet.verify.bundle import BUNDLE, sign, statement_of

    hint = "bitnet attest bitnet-tiny, or set BITNET_GGUF"
    path = _find_model(model, "attest needs MODEL", hint, Context())
    if key and not bundle:
        raise UsageError("--key signs a bundle", hint="name it: --bundle FILE --key FILE")
    if output and bundle and Path(output).resolve() == Path(bundle).resolve():
        problem = f"--output and --bundle are one file, {bundle}"
        raise UsageError(problem, hint="name two files; the attestation is in the bundle, too")

    # The outputs are checked before the tensors are read, which takes minutes.
    checkpoint = open_checkpoint(path)
    inputs = (path, *checkpoint.inventory.paths)
    document = OutputFile(Path(output), ATTESTATION, inputs=inputs, force=force)
    signed = OutputFile(Path(bundle), BUNDLE, "--bundle", inputs=inputs, force=force)
    if output:
        document.check()
    if bundle:
        signed.check()

    try:
        trace_tokenizer = resolve_tokenizer(checkpoint, tokenizer or None) if trace else None
    except TokenizerNotFound:
        if tokenizer:
            raise
        trace_tokenizer = None  # the first ids of the vocabulary are traced
    attestation = attesting.attest(checkpoint, name=name, tokenizer=trace_tokenizer, trace=trace)
    if bundle:
        statement = statement_of(checkpoint, attestation)
        signed.write_text(json.dumps(sign(statement, Path(key)) if key else statement))
    if output:
        document.write_text(attestation.text())
    if written := output or bundle:
        facts = {"model": str(path), "output": written, "digest": attestation.digest}
        show.finish(facts, [f"{attestation.digest}  {written}"])
    else:
        print(attestation.text(), end="")


@task(group="Check", example="bitnet doctor", checks_settings=False)
def doctor(
    c,
    area=option(
        "",
        "'network' also checks the connection to the hub step by step",
        choices=("network",),
        positional=True,
    ),
    report=option(False, "print a block of Markdown for a bug report"),
    model=MODEL,
    common=Context(),
):
    """Diagnose problems of this installation.

    The last line is a summary. The exit code is that of the first problem, or 0. Secrets are
    never shown.
    """
    from bitnet.doctor import examine, markdown, verdict

    named = model or settings.gguf()
    findings = examine(common.cache.root, common.model(named) if named else None)
    if area:
        from bitnet.hub.diagnose import diagnose

        findings += diagnose(common.fetch)
    facts = {"findings": [finding.facts() for finding in findings], "verdict": verdict(findings)}
    if report and not common.output.json:
        print(markdown(findings))
    else:
        lines = [line for finding in findings for line in wrap(str(finding))]
        common.output.finish(facts, [*lines, verdict(findings)])
    if wrong := next((finding for finding in findings if finding.failed), None):
        raise Exit(code=wrong.exit_code)


@task(group="Check", example="bitnet exit-codes")
def exit_codes(c, output=Output()):
    """List the exit codes."""
    rows = [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
    output.finish(EXIT_CODES, table(("code", "meaning"), rows, right=(0,)))


@task(group="Check", example="bitnet completion bash > bitnet.bash")
def completion(
    c,
    shell=option(
        None, "for which shell: bash, zsh or fish", choices=("bash", "zsh", "fish"), positional=True
    ),
):
    """Generate a shell completion script.

    For bash, add this line to ~/.bashrc: `source <(bitnet completion bash)`. For zsh, add this
    line to ~/.zshrc, below compinit: `source <(bitnet completion zsh)`. For fish, write the
    script to ~/.config/fish/completions/bitnet.fish.
    """
    from invoke.completion.complete import print_completion_script

    name = Path(program().split()[-1]).name
    print_completion_script(shell, ["inv", "invoke"] if name.startswith("inv") else ["bitnet"])


@task(group="CI", example="bitnet ci-init", name="ci-init")
def ci_init(
    c,
    with_=option(
        [], "a template to write, instead of the usual five; may be repeated", metavar="NAME"
    ),
    from_=option(
        "",
        "source that CI installs: git+https://HOST/OWNER/REPO@COMMIT, or a folder or a "
        "wheel of the project; default: the commit from which this program was installed",
        metavar="SOURCE",
    ),
    project=option(".", "root of the project", formerly=("into",), metavar="DIR"),
    image=option(
        "",
        "container image with Python, by its digest, for gitlab and docker: "
        "python:3.12-bookworm@sha256:DIGEST; default: the one that the project has",
        metavar="IMAGE",
    ),
    branch=option("main", "the project's default branch", metavar="NAME"),
    force=option(False, "overwrite files with other content"),
    dry_run=option(False, "show what would be written, and write nothing"),
    output=Output(),
):
    """Add CI workflows to a project.

    Writes workflows for GitHub Actions; --with adds templates for gitlab, pre-commit and
    docker. CI installs this program from a commit or from the project itself, and its
    requirements by SHA-256. If a file with other content exists, nothing is written, unless
    --force is given.
    """
    from bitnet.ci.templates import DEFAULT, plan_files, write_files

    names = with_ or list(DEFAULT)
    planned = plan_files(Path(project), names, branch=branch, source=from_, image=image)
    if not dry_run:
        write_files(Path(project), planned, force=force)
    wrote, overwrote = ("write", "overwrite") if dry_run else ("wrote", "overwrote")
    words = {"new": wrote, "changed": overwrote}
    lines = [f"{words.get(file.state, file.state):<9} {file.path}" for file in planned]
    output.finish([{"path": str(file.path), "state": file.state} for file in planned], lines)


@task(group="CI", example="bitnet ci-lint", name="ci-lint")
def ci_lint(c, project=option(".", "root of the project", metavar="DIR"), output=Output()):
    """Lint the GitHub Actions workflows of a project.

    Checks the schema, and runs zizmor, actionlint and shellcheck from the extra `ci`. No
    connection is opened.
    """
    from bitnet.ci.templates import lint

    findings = lint(Path(project))
    failure: BitnetError | None = None
    if failed := [finding.subject for finding in findings if finding.failed]:
        text = f"workflows of {project} failed: {', '.join(failed)}"
        failure = VerificationFailed(text, hint="correct what is listed")
    elif missing := [finding.subject for finding in findings if finding.severity == "skipped"]:
        failure = NotFound(f"not installed: {', '.join(missing)}", hint=extra_command("ci"))
    output.finish([finding.facts() for finding in findings], map(str, findings), failure)
