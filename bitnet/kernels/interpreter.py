"""Interpreter of programs: runs each instruction in a pass, with the operations of a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.kernels.instructions import Mark
from bitnet.kernels.ops import Pass

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from bitnet.kernels.kv_codes import Array
    from bitnet.kernels.ops import Ops, Prepared
    from bitnet.kernels.program import Program, Segment


class Interpreter:
    """Runs a program one operation at a time. This is the definition of what a program means."""

    def __init__(self, program: Program, weights: Mapping[str, Prepared], ops: Ops) -> None:
        self.program = program
        self._weights = weights
        self._ops = ops

    def run(self, segments: Sequence[Segment]) -> Array:
        """Rows of the outputs of all *segments*, ``(R, width)``; their caches are advanced."""
        forward_pass = Pass(self.program, self._weights, self._ops, segments)
        for instruction in self.program.instructions:
            instruction.run(forward_pass)
        return forward_pass.finish()

    def trace(
        self, segments: Sequence[Segment]
    ) -> Generator[tuple[str, Array], Array | None, Array]:
        """As :meth:`run`, with the name and the value of every mark that is passed.

        A value sent in return takes the place of the marked one.
        """
        forward_pass = Pass(self.program, self._weights, self._ops, segments)
        for instruction in self.program.instructions:
            if isinstance(instruction, Mark):
                sent = yield instruction.name, forward_pass.registers[instruction.register]
                if sent is not None:
                    forward_pass.registers[instruction.register] = sent
            instruction.run(forward_pass)
        return forward_pass.finish()
