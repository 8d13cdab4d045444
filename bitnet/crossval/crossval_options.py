"""Options of a cross-validation; cheap to import."""

from __future__ import annotations

from dataclasses import dataclass

from bitnet.base.errors import UsageError
from bitnet.base.options import check_bounds, option

REFERENCE_NAMES = (
    *("llama.cpp", "bitnet.cpp", "ik_llama.cpp"),
    *("transformers", "recorded", "float64"),
)


@dataclass(frozen=True)
class CrossvalOptions:
    """Reference engine, prompts, and output of the report."""

    against: str = option(
        "",
        "engine to compare with; default: the first that reads the model and is installed",
        choices=REFERENCE_NAMES,
        formerly=("reference",),
    )
    recording: str = option(
        "", "compare with the trace in this file, written by --record", metavar="FILE"
    )
    prompts: str = option(
        "", "UTF-8 file with one prompt per line; default: seven built-in ones", metavar="FILE"
    )
    tokenizer_only: bool = option(False, "compare the tokenizers and nothing else")
    max_positions: int = option(256, "positions to compare at most, spread over all prompts")
    greedy: int = option(24, "tokens that each engine generates after each prompt, on its own")
    record: str = option(
        "", "write the reference's trace to this file, for --recording", metavar="FILE", writes=True
    )
    report_dir: str = option(
        "", "folder for report.json, report.md and report.html", metavar="DIR", writes=True
    )
    references: bool = option(
        False, "list the engines that read the model, without comparing; with --against: this one"
    )
    reference_timeout: float | None = option(
        None,
        "seconds for each answer of the reference, which is then killed; default: 300, and 300 "
        "more for each GB of the model",
        metavar="SECONDS",
        bounds=(1, 1e6),
    )
    allow_missing: bool = option(
        False,
        "exit with 0 if the reference is not installed; the report still says `not run`",
    )
    require_real: bool = option(False, "fail unless the compiled kernels were used")
    check: str = option(
        "",
        "derive the verdict of this report.json again from its rows",
        metavar="FILE",
    )
    replay: bool = option(False, "with --check: repeat the whole comparison")

    def __post_init__(self) -> None:
        """Check ranges and combinations."""
        check_bounds(self)
        if self.against not in ("", *REFERENCE_NAMES):
            raise UsageError(
                f"--against expects one of {', '.join(REFERENCE_NAMES)}, got {self.against!r}"
            )
        if self.against == "recorded" and not self.recording:
            raise UsageError("--against recorded needs the file", hint="name it: --recording FILE")
        if self.recording and self.against not in ("", "recorded"):
            raise UsageError("--recording is a reference by itself", hint="leave --against out")
        if self.recording and self.prompts:
            raise UsageError("a recording brings its own prompts", hint="leave --prompts out")
        needs_weights = {"--record": self.record, "--require-real": self.require_real}
        flags = [flag for flag, value in needs_weights.items() if value]
        if self.tokenizer_only and flags:
            raise UsageError(
                f"{flags[0]} needs the weights, and --tokenizer-only does not read them",
                hint="leave one of them out",
            )
        self._check_against_report()
        if self.replay and not self.check:
            raise UsageError("--replay needs a report", hint="name it: --check report.json")
        if self.max_positions < 1:
            raise UsageError(f"--max-positions is {self.max_positions}, expected at least 1")
        if self.greedy < 0:
            raise UsageError(f"--greedy is {self.greedy}, expected at least 0")

    def _check_against_report(self) -> None:
        """Refuse options of a comparison with ``--check``, which reads its plan from the report."""
        if not self.check:
            return
        options = {
            "--against": self.against,
            "--prompts": self.prompts,
            "--tokenizer-only": self.tokenizer_only,
            "--record": self.record,
            "--report-dir": self.report_dir,
            "--references": self.references,
            "--require-real": self.require_real,
        }
        if flags := [flag for flag, value in options.items() if value]:
            raise UsageError(
                f"{flags[0]} does not go with --check, which derives the verdict of a report again",
                hint="leave one of them out",
            )
        if self.recording and not self.replay:
            raise UsageError(
                "--recording goes with --check only to repeat the comparison",
                hint="repeat it: --replay, or leave --recording out",
            )
