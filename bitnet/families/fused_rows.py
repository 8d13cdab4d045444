"""Rows of a folder's fused matrices, such as queries, keys and values, and their order in GGUF."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bitnet.families.family import Parts, Values
    from bitnet.families.keys import Config


def split_groups(
    rows: NDArray[Any], groups: int, heads: int = 1
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The rows of queries, keys and values among *rows*, which are stored group by group.

    Args:
        rows: a matrix or a bias; each group has *heads* heads of queries, then a head of keys and
            one of values.
        groups: number of groups, one for each key head, or of other equal parts, as CodeGen's,
            in which all query heads of a part count as one head.
        heads: heads of queries in a group.

    Raises:
        ValueError: the number of rows is not a multiple of the number of heads.
    """
    by_group = rows.reshape(groups, heads + 2, -1, *rows.shape[1:])
    parts = by_group[:, :-2], by_group[:, -2:-1], by_group[:, -1:]
    queries, keys, values = (part.reshape(-1, *rows.shape[1:]) for part in parts)
    return queries, keys, values


def order_queries_first(groups: int, heads: int = 1) -> Values:
    """Functions that put the rows of all queries first, then all keys, then all values, as in GGUF.

    The arguments are those of :func:`split_groups`.
    """

    def order(rows: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate(split_groups(rows, groups, heads))

    return {"attn_qkv.weight": order, "attn_qkv.bias": order}


def order_by_head(config: Config) -> Values:
    """As :func:`order_queries_first`, for rows that hold query, key and value of one head together.

    *config* is the ``config.json``.
    """
    return order_queries_first(config["num_attention_heads"])


def equal_parts(matrix: str, names: tuple[str, ...]) -> Parts:
    """Functions that split the rows of *matrix* into equal parts, the matrices *names* in order."""

    def rows_of(number: int) -> Any:
        return lambda rows: np.split(rows, len(names))[number]

    return {f"{matrix}.weight": {f"{name}.weight": rows_of(at) for at, name in enumerate(names)}}


def split_projections(
    groups: int, heads: int = 1, names: tuple[str, ...] = ("attn_q", "attn_k", "attn_v")
) -> Parts:
    """Functions that split ``attn_qkv`` into queries, keys and values, tensors of these *names*.

    The other arguments are those of :func:`split_groups`.
    """

    def rows_of(number: int) -> Any:
        return lambda rows: split_groups(rows, groups, heads)[number]

    return {
        f"attn_qkv.{kind}": {f"{name}.{kind}": rows_of(at) for at, name in enumerate(names)}
        for kind in ("weight", "bias")
    }
