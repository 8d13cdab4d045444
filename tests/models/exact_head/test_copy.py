"""Logits found by the copy of a head against the full product, bit for bit."""

from __future__ import annotations

import mmap
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_levels import at_level, kernel_levels

from bitnet.base import native
from bitnet.base.errors import Unsupported
from bitnet.kernels.native import NativeOps
from bitnet.kernels.packing import prepare_matrix
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.exact_head import Found, Needed
from bitnet.models.exact_head.copy import BLOCK, HeadCopy, reason_against, saves_time, unpack_copy
from bitnet.quants import types
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

pytestmark = pytest.mark.skipif(native.module() is None, reason="the module is not built")

STEPS = 2000  # hidden states, one for each step of a long answer


@pytest.fixture(params=kernel_levels())
def ops(request: pytest.FixtureRequest) -> Iterator[NativeOps]:
    backend = NativeOps(threads=2)
    with at_level(request.param):
        yield backend


def stored(values: NDArray[Any], encoding: str = "F16") -> Weight:
    """An output head with *values*, in the encoding of a file."""
    if encoding == "BF16":
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> 16
        packed = bits.astype(np.uint16)
    else:
        dtype = {"F16": np.float16, "F32": np.float32}[encoding]
        packed = np.ascontiguousarray(values, dtype=dtype)
    data = packed.view(np.uint8).reshape(-1)
    return Weight("output.weight", values.shape, types.by_name(encoding), data)


def matrix(ops: NativeOps, values: NDArray[Any], encoding: str = "F16") -> Any:
    """*values* prepared row by row, as in the file: only such a head can have a copy."""
    return prepare_matrix(ops.module, stored(values, encoding), in_rows=True)


def normal(rows: int, columns: int, seed: int = 0) -> NDArray[np.float32]:
    """Weights of a normal distribution, ``(rows, columns)``."""
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def outliers(rows: int, columns: int) -> NDArray[np.float32]:
    """Weights with some columns a hundred times as large as others, as in trained models."""
    return normal(rows, columns) * np.where(np.arange(columns) % 37 == 5, 30.0, 0.3)


def near_ties(rows: int, columns: int) -> NDArray[np.float32]:
    """Copies of eight rows; in every third row one weight differs by its last bit."""
    values = normal(8, columns)[np.arange(rows) % 8].astype(np.float16)
    values.view(np.uint16)[::3, 7 % columns] ^= 1
    return values.astype(np.float32)


# Heads by name: functions of the numbers of rows and columns.
HEADS: dict[str, Callable[[int, int], NDArray[np.float32]]] = {
    "normal": normal,
    "outliers": outliers,
    "near ties": near_ties,
    "duplicate rows": lambda rows, columns: normal(3, columns)[np.arange(rows) % 3],
    "all equal": lambda rows, columns: np.full((rows, columns), 0.25, dtype=np.float32),
    "zero": lambda rows, columns: np.zeros((rows, columns), dtype=np.float32),
    "huge": lambda rows, columns: np.clip(normal(rows, columns) * 20000, -65000, 65000),
    "subnormal": lambda rows, columns: normal(rows, columns) * np.float32(1e-6),
    "huge and tiny rows": lambda rows, columns: (
        normal(rows, columns) * np.logspace(-7, 4, rows, dtype=np.float32)[:, None]
    ),
    "one row alone": lambda rows, columns: normal(rows, columns) * (np.arange(rows) == 5)[:, None],
}


