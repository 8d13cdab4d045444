"""Commands of the cache: list, verify and clean it, take models out of it or to elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

from bitnet.base.errors import IntegrityError, NotFound, UsageError, VerificationFailed
from bitnet.base.files import read_bytes
from bitnet.base.findings import render
from bitnet.base.invocation import as_started, shell_quote
from bitnet.base.options import CacheOptions, option
from bitnet.base.outputs import OutputFile
from bitnet.base.progress import Progress
from bitnet.base.quantities import human_size, human_time
from bitnet.base.tables import brief, quantity, short, show, table
from bitnet.cache import Selection
from bitnet.commands.context import Context, model_option, provide_pins
from bitnet.commands.declare import Output, task
from bitnet.hub.fetch_options import FetchOptions
from bitnet.sources import TOKENIZERS, Source

DRY_RUN = option(False, "show what would be removed, and remove nothing")


@task(group="Cache", example="bitnet cache list", name="cache.list")
def cache_list(c, cache=CacheOptions(), output=Output()):
    """List the files in the cache.

    Models and tokenizers come first, by repository, with the paths that hold each file: deleting
    it from the cache frees its bytes only when no other path holds it.
    """
    import time

    from bitnet.cache.entries import entries

    listing = entries(cache.root)
    # Names of one file share an inode, and count once.
    total = sum({entry.inode: entry.size_bytes for entry in listing}.values())
    repository_inodes = {entry.inode for entry in listing if entry.origin}
    head = ("size", "last used", "kind", "key", "path", "note")
    rows = [
        (
            human_size(entry.size_bytes),
            human_time(time.time() - entry.last_used_s),
            entry.kind,
            entry.key if "/" in entry.key else short(entry.key),
            short(str(entry.path)),
            _note(entry),
        )
        for entry in listing
        if entry.inode not in repository_inodes
    ]
    others = table(head, rows, shrink=(2,), whole=3, right=(0, 1), below=(4, 5)) if rows else ()
    summary = f"{quantity(len(listing), 'file')}, {human_size(total)} in {cache.root}"
    facts = {"root": str(cache.root), "size_bytes": total}
    facts["entries"] = [entry.facts() for entry in listing]
    output.finish(facts, [*_by_repository(listing), *others, summary])


def _by_repository(listing):
    """Lines of a table of the stored files, by repository, each with the paths that hold it."""
    rows = []
    for name in sorted({entry.origin.repository for entry in listing if entry.origin}):
        files = [e for e in listing if e.origin and e.origin.repository == name]
        total = sum(entry.size_bytes for entry in files)
        rows.append((name, human_size(total), quantity(len(files), "file")))
        for entry in files:
            held_by = ", ".join([*_lock_owner(entry), *entry.holders(listing)]) or "nothing else"
            rows.append((f"  {entry.origin.file}", human_size(entry.size_bytes), held_by))
    if rows:
        head = ("repository and file", "size", "held by")
        yield from (*table(head, rows, whole=0, right=(1,), below=(2,)), "")


def _lock_owner(entry):
    """The process that has locked the file of *entry*, as a list of one text or none."""
    return [f"in use by {entry.owner}"] if entry.owner else []


def _note(entry):
    """The process that has locked the file of *entry*, and the number of its other known names."""
    # Other links, or the recorded paths of projects, some of which may be copies.
    others = max(entry.links - 1, len(entry.users))
    references = quantity(others, "link") if others else "unreferenced"
    notes = _lock_owner(entry)
    if entry.is_stored:
        notes.append(references)
    elif entry.links > 1:
        notes.append("a link")
    return ", ".join(notes)


@task(group="Cache", example="bitnet cache verify", name="cache.verify")
def cache_verify(
    c,
    model=model_option(
        "compare the files of this repository with the hub's digests instead",
        "",
        metavar="NAME|REPO",
        needs_text=True,
    ),
    common=Context(),
):
    """Verify the files in the cache.

    Tokenizers must be valid JSON, and models complete GGUF files. Where the digest of what was
    fetched is recorded, the file must have it; stored prompts must fit their checksums. Ends with
    exit code 13 when one is damaged.

    With a repository it reads its files and asks the hub for the digest of each, at the commit that
    was fetched; a file whose digest the hub does not name is NOT CHECKED, and fails.
    """
    if model:
        _compare_with_hub(model, common)
        return
    from bitnet.cache.entries import entries, verify
    from bitnet.formats.gguf import GGUF
    from bitnet.runtime.prompt_file import problem_of
    from bitnet.store import Store

    root = common.cache.root
    failure = None
    expected = Store(root).digests()
    verdicts = [
        verify(
            entry,
            read_gguf=lambda path: GGUF.open(path).close(),
            prompt_problem=problem_of,
            expected=expected,
        )
        for entry in entries(root)
        if entry.kind not in ("partial", "leftover")
    ]
    if damaged := [verdict for verdict in verdicts if verdict.problem]:
        first = damaged[0].entry
        models_option = " --models" if first.kind == "model" else ""
        remedy = f"bitnet cache clean --key {shell_quote(first.key)}{models_option} --yes"
        if not first.key:  # an empty --key is refused
            remedy = f"rm {shell_quote(first.path)}"
        text = f"{len(damaged)} of {len(verdicts)} files in {root} are damaged"
        failure = IntegrityError(text, hint=f"{remedy}, then fetch it again")
    facts = [verdict.facts() for verdict in verdicts]
    common.output.finish(facts, [brief(str(verdict)) for verdict in verdicts], failure)


def _compare_with_hub(name, common):
    """Compare the cached files of the repository *name* with the hub's digests, and report it."""
    from bitnet.hub.models import compare_with_hub
    from bitnet.hub.ref import parse

    findings = list(compare_with_hub(parse(name), common.project(rehash=True)))
    failure = None
    if wrong := [finding for finding in findings if finding.severity != "ok"]:
        state = "not what the hub has" if any(f.failed for f in wrong) else "NOT CHECKED"
        text = f"{len(wrong)} of {len(findings)} files of {name} are {state}"
        failure = VerificationFailed(text, hint=wrong[0].hint)
    facts = [finding.facts() for finding in findings]
    common.output.finish(facts, map(brief, render(findings)), failure)


