"""Command-line options of a batch; cheap to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bitnet.base.errors import UsageError
from bitnet.base.options import check_bounds, option


@dataclass(frozen=True)
class BatchOptions:
    """Input, output and engine of a batch."""

    input: str = option(
        "", "file with one JSON object per line, with prompt or messages; -: stdin", metavar="FILE"
    )
    output: str = option(
        "",
        "file for the answers; rows that it already answers are skipped",
        metavar="FILE",
        writes=True,
    )
    max_tokens: int | None = option(
        None,
        "most tokens of an answer, unless its row sets it; default: as the model's files say, else "
        "128",
        bounds=(1, None),
    )
    max_batch: int = option(8, "answers generated at the same time", bounds=(1, None))
    retry_errors: bool = option(False, "answer failed rows again")
    ordered: bool = option(False, "write answers in input order")
    strict_model_name: bool = option(False, "refuse rows that name another model")
    engine: str = option("local", "engine that runs the model", choices=("local", "ray"))
    address: str = option(
        "", "address of the Ray cluster; auto: this machine's; default: a new one"
    )
    actors: int = option(
        1, "with --engine ray: processes, each with its own copy of the model", bounds=(1, None)
    )

    @property
    def limits(self) -> dict[str, Any]:
        """Keywords for :func:`bitnet.batch.rows.answers`."""
        names = ("max_tokens", "max_batch", "strict_model_name")
        return {name: getattr(self, name) for name in names}

    def __post_init__(self) -> None:
        """Check combinations and ranges."""
        check_bounds(self)
        if self.ordered and self.retry_errors:
            raise UsageError(
                "--ordered and --retry-errors are both given, and answers to failed rows come last",
                hint="leave one out",
            )
        for name, is_given in (("address", self.address), ("actors", self.actors > 1)):
            if is_given and self.engine != "ray":
                raise UsageError(f"--{name} needs --engine ray", hint="add --engine ray")
