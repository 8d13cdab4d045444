"""``inv batch``."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from invoke.exceptions import Exit

from bitnet.batch.options import BatchOptions
from bitnet.errors import RowsFailed, UsageError
from bitnet.runtime.options import ModelOptions
from bitnet.tasks.context import Context
from bitnet.tasks.declare import task
from bitnet.tasks.running import model_path, open_model, say
from bitnet.terminal import as_json

SHOWN = 20  # failed rows


@task(
    group="Run",
    example='echo \'{"prompt": "Why is the sky blue?"}\' > prompts.jsonl\n'
    "bitnet batch smollm2-135m --input prompts.jsonl --output answers.jsonl",
    required=("input", "output"),
)
def batch(
    c,
    options=BatchOptions(),
    model=ModelOptions(),
    common=Context(),
):
    """Answer the prompts of a file into another file.

    A killed run goes on where it was.
    """
    from bitnet import locks
    from bitnet.batch.files import BatchFiles

    target = Path(options.output)
    _check(target, options, model)
    target.parent.mkdir(parents=True, exist_ok=True)
    whole = target.resolve()  # two names of one file have one lock
    lock = whole.with_name(f"{whole.name}.lock")
    hint = "wait for that run to end, or choose another --output"
    with (
        locks.hold(lock, timeout_s=0, what=options.output, hint=hint, leave=False),
        BatchFiles(Path(options.input), target, retry_errors=options.retry_errors) as files,
    ):
        if files.done:
            say(f"{files.done} of {files.total} rows are answered already")
        ignored = _answer(files, options, model, common)
    counts = {"rows": files.total, "answered_before": files.done, "failed": files.failed}
    ignoring = {"ignored_keys": list(ignored)} if ignored else {}
    said = f"{files.total} rows answered, {files.done} of them before, {files.failed} failed"
    failing = {"errors": files.errors} if files.failed else {}
    print(as_json(counts | ignoring | failing) if common.output.json else said)
    if files.failed and common.output.json:
        raise Exit(code=RowsFailed.exit_code)
    if files.failed:
        raise _failure(files)


def _failure(files):
    """Number of failed rows, and the errors of the first of them."""
    for row_id, error in list(files.errors.items())[:SHOWN]:
        say(f"row {row_id!r}: {error}")
    names = ", ".join(repr(row_id) for row_id in list(files.errors)[:SHOWN])
    more = f" and {files.failed - SHOWN} more" if files.failed > SHOWN else ""
    return RowsFailed(
        f"{files.failed} of {files.total} rows failed: {names}{more}",
        hint="--retry-errors answers them again",
    )


def _check(target, options, model):
    """Refuse what could only fail, or would be left out, before anything is opened."""
    if target.is_dir():
        raise UsageError(
            f"--output {options.output} is a folder", hint="name a file in it for the answers"
        )
    if options.engine == "ray":
        for given in fields(model):
            known = given.name in ("model", "threads", "features", "no_default_features")
            if not known and getattr(model, given.name) != getattr(ModelOptions(), given.name):
                flag = given.name.replace("_", "-")
                raise UsageError(
                    f"--{flag} is not known to the processes of --engine ray",
                    hint=f"leave --{flag} out: they load the model as it is",
                )


def _answer(files, options, model, common):
    """Answer the rows that are left; gives back the keys of the model that were ignored."""
    from bitnet.batch.run import answers, in_order

    rows = list(files.left())
    if not rows:
        return ()
    if options.engine == "ray":
        from bitnet.batch.ray_engine import ray_answers

        path = model_path(model, common)
        found = ray_answers(rows, path, options, threads=model.threads)
        for row, facts in in_order(rows, found) if options.ordered else found:
            files.write(row, facts)
        return ()
    limits = {"max_tokens": options.max_tokens, "max_batch": options.max_batch}
    with open_model(model, common) as running:
        found = answers(rows, running, **limits)
        for row, facts in in_order(rows, found) if options.ordered else found:
            files.write(row, facts)
        return running.ignored_keys
