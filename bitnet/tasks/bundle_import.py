"""``inv bundle import``."""

from __future__ import annotations

import sys
from pathlib import Path

from bitnet.hub.options import FetchOptions
from bitnet.invocation import word
from bitnet.options import CacheOptions
from bitnet.tables import show
from bitnet.tasks.bundle_export import facts_of
from bitnet.tasks.context import Context
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(
    group="Models",
    example="bitnet bundle import smollm2.tar",
    name="bundle.import",
    positional=["file"],
    help={
        "file": "what `bundle export` wrote",
        "project": "folder of a project that gets the lock file and the files that it pins",
        "force": "let names and the lock file of the bundle replace those that are here",
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
    from bitnet.hub.bundle_import import import_bundle
    from bitnet.plan import fits_in_memory
    from bitnet.progress import Progress
    from bitnet.verify.attestation import Attestation

    context = Context(FetchOptions(offline=True), cache, shown)
    folder = Path(project) if project else None
    with Progress(Path(file).name, mode=shown.progress) as bar:
        got = import_bundle(
            Path(file),
            context.project(force=force),
            fits=fits_in_memory,
            check=Attestation.parse,
            into=folder,
            report=bar.reach,
        )
    placed = _placed(context, folder) if folder is not None else []
    for path in (*got.models.values(), *placed):
        _attest(path, got.attestations, context)
    state = f"{len(got.fresh)} new files" if got.fresh else "everything was here"
    show(f"✓ {state}", stream=sys.stderr)
    for name in got.models:
        show(f"✓ {name}: bitnet run {word(name)} --offline", stream=sys.stderr)
    facts = {
        "files": [{**facts_of(name), "fresh": name.sha256 in got.fresh} for name in got.names],
        "models": {name: str(path) for name, path in got.models.items()},
        "placed": [str(path) for path in placed],
    }
    paths = [*map(str, got.models.values()), *map(str, placed)]
    print(as_json(facts) if shown.json else "\n".join(paths))


def _placed(context, folder):
    """The files of the lock file in *folder*, each at its place now."""
    from bitnet.hub import lockfile
    from bitnet.hub.sync import provide_locked
    from bitnet.tokenizer.vocabulary import check_vocabulary

    project = context.project(folder)
    entries = lockfile.read(project.lock_path)
    return [provide_locked(entry, project, check=check_vocabulary).path for entry in entries]


def _attest(path, attestations, context):
    """Put the attestation of the model at *path* beside it, if the bundle has one."""
    from bitnet.verify.attestation import Attestation, beside

    text = attestations.get(context.project().store.digest_of(path)) if path.is_file() else None
    if text is not None and not beside(path).exists():
        Attestation.parse(text, path.name).write(beside(path))
