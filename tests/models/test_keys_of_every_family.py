"""Every key of GGUF that a family knows: followed, refused with a hint that helps, or bounded."""

import dataclasses
import re
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import tiny_models
from added_keys import added_keys
from tiny_keys import MIXTURES
from tiny_models import tiny

from bitnet.base.errors import BitnetError, InvalidFormat, Unsupported
from bitnet.families.family import families, of_gguf
from bitnet.models.load import ARCHITECTURES, config_from

# Keys whose number only switches something on: llama.cpp's windows of this architecture have 4,096
# positions for any number above 0.
_ON_OR_OFF = {("smallthinker", "attention.sliding_window")}
_MORE_BYTES = 1 << 30  # that may be allocated while a damaged file is read
_LARGEST = 2**32 - 1  # of GGUF's uint32


def contents(value):
    """*value* as text, with the numbers of arrays."""
    if dataclasses.is_dataclass(value):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return f"{type(value).__name__}({', '.join(map(contents, fields))})"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(contents, value))}]"
    return str(value.tolist()) if isinstance(value, np.ndarray) else repr(value)


def with_keys(checkpoint, **keys):
    """*checkpoint* with these *keys* of its architecture, in place of its own or besides."""
    own = {f"{checkpoint.architecture}.{key}": value for key, value in keys.items()}
    return dataclasses.replace(checkpoint, metadata={**checkpoint.metadata, **own})


def effect(checkpoint, usual, keys):
    """True if *keys* are refused, or change the configuration, whose contents are *usual*."""
    try:
        return contents(config_from(with_keys(checkpoint, **keys))) != usual
    except BitnetError:
        return True


@pytest.fixture(scope="module")
def checkpoints():
    """A tiny model of each architecture, most with layers that have a window."""
    by_architecture = {}
    with pytest.MonkeyPatch.context() as patched:  # only shapes of tensors matter
        patched.setattr(tiny_models, "_normal", lambda _seed, _name, shape: np.zeros(shape))
        plain_ones = [tiny(architecture) for architecture in ARCHITECTURES]
    for architecture, plain in zip(ARCHITECTURES, plain_ones, strict=True):
        window = plain.metadata.get(f"{architecture}.attention.sliding_window")
        windowed = with_keys(plain, **{"attention.sliding_window": window or 4})
        try:
            config_from(windowed)
        except BitnetError:
            windowed = plain
        by_architecture[architecture] = windowed
    return by_architecture


def test_no_key_of_a_family_is_accepted_and_ignored(checkpoints):
    followed = set()
    ignored = set()
    for architecture, checkpoint in checkpoints.items():
        family = of_gguf(architecture)
        usual = contents(config_from(checkpoint))
        read = {key for key, rule in family.gguf_keys.items() if rule.is_read}
        if not checkpoint.value("expert_count", 0):
            read = {key for key in read if not key.startswith("expert_")}
        for keys in added_keys(family):
            if keys.keys() <= read:
                has_effect = effect(checkpoint, usual, keys)
                names = {(architecture, key) for key in keys}
                followed |= names if has_effect else set()
                ignored |= names
    assert len(followed) > 200  # the tables are not empty
    assert sorted(ignored - followed - _ON_OR_OFF) == []


@pytest.mark.parametrize("architecture", sorted(MIXTURES))
def test_experts_are_chosen_by_groups_or_the_keys_of_groups_are_refused(architecture, checkpoints):
    keys = {"expert_group_count": 3, "expert_group_used_count": 2}
    checkpoint = with_keys(checkpoints[architecture], **{"expert_count": 6} | keys)
    if keys.keys() <= of_gguf(architecture).gguf_keys.keys():
        routings = {
            (mixer.routing.groups, mixer.routing.groups_used)
            for mixer in config_from(checkpoint).mixers()
            if hasattr(mixer, "routing")
        }
        assert routings == {(3, 2)}
    else:
        with pytest.raises(Unsupported, match="expert_group_count = 3"):
            config_from(checkpoint)


def test_the_base_of_layers_with_windows_is_that_of_its_key():
    keys = {"rope.freq_base_swa": 5000.0, "rope.freq_base": 1e6, "attention.sliding_window": 8}
    attentions = config_from(tiny("afmoe", **keys)).attentions
    bases = [(mixer.window, mixer.rope and mixer.rope.theta) for mixer in attentions]
    assert bases == [(8, 5000.0), (8, 5000.0), (8, 5000.0), (0, None), (8, 5000.0)]


