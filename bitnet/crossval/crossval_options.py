"""Options of a cross-validation; cheap to import."""

from __future__ import annotations

from dataclasses import dataclass

from bitnet.base.errors import UsageError
from bitnet.base.options import check_bounds, option

REFERENCE_NAMES = (
    *("llama.cpp", "bitnet.cpp", "ik_llama.cpp"),
    *("transformers", "recorded", "float64"),
)
_MAX_POSITIONS = 256
_GREEDY = 24


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
        "",
        "compare with the trace in this file, written by --record",
        metavar="FILE",
        needs_text=True,
    )
    prompts: str = option(
        "",
        "UTF-8 file with one prompt per line; default: seven built-in ones",
        metavar="FILE",
        needs_text=True,
    )
    tokenizer_only: bool = option(False, "compare the tokenizers and nothing else")
    # None: not given. `--check` and `--recording` refuse a number, which would change nothing there
    max_positions: int | None = option(
        None,
        f"positions to compare at most, spread over all prompts; default: {_MAX_POSITIONS}",
        bounds=(1, None),
    )
    greedy: int | None = option(
        None,
        f"tokens that each engine generates after each prompt, on its own; default: {_GREEDY}",
        bounds=(0, None),
    )
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
        needs_text=True,
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
        of_prompts = {
            "--prompts": self.prompts,
            "--max-positions": self.max_positions is not None,
            "--greedy": self.greedy is not None,
        }
        flags = [flag for flag, value in of_prompts.items() if value]
        if self.recording and flags:
            raise UsageError(
                "a recording brings its own prompts, positions and continuations",
                hint=f"leave {flags[0]} out",
            )
        needs_weights = {"--record": self.record, "--require-real": self.require_real}
        flags = [flag for flag, value in needs_weights.items() if value]
        if self.tokenizer_only and flags:
            raise UsageError(
                f"{flags[0]} needs the weights, and --tokenizer-only does not read them",
                hint="leave one of them out",
            )
        self._refuse_beside_check()
        if self.replay and not self.check:
            raise UsageError("--replay needs a report", hint="name it: --check report.json")

    @property
    def position_limit(self) -> int:
        """Positions to compare at most."""
        return _MAX_POSITIONS if self.max_positions is None else self.max_positions

    @property
    def steps(self) -> int:
        """Tokens that each engine generates after each prompt."""
        return _GREEDY if self.greedy is None else self.greedy

    def _refuse_beside_check(self) -> None:
        """Refuse options of a comparison with ``--check``, which reads its plan from the report."""
        if not self.check:
            return
        options = {
            "--against": self.against,
            "--prompts": self.prompts,
            "--tokenizer-only": self.tokenizer_only,
            "--max-positions": self.max_positions is not None,
            "--greedy": self.greedy is not None,
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
        of_replay = {
            "--recording": self.recording,
            "--reference-timeout": self.reference_timeout,
        }
        flags = [flag for flag, value in of_replay.items() if value]
        if flags and not self.replay:
            raise UsageError(
                f"{flags[0]} goes with --check only to repeat the comparison",
                hint=f"repeat it: --replay, or leave {flags[0]} out",
            )
