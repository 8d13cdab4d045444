"""Sampling and lengths that the files of a model recommend, and ids that no answer has.

A folder has them in ``generation_config.json``, a GGUF file in ``general.sampling.*`` and
``tokenizer.ggml.suppress_tokens``. Out-of-range ids are dropped where they are applied, as in
llama.cpp and transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import InvalidFormat
from bitnet.formats import generation_keys, outside_keys
from bitnet.formats.samplers import SAMPLERS, read_sequence

if TYPE_CHECKING:
    from bitnet.formats.checkpoint import Checkpoint

_FILE = "generation_config.json"
_SUPPRESS = "tokenizer.ggml.suppress_tokens"
_SEQUENCE = "general.sampling.sequence"
_MOST_IDS = 1 << 20  # ids of a list, more than a vocabulary has


# Bounds of the fields of a request that a model's files may set; a folder's keys are their names.
_BOUNDS = {
    "temperature": (0.0, 100.0),
    "top_k": (0, 2**31),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 100.0),
    "repeat_last_n": (-1, 2**31 - 1),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "mirostat": (0, 2),
    "mirostat_tau": (0.0, 100.0),
    "mirostat_eta": (0.0, 10.0),
    "max_new_tokens": (1, 2**31),
    "max_length": (1, 2**31),
}
_WHOLE = {"top_k", "repeat_last_n", "mirostat", "max_new_tokens", "max_length"}
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_LENGTHS = ("max_new_tokens", "max_length")
# Defaults of transformers where a file has do_sample: `GenerationConfig` of 4.30 to 5.24.
_WHEN_SAMPLING = {"temperature": 1.0, "top_k": 50}
# A GGUF file with one of these, even without a temperature, is of a model that samples.
_FILTERS = ("top_k", "top_p", "min_p")
_FILTERS_IF_POSITIVE = ("xtc_probability", "mirostat")
_FROM_FOLDER = {name: name for name in _SAMPLING}
_FROM_GGUF = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
    "general.sampling.penalty_last_n": "repeat_last_n",
    "general.sampling.xtc_probability": "xtc_probability",
    "general.sampling.xtc_threshold": "xtc_threshold",
    "general.sampling.mirostat": "mirostat",
    "general.sampling.mirostat_tau": "mirostat_tau",
    "general.sampling.mirostat_eta": "mirostat_eta",
}


@dataclass(frozen=True)
class SamplingDefault:
    """Value of a field of a request, and where in a model's files it is from."""

    value: float | tuple[str, ...]  # names of samplers in the order in which they run
    source: str

    @property
    def number(self) -> float:
        """The value, which is a number."""
        assert not isinstance(self.value, tuple)
        return self.value

    def text(self) -> str:
        """The value as people write it."""
        return write_value(self.value)


def write_value(value: float | tuple[str, ...]) -> str:
    """The *value* of a :class:`SamplingDefault` as people write it."""
    return ";".join(value) if isinstance(value, tuple) else f"{value:g}"


@dataclass(frozen=True)
class GenerationSettings:
    """Sampling and lengths that the files of a model recommend, and ids that no answer has."""

    # fields of a request, such as ``temperature``
    sampling: Mapping[str, SamplingDefault] = field(default_factory=dict)
    max_new_tokens: SamplingDefault | None = None  # most tokens of an answer
    max_length: SamplingDefault | None = None  # most tokens of prompt and answer
    suppressed: frozenset[int] = frozenset()  # ids that no answer has
    suppressed_first: frozenset[int] = frozenset()  # ids that no answer begins with
    not_followed: tuple[str, ...] = ()  # keys that change answers of other programs, and none here
    unknown: tuple[str, ...] = ()  # keys of generation_config.json that transformers does not have

    @property
    def lengths(self) -> dict[str, SamplingDefault]:
        """The recommended lengths by name."""
        lengths = {"max_new_tokens": self.max_new_tokens, "max_length": self.max_length}
        return {name: length for name, length in lengths.items() if length is not None}

    def facts(self) -> dict[str, Any]:
        """Each recommended value with its origin, and the suppressed ids, as JSON values."""
        values = {**self.sampling, **self.lengths}
        facts: dict[str, Any] = {
            name: {"value": setting.value, "from": setting.source}
            for name, setting in values.items()
        }
        for name in ("suppressed", "suppressed_first"):
            ids = getattr(self, name)
            if ids:
                facts[name] = sorted(ids)
        if self.not_followed:
            facts["not_followed"] = list(self.not_followed)
        return facts

    def oddities(self) -> list[str]:
        """Descriptions of the keys of a folder that answers here do not follow."""
        texts = [
            f"{_FILE}: {key} changes answers of transformers, and is not followed"
            for key in self.not_followed
        ]
        texts += [f"{_FILE}: {key} is not a key of transformers" for key in self.unknown]
        return texts

    def list_suppressed(self, position: int) -> frozenset[int]:
        """Ids that must not be the token at *position* of an answer."""
        return self.suppressed if position else self.suppressed | self.suppressed_first

    def within(self, vocab_size: int) -> GenerationSettings:
        """These settings, without ids outside of a vocabulary of *vocab_size* tokens."""

        def inside(ids: frozenset[int]) -> frozenset[int]:
            return frozenset(token for token in ids if 0 <= token < vocab_size)

        return replace(
            self,
            suppressed=inside(self.suppressed),
            suppressed_first=inside(self.suppressed_first),
        )


