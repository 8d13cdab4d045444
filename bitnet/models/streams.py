"""Several residual streams beside each other (AltUp): what surrounds the blocks.

In the shapes at the ends of lines T is tokens and A the number of streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitnet.families.streams import Streams
    from bitnet.kernels.program import Register
    from bitnet.models.builder import Builder

_LEAST_SQUARE = 1e-5  # lower bound on the mean square of a product that is rescaled


def spread(write: Builder, streams: Streams, x: Register) -> tuple[Register, ...]:
    """The streams before the first block: *x*, and products of it, scaled to its length."""
    extra = streams.count - 1
    dim = write.decoder.dim
    ids = write.enumerate(extra)
    (products,) = write.expert_linears(x, ids, ["altup_proj"], dim, count=extra)  # (T, (A-1) dim)
    write.mark("altup_added", products, in_layer=False)
    parts = write.split(products, *([dim] * extra))
    return (x, *(write.match_magnitude(part, x, _LEAST_SQUARE) for part in parts))


def predict(write: Builder, streams: Streams, before: tuple[Register, ...]) -> tuple[Register, ...]:
    """Every stream plus a weighted sum of all; the weights come from the active stream."""
    count = streams.count
    states = _route(write, streams, before[streams.active], "predict")  # (T, A)
    matrix = write.linear(states, "altup_predict_coef", count * count)  # (T, A A)
    write.mark("altup_predict_coef", matrix)
    joined = write.join(*before)  # (T, A dim)
    rows = write.split(matrix, *([count] * count))
    predicted = [
        write.add(write.combine(joined, row), stream)
        for row, stream in zip(rows, before, strict=True)
    ]
    write.mark("active_prediction", predicted[streams.active])
    return tuple(predicted)


def correct(
    write: Builder, streams: Streams, predicted: tuple[Register, ...], x: Register
) -> tuple[Register, ...]:
    """The *predicted* streams, each with a share of what the block changed to make *x*."""
    states = _route(write, streams, x, "correct")  # (T, A)
    shares = write.linear(states, "altup_correct_coef", streams.count)  # (T, A)
    write.mark("altup_correct_coef", shares)
    change = write.blend(x, predicted[streams.active], 1.0, -1.0)
    write.mark("innovation", change)
    # The tensor stores shares less 1, so every stream gets the whole change as well.
    changed = (write.add(stream, change) for stream in predicted)
    each_share = write.split(shares, *([1] * streams.count))
    return tuple(
        write.add(stream, write.gate(share, change, "identity"))  # one number times every column
        for stream, share in zip(changed, each_share, strict=True)
    )


def merge(write: Builder, streams: Streams, last: tuple[Register, ...]) -> Register:
    """The mean of the first stream and of products of the others, scaled to its length."""
    extra = streams.count - 1
    dim = write.decoder.dim
    ids = write.enumerate(extra)
    joined = write.join(*last[1:])
    (products,) = write.expert_linears(  # (T, (A - 1) dim)
        joined, ids, ["altup_unembd_proj"], dim, count=extra, apart=True
    )
    write.mark("altup_unembd_product", products, in_layer=False)
    total = last[0]
    for part in write.split(products, *([dim] * extra)):
        total = write.add(total, write.match_magnitude(part, last[0], _LEAST_SQUARE))
    mean = write.multiply(total, 1 / streams.count)
    write.mark("unembd_merged", mean, in_layer=False)
    return mean


def _route(write: Builder, streams: Streams, x: Register, step: str) -> Register:
    """Outputs of the router for *x*, ``(T, A)``, -1 to 1, which give the coefficients."""
    normed = write.norm(x, "altup_router_norm")
    write.mark(f"altup_{step}_norm", normed)
    # Gemma 3n divides the normed input by its width.
    write.layout.scales[f"{write.block}altup_router_norm.weight"] = 1 / write.decoder.dim
    product = write.linear(normed, "altup_router", streams.count)
    write.mark(f"altup_{step}_router", product)
    return write.gate(product, None, "tanh")
