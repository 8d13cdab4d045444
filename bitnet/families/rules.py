"""Rules for metadata keys: *read*, *neutral* for certain values, or harmless with any value.

Other keys are refused with their name, their value and a way to continue nevertheless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["HARMLESS", "Rule", "check", "neutral", "read", "refusal", "without"]


@dataclass(frozen=True)
class Rule:
    """Rule for one key.

    Attributes:
        note: meaning of the key, for the documentation.
        values: values without effect; ``None``: any value is accepted.
        is_read: the computation follows it.
    """

    note: str
    values: tuple[Any, ...] | None = None
    is_read: bool = False

    def allows(self, value: Any) -> bool:
        """True if the model can be run exactly with *value*."""
        return self.values is None or any(_same(value, expected) for expected in self.values)

    def __str__(self) -> str:
        if self.is_read:
            return "read"
        if self.values is None:
            return "changes nothing"
        return "neutral when " + " or ".join(f"`{_show(value)}`" for value in self.values)


HARMLESS = Rule("does not change what is computed")


def read(note: str) -> Rule:
    """Rule for a key that the computation follows."""
    return Rule(note, is_read=True)


def neutral(*values: Any, note: str = "") -> Rule:
    """Rule for a key without effect at one of *values*; other values are refused."""
    return Rule(note, values)


def check(
    given: Mapping[str, Any], rules: Mapping[str, Rule], *, model: str, kind: str, below: str = ""
) -> None:
    """Refuse the first of the *given* keys that is not allowed.

    Args:
        given: keys with their values.
        rules: by key; a key without a rule is refused.
        model: name of the model in errors.
        kind: its family.
        below: prefix of the keys in errors: ``rope_parameters.``.

    Raises:
        Unsupported: names the key, its value and a way to continue.
    """
    for key, value in given.items():
        rule = rules.get(key)
        if rule is None or not rule.allows(value):
            raise refusal(f"{below}{key}", value, model=model, kind=kind, rule=rule)


def refusal(
    key: str, value: Any, *, model: str, kind: str, rule: Rule | None = None, why: str = ""
) -> Unsupported:
    """Error for a key that changes the result in an unsupported way."""
    if rule is not None and rule.values is not None:
        why = f"only {' or '.join(_show(one) for one in rule.values)} is computed"
    return Unsupported(
        f"{model}: this {kind} model has {key} = {_show(value)}: "
        f"{why or 'not a key that is known to leave the result alone'}",
        hint=f"choose another model, or, to compute as if the key were not there: "
        f"--ignore-key {key}",
    )


def without(
    given: Mapping[str, Any], ignored: Iterable[str], *, prefix: str = ""
) -> dict[str, Any]:
    """*given* without the *ignored* keys, which are named with or without their table."""
    names = frozenset(ignored)
    return {
        key: value
        for key, value in given.items()
        if not names & {key, f"{prefix}{key}", key.partition(".")[2] or key}
    }


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, bool) or isinstance(expected, bool) or value is None or expected is None:
        return value is expected
    return bool(value == expected)


def _show(value: Any) -> str:
    text = {True: "true", False: "false", None: "null"}.get(value) if _is_word(value) else None
    shown = text or (f'"{value}"' if isinstance(value, str) else repr(value))
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)
