"""Every value of a program is in its register as long as an instruction reads it."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_keys import FAMILIES, HYBRIDS, LAYERED, MIXTURES
from tiny_models import tiny

from bitnet.kernels.instructions import IN_PLACE, WHOLE, Add, Join, Linear, Norm, Select, Split
from bitnet.kernels.mixer_instructions import WHOLE_IN_MIXERS
from bitnet.kernels.program import Mark, Register, registers_in
from bitnet.models.hidden_program import _Decoder
from bitnet.models.load import config_from
from bitnet.models.registers import allocate


def check(written, program, result):
    """Assert that each instruction of *program* reads the values that *written* says it reads.

    *written* are the same instructions over values instead of registers; the value *result* must be
    in its register at the end.
    """
    by_register = {}  # the value in each register
    written_so_far = set()  # values; others are results of the instruction that names them
    for before, after in zip(written, program.instructions, strict=True):
        if isinstance(after, Select):  # keeps its registers only
            assert len(set(after.registers)) == len(after.registers)
            by_register = {register: by_register[register] for register in after.registers}
            continue
        fields = [(name, getattr(before, name), getattr(after, name)) for name in vars(before)]
        pairs = []  # values, and their registers
        for name, old, new in fields:
            if isinstance(old, Register):
                pairs.append((old, new))
            elif type(old) is tuple and old and isinstance(old[0], Register):
                pairs += zip(old, new, strict=True)
            else:
                assert old is new, f"{name} of {type(before).__name__} is unchanged"
        for old, new in pairs:
            if old in written_so_far:
                assert by_register[new] == old, f"{type(before).__name__} reads {old}"
        read = {new for old, new in pairs if old in written_so_far}
        outs = {new for old, new in pairs if old not in written_so_far}
        if isinstance(before, IN_PLACE):
            assert outs & read <= {after.x}  # it may replace x, and nothing else that it reads
        else:
            assert not outs & read, f"{type(before).__name__} writes what it reads"
        for old, new in pairs:
            if old not in written_so_far:
                # A register of this place with another width is overwritten as well.
                for register in [other for other in by_register if other.name == new.name]:
                    del by_register[register]
                by_register[new] = old
        written_so_far |= {old for old, _ in pairs}
    assert by_register[program.result] == result


def check_widths(program):
    """Assert that registers of two widths in one place have a meeting of all threads between them.

    A thread computes some rows, and rows of another width lie elsewhere in the place.
    """
    uses = {}  # numbers of the instructions of each register, by place
    for number, instruction in enumerate(program.instructions):
        for register in registers_in(instruction):
            uses.setdefault(register.name, []).append((number, register.width))
    meetings = [
        number
        for number, instruction in enumerate(program.instructions)
        if isinstance(instruction, (*WHOLE, *WHOLE_IN_MIXERS))
    ]
    for place in uses.values():
        for (first, width), (second, next_width) in pairwise(sorted(place)):
            if width != next_width:
                assert any(first <= meeting <= second for meeting in meetings)
                assert first != second


def size_of(program):
    """Columns of all places of a program."""
    widths = {}
    for instruction in program.instructions:
        for register in registers_in(instruction):
            widths[register.name] = max(register.width, widths.get(register.name, 0))
    return sum(widths.values())


@pytest.mark.parametrize("architecture", [*FAMILIES, *HYBRIDS, *LAYERED, *MIXTURES])
def test_registers_of_every_family_hold_the_values_that_are_read(architecture):
    checkpoint = tiny(architecture)
    config = config_from(checkpoint)
    variants = {"": config, "embeddings": replace(config, pooling="mean", input_norms=True)}
    for variant in variants.values():
        writer = _Decoder(variant, checkpoint.weights)
        result = writer.hidden_state()
        written = writer.write.instructions
        program = allocate(written, variant.caches, result)
        check(written, program, result)
        check_widths(program)
        values = {value for instruction in written for value in registers_in(instruction)}
        # Values share registers: the places together are less than a third of all values.
        assert size_of(program) < sum(value.width for value in values) / 3


@st.composite
def programs(draw):
    """Instructions over values of few widths, any of which may be read at any time later.

    And the value that is the result.
    """
    values = [Register("v0", 4)]
    written = [Linear((values[0],), Register("input", 4), ("w",), ("",))]

    def new(width):
        values.append(Register(f"v{len(values)}", width))
        return values[-1]

    for _ in range(draw(st.integers(1, 30))):
        x = draw(st.sampled_from(values))
        match draw(st.sampled_from(["add", "norm", "linear", "split", "join", "mark"])):
            case "add":
                same = [value for value in values if value.width == x.width]
                written.append(Add(new(x.width), x, draw(st.sampled_from(same))))
            case "norm":
                written.append(Norm(new(x.width), x, "w", 0.0))
            case "linear":
                widths = draw(st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=3))
                outs = tuple(new(width) for width in widths)
                written.append(Linear(outs, x, ("w",) * len(outs), ("",) * len(outs)))
            case "split":
                written.append(Split((new(x.width // 2), new(x.width - x.width // 2)), x))
            case "join":
                y = draw(st.sampled_from(values))
                written.append(Join(new(x.width + y.width), (x, y)))
            case "mark":
                written.append(Mark("m", x))
    written.insert(draw(st.integers(1, len(written))), Select(()))
    return written, draw(st.sampled_from(values))


@given(programs())
def test_registers_of_any_program_hold_the_values_that_are_read(case):
    written, result = case
    program = allocate(written, (), result)
    check(written, program, result)
    check_widths(program)


def test_a_stream_that_is_read_again_keeps_its_register():
    """As in blocks whose attention and network read one stream: ``x + a(x) + b(x)``."""
    x, a, b, first, second = (Register(name, 4) for name in ("x", "a", "b", "first", "second"))
    written = [
        Linear((x,), Register("input", 4), ("w",), ("",)),
        Linear((a,), x, ("w",), ("",)),
        Add(first, x, a),
        Linear((b,), x, ("w",), ("",)),
        Add(second, first, b),
    ]
    program = allocate(written, (), second)
    check(written, program, second)
    # The first sum must not replace x, which is read again; the second may replace the first.
    assert program.instructions[2].out != program.instructions[2].x
    assert program.instructions[4].out == program.instructions[4].x
