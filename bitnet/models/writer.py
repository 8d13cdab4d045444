"""Writer of a program's values: their registers, their names in traces, and the tensors read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from bitnet.kernels.instructions import Center, Embed, Lookup, Norm, Select
from bitnet.kernels.program import Mark, Register
from bitnet.models.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Container

    from bitnet.families.blocks import ModelConfig
    from bitnet.kernels.program import Instruction


class ValueWriter:
    """Writes values of a program, one after the other, and notes the tensors that they read.

    Attributes:
        decoder: configuration of the model that the program is for.
        tensors: names of the model's tensors; optional ones that it lacks are left out.
        instructions: those written so far, each register of which holds one value.
        layout: the tensors that they read.
        block: beginning of the names of the tensors of the block that is written.
        layer: number of that block in the names of intermediates.
    """

    def __init__(self, decoder: ModelConfig, tensors: Container[str]) -> None:
        self.decoder = decoder
        self.tensors = tensors
        self.instructions: list[Instruction] = []
        self.layout = Layout(decoder)
        self.block = ""
        self.layer = 0
        self._values = 0
        self._caches = 0

    def value(self, width: int) -> Register:
        """A new register of *width* columns."""
        self._values += 1
        return Register(f"v{self._values}", width)

    def append(self, instruction: Instruction) -> None:
        """Add *instruction*."""
        self.instructions.append(instruction)

    def mark(self, name: str, x: Register, *, in_layer: bool = True) -> None:
        """Call *x* by *name* in traces, with the number of the layer where it is *in_layer*."""
        self.append(Mark(f"{name}-{self.layer}" if in_layer else name, x))

    def next_cache(self) -> int:
        """Number of the cache of the next mixer that has one."""
        self._caches += 1
        return self._caches - 1

    def select_outputs_after_last_cache(self) -> None:
        """Keep only the rows of the outputs, if all caches have been written."""
        if self._caches == len(self.decoder.caches):
            self.append(Select(()))  # allocate() fills in the registers

    # Tensors that are not matrices of products.

    def vector(self, name: str, shape: tuple[int, ...]) -> str:
        """Full name of the tensor *name* of this block, which is applied element by element."""
        whole = f"{self.block}{name}"
        self.layout.required[whole] = shape
        self.layout.vectors.add(whole)
        return whole

    def embed(self, table: str, width: int, scale: float, *, rows: int = 0) -> Register:
        """Rows of the tokens in *table*, times *scale*: ``(T, width)``.

        If the table has fewer *rows* than the vocabulary, tokens beyond its end get row 0.
        """
        embedded = self.value(width)
        size = self.decoder.vocab_size
        self.layout.required[table] = (rows or size, width)
        self.append(Embed(embedded, table, scale, rows if 0 < rows < size else 0))
        return embedded

    def lookup(self, table: str, by: Literal["position", "text"], rows: int) -> Register:
        """A row of *table* (*rows* in all) for each token: by its position or its text's number."""
        embedded = self.value(self.decoder.dim)
        self.layout.required[table] = (rows, self.decoder.dim)
        self.layout.tables.add(table)
        self.append(Lookup(embedded, table, by, rows))
        return embedded

    def norm(
        self,
        x: Register,
        name: str,
        width: int = 0,
        *,
        parts: int = 0,
        eps: float | None = None,
        biased: bool = True,
    ) -> Register:
        """Norm of *x* in groups of *width* columns; 0 means one group of all.

        With *parts* each of them is a group with a weight of its own, a row of a matrix. A norm
        that is not *biased* has no bias where others have one.
        """
        if not self.decoder.norm_weights:
            return self._bare_norm(x, width or x.width)
        weight = f"{self.block}{name}"
        if name not in self.decoder.unsuffixed_norms:
            weight += ".weight"
        bias = ""
        if self.decoder.norm_biases and biased:
            bias = f"{self.block}{name}.bias"
        for tensor in filter(None, (weight, bias)):
            if parts:
                self.layout.required[tensor] = (parts, x.width // parts)
                self.layout.vectors.add(tensor)
            else:
                self.layout.required[tensor] = (width or x.width,)
        if self.decoder.centered_norms:
            centered = self.value(x.width)
            self.append(Center(centered, x, x.width // parts if parts else width))
            x = centered
        if eps is None:
            eps = self.decoder.norm_eps
        normed = self.value(x.width)
        # groups are as wide as the weight
        self.append(Norm(normed, x, weight, eps, parts=parts or 1, bias=bias))
        return normed

    def _bare_norm(self, x: Register, width: int) -> Register:
        """Norm of *x* in groups of *width*, which has neither a weight nor a bias."""
        if self.decoder.centered_norms:
            centered = self.value(x.width)
            self.append(Center(centered, x, width if width < x.width else 0))
            x = centered
        return self.norm_without_weight(x, width)

    def norm_without_weight(self, x: Register, width: int, eps: float | None = None) -> Register:
        """RMS norm of *x* in groups of *width*."""
        normed = self.value(x.width)
        self.append(Norm(normed, x, "", self.decoder.norm_eps if eps is None else eps, width=width))
        return normed
