"""The folder of transformers that an adapter of PEFT was trained on: its names and orders of rows.

A model here may be that folder or a GGUF file made of it. Either may have other names, rows in
another order, several matrices where the folder has one, and factors on their rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import Unsupported
from bitnet.families.config_json import describe
from bitnet.families.family import RowFactors, of_gguf
from bitnet.families.tensor_names import gguf_name, name_with_states, without_block
from bitnet.formats.adapters import MERGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from bitnet.families.family import Family, Parts, Values
    from bitnet.formats.adapters import Adapter, Change
    from bitnet.formats.checkpoint import Checkpoint

# Of Mamba 1; transformers 5.24 multiplies ``dt_proj.weight`` itself and never calls the module,
# which an adapter wraps.
_BESIDE_ITS_MODULE = "ssm_dt.weight"
_SAME_FORM = "run it with the model in the same form"


@dataclass(frozen=True)
class TrainedFolder:
    """The folder that an adapter was trained on, as far as a checkpoint shows it."""

    adapter: str  # its name, for messages
    checkpoint: Checkpoint
    family: Family
    # functions from tensors of the folder to those here, by GGUF name without the block
    orders: Values  # reorder rows
    values: Values  # change values
    parts: Parts  # take rows of one tensor as several

    @classmethod
    def of(cls, adapter: Adapter, checkpoint: Checkpoint) -> TrainedFolder:
        """The folder that *adapter* was trained on; it changes the model in *checkpoint*.

        Raises:
            Unsupported: a GGUF file does not say by which numbers of a folder its rows are ordered
                or multiplied.
        """
        name = adapter.path.name
        if checkpoint.config is not None:
            model = checkpoint.path.name
            description = describe(checkpoint.config, model=model, ignore=checkpoint.ignored)
            return cls(
                name,
                checkpoint,
                description.family,
                description.orders,
                description.values,
                description.parts,
            )
        family = of_gguf(checkpoint.architecture)
        assert family is not None, "a model of no family is not opened"
        # A GGUF file has no config.json: the functions get an empty one, and may need its keys.
        try:
            orders = family.orders({})
            is_undetermined = bool(family.factors({}))
        except KeyError:
            is_undetermined = True
        if is_undetermined:
            raise Unsupported(
                f"{name} is for a folder, where rows of {family.title} models have another order "
                "or other factors",
                hint=_SAME_FORM,
            )
        return cls(name, checkpoint, family, orders, {}, {})

    def changes(self, key: str, change: Change) -> dict[str, Change]:
        """The *change* of the folder's tensor *key*, as changes of tensors here, by name.

        Raises:
            Unsupported: the tensor is stored here in a form that such a change does not fit.
        """
        name = self._gguf_name(key)
        if name.endswith(_BESIDE_ITS_MODULE):
            if change.pair is not None and not change.pair.b.any():
                return {}  # B is still the zeros it began as: no gradient reaches it
            raise Unsupported(
                f"{self.adapter} changes {key}, which transformers multiplies without what an "
                "adapter adds",
                hint="train it for other matrices",
            )
        parts = self.parts.get(without_block(name))
        if parts is None or name in self.checkpoint.weights:
            return {name: self._with_factors(name, key, change)}
        return self._changes_of_parts(name, key, change, parts)

    def order_of(self, matrix: str) -> NDArray[np.intp] | None:
        """Order of the rows of *matrix* here, if it is not that of the folder.

        None also if the folder has it transposed, as GPT-2: rows of an adapter are those here.
        """
        reorder = self.orders.get(without_block(matrix))
        if reorder is None:
            return None
        return _rows(reorder, self.checkpoint.weights[matrix].shape[0])

    @cached_property
    def _layers_of_stack(self) -> int:
        """Blocks of each of the family's stacks; 0 if it has none."""
        if not self.family.stacks:
            return 0
        names = (name for name in self.checkpoint.weights if name.startswith("blk."))
        return len({name.split(".")[1] for name in names}) // len(self.family.stacks)

    def _gguf_name(self, key: str) -> str:
        """GGUF name of the folder's tensor *key*."""
        name = gguf_name(key, self.family, self._layers_of_stack)
        return name_with_states(name, self.family, self.checkpoint.weights)

    def _changes_of_parts(
        self, name: str, key: str, change: Change, parts: Mapping[str, Callable[..., Any]]
    ) -> dict[str, Change]:
        """Changes of the *parts* into which rows of the folder's *key*, here *name*, are split."""
        of_rows = change.magnitudes
        is_misfit = of_rows is not None and len(of_rows) != change.outputs
        if change.matrix is not None or is_misfit:
            raise self._refusal(key)
        begin = name.removesuffix(without_block(name))
        changes = {}
        for part, rows_of in parts.items():
            try:
                rows = _rows(rows_of, change.outputs)
            except (ValueError, IndexError):
                raise self._refusal(key) from None
            if rows is None:
                raise self._refusal(key)
            matrix = f"{begin}{part}"
            changes[matrix] = self._with_factors(matrix, key, change.take(rows))
        return changes

    def _with_factors(self, matrix: str, key: str, change: Change) -> Change:
        """*change* with the factors that rows of *matrix* have here."""
        values = self.values.get(without_block(matrix))
        if values is None:
            return change
        is_product = change.pair is not None and change.magnitudes is None
        if not is_product or not isinstance(values, RowFactors):
            raise self._refusal(key)
        return change.scale_rows(values)

    def _refusal(self, key: str) -> Unsupported:
        return Unsupported(
            f"{self.adapter} changes {key}, which is stored otherwise in {self.family.title} "
            "models",
            hint=MERGE,
        )


def _rows(function: Callable[..., Any], count: int) -> NDArray[np.intp] | None:
    """Numbers of the rows that *function* takes of a matrix with *count* rows, in order.

    None if it changes more than rows.
    """
    numbers = np.arange(count, dtype=np.intp)[:, None]
    rows: NDArray[np.intp] = function(numbers)
    return rows[:, 0] if rows.ndim == 2 and rows.shape[1] == 1 else None
