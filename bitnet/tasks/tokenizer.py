"""``inv tokenizer``."""

from __future__ import annotations

import sys
from pathlib import Path

from invoke.exceptions import Exit

from bitnet.errors import UsageError, VerificationFailed
from bitnet.sources import TOKENIZERS
from bitnet.tables import show
from bitnet.tasks.context import Context
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@task(
    group="Tokenizers",
    example="bitnet tokenizer --source mirror",
    help={
        "output": "folder that gets tokenizer.json; made if missing",
        "source": "where from: mirror needs no account, official needs HF_TOKEN",
        "force": "fetch it again even if it is there",
        "verify": "read what is there again instead of trusting size, time and inode",
        "compare": "instead of fetching: a tokenizer.json to compare ...",
        "against": "... with this one",
    },
    choices={"source": tuple(TOKENIZERS)},
    formerly={"against": ("with",), "output": ("into",)},
    metavars={"output": "DIR", "compare": "FILE", "against": "FILE"},
)
def tokenizer(
    c,
    output="models",
    source="mirror",
    force=False,
    verify=False,
    compare="",
    against="",
    common=Context(),
):
    """Fetch the LLaMA-3 tokenizer, checked, or compare two.

    The file is verified (digest, and every id of the vocabulary) and pinned in bitnet.lock.json.
    The two sources are never swapped for each other. --compare A --against B says where two files
    differ in meaning: vocabulary, merges, special tokens, template.
    """
    from bitnet.hub.provision import provide_tokenizer
    from bitnet.tokenizer.vocabulary import check_vocabulary

    if compare or against:
        _compare(compare, against, common.output)
        return
    project = common.project(force=force, verify=verify)
    target = Path(output) / "tokenizer.json"
    got = provide_tokenizer(TOKENIZERS[source], project, check=check_vocabulary, target=target)
    show(got.licence, stream=sys.stderr)
    done = "Tokenizer from the cache is at" if got.cached else "Downloaded tokenizer to"
    show(f"✓ {done}: {got.path}", stream=sys.stderr)
    print(as_json({"source": source, **got.facts()}) if common.output.json else got.path)


def _compare(left: str, right: str, output: Output) -> None:
    from bitnet.tokenizer.vocabulary import differences

    if not (left and right):
        raise UsageError(
            "tokenizer --compare needs two files", hint="bitnet tokenizer --compare A --against B"
        )
    found = differences(Path(left), Path(right))
    if output.json:
        listed = [{"part": entry.part, "text": entry.text} for entry in found]
        print(as_json({"equal": not found, "differences": listed}))
    else:
        lines = [f"{entry.part}: {entry.text}" for entry in found]
        show(*(lines or ["no difference"]))
    if found:
        raise Exit(f"{left} and {right} differ", code=VerificationFailed.exit_code)