def test_a_hint_to_ignore_a_key_is_not_given_for_one_that_is_required(checkpoints):
    refused = 0
    for architecture, checkpoint in checkpoints.items():
        stated = {
            key.removeprefix(f"{architecture}."): value
            for key, value in checkpoint.metadata.items()
            if key.startswith(f"{architecture}.") and type(value) in (int, float)
        }
        for key, value in stated.items():
            for wrong in (0, type(value)(value * 3 + 1), -5.0):
                hint = hint_about(with_keys(checkpoint, **{key: wrong}))
                if ignorable := re.search(r"--ignore-key (\S+)", hint):
                    refused += 1
                    check_ignoring(checkpoint, ignorable[1])
    assert refused > 25


def hint_about(checkpoint):
    """Hint of the error about *checkpoint*; empty if there is none."""
    try:
        config_from(checkpoint)
    except BitnetError as error:
        return error.hint or ""
    return ""


def check_ignoring(checkpoint, key):
    """Assert that *checkpoint* without *key* is not refused since it lacks the key."""
    rest = {name: value for name, value in checkpoint.metadata.items() if name != key}
    assert len(rest) < len(checkpoint.metadata), key
    try:
        config_from(dataclasses.replace(checkpoint, metadata=rest))
    except BitnetError as error:
        assert f"{key} is missing" not in error.message  # noqa: PT017 - other errors may follow


@contextmanager
def little_memory():
    """Limit what this process may allocate; beyond the limit a MemoryError is raised."""
    if sys.platform != "linux":
        pytest.skip("a limit of memory on Linux")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MORE_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_no_number_of_a_damaged_file_is_allocated_before_it_is_refused(checkpoints):
    with little_memory():
        for checkpoint in checkpoints.values():
            weights = {"token_embd.weight": checkpoint.weights["token_embd.weight"]}
            bare = dataclasses.replace(checkpoint, weights=weights)
            prefix = f"{checkpoint.architecture}."
            stated = [key for key in checkpoint.metadata if key.startswith(prefix)]
            for key in stated:
                changed = with_keys(bare, **{key.removeprefix(prefix): _LARGEST})
                try:
                    config_from(changed)
                except BitnetError:
                    continue


@pytest.mark.parametrize(
    ("architecture", "keys"),
    [
        ("granite_swa", {"block_count": 2**31}),
        ("openelm", {"block_count": 2**31, "feed_forward_length": 8}),
        ("hy_v3", {"block_count": 2**31}),
        (
            "llama",
            {
                "rope.dimension_count": _LARGEST - 1,
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
            },
        ),
    ],
)
def test_a_size_beyond_all_models_is_refused_before_it_is_used(architecture, keys, checkpoints):
    checkpoint = checkpoints[architecture]
    weights = {"token_embd.weight": checkpoint.weights["token_embd.weight"]}
    with little_memory(), pytest.raises(InvalidFormat):
        config_from(with_keys(dataclasses.replace(checkpoint, weights=weights), **keys))


def test_a_number_for_all_layers_is_not_repeated_for_too_many(checkpoints):
    checkpoint = with_keys(checkpoints["apertus"], block_count=2**31)
    names = [f"xielu.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")]
    keys = {**checkpoint.metadata, **dict.fromkeys(names, 0.5)}
    with little_memory(), pytest.raises(InvalidFormat, match="2,147,483,648 layers"):
        config_from(dataclasses.replace(checkpoint, metadata=keys))


@pytest.mark.parametrize(
    "family", [family for family in families() if family.in_gguf], ids=lambda family: family.title
)
def test_a_long_array_where_a_number_belongs_is_not_shown_whole(family, checkpoints):
    checkpoint = checkpoints[family.architecture]
    long_array = [64] * 5000
    for key in ("context_length", "attention.sliding_window_pattern"):
        changed = with_keys(checkpoint, **{key: long_array})
        try:
            config_from(changed)
        except BitnetError as error:
            assert len(error.message) < 600  # noqa: PT017 - a family may ignore the key
