"""Options of the samplers beyond temperature, top-k, top-p and min-p; cheap to import.

``None`` stands for the value that the model's files recommend (``Request.with_settings``).

Names, defaults and bounds are those of llama.cpp's server (its ``tools/server/README.md``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from bitnet.base.errors import UsageError
from bitnet.base.options import check_bounds, option
from bitnet.base.trust import encodable
from bitnet.formats.samplers import SAMPLERS, find_sampler
from bitnet.runtime.request_checks import list_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

WHOLE_TEXT = -1  # as a number of last tokens: all of prompt and answer
HIGHEST_XTC_THRESHOLD = 0.5  # XTC drops a token only if two reach the threshold
MAX_BREAKERS = 64
BREAKERS = ("\n", ":", '"', "*")
BY_THE_MODEL = "default: as the model's files recommend"
_SYNONYMS = {"typical_p": "typ_p", "typical": "typ_p"}  # of other programs than llama.cpp


@dataclass(frozen=True, kw_only=True)
class ChainOptions:
    """Options of the chain of samplers; the defaults leave each of them out."""

    SECTION: ClassVar = "Sampling"

    typical_p: float = option(
        1.0,
        "sample from the tokens whose probability is most typical, with this total probability",
        synonyms=("typical",),
        bounds=(0.0, 1.0),
    )
    top_n_sigma: float = option(
        0.0,
        "drop tokens whose logit is more standard deviations than this below the highest; 0: off",
        synonyms=("top-nsigma",),
        bounds=(-1.0, 1e6),
    )
    xtc_probability: float | None = option(
        None,
        "chance, at each token, to drop the likely tokens but for the least likely of them; "
        f"{BY_THE_MODEL}",
        bounds=(0.0, 1.0),
    )
    xtc_threshold: float | None = option(
        None,
        "probability from which --xtc-probability calls a token likely; above 0.5: off; "
        f"{BY_THE_MODEL}, else 0.1",
        bounds=(0.0, 1.0),
    )
    dynatemp_range: float = option(
        0.0,
        "vary the temperature by up to this much with the entropy of the tokens",
        bounds=(0.0, 100.0),
    )
    dynatemp_exponent: float = option(
        1.0,
        "power of the entropy in --dynatemp-range",
        synonyms=("dynatemp-exp",),
        bounds=(0.0, 100.0),
    )
    mirostat: int | None = option(
        None,
        "hold the surprise of the answer at --mirostat-tau: version 1 or 2; it replaces all other "
        f"samplers but the temperature; 0: off; {BY_THE_MODEL}",
        bounds=(0, 2),
    )
    mirostat_tau: float | None = option(
        None, f"surprise, in bits, that mirostat holds; {BY_THE_MODEL}, else 5",
        synonyms=("mirostat-ent",), bounds=(0.0, 100.0),
    )  # fmt: skip
    mirostat_eta: float | None = option(
        None, f"learning rate of mirostat; {BY_THE_MODEL}, else 0.1",
        synonyms=("mirostat-lr",), bounds=(0.0, 10.0),
    )  # fmt: skip
    dry_multiplier: float = option(
        0.0,
        "lower the logit of a token that would prolong a repetition by this, times --dry-base to "
        "a power that grows with its length (DRY)",
        bounds=(0.0, 1e6),
    )
    dry_base: float = option(
        1.75, "base of DRY's penalty, which grows with the repetition", bounds=(1.0, 1e6)
    )
    dry_allowed_length: int = option(
        2, "tokens of a repetition that DRY allows", bounds=(0, 2**31 - 1)
    )
    dry_penalty_last_n: int = option(
        64, "last tokens of the text in which DRY finds repetitions; -1: all",
        bounds=(WHOLE_TEXT, 2**31 - 1),
    )  # fmt: skip
    dry_sequence_breakers: list[str] = option(
        [],
        "text that ends a repetition for DRY; may be given several times; default: a line break, "
        "a colon, a quotation mark and an asterisk",
        synonyms=("dry-sequence-breaker",),
        metavar="TEXT",
    )
    repeat_last_n: int | None = option(
        None,
        "apply all penalties to the last tokens of prompt and answer, this many; 0: none, -1: "
        f"all; {BY_THE_MODEL}, else the repetition penalty to prompt and answer, the others to the "
        "answer",
        bounds=(WHOLE_TEXT, 2**31 - 1),
    )
    min_keep: int = option(
        0, "tokens that typical-p, top-p, min-p and XTC leave at least", bounds=(0, 2**31 - 1)
    )
    samplers: list[str] = option(
        [],
        f"name of a sampler; may be given several times: only these run, in this order; "
        f"{BY_THE_MODEL}, else {', '.join(SAMPLERS)}",
        metavar="NAME",
    )
    #: Names of the options that the command line sets, be it to their defaults.
    typed: frozenset[str] = field(default=frozenset(), compare=False, metadata={"inner": True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "samplers", sampler_names(self.samplers))
        breakers = list_texts("dry_sequence_breakers", self.dry_sequence_breakers)
        object.__setattr__(self, "dry_sequence_breakers", breakers)
        if len(breakers) > MAX_BREAKERS or "" in breakers:
            raise UsageError(
                f"dry_sequence_breakers: expected at most {MAX_BREAKERS} texts, none of them empty",
                field="dry_sequence_breakers",
            )
        check_bounds(self)


class Sampling(NamedTuple):
    """Values that the files of a model may recommend; the defaults choose greedily."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repeat_last_n: int | None = None
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    samplers: Sequence[str] = ()

    @property
    def uses_xtc(self) -> bool:
        """True if likely tokens may be dropped."""
        return self.xtc_probability > 0 and self.xtc_threshold <= HIGHEST_XTC_THRESHOLD

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the samplers, in the order in which they run."""
        return tuple(self.samplers) or SAMPLERS


def uses_dry(options: ChainOptions, sampling: Sampling) -> bool:
    """True if *options* and *sampling* penalise repetitions by their length."""
    is_on = options.dry_multiplier > 0 and options.dry_penalty_last_n != 0
    return is_on and not sampling.mirostat and "dry" in sampling.order


def needs_chain(options: ChainOptions, sampling: Sampling) -> bool:
    """True if the samplers of *options* and *sampling* run one by one over all tokens."""
    return bool(
        sampling.samplers
        or sampling.mirostat
        or sampling.uses_xtc
        or options.typical_p < 1
        or options.top_n_sigma > 0
        or options.dynatemp_range > 0
        or options.min_keep > 1  # every filter keeps one token anyway
    )


def sampler_names(names: Any) -> list[str]:
    """The samplers *names* by their canonical names, each once.

    A text may have several, between semicolons, as on llama.cpp's command line.
    """
    listed: dict[str, None] = {}
    for name in list_texts("samplers", names):
        for part in filter(None, name.split(";")):
            plain = part.strip().lower().replace("-", "_")
            sampler = find_sampler(plain.replace("_", "")) or _SYNONYMS.get(plain)
            if sampler not in SAMPLERS:
                printable = encodable(part[:40])
                raise UsageError(
                    f"samplers: {printable!r} is not a sampler",
                    hint=f"choose of {', '.join(SAMPLERS)}",
                    field="samplers",
                )
            listed[sampler] = None
    return [*listed]