@task(group="Models", example="bitnet rm smollm2-135m --dry-run")
def rm(
    c,
    model=model_option("name of a model, as `bitnet models` lists it", metavar="NAME"),
    dry_run=DRY_RUN,
    common=Context(),
):
    """Remove a model from the cache.

    Files that a project or another model uses stay on the disk. They are listed with the paths
    that hold them.
    """
    from bitnet.hub.models import remove_model
    from bitnet.hub.ref import parse

    deletion = remove_model(parse(model), common.project(), dry_run=dry_run)
    verb = "would remove" if dry_run else "removed"
    removed = [entry for entry in deletion.remove if entry.is_stored or entry.kind == "partial"]
    holders = {entry.path: deletion.holders_of(entry) for entry in removed if entry.is_stored}
    lines = [f"{verb} {entry.path} ({human_size(entry.size_bytes)})" for entry in removed]
    for path, names in holders.items():
        if names:
            lines.append(f"still on the disk: {path.name}: {', '.join(names)}")
    lines += [f"kept {entry.path}: it is also {', '.join(names)}" for entry, names in deletion.kept]
    lines.append(
        f"{verb} {quantity(len(removed), 'file')}, {human_size(deletion.size_bytes)} freed"
    )
    state = {"removed": not dry_run, "kept": False}
    files = [
        {**entry.facts(), **state, "held_by": holders.get(entry.path, [])} for entry in removed
    ]
    state = {"removed": False, "kept": True}
    files += [{**entry.facts(), **state, "held_by": [*names]} for entry, names in deletion.kept]
    common.output.finish({"size_bytes": deletion.size_bytes, "files": files}, map(brief, lines))


