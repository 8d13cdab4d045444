"""``inv inspect-gguf``."""

from __future__ import annotations

from bitnet.tables import show
from bitnet.tasks.context import Context
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(
    group="Models",
    example="bitnet inspect-gguf smollm2-135m",
    positional=["model"],
    formerly={"model": ("path",)},
    metavars={"model": "PATH|NAME"},
    help={
        "model": "GGUF file, any part of a split model, or name of a model",
        "full": "count every ternary weight; without it a sample of each tensor is read",
    },
)
def inspect_gguf(c, model=None, full=False, output=Output()):
    """Show what is inside a GGUF file, and what is odd about it."""
    from bitnet.inspect_gguf import inspect_gguf

    found = inspect_gguf(Context().model(model), full=full)
    if output.json:
        print(as_json(found.as_json()))
        return
    show(*found.lines())
