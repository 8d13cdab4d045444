"""``inv models``."""

from __future__ import annotations

from dataclasses import asdict

from bitnet.options import CacheOptions
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(
    group="Models",
    example="bitnet models",
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
    yield from table(head, cells, shrink=(4, 5, 0), right=(2,))