@task(
    group="Cache", aliases=("cache.clean",), example="bitnet cache clean --older-than 30d --dry-run"
)
def clean_cache(
    c,
    selection=Selection(),
    dry_run=DRY_RUN,
    yes=option(False, "remove without asking"),
    cache=CacheOptions(),
    output=Output(),
):
    """Remove files from the cache.

    Lists the files, then asks before it removes them. Without options it removes everything
    except downloaded models. Files in use by another process are kept and listed. Without a
    terminal, nothing is removed unless --yes is given (exit code 2).
    """
    from bitnet.cache.prune import plan, prune

    planned = plan(cache.root, selection)
    can_ask = sys.stdin.isatty() and not output.json
    is_listed = dry_run or output.verbose or (can_ask and not yes)
    if is_listed and not output.json:
        show(*map(brief, planned.files("would remove")))
    if not output.json and (dry_run or not yes):
        show(planned.summary("would remove"))
    is_confirmed = not dry_run and (yes or planned.is_empty)
    if not (is_confirmed or dry_run or can_ask):
        raise UsageError(
            "nothing was removed: there is no terminal to ask on",
            hint="bitnet cache clean --yes, or --dry-run",
        )
    if not (is_confirmed or dry_run):
        print("Remove them? [y/N] ", end="", file=sys.stderr, flush=True)
        is_confirmed = sys.stdin.readline().strip().lower() in ("y", "yes")
    outcome = prune(planned) if is_confirmed else planned
    lines = []
    if is_confirmed:
        listed = planned.busy_lines() if is_listed else []
        lines += [brief(line) for line in outcome.busy_lines() if line not in listed]
        lines.append(f"Cache cleanup complete: {outcome.summary('removed')}")
    output.finish({"removed": is_confirmed, **outcome.facts()}, lines)


@task(
    group="Models",
    example="bitnet bundle export smollm2-135m --output smollm2.tar",
    name="bundle.export",
    required=["output"],
)
def bundle_export(
    c,
    output=option("", "the file to write", metavar="FILE", writes=True),
    model=option(
        [],
        "name of a model, as `models` lists it; may be repeated",
        metavar="NAME",
        positional=True,
    ),
    tokenizer=option([], f"a tokenizer: {', '.join(TOKENIZERS)}; may be repeated", metavar="NAME"),
    force=option(False, "replace a file that is there"),
    cache=CacheOptions(),
    console=Output(),
):
    """Export models and tokenizers to one file.

    Without MODEL and --tokenizer, exports everything that bitnet.lock.json pins. The bundle
    includes the tokenizers, notices, attestations and lock file entries of its models. Nothing
    is downloaded. `bundle import` reads the file on a machine without a network.
    """
    from bitnet.hub import bundles

    context = Context(FetchOptions(offline=True), cache, console)
    project = context.project()
    if unknown := [name for name in tokenizer if name not in TOKENIZERS]:
        hint = f"known: {', '.join(TOKENIZERS)}"
        raise UsageError(f"no tokenizer is called {unknown[0]!r}", hint=hint)
    files = [file for name in model for file in bundles.model_files(name, project)]
    files += [bundles.tokenizer_file(TOKENIZERS[name], project) for name in tokenizer]
    paths = [context.model(name) for name in model]
    if not model and not tokenizer:
        files = bundles.list_pinned(project)
        if not files:
            raise NotFound(
                f"{project.lock_path} pins nothing that could be exported",
                hint="`bitnet models` lists them: bitnet bundle export MODEL --output FILE",
            )
        paths = [file.path for file in files if file.path.suffix == ".gguf"]
    attestations: dict[str, str] = {}
    for path in paths:
        attestations |= _attestation_for(path, project.store)
        files += _tokenizer_of(path, project)
    target = Path(output)
    contents = bundles.collect(files, attestations, project)
    inputs = (*paths, *contents.places.values(), project.lock_path)
    inputs += tuple(project.store.path_of(sha256) for sha256 in contents.blobs)
    kind = bundles.ARCHIVE if force else None  # without --force, no bundle is replaced either
    archive = OutputFile(target, kind, inputs=inputs, force=force)
    with Progress(target.name, mode=console.progress) as bar:
        digest = bundles.write_bundle(contents, archive, report=bar.reach)
    size = target.stat().st_size
    count = len(contents.blobs)
    print(f"✓ {quantity(count, 'file')}, {human_size(size)}", file=sys.stderr)
    facts = {"path": output, "size": size, "sha256": digest, "locked": contents.lock is not None}
    facts["files"] = [facts_of(file) for file in contents.files]
    console.finish(facts | {"attestations": sorted(attestations)}, [output])