def read_generation_settings(checkpoint: Checkpoint) -> GenerationSettings:
    """Sampling that the files of *checkpoint* recommend, and ids that no answer has."""
    if checkpoint.gguf is not None:
        return read_gguf_settings(checkpoint.metadata, checkpoint.path.name)
    files = checkpoint.inventory
    if _FILE not in files:
        return GenerationSettings()
    config = files.json(_FILE, dict)
    model = f"{checkpoint.path.name}: {_FILE}"
    samples = config.get("do_sample")
    if not isinstance(samples, bool | None):
        raise _wrong(model, "do_sample", samples, "true or false")
    table = _FROM_FOLDER
    if not samples:  # transformers then decodes greedily, and still applies the penalty
        table = {"repetition_penalty": "repetition_penalty"}
    sampling = _read_sampling(config, table, model, f"{_FILE}: ")
    if samples:
        for name, value in _WHEN_SAMPLING.items():
            source = f"{_FILE}: do_sample, without {name}"
            sampling.setdefault(name, SamplingDefault(value, source))
    lengths = _read_sampling(config, {name: name for name in _LENGTHS}, model, f"{_FILE}: ")
    return GenerationSettings(
        sampling,
        lengths.get("max_new_tokens"),
        lengths.get("max_length"),
        _check_ids(config.get("suppress_tokens"), "suppress_tokens", model),
        _check_ids(config.get("begin_suppress_tokens"), "begin_suppress_tokens", model),
        tuple(generation_keys.find_not_followed(config)),
        tuple(generation_keys.find_unknown(config)),
    )


def read_gguf_settings(metadata: Mapping[str, Any], model: str) -> GenerationSettings:
    """Sampling that the *metadata* of the GGUF file *model* recommends, and suppressed ids."""
    suppressed = _check_ids(metadata.get(_SUPPRESS), _SUPPRESS, model)
    sampling = _read_sampling(metadata, _FROM_GGUF, model, "")
    filters = [sampling[name].source for name in _FILTERS if name in sampling]
    filters += [
        sampling[name].source
        for name in _FILTERS_IF_POSITIVE
        if name in sampling and sampling[name].number > 0
    ]
    if filters and "temperature" not in sampling:
        # llama.cpp's converter leaves the key out where the folder has transformers' default.
        sampling["temperature"] = SamplingDefault(1.0, f"{filters[0]}, without a temperature")
    samplers = _read_samplers(metadata, model)
    if samplers:
        sampling["samplers"] = SamplingDefault(samplers, _SEQUENCE)
    not_followed = tuple(outside_keys.find_not_followed(metadata))
    return GenerationSettings(sampling, suppressed=suppressed, not_followed=not_followed)


def _read_samplers(metadata: Mapping[str, Any], model: str) -> tuple[str, ...]:
    """The samplers that the GGUF file *model* runs, in their order; empty if it does not say."""
    sequence = metadata.get(_SEQUENCE)
    if sequence is None:
        return ()
    if not isinstance(sequence, str):
        raise _wrong(model, _SEQUENCE, sequence, f"names such as {';'.join(SAMPLERS[:3])}")
    samplers, _ = read_sequence(sequence)
    return samplers


def _read_sampling(
    keys: Mapping[str, Any], names: Mapping[str, str], model: str, prefix: str
) -> dict[str, SamplingDefault]:
    """The fields of a request that *keys* set; *names* has the field of each key."""
    settings: dict[str, SamplingDefault] = {}
    for key, name in names.items():
        least, most = _BOUNDS[name]
        value = keys.get(key)
        if value is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name == "top_k" and value == -1:
            value = 0  # all tokens
        if not is_number or not abs(value) <= sys.float_info.max or not least <= value <= most:
            raise _wrong(model, key, value, f"a number from {least:g} to {most:g}")
        if name in _WHOLE and not isinstance(value, int):
            raise _wrong(model, key, value, "an integer")
        settings[name] = SamplingDefault(value, f"{prefix}{key}")
    return settings


def _check_ids(values: Any, key: str, model: str) -> frozenset[int]:
    """*values* of *key*, a list of token ids; empty for None, anything else is refused."""
    if values is None:
        return frozenset()
    is_list = isinstance(values, Iterable) and not isinstance(values, str | Mapping)
    ids: list[Any] = list(values) if is_list and len(values) <= _MOST_IDS else [None]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise _wrong(model, key, values, "a list of token ids")
    return frozenset(ids)


def _wrong(model: str, key: str, value: Any, expected: str) -> InvalidFormat:
    return InvalidFormat(
        f"{model}: {key} is {value!r:.80}, expected {expected}",
        hint="compare the file with the one that the model's author publishes",
    )
