"""``inv plan``."""

from __future__ import annotations

from pathlib import Path

from bitnet.errors import UsageError
from bitnet.tasks.context import Context
from bitnet.tasks.declare import task
from bitnet.terminal import as_json


@task(
    group="Models",
    example="bitnet plan --model smollm2-135m",
    help={
        "id": "ORG/REPO on the hub, or a packaged model such as smollm2-135m",
        "file": "file in the repository, or a pattern that means one",
        "rev": "branch, tag or commit",
        "model": "instead: a model that is here, a GGUF file, a folder, or a name",
    },
    synonyms={"rev": ("ref", "revision")},
    metavars={"id": "ID", "file": "NAME", "rev": "REV", "model": "PATH|NAME"},
)
def plan(
    c,
    id="",
    file="",
    rev="main",
    model="",
    common=Context(),
):
    """Say what fetching and running a model would take.

    Reads the headers only, wherever they are: size, licence, access, architecture,
    tokenizer, memory, and whether it will run here.
    """
    if bool(id) == bool(model):
        raise UsageError("plan needs one of --id and --model", hint="bitnet plan --id smollm2-135m")
    found = _plan_file(common.model(model)) if model else _plan_id(id, file, rev, common)
    print(as_json(found.facts()) if common.output.json else "\n".join(found.lines()))


def _plan_file(path: Path):
    from bitnet.plan import Origin, this_machine
    from bitnet.plan_folder import plan_path

    return plan_path(path, Origin(), machine=this_machine(path.parent))


def _plan_id(id, file, rev, common):
    from bitnet import plan
    from bitnet.hub.probe import probe
    from bitnet.hub.request import ModelRequest

    project = common.project()
    request = ModelRequest(id, file, rev)
    found = probe(request, project, fits=plan.fits_in_memory)
    origin = plan.Origin(found.licence, found.gated)
    machine = plan.this_machine(Path("models"))
    if found.path is not None:
        return plan.plan_file(found.path, origin, machine=machine)
    if found.read is None:
        return plan.plan_unread(found.name, found.size, origin, machine=machine)
    return plan.plan_model(found.read, origin, label=found.name, size=found.size, machine=machine)