def facts_of(file):
    """A file in a bundle as JSON values."""
    fields = ("kind", "repo", "revision", "file", "commit", "sha256", "size")
    return {field: getattr(file, field) for field in fields}


def _attestation_for(path, store):
    """The attestation of the GGUF file *path* by the file's digest; written first if missing.

    The result is empty for a folder, and for a file that cannot be attested.
    """
    from bitnet.verify.attest import attest_fetched, beside

    attest_fetched(path, fresh=False)
    attestation_path = beside(path)
    if path.is_dir() or not attestation_path.is_file():
        return {}
    return {store.digest_of(path): read_bytes(attestation_path).decode()}


def _tokenizer_of(path, project):
    """Files of the tokenizer in the cache that the model at *path* uses; empty if it uses none."""
    from bitnet.hub import bundles
    from bitnet.tokenizer import TokenizerDiscovery, TokenizerStrategy

    match TokenizerDiscovery(path).discover_tokenizer_strategy():
        case TokenizerStrategy.NeedsDownload(info):
            key = info.cache_key
            file = info.files[0]
            return [bundles.tokenizer_file(Source(key, info.repo, file, cache_key=key), project)]
        case TokenizerStrategy.Discovered(checkpoint_path):
            return bundles.find_tokenizer(checkpoint_path, project)
    return []


@task(group="Models", example="bitnet bundle import smollm2.tar", name="bundle.import")
def bundle_import(
    c,
    file=option(None, "file that `bundle export` wrote", metavar="FILE", positional=True),
    project=option(
        "", "project folder for the lock file and its files", formerly=("into",), metavar="DIR"
    ),
    force=option(False, "replace existing names and the lock file by the bundle's"),
    cache=CacheOptions(),
    console=Output(),
):
    """Import the models and tokenizers of a bundle.

    Every digest is verified before a file is kept; nothing is kept of a damaged bundle. No
    connection is opened. With --project, the files are also placed in a project, as `sync`
    does.
    """
    from bitnet.hub.bundles import import_bundle
    from bitnet.verify.attest import Attestation

    context = Context(FetchOptions(offline=True), cache, console)
    folder = Path(project) if project else None
    with Progress(Path(file).name, mode=console.progress) as bar:
        bundle, imported, models = import_bundle(
            Path(file),
            context.project(force=force),
            check=Attestation.parse,
            into=folder,
            report=bar.reach,
        )
    files = [] if folder is None else provide_pins(context.project(folder))
    placed = [obtained.path for obtained in files]
    for path in (*models.values(), *placed):
        _attest(path, bundle.attestations, context)
    state = quantity(len(imported), "new file") if imported else "everything was here"
    show(f"✓ {state}", stream=sys.stderr)
    for name in models:
        show(as_started(f"✓ {name}: bitnet run {shell_quote(name)} --offline"), stream=sys.stderr)
    facts = {
        "files": [{**facts_of(file), "fresh": file.sha256 in imported} for file in bundle.files],
        "models": {name: str(path) for name, path in models.items()},
        "placed": [str(path) for path in placed],
    }
    console.finish(facts, [*map(str, models.values()), *map(str, placed)])


def _attest(path, attestations, context):
    """Put the attestation of the model at *path* beside it, if the bundle has one."""
    from bitnet.verify.attest import Attestation, beside

    text = attestations.get(context.project().store.digest_of(path)) if path.is_file() else None
    if text is not None and not beside(path).exists():
        Attestation.parse(text, path.name).write(beside(path))
