"""``inv fix-gguf``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from bitnet.options import option
from bitnet.tasks.declare import Output, task


@dataclass(frozen=True)
class Fix:
    """What is to be different in the copy."""

    output: str = option("", "the corrected copy; must not exist", metavar="FILE")
    set_pre: str = option(
        "", "name of the pre-tokenizer (tokenizer.ggml.pre), such as llama-bpe", metavar="NAME"
    )
    set: list[str] = option(
        [],
        "another value; KEY:TYPE=VALUE says the type of a new key; repeatable",
        metavar="KEY=VALUE",
    )

    @property
    def changes(self) -> list[str]:
        """All changes in the form of :func:`bitnet.formats.gguf_write.parse_change`."""
        pre = [f"tokenizer.ggml.pre:string={self.set_pre}"] if self.set_pre else []
        return [*pre, *self.set]


@task(
    positional=["path"],
    required=["output"],
    help={"path": "GGUF file to copy; it is not changed"},
)
def fix_gguf(c, path=None, fix=Fix(), shown=Output()):
    """Write a copy of a GGUF file with corrected metadata."""
    from pathlib import Path

    from bitnet.formats.gguf_write import write_copy
    from bitnet.progress import Progress

    with Progress(f"writing {fix.output}", mode=shown.progress) as progress:
        changes = write_copy(
            Path(path), Path(fix.output), changes=fix.changes, on_progress=progress.reach
        )
    if shown.json:
        facts = [asdict(change) for change in changes]
        print(json.dumps({"output": fix.output, "changes": facts}))
        return
    print(fix.output)