def hidden_states(values: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """States in turns of eight: random, near a row, a row, sparse, huge, tiny, peaked, random.

    The eighth of each 64 is zero.
    """
    rows, columns = values.shape
    x = normal(count, columns, seed=1)
    x[1::8] += 3 * values[np.arange(len(x[1::8])) % rows] / (np.abs(values).max() + 1e-9)
    x[2::8] = values[np.arange(len(x[2::8])) % rows]
    x[3::8] *= np.arange(columns) == 3 % columns
    x[4::8] *= 1e9
    x[5::8] *= 1e-30
    x[6::8, 0] = 1e4
    x[7::64] = 0
    return x


def wrong(full: NDArray[np.float32], found: Found, count: int) -> str:
    """Contradiction of *found* to the *count* best rows of the *full* product, or an empty text."""
    if not np.array_equal(full[found.ids].view(np.uint32), found.logits.view(np.uint32)):
        return "a logit has other bits"
    others = np.delete(full, found.ids)
    if len(others) and others.max() >= found.bound:
        return "another row reaches the bound"
    best = np.argsort(-full, kind="stable")[:count]
    mine = found.ids[np.argsort(-found.logits, kind="stable")[:count]]
    return "" if np.array_equal(best, mine) else "the best rows are others"


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("count", [1, 40])
def test_the_best_rows_are_those_of_the_full_product_bit_for_bit(
    ops: NativeOps, name: str, count: int
) -> None:
    weight = matrix(ops, HEADS[name](500, 200))
    head = HeadCopy.build(ops, weight)
    x = hidden_states(HEADS[name](500, 200), 64)
    results = head.find(x, [Needed(count)] * len(x))
    for state, found in zip(x, results, strict=True):
        assert found is not None
        assert not wrong(ops.linear(state[None], weight)[0], found, count)


def test_thousands_of_steps_choose_what_the_full_head_chooses() -> None:
    ops = NativeOps(threads=2)
    values = outliers(4000, 320)
    weight = matrix(ops, values)
    head = HeadCopy.build(ops, weight, importance=np.abs(values).max(axis=0))
    x = hidden_states(values, STEPS)
    computed = 0
    for start in range(0, STEPS, 100):
        part = x[start : start + 100]
        results = head.find(part, [Needed(5)] * len(part))
        for state, found in zip(part, results, strict=True):
            assert found is not None
            assert not wrong(ops.linear(state[None], weight)[0], found, 5)
            computed += len(found.ids)
    assert 0 < computed < STEPS * len(values)  # the copy spares rows


@pytest.mark.parametrize("encoding", ["F16", "BF16", "F32"])
def test_every_float_encoding_can_have_a_copy(encoding: str) -> None:
    ops = NativeOps(threads=1)
    weight = matrix(ops, normal(300, 100), encoding)
    head = HeadCopy.build(ops, weight)
    x = normal(1, 100, seed=2)
    (found,) = head.find(x, [Needed(3)])
    assert found is not None
    assert not wrong(ops.linear(x, weight)[0], found, 3)


@given(
    rows=st.integers(1, 90),
    columns=st.integers(1, 200),
    name=st.sampled_from(sorted(HEADS)),
    scale=st.sampled_from([0.0, 1e-40, 1e-20, 1.0, 1e6, 1e12]),
    count=st.integers(1, 100),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_and_scale_gives_the_rows_of_the_full_product(
    rows: int, columns: int, name: str, scale: float, count: int, seed: int
) -> None:
    ops = NativeOps(threads=1)
    values = HEADS[name](rows, columns)
    weight = matrix(ops, values)
    head = HeadCopy.build(ops, weight)
    x = normal(1, columns, seed) * np.float32(scale)
    (found,) = head.find(x, [Needed(count)])
    if found is not None:
        assert not wrong(ops.linear(x, weight)[0], found, count)


def bounds_of(
    head: HeadCopy, hidden: NDArray[np.float32], *, sixth: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Approximate logits of a state and their upper bounds by five bits, or *sixth*: by six."""
    approx = np.empty(len(head.arrays["step"]), dtype=np.float32)
    upper = np.empty_like(approx)
    if not head._native.bounds(np.ascontiguousarray(hidden), sixth, approx, upper):
        return None
    return approx[: head._matrix.rows], upper[: head._matrix.rows]


def copied_bounds(
    head: HeadCopy, rows: int, hidden: NDArray[np.float32], sixth: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Logits of the copy for one hidden state, and how far the true ones can be from them.

    ``|x.w_r - x.copy_r| <= sum over blocks b of |x_b| * |w_rb - copy_rb|``; the kernels add what
    their own rounding of the hidden state and of their sums can cost.
    """
    values, norms = unpack_copy(head.arrays, rows, sixth=sixth)
    x = np.zeros(values.shape[1])
    x[: len(hidden)] = hidden[head.arrays["order"]] * head.arrays["factors"].astype(np.float64)
    return values @ x, norms @ np.linalg.norm(x.reshape(-1, BLOCK), axis=1)


@pytest.mark.parametrize("sixth", [False, True])
def test_the_upper_bounds_hold_and_are_those_of_the_copy(ops: NativeOps, sixth: bool) -> None:
    values = outliers(200, 300).astype(np.float16)
    weight = matrix(ops, values)
    head = HeadCopy.build(ops, weight)
    for state in hidden_states(values.astype(np.float32), 32):
        bounds = bounds_of(head, state, sixth=sixth)
        assert bounds is not None
        approx, upper = bounds
        logits, errors = copied_bounds(head, 200, state, sixth)
        assert (ops.linear(state[None], weight)[0] <= upper).all()
        assert (upper >= logits + errors * (1 - 1e-6)).all()
        # What the rounding of the state and of the sums adds is a small part of the error.
        scaled = state[head.arrays["order"]] * head.arrays["factors"].astype(np.float64)
        slack = 1e-3 * np.linalg.norm(scaled) * head.arrays["norm"][:200]
        assert (upper <= logits + errors * (1 + 1e-4) + slack + 1e-9).all()
        assert (np.abs(approx - logits) <= slack + 1e-9).all()


@pytest.mark.parametrize("sixth", [False, True])
def test_states_along_the_residual_of_the_copy_nearly_reach_the_bound(
    ops: NativeOps, sixth: bool
) -> None:
    values = normal(60, 300).astype(np.float16)
    weight = matrix(ops, values)
    head = HeadCopy.build(ops, weight)
    copied, norms = unpack_copy(head.arrays, 60, sixth=sixth)
    order = head.arrays["order"]
    factors = head.arrays["factors"].astype(np.float64)
    for row in range(60):
        # Parallel to what the copy leaves out of each block: Cauchy-Schwarz holds with equality.
        residual = values[row, order].astype(np.float64) / factors - copied[row, :300]
        state = np.zeros(300, dtype=np.float32)
        state[order] = residual / np.repeat(norms[row], 64)[:300] / factors
        bounds = bounds_of(head, state, sixth=sixth)
        assert bounds is not None
        approx, upper = bounds
        logit = ops.linear(state[None], weight)[0][row]
        assert approx[row] + 0.9 * (upper[row] - approx[row]) < logit <= upper[row]


def test_the_sixth_bits_are_read_only_for_rows_that_five_bits_leave() -> None:
    ops = NativeOps(threads=1)
    values = normal(2000, 256)
    head = HeadCopy.build(ops, matrix(ops, values))
    x = normal(1, 256, seed=6)
    (found,) = head.find(x, [Needed()])
    five = bounds_of(head, x[0])
    six = bounds_of(head, x[0], sixth=True)
    assert found is not None
    assert five is not None
    assert six is not None
    assert found.refined == np.count_nonzero(five[1] >= found.bound)  # by the upper bounds
    assert len(found.ids) == np.count_nonzero(np.minimum(five[1], six[1]) >= found.bound)
    assert 1 <= len(found.ids) < found.refined < 1000


@pytest.mark.skipif(sys.platform != "linux", reason="other systems read rows in memory")
def test_rows_are_read_from_the_file_and_from_memory_beyond_its_end(tmp_path: Path) -> None:
    ops = NativeOps(threads=2)
    values, others = (normal(100, 96, seed=seed).astype(np.float16) for seed in (0, 1))
    weight = matrix(ops, values)
    arrays = HeadCopy.build(ops, weight).arrays
    path = tmp_path / "head"
    path.write_bytes(b"before" + others[:60].tobytes())
    with path.open("rb") as file:
        native_head = ops.module.ExactHead(
            weight.kind, weight.data, 100, 96, **arrays, file=file.fileno(), file_offset=6
        )
        x = normal(1, 96, seed=2)
        out = np.empty(100, dtype=np.float32)
        native_head.rows(x[0], np.arange(100), out)
    assert np.array_equal(out[:60], ops.linear(x, matrix(ops, others))[0][:60])
    assert np.array_equal(out[60:], ops.linear(x, weight)[0][60:])


def test_a_head_in_a_mapped_file_gives_the_same_rows_as_in_memory(tmp_path: Path) -> None:
    ops = NativeOps(threads=2)
    values = outliers(300, 128)
    weight = matrix(ops, values)
    (tmp_path / "head").write_bytes(b"a header" + weight.data.tobytes())
    with (tmp_path / "head").open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    mapped = replace(weight, data=np.frombuffer(view, dtype=np.uint8, offset=8))
    heads = [HeadCopy.build(ops, prepared) for prepared in (weight, mapped)]
    x = hidden_states(values, 16)
    for in_memory, in_file in zip(*(head.find(x, [Needed(3)] * 16) for head in heads), strict=True):
        assert in_memory is not None
        assert in_file is not None
        assert np.array_equal(in_memory.ids, in_file.ids)
        assert np.array_equal(in_memory.logits, in_file.logits)


@pytest.mark.parametrize("columns", [64, 150, 300])
def test_the_norms_of_the_copy_are_at_least_the_true_ones(ops: NativeOps, columns: int) -> None:
    values = outliers(100, columns).astype(np.float16)
    head = HeadCopy.build(ops, matrix(ops, values))
    order = head.arrays["order"]
    factors = head.arrays["factors"].astype(np.float64)
    errors = []
    for sixth in (False, True):
        copied, norms = unpack_copy(head.arrays, 100, sixth=sixth)
        true = np.zeros_like(copied)
        true[:, :columns] = values.astype(np.float64)[:, order] / factors
        error = (true - copied).reshape(100, -1, 64)
        assert (np.sqrt((error**2).sum(axis=2)) <= norms).all()
        # They are rounded up by no more than one of 255 steps, and little else.
        assert (norms <= np.sqrt((error**2).sum(axis=2)) + norms.max(axis=1)[:, None] / 250).all()
        assert (np.linalg.norm(copied, axis=1) <= head.arrays["norm"][:100]).all()
        errors.append(error)
    assert (np.linalg.norm(true, axis=1) <= head.arrays["norm"][:100]).all()
    # Five bits leave at most a part of a row, twelve bits of the first columns much less.
    assert np.linalg.norm(errors[0]) < 0.1 * np.linalg.norm(true)
    assert np.linalg.norm(errors[0][:, 0]) < 0.004 * np.linalg.norm(true.reshape(100, -1, 64)[:, 0])
    assert np.linalg.norm(errors[1]) < 0.65 * np.linalg.norm(errors[0])


@pytest.mark.parametrize("level", kernel_levels())
def test_codes_of_two_instruction_sets_differ_by_a_step_at_most(level: str) -> None:
    ops = NativeOps(threads=1)
    weight = matrix(ops, normal(100, 130))
    expected = HeadCopy.build(ops, weight).arrays
    with at_level(level):
        arrays = HeadCopy.build(ops, weight).arrays
    for sixth in (False, True):
        ours, theirs = (unpack_copy(each, 100, sixth=sixth)[0] for each in (arrays, expected))
        # Sums of squares differ in their last bit. A step is the largest weight, near 4, over 15.5.
        assert np.abs(ours - theirs).max() <= 0.26


# Not "norm": it bounds the rounding of sums, which is too small to change a choice here.
@pytest.mark.parametrize("broken", ["residual", "step", "sixth"])
def test_a_copy_with_too_low_bounds_contradicts_the_full_product(broken: str) -> None:
    ops = NativeOps(threads=1)
    weight = matrix(ops, near_ties(600, 200))
    head = HeadCopy.build(ops, weight)
    if broken == "sixth":  # the units of six bits, not of five
        units = head.arrays["sixth"].reshape(len(head.arrays["step"]), -1)[:, :4]
        units[:] = (units.copy().view(np.float32) * np.float32(0.001)).view(np.uint8)
    else:
        head.arrays[broken][:] *= np.float32(0.001)
    x = hidden_states(near_ties(600, 200), 64)
    results = head.find(x, [Needed(3)] * len(x))
    faults = [
        wrong(ops.linear(state[None], weight)[0], found, 3)
        for state, found in zip(x, results, strict=True)
        if found is not None
    ]
    assert any(faults)


def test_listed_rows_are_found_whatever_their_logits_and_do_not_count() -> None:
    ops = NativeOps(threads=1)
    values = normal(400, 128)
    x = 2 * values[:1]
    weight = matrix(ops, values)
    head = HeadCopy.build(ops, weight)
    listed = np.array([0, 17, 399])
    (plain,) = head.find(x, [Needed(4)])
    (found,) = head.find(x, [Needed(4, ids=listed)])
    assert plain is not None
    assert found is not None
    assert np.isin(listed, found.ids).all()
    full = ops.linear(x, weight)[0]
    assert not wrong(full, found, 5)
    # Row 0 is the best by far and does not count: four others are found besides it.
    assert found.bound <= np.sort(full)[-5]
    (everything,) = head.find(x, [Needed(1, ids=np.arange(400))])
    assert everything is not None
    assert np.array_equal(everything.logits, full)


def test_a_margin_finds_what_is_near_and_bounds_what_is_not() -> None:
    ops = NativeOps(threads=1)
    values = normal(5000, 128) * np.float32(0.2)
    x = normal(1, 128, seed=3) * np.float32(2)
    weight = matrix(ops, values)
    head = HeadCopy.build(ops, weight)
    (found,) = head.find(x, [Needed(1, margin=6.0)])
    assert found is not None
    full = ops.linear(x, weight)[0]
    assert not wrong(full, found, 1)
    # A little less than the margin, for the rounding of both products.
    assert np.isin(np.flatnonzero(full >= full.max() - 5.9), found.ids).all()
    assert len(found.ids) < 5000
    others = np.delete(full, found.ids).astype(np.float64)
    assert np.exp(others - found.bound).sum() <= found.tail


def test_a_batch_gives_each_state_the_rows_it_gets_alone() -> None:
    ops = NativeOps(threads=2)
    values = normal(700, 256)
    head = HeadCopy.build(ops, matrix(ops, values))
    x = hidden_states(values, 5)
    together = head.find(x, [Needed(2)] * 5)
    for i, found in enumerate(together):
        (alone,) = head.find(x[i : i + 1], [Needed(2)])
        assert found is not None
        assert alone is not None
        assert np.array_equal(found.ids, alone.ids)
        assert np.array_equal(found.logits, alone.logits)


def test_chosen_rows_have_the_bits_of_the_full_product(ops: NativeOps) -> None:
    weight = matrix(ops, normal(333, 96))
    head = HeadCopy.build(ops, weight)
    x = normal(1, 96, seed=4)
    ids = np.array([332, 0, 7, 7, 16])
    logits = np.empty(len(ids), dtype=np.float32)
    head._native.rows(x[0], ids, logits)
    assert np.array_equal(logits, ops.linear(x, weight)[0][ids])


@pytest.mark.parametrize("encoding", ["F16", "BF16", "F32"])
@pytest.mark.parametrize("columns", [8, 51, 320])
def test_rows_in_a_file_give_the_bits_of_rows_interleaved(
    ops: NativeOps, encoding: str, columns: int
) -> None:
    values = normal(45, columns)
    x = normal(20, columns, seed=5)
    interleaved = ops.prepare(stored(values, encoding))
    assert interleaved.kind != matrix(ops, values, encoding).kind
    for tokens in (1, 3, 20):
        expected = ops.linear(x[:tokens], interleaved)
        assert np.array_equal(ops.linear(x[:tokens], matrix(ops, values, encoding)), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_a_state_that_cannot_be_bounded_is_left_to_the_full_product(value: float) -> None:
    ops = NativeOps(threads=1)
    head = HeadCopy.build(ops, matrix(ops, normal(40, 64)))
    x = normal(2, 64)
    x[0, 3] = value
    first, second = head.find(x, [Needed(), Needed()])
    assert first is None
    assert second is not None
    assert bounds_of(head, x[0]) is None


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_head_with_weights_that_cannot_be_bounded_is_refused(value: float) -> None:
    ops = NativeOps(threads=1)
    values = normal(40, 64)
    values[21, 9] = value
    with pytest.raises(Unsupported, match="not finite, or huge"):
        HeadCopy.build(ops, matrix(ops, values, "F32"))


def test_other_backends_and_encodings_are_refused() -> None:
    reference = ReferenceOps()
    with pytest.raises(Unsupported, match="only the compiled backend can"):
        HeadCopy.build(reference, normal(4, 4))
    ops = NativeOps(threads=1)
    blocks = np.zeros(40 * 2 * 34, dtype=np.uint8)  # 40 rows of two Q8_0 blocks of 34 bytes
    weight = Weight("output.weight", (40, 64), types.by_name("Q8_0"), blocks)
    with pytest.raises(Unsupported, match="it is Q8_0_R16, expected F16, BF16, F32 in rows"):
        HeadCopy.build(ops, ops.prepare(weight))
    assert reason_against(ops, weight) == "it is Q8_0, expected F16, BF16, F32"
    small = stored(normal(40, 64))
    assert not reason_against(ops, small)
    assert reason_against(ops, replace(small, scale=2.0)) == "it has a scale of its own"
    assert not saves_time(ops, small)
    assert not saves_time(reference, stored(normal(4, 4)))
    assert saves_time(ops, stored(np.zeros((1 << 16, 256))))  # 32 MiB, the least that does


@pytest.mark.parametrize("name", ["step", "residual", "norm"])
@pytest.mark.parametrize("rows", [5, 400])
def test_a_copy_with_values_that_are_not_numbers_chooses_nothing(
    ops: NativeOps, name: str, rows: int
) -> None:
    """Sorting by NaN would read outside of the rows; all logits are computed instead."""
    head = HeadCopy.build(ops, matrix(ops, normal(rows, 64)))
    hidden = normal(2, 64, seed=1)
    assert all(head.find(hidden, [Needed(count=3), Needed(count=3)]))
    head.arrays[name][:rows:3] = np.nan
    needed = [Needed(count=3), Needed(count=40, margin=5.0, ids=np.array([1, 4]))]
    assert head.find(hidden, needed) == [None, None]


def test_weights_that_became_nan_after_the_copy_choose_nothing(ops: NativeOps) -> None:
    values = matrix(ops, normal(400, 64))
    own = replace(values, data=values.data.copy())
    head = HeadCopy.build(ops, own)
    own.data.view(np.float16)[:] = np.nan
    assert head.find(normal(1, 64), [Needed(count=3)]) == [None]
