"""Command-line options of a batch; cheap to import."""

from __future__ import annotations

from dataclasses import dataclass

from bitnet.base.errors import UsageError
from bitnet.base.options import option

__all__ = ["BatchOptions"]


@dataclass(frozen=True)
class BatchOptions:
    """Input, output and engine of a batch."""

    input: str = option(
        "", "file with a JSON object to a line: prompt or messages; -: stdin", metavar="FILE"
    )
    output: str = option(
        "", "file for the answers; what is in it is not computed again", metavar="FILE"
    )
    max_tokens: int = option(128, "tokens to write at most, where a row does not say")
    max_batch: int = option(8, "answers written at the same time")
    retry_errors: bool = option(False, "answer rows again that ended with an error")
    ordered: bool = option(False, "write the answers in the order of the rows")
    engine: str = option("local", "who computes", choices=("local", "ray"))
    address: str = option("", "Ray cluster; auto: the one of this machine; default: a new one")
    actors: int = option(1, "with --engine ray: processes that hold a model each")

    def __post_init__(self) -> None:
        """Check combinations and ranges.

        Raises:
            UsageError: something is missing, or a number is out of its range.
        """
        for name in ("max_tokens", "max_batch", "actors"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} is {getattr(self, name)}, expected at least 1")
        if self.ordered and self.retry_errors:
            raise UsageError(
                "--ordered and --retry-errors are both given, and answers to failed rows come last",
                hint="leave one out",
            )
        if self.address and self.engine != "ray":
            raise UsageError("--address needs --engine ray", hint="add --engine ray")
