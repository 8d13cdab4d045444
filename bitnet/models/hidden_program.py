"""The program of a decoder, as its equations, and the tensors that it reads.

``x`` is the residual stream and ``h`` the input of a mixer, ``(T, dim)`` each for T tokens::

    x = embed(tokens)
    x = x + post_norm(mixer(norm(x)))    # each branch of each block
    x = norm(x)

What the mixers compute is in ``attention.py``, ``networks.py`` and ``recurrent.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.families.blocks import (
    Attention,
    BlockInput,
    DeltaNet,
    Experts,
    FeedForward,
    KimiDelta,
    LatentAttention,
    LayerInput,
    LowRank,
    Mamba1,
    Mamba2,
    Mixer,
    ShortConvolution,
    Sum,
)
from bitnet.models.attention import attention, latent_attention
from bitnet.models.builder import Builder
from bitnet.models.networks import (
    experts,
    feed_forward,
    layer_input,
    layer_inputs,
    low_rank,
    router,
)
from bitnet.models.recurrent import delta_net, kimi_delta, mamba1, mamba2, short_convolution
from bitnet.models.registers import allocate
from bitnet.models.streams import correct, merge, predict, spread

if TYPE_CHECKING:
    from collections.abc import Container

    from bitnet.families.blocks import Block, Branch, ModelConfig
    from bitnet.families.streams import Cycles, Streams
    from bitnet.kernels.program import Program, Register
    from bitnet.models.layout import Layout

#: Names of a mixer's result and input in traces; mixers that are not listed are named as attention.
_NAMES = {
    Experts: ("ffn_out", "ffn_norm"),
    FeedForward: ("ffn_out", "ffn_norm"),
    LayerInput: ("per_layer_embd_out", "pe_in"),
    LowRank: ("laurel_out", ""),
}
#: The same names for the mixers within a :class:`Sum`.
_NAMES_IN_SUM = {Experts: ("ffn_moe", "ffn_norm_2"), FeedForward: ("ffn_mlp", "ffn_norm_1")}
#: Norm before the experts of a block that also has a feed-forward network beside them.
_BESIDE_NETWORK = "ffn_norm_exps"


def hidden_program(decoder: ModelConfig, tensors: Container[str]) -> Program:
    """Program from tokens to the normalized hidden state that the head reads.

    *tensors* are the names of the model's tensors; optional ones that it lacks are left out.
    """
    writer = _Decoder(decoder, tensors)
    result = writer.hidden_state()
    return allocate(writer.write.instructions, decoder.caches, result)


def layout(decoder: ModelConfig) -> Layout:
    """Tensors that *decoder* and its drafting block read."""
    writer = _Decoder(decoder, ())
    writer.hidden_state()
    scores = decoder.classifier.layers if decoder.classifier else ()
    for projection in (*decoder.projections, *scores):
        weight = f"{projection.name}.weight"
        writer.write.layout.required[weight] = (projection.outputs, projection.inputs)
        writer.write.layout.optional[f"{projection.name}.bias"] = (projection.outputs,)
    if decoder.drafter:
        writer.write.layout.include(layout(decoder.drafter))
    return writer.write.layout


def _names_of(mixer: Mixer | Sum, branch: Branch) -> tuple[str, str]:
    """Names in a trace of the result and the input of *mixer*; empty for one without a name."""
    if isinstance(mixer, Sum):
        return "ffn_out", ""
    if isinstance(mixer, BlockInput):
        return "", ""
    if isinstance(mixer, Mamba2) and len(branch.mixers) > 1:
        return "", ""  # beside attention, its result is marked as mamba_out
    if branch.norm == _BESIDE_NETWORK:
        return "", branch.norm  # the result is marked as ffn_moe_out
    return _NAMES.get(type(mixer), ("attn_out", "attn_norm"))


class _Decoder:
    """Writes the program of a decoder.

    Attributes:
        write: the builder that its instructions are added to.
    """

    def __init__(self, decoder: ModelConfig, tensors: Container[str]) -> None:
        self.write = Builder(decoder, tensors)
        self._decoder = decoder
        self._head = "output" if "output.weight" in tensors else "token_embd"
        # logits of routers that read the input of a block, before its branches
        self._early_logits: dict[Experts, Register] = {}
        self._layer_inputs: tuple[Register, ...] = ()

    def hidden_state(self) -> Register:
        """Write the whole program; its result, the normalized hidden state."""
        write = self.write
        decoder = self._decoder
        x = self._embed()
        for mixer in decoder.mixers():
            if isinstance(mixer, LayerInput):  # all blocks have the same one
                self._layer_inputs = layer_inputs(write, mixer, x)
                break
        if decoder.streams is not None:
            return self._norm_result(self._run_streams(decoder.streams, x))
        if decoder.cycles is not None:
            return self._norm_result(self._run_cycles(decoder.cycles, x))
        for layer, block in enumerate(decoder.blocks, decoder.first_block):
            write.layer = layer
            write.block = f"blk.{self._number()}."
            # The tensors of block 0 in a later layer: the blocks run once more.
            if decoder.loop_norm and write.layer and write.block == "blk.0.":
                x = self._norm_between(x)
            if decoder.joined:
                x = self._join(x)
            x = self._block(block, x)
        return self._norm_result(x)

    def _run_streams(self, streams: Streams, x: Register) -> Register:
        """The mean of the streams behind the last block; *x* is the first one before block 0."""
        write = self.write
        xs = spread(write, streams, x)
        for layer, block in enumerate(self._decoder.blocks):
            write.layer = layer
            write.block = f"blk.{layer}."
            predicted = predict(write, streams, xs)
            x = predicted[streams.active]
            for branch in block:
                if branch.beside:
                    continue
                x = self._branch(branch, x, predicted[streams.active] if branch.parallel else x)
            xs = correct(write, streams, predicted, x)
            for branch in block:
                if branch.beside:
                    xs = self._add_beside(branch, streams, xs)
        write.block = ""
        return merge(write, streams, xs)

    def _run_cycles(self, cycles: Cycles, x: Register) -> Register:
        """The high stream behind the last block; *x* is the high stream before the first one."""
        write = self.write
        blocks = self._decoder.blocks
        high = x
        low = write.lookup("hrm.z_l_init", "text", 1)  # one row, for all tokens
        for first in range(0, len(blocks), cycles.layers):
            x = write.add(high, low)
            for layer in range(first, first + cycles.layers):
                write.layer = layer
                write.block = f"blk.{self._number()}."
                x = self._block(blocks[layer], x)
            x = write.norm_without_weight(x, x.width)
            write.layer = first
            if first + cycles.layers < len(blocks):  # the last one is the result
                write.mark("stack_norm", x)
            if cycles.is_high(first):
                high = x
            else:
                low = x
        write.block = ""
        return high

    def _add_beside(
        self, branch: Branch, streams: Streams, xs: tuple[Register, ...]
    ) -> tuple[Register, ...]:
        """The streams, with the result of *branch* added to all but the first.

        The branch reads the active stream.
        """
        write = self.write
        active = xs[streams.active]
        h = write.scale(active, f"{write.block}altup_correct_scale.weight", active.width)
        first, *others = xs
        (mixer,) = branch.mixers
        y = self._mix(mixer, h, active, branch.scale)
        write.mark("per_layer_embd_product", y)
        y = write.norm(y, branch.post_norm)
        write.mark("first_prediction_out", y)
        return (first, *(write.add(stream, y) for stream in others))

    def _number(self) -> int:
        """Number by which tensors of the current block are named; several blocks may share one."""
        numbers = self._decoder.block_numbers
        return numbers[self.write.layer] if numbers else self.write.layer

    def _norm_between(self, x: Register) -> Register:
        """The stream *x*, normalized before the same blocks run once more."""
        write = self.write
        block = write.block
        write.block = ""
        x = write.norm(x, self._decoder.loop_norm)
        write.block = block
        return x

    def _embed(self) -> Register:
        """The embeddings of the tokens: ``(T, dim)``."""
        write = self.write
        decoder = self._decoder
        rows = (decoder.vocab_size, decoder.dim)
        write.layout.optional |= {"output.weight": rows}
        biases = write.layout.required if "output" in decoder.biases else write.layout.optional
        biases["output.bias"] = rows[:1]
        x = write.embed("token_embd.weight", decoder.dim, decoder.embedding_scale)
        if decoder.basis and "token_embd.weight" in decoder.basis.embeddings:
            x = write.from_basis(x)
        write.mark("embed", x, in_layer=False)
        return self._add_positions(x)

    def _add_positions(self, x: Register) -> Register:
        """*x* with the embeddings of texts and positions, and their norm."""
        write = self.write
        decoder = self._decoder
        if decoder.text_rows:
            x = write.add(x, write.lookup("token_types.weight", "text", decoder.text_rows))
        if decoder.positions:
            rows = write.lookup("position_embd.weight", "position", decoder.context_length)
            x = write.add(x, rows)
        if decoder.text_rows or decoder.positions:
            write.mark("inpL", x, in_layer=False)
        if decoder.embedding_norm:
            x = write.norm(x, decoder.embedding_norm)
            write.mark("inp_norm", x, in_layer=False)
        return x

    def _join(self, x: Register) -> Register:
        """Multi-token prediction (arXiv:2412.19437): ``eh_proj [enorm(x), hnorm(h)]``."""
        write = self.write
        e = write.norm(x, "nextn.enorm")
        h = write.take(self._decoder.dim)  # (T, dim)
        if write.is_in_basis(f"{self._head}.weight"):
            h = write.from_basis(h)
        h = write.norm(h, "nextn.hnorm")
        return write.linear(write.join(e, h), "nextn.eh_proj", self._decoder.dim)  # (T, dim)

    def _block(self, block: Block, x: Register) -> Register:
        """The stream behind a block."""
        write = self.write
        decoder = self._decoder
        self._early_logits = {
            mixer: router(write, mixer, x)
            for branch in block
            for mixer in branch.mixers
            if isinstance(mixer, Experts) and mixer.early
        }
        block_input = x
        for branch in block:
            x = self._branch(branch, x, block_input if branch.parallel else x)
        if decoder.output_scale:
            x = write.scale(x, f"{write.block}{decoder.output_scale}.weight")
        write.mark("l_out", x)
        return x

    def _branch(self, branch: Branch, x: Register, branch_input: Register) -> Register:
        """``x + post_norm(mixer(norm(branch_input)))``; several mixers are added one by one."""
        write = self.write
        h = write.norm(branch_input, branch.norm) if branch.norm else branch_input
        for mixer in branch.mixers:
            name, input_name = _names_of(mixer, branch)
            if input_name:
                write.mark(input_name, h)
            y = self._mix(mixer, h, x, branch.scale)
            if branch.post_norm:
                write.mark(f"{name}_product", y)
                y = write.norm(y, branch.post_norm)
            if name:
                write.mark(name, y)
            x = write.add(x, y)
        if branch.stream_norm:
            x = write.norm(x, branch.stream_norm)
        if branch.stream_scale != 1:
            x = write.multiply(x, branch.stream_scale)
        return x

    def _sum(self, mixer: Sum, x: Register, scale: float) -> Register:
        """The sum of networks that read *x*, each with norms of its own."""
        write = self.write
        total: Register | None = None
        for branch in mixer.branches:
            (network,) = branch.every()
            name, input_name = _NAMES_IN_SUM[type(network)]
            h = write.norm(x, branch.norm)
            write.mark(input_name, h)
            y = self._mix(network, h, x, scale)
            write.mark(f"{name}_product", y)
            y = write.norm(y, branch.post_norm)
            write.mark(name, y)
            total = y if total is None else write.add(total, y)
        assert total is not None, "a sum has branches"
        write.mark("ffn_moe_combined", total)
        return total

    def _mix(self, mixer: Mixer | Sum, h: Register, x: Register, scale: float) -> Register:
        """*mixer* of *h* times *scale*; *x* is the stream, which some routers read."""
        write = self.write
        match mixer:
            case Attention():
                return attention(write, mixer, h, scale)
            case LatentAttention():
                return latent_attention(write, mixer, h, scale)
            case DeltaNet():
                return delta_net(write, mixer, h, scale)
            case KimiDelta():
                return kimi_delta(write, mixer, h, scale)
            case Mamba1():
                return mamba1(write, mixer, h, scale)
            case Mamba2():
                return mamba2(write, mixer, h, scale)
            case ShortConvolution():
                return short_convolution(write, mixer, h, scale)
            case BlockInput():
                return h
            case Sum():
                return self._sum(mixer, x, scale)
            case FeedForward():
                return feed_forward(write, mixer, h, scale)
            case LowRank():
                return low_rank(write, mixer, h, scale)
            case LayerInput():
                return layer_input(write, mixer, h, self._layer_inputs[write.layer], scale)
            case Experts():
                logits = self._early_logits.get(mixer)
                if logits is None:
                    logits = router(write, mixer, x if mixer.normed else h)
                return experts(write, mixer, h, logits, scale)

    def _norm_result(self, x: Register) -> Register:
        """The normalized stream, in the basis of the head if that has one."""
        write = self.write
        decoder = self._decoder
        own_norm = f"{write.block}nextn.shared_head_norm.weight"
        if decoder.joined:
            write.layout.optional[own_norm] = (decoder.dim,)
        if own_norm in write.tensors:
            x = write.norm(x, "nextn.shared_head_norm")
        else:
            write.block = ""
            if decoder.final_norm:
                x = write.norm(x, decoder.final_norm)
        write.mark("result_norm", x, in_layer=False)
        if decoder.writes and write.is_in_basis(f"{self._head}.weight"):
            x = write.to_basis(x)
            write.mark("result_rotated", x, in_layer=False)
        return x
