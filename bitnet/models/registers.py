"""Registers of a program: which values share memory.

A program is written with a register of its own for every value. Here values share a few pieces of
memory: a value takes the memory of another once no later instruction reads that.

A backend runs instructions between two products row by row, threads on different rows, so a row
may be written while an earlier instruction still reads the rows behind it. Values of one width have
their rows at the same addresses and never overlap; a value of another width takes the memory only
if an instruction between the two waits for all rows (a barrier).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from bitnet.kernels.instructions import IN_PLACE, WHOLE, Select
from bitnet.kernels.mixer_instructions import WHOLE_IN_MIXERS
from bitnet.kernels.program import Program, Register, registers_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bitnet.families.blocks import CacheKind
    from bitnet.kernels.program import Instruction

# Instructions that wait for all rows of those before them.
_BARRIERS = (*WHOLE, *WHOLE_IN_MIXERS)


@dataclass
class _Storage:
    """A piece of memory for one register at a time."""

    name: str
    room: int  # width of the widest register it had
    width: int = 0  # of the register it had last
    last_read: int = -1  # number of the last instruction that reads that register


def allocate(
    written: Sequence[Instruction], caches: tuple[CacheKind, ...], result: Register
) -> Program:
    """The program of the instructions *written*, whose registers are values, in few registers.

    Args:
        written: instructions, each register of which holds one value for the whole program. A
            :class:`Select` gets the registers that are read behind it.
        caches: kinds of the caches that the instructions name.
        result: the register of the program's result.
    """
    last_reads = _last_reads(written, result)
    storages: list[_Storage] = []
    allocation: dict[Register, _Storage] = {}  # of the values that are read later
    register_of: dict[Register, Register] = {}
    barrier = -1  # number of the last instruction that waited for all rows
    instructions: list[Instruction] = []
    for number, instruction in enumerate(written):
        if isinstance(instruction, _BARRIERS):
            barrier = number
        if isinstance(instruction, Select):
            live = (value for value in allocation if last_reads[value] > number)
            instructions.append(Select(tuple(register_of[value] for value in live)))
            continue

        values = registers_in(instruction)
        ended_values = [
            value for value in values if value in allocation and last_reads[value] == number
        ]
        new_values = [value for value in values if value not in register_of]
        # An instruction may write to the memory of its input only if it can work in place.
        if isinstance(instruction, IN_PLACE) and instruction.x in ended_values:
            (out,) = new_values
            allocation[out] = allocation.pop(instruction.x)
            register_of[out] = Register(allocation[out].name, out.width)
            ended_values.remove(instruction.x)
        else:
            for value in new_values:
                storage = _free_storage(value.width, storages, allocation, barrier)
                allocation[value] = storage
                register_of[value] = Register(storage.name, value.width)
        # Values that are not read again, or never were, free their memory.
        for value in (*ended_values, *(value for value in new_values if value not in last_reads)):
            storage = allocation.pop(value)
            storage.width = value.width
            storage.last_read = number
        instructions.append(_with_registers(instruction, register_of))
    return Program(tuple(instructions), caches, register_of[result])


def _last_reads(written: Sequence[Instruction], result: Register) -> dict[Register, int]:
    """Number of the last instruction that reads each value; the first that names it writes it."""
    defined: set[Register] = set()
    last_reads: dict[Register, int] = {}
    for number, instruction in enumerate(written):
        values = registers_in(instruction)
        last_reads |= {value: number for value in values if value in defined}
        defined |= set(values)
    last_reads[result] = len(written)
    return last_reads


def _free_storage(
    width: int, storages: list[_Storage], held: Mapping[Register, _Storage], barrier: int
) -> _Storage:
    """Memory for a value of *width* that no value in *held* has, a new one if there is none.

    *barrier* is the number of the last instruction that waited for all rows.
    """
    taken = {id(storage) for storage in held.values()}
    free = [
        storage
        for storage in storages
        if id(storage) not in taken and (storage.width == width or storage.last_read <= barrier)
    ]
    fitting = [storage for storage in free if storage.room >= width]
    if fitting:
        return min(fitting, key=lambda storage: (storage.room, storage.width != width))
    if free:
        widest = max(free, key=lambda storage: storage.room)  # grows least
        widest.room = width
        return widest
    storage = _Storage(f"r{len(storages)}", width)
    storages.append(storage)
    return storage


def _with_registers(
    instruction: Instruction, register_of: Mapping[Register, Register]
) -> Instruction:
    """*instruction* with the registers that its values got."""
    changes: dict[str, Any] = {}
    for entry in fields(instruction):  # type: ignore[arg-type]  # every instruction is a dataclass
        value = getattr(instruction, entry.name)
        if isinstance(value, Register):
            changes[entry.name] = register_of[value]
        elif type(value) is tuple and value and isinstance(value[0], Register):
            changes[entry.name] = tuple(register_of[part] for part in value)
    return replace(instruction, **changes)  # type: ignore[type-var]
