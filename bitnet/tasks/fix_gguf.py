"""``inv fix-gguf``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from difflib import get_close_matches

from bitnet.errors import UsageError
from bitnet.options import option
from bitnet.tasks.context import Context
from bitnet.tasks.declare import Output, task
from bitnet.terminal import as_json


@dataclass(frozen=True)
class Fix:
    """Changes in the copy."""

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
        from bitnet.tokenizer.pretokenizers import PRE_TOKENIZERS

        if not self.set_pre:
            return list(self.set)
        if self.set_pre not in PRE_TOKENIZERS:
            near = get_close_matches(self.set_pre, PRE_TOKENIZERS, cutoff=0.4)
            raise UsageError(
                f"{self.set_pre!r} is not a known pre-tokenizer",
                hint=(f"did you mean {' or '.join(near)}? " if near else "")
                + f"any name can be set with --set tokenizer.ggml.pre:string={self.set_pre}",
            )
        return [f"tokenizer.ggml.pre:string={self.set_pre}", *self.set]


@task(
    group="Models",
    example="bitnet fix-gguf smollm2-135m --set general.name=Mine --output fixed.gguf",
    positional=["model"],
    formerly={"model": ("path",)},
    metavars={"model": "PATH|NAME"},
    required=["output"],
    help={"model": "GGUF file, or name of a model, to copy; it is not changed"},
)
def fix_gguf(c, model=None, fix=Fix(), shown=Output()):
    """Write a copy of a GGUF file with corrected metadata."""
    from pathlib import Path

    from bitnet.formats.gguf_write import write_copy
    from bitnet.progress import Progress

    source = Context().model(model)
    with Progress(f"writing {fix.output}", mode=shown.progress) as progress:
        changes = write_copy(
            source, Path(fix.output), changes=fix.changes, on_progress=progress.reach
        )
    if shown.json:
        facts = [asdict(change) for change in changes]
        print(as_json({"output": fix.output, "changes": facts}))
        return
    print(fix.output)
