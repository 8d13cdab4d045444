"""``inv plan``."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from bitnet.errors import NotFound, Offline
from bitnet.tables import show
from bitnet.tasks.context import Context
from bitnet.tasks.declare import task
from bitnet.terminal import as_json

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
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
        if path.exists() or not _REPO.fullmatch(model) or path.suffix in _SUFFIXES:
            return path
    return None


def _plan_file(path: Path):
    from bitnet.plan import ModelOrigin, this_machine
    from bitnet.plan_folder import plan_path

    return plan_path(path, ModelOrigin(), machine=this_machine(path.parent))


def _plan_id(id, file, rev, common):
    from bitnet import plan
    from bitnet.hub import named as by_name
    from bitnet.hub.probe import probe
    from bitnet.hub.request import ModelRequest

    project = common.project()
    named = by_name.parse(id)
    if named is not None and named.repo:
        id, file = named.repo, file or named.file
        rev = rev if rev != "main" else named.revision
    request = ModelRequest(id, file, rev)
    found = probe(request, project, fits=plan.fits_in_memory)
    origin = plan.ModelOrigin(found.licence, found.gated)
    machine = plan.this_machine(Path("models"))
    if found.path is not None:
        return plan.plan_file(found.path, origin, machine=machine)
    if found.read is None:
        return plan.plan_unread(found.name, found.size, origin, machine=machine)
    return plan.plan_model(found.read, origin, label=found.name, size=found.size, machine=machine)
