"""``bundle export`` and ``bundle import``."""

from __future__ import annotations

import sys
from pathlib import Path

from bitnet.base.errors import NotFound, UsageError
from bitnet.base.invocation import as_started, word
from bitnet.base.options import CacheOptions
from bitnet.base.tables import show
from bitnet.base.terminal import as_json
from bitnet.commands.context import Context
from bitnet.commands.declare import Output, task
from bitnet.hub.options import FetchOptions
from bitnet.sources import TOKENIZERS


@task(
    group="Models",
    example="bitnet bundle export smollm2-135m --output smollm2.tar",
    name="bundle.export",
    help={
        "output": "the file to write",
        "model": "name of a model, as `models` lists it; may be repeated",
        "tokenizer": f"a tokenizer: {', '.join(TOKENIZERS)}; may be repeated",
        "force": "replace a file that is there",
    },
    positional=["model"],
    metavars={"output": "FILE", "model": "NAME", "tokenizer": "NAME"},
    required=["output"],
)
def bundle_export(
    c,
    output="",
    model=[],  # noqa: B006
    tokenizer=[],  # noqa: B006
    force=False,
    cache=CacheOptions(),
    shown=Output(),
):
    """Write models and tokenizers to one file, for elsewhere.

    Without MODEL and --tokenizer it holds everything that bitnet.lock.json pins. What a model
    needs goes along: its tokenizer where that is another file, its notices, its attestation, and
    what the lock file says about it. Nothing is fetched. `bundle import` reads the file on a
    machine without a network.
    """
    from bitnet.base.progress import Progress, human_size
    from bitnet.base.tables import quantity
    from bitnet.hub.bundles import Collection
    from bitnet.sheet.plan import fits_in_memory
    from bitnet.store.bundle import write_bundle

    context = Context(FetchOptions(offline=True), cache, shown)
    chosen = Collection(context.project())
    unknown = [name for name in tokenizer if name not in TOKENIZERS]
    if unknown:
        raise UsageError(
            f"no tokenizer is called {unknown[0]!r}", hint=f"known: {', '.join(TOKENIZERS)}"
        )
    paths = [chosen.add_model(name, fits_in_memory) for name in model]
    for name in tokenizer:
        source = TOKENIZERS[name]
        chosen.add_tokenizer(source.repo, source.file, source.cache_key, source.revision)
    if not model and not tokenizer:
        entries = chosen.project.pins()
        if not entries:
            raise NotFound(
                f"{chosen.project.lock_path} pins nothing that could be exported",
                hint="`bitnet models` lists them: bitnet bundle export MODEL --output FILE",
            )
        paths = chosen.add_locked(entries)
    attestations: dict[str, bytes] = {}
    for path in paths:
        attestations |= _attestation_for(path, chosen.project.store)
        _add_tokenizer_of(path, chosen)
    target = Path(output)
    contents = chosen.contents(attestations)
    with Progress(target.name, mode=shown.progress) as bar:
        digest = write_bundle(contents, target, force=force, report=bar.reach)
    size = target.stat().st_size
    print(
        f"✓ {quantity(len({file.sha256 for file in contents.files}), 'file')}, {human_size(size)}",
        file=sys.stderr,
    )
    facts = {
        "path": output,
        "size": size,
        "sha256": digest,
        "files": [facts_of(file) for file in contents.files],
        "attestations": sorted(attestations),
        "locked": contents.lock is not None,
    }
    print(as_json(facts) if shown.json else output)


def facts_of(file):
    """A file in a bundle as JSON values."""
    fields = ("kind", "repo", "revision", "file", "commit", "sha256", "size")
    return {field: getattr(file, field) for field in fields}


def _attestation_for(path, store):
    """The attestation of the GGUF file *path*, by its digest; made where there is none yet."""
    from bitnet.verify.attest import attest_fetched
    from bitnet.verify.attestation import beside

    attest_fetched(path, fresh=False)
    written = beside(path)
    if path.is_dir() or not written.is_file():
        return {}
    return {store.digest_of(path): written.read_bytes()}


def _add_tokenizer_of(path, chosen):
    """Let the tokenizer go along that the model at *path* would have to fetch."""
    from bitnet.tokenizer import TokenizerDiscovery, TokenizerStrategy

    match TokenizerDiscovery(path).discover_tokenizer_strategy():
        case TokenizerStrategy.NeedsDownload(info):
            chosen.add_tokenizer(info.repo, info.files[0], info.cache_key)
        case TokenizerStrategy.Discovered(found):
            chosen.add_cached_tokenizer(found)


@task(
    group="Models",
    example="bitnet bundle import smollm2.tar",
    name="bundle.import",
    positional=["file"],
    help={
        "file": "file that `bundle export` wrote",
        "project": "project folder for the lock file and its pinned files",
        "force": "replace existing names and the lock file by the bundle's",
    },
    formerly={"project": ("into",)},
    metavars={"file": "FILE", "project": "DIR"},
)
def bundle_import(c, file=None, project="", force=False, cache=CacheOptions(), shown=Output()):
    """Take in a bundle; its models can then be used by name.

    Every digest is computed before a file is kept, and nothing is kept of a bundle that is damaged.
    No connection is opened. With --project the files go to their places in a project too, as `sync`
    puts them there.
    """
    from bitnet.base.progress import Progress
    from bitnet.hub.bundles import import_bundle
    from bitnet.sheet.plan import fits_in_memory
    from bitnet.verify.attestation import Attestation

    context = Context(FetchOptions(offline=True), cache, shown)
    folder = Path(project) if project else None
    with Progress(Path(file).name, mode=shown.progress) as bar:
        bundle, fresh, models = import_bundle(
            Path(file),
            context.project(force=force),
            fits=fits_in_memory,
            check=Attestation.parse,
            into=folder,
            report=bar.reach,
        )
    placed = _place_files(context, folder) if folder is not None else []
    for path in (*models.values(), *placed):
        _attest(path, bundle.attestations, context)
    state = f"{len(fresh)} new files" if fresh else "everything was here"
    show(f"✓ {state}", stream=sys.stderr)
    for name in models:
        show(as_started(f"✓ {name}: bitnet run {word(name)} --offline"), stream=sys.stderr)
    facts = {
        "files": [{**facts_of(one), "fresh": one.sha256 in fresh} for one in bundle.files],
        "models": {name: str(path) for name, path in models.items()},
        "placed": [str(path) for path in placed],
    }
    paths = [*map(str, models.values()), *map(str, placed)]
    print(as_json(facts) if shown.json else "\n".join(paths))


def _place_files(context, folder):
    """The files of the lock file in *folder*, each at its place now."""
    from bitnet.hub.orders import order_from_lock
    from bitnet.hub.provision import provide_all
    from bitnet.tokenizer.tokenizer_json import check_vocabulary

    project = context.project(folder)
    orders = [order_from_lock(entry, project, check=check_vocabulary) for entry in project.pins()]
    return [artifact.path for artifact in provide_all(orders, project)]


def _attest(path, attestations, context):
    """Put the attestation of the model at *path* beside it, if the bundle has one."""
    from bitnet.verify.attestation import Attestation, beside

    text = attestations.get(context.project().store.digest_of(path)) if path.is_file() else None
    if text is not None and not beside(path).exists():
        Attestation.parse(text, path.name).write(beside(path))
