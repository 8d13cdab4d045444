"""``inv pre-download-tokenizers``."""

from __future__ import annotations

from pathlib import Path

from invoke.exceptions import Exit

from bitnet.errors import BitnetError, TokenizerNotFound
from bitnet.tables import show
from bitnet.tasks.context import Context
from bitnet.tasks.declare import task
from bitnet.terminal import as_json


@task(
    group="Tokenizers",
    example="bitnet pre-download-tokenizers --model-dir models",
    help={"model_dir": "folder with models; looked through with everything below it"},
    metavars={"model_dir": "DIR"},
)
def pre_download_tokenizers(c, model_dir="models", common=Context()):
    """Fetch the tokenizers that models lack into the cache.

    A model with a complete tokenizer, inside it or beside it, needs nothing. Ends with the exit
    code of the first failure if there is one.
    """
    from bitnet.tokenizer.needs import find_models

    project = common.project()
    rows, code = [], 0
    for model in find_models(Path(model_dir)):
        try:
            row = {"model": str(model), "ok": True, **_provide(model, project)}
        except BitnetError as error:
            row = {"model": str(model), "ok": False, "state": error.message, "hint": error.hint}
            code = code or error.exit_code
        rows.append(row)
        if not common.output.json:
            show(f"{'✓' if row['ok'] else '✗'} {model}: {row['state']}")
    if common.output.json:
        print(as_json(rows))
    if code:
        failed = [row for row in rows if not row["ok"]]
        raise Exit(f"{len(failed)} of {len(rows)} models: {failed[0]['hint']}", code=code)


def _provide(model, project):
    """Result for *model*; raises if its tokenizer cannot be provided."""
    from bitnet import sources
    from bitnet.hub.provision import provide_tokenizer
    from bitnet.tokenizer.needs import need_of
    from bitnet.tokenizer.vocabulary import check_vocabulary

    need = need_of(model)
    if need.present:
        return {"state": need.present, "path": None, "source": None}
    source = sources.for_model(need.architecture, need.vocab_size)
    if source is None:
        raise TokenizerNotFound(
            f"No compatible tokenizer found for {need.architecture or 'unknown'} model with "
            f"vocab_size {need.vocab_size} (strict mode)"
            + (f"; {need.reason}" if need.reason else ""),
            hint="put the model's own tokenizer.json beside it",
        )
    got = provide_tokenizer(source, project, check=check_vocabulary)
    state = f"{'in the cache' if got.cached else 'fetched'} from {source.repo}: {got.path}"
    return {"state": state, "path": str(got.path), "source": source.name}
