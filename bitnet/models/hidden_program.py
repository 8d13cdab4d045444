"""The program of a decoder over registers, and the tensors that it reads.

``x`` is the residual stream, ``h`` the input of a mixer and, at its end, its result. Each method
of :class:`_Writer` reads like the equations of its part, with the shapes of its values at the ends
of lines: T tokens, H query heads and KV key heads of D dimensions, F wide inside a network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.families.blocks import (
    Attention,
    DeltaNet,
    Experts,
    FeedForward,
    LatentAttention,
    LayerInput,
    Mamba2,
    Mixer,
    ShortConvolution,
    Sum,
)
from bitnet.kernels.instructions import (
    Add,
    Attend,
    Embed,
    Gate,
    Hadamard,
    Join,
    Norm,
    Rotate,
    Scale,
    Select,
    Split,
    Take,
    Temper,
    Transpose,
)
from bitnet.kernels.mixer_instructions import Convolve, DeltaRule, Enumerate, SelectiveScan
from bitnet.kernels.program import Mark, Program, Register
from bitnet.models.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from bitnet.families.blocks import Branch, ModelConfig

#: Names of the result and the input of mixers that are not attention.
_NAMES = {
    Experts: ("ffn_out", "ffn_norm"),
    FeedForward: ("ffn_out", "ffn_norm"),
    LayerInput: ("per_layer_embd_out", "pe_in"),
}
#: The same within a sum.
_NAMES_IN_SUM = {Experts: ("ffn_moe", "ffn_norm_2"), FeedForward: ("ffn_mlp", "ffn_norm_1")}


def hidden_program(decoder: ModelConfig, tensors: Container[str]) -> Program:
    """Program from tokens to the normalized hidden state that the head reads.

    *tensors* are the names of the model's; optional ones that it lacks are left out.
    """
    writer = _Writer(decoder, tensors)
    return Program(tuple(writer.instructions), decoder.caches, writer.x)


def layout(decoder: ModelConfig) -> Layout:
    """Tensors that *decoder* reads, and those of its own block that drafts."""
    whole = _Writer(decoder, ())
    for more in (_Writer(decoder.drafter, ()),) if decoder.drafter else ():
        for name in ("required", "optional", "scales", "vectors", "tables", "products"):
            getattr(whole, name).update(getattr(more, name))
    return whole


class _Writer(Layout):
    def __init__(self, decoder: ModelConfig, tensors: Container[str]) -> None:
        super().__init__(decoder, tensors)
        rows = (decoder.vocab_size, decoder.dim)
        self.x = Register("x", decoder.dim)
        self._cache = 0
        self.required["token_embd.weight"] = rows
        self.optional |= {"output.weight": rows, "output.bias": rows[:1]}
        self._do(Embed(self.x, "token_embd.weight", decoder.embedding_scale))
        self._transform(self.x, self.x, "token_embd.weight", inverse=True)
        self._do(Mark("embed", self.x))
        inputs = (it for it in decoder.mixers() if isinstance(it, LayerInput))
        self._parts = self._layer_inputs(next(inputs, None))  # of one kind in all blocks
        head = "output" if "output.weight" in self.tensors else "token_embd"
        for self._layer, block in enumerate(decoder.blocks, decoder.first_block):
            self._block = f"blk.{self._layer}."
            if decoder.joined:
                self._join(head)
            self._early = tuple(
                self._router(mixer, self.x)
                for branch in block
                for mixer in branch.mixers
                if isinstance(mixer, Experts) and mixer.early
            )
            for branch in block:
                self._branch(branch)
            if decoder.output_scale:
                self.required[f"{self._block}{decoder.output_scale}.weight"] = (1,)
                self._do(Scale(self.x, f"{self._block}{decoder.output_scale}.weight"))
            self._mark("l_out", self.x)
        own_norm = f"{self._block}nextn.shared_head_norm.weight"
        if decoder.joined:
            self.optional[own_norm] = (decoder.dim,)
        if own_norm in self.tensors:
            self._norm(self.x, "nextn.shared_head_norm")
        else:
            self._block = ""
            self._norm(self.x, decoder.final_norm)
        self._do(Mark("result_norm", self.x))
        if decoder.writes and self._transform(self.x, self.x, f"{head}.weight"):
            self._do(Mark("result_rotated", self.x))

    def _layer_inputs(self, its: LayerInput | None) -> tuple[Register, ...]:
        """Registers of every block's part of ``norm(per_layer_model_proj x) + table[token]``.

        Either is divided by the root of 2, the product by that of the width of *x*.
        """
        if its is None:
            return ()
        blocks, half = len(self.decoder.blocks), 0.5**0.5
        rows, both = (Register(name, blocks * its.width) for name in ("gate", "up"))  # (T, L P)
        table, projection = "per_layer_token_embd.weight", "per_layer_model_proj"
        self.required[table] = (self.decoder.vocab_size, rows.width)
        self.tables.add(table)
        self._do(Embed(rows, table, (its.width / 2) ** 0.5))
        self._linear((both,), self.x, (projection,))
        self._do(Mark("per_layer_projection", both))
        self.scales[f"{projection}.weight"] = self.decoder.dim**-0.5
        self._norm(both, "per_layer_proj_norm", its.width)
        self.scales["per_layer_proj_norm.weight"] = half
        self._do(Mark("per_layer_normed", both))
        self._do(Add(both, rows))
        parts = tuple(Register(f"part {layer}", its.width) for layer in range(blocks))
        self._do(Split(parts, both))
        return parts

    def _join(self, head: str) -> None:
        """Multi-token prediction (arXiv:2412.19437): ``x = eh_proj [enorm(x), hnorm(h)]``."""
        e, h = self._norm(self.x, "nextn.enorm", out="e"), Register("h", self.decoder.dim)
        self._do(Take(h))  # (T, dim)
        basis = self.decoder.basis
        if basis and f"{head}.weight" in basis.weights:
            self._do(Hadamard(h, h, basis.signs_of(h.width), basis.block, inverse=True))
        self._norm(h, "nextn.hnorm")
        both = Register("eh", 2 * self.decoder.dim)  # (T, 2 dim)
        self._do(Join(both, (e, h)))
        self._linear((self.x,), both, ("nextn.eh_proj",))  # (T, dim)

    def _branch(self, branch: Branch) -> None:
        h = self._norm(self.x, branch.norm, out="h") if branch.norm else self.x  # (T, dim)
        for place, mixer in enumerate(branch.mixers):
            later = (h,) if place + 1 < len(branch.mixers) else ()
            if isinstance(mixer, Sum):
                name, y = "ffn_out", self._sum(mixer, branch.scale)
            else:
                name, before = _NAMES.get(type(mixer), ("attn_out", "attn_norm"))
                is_beside_attention = len(branch.mixers) > 1 and isinstance(mixer, Mamba2)
                if is_beside_attention:  # its result is marked as mamba_out
                    name = ""
                else:
                    self._mark(before, h)
                y = self._mix(mixer, h, later, branch.scale)  # (T, dim)
            if branch.post_norm:
                self._mark(f"{name}_product", y)
                self._norm(y, branch.post_norm)
            if name:
                self._mark(name, y)
            self._do(Add(self.x, y))

    def _sum(self, its: Sum, scale: float) -> Register:
        total: Register | None = None
        for branch in its.branches:
            (mixer,) = branch.every()
            name, before = _NAMES_IN_SUM[type(mixer)]
            h = self._norm(self.x, branch.norm, out="h")
            self._mark(before, h)
            y = self._mix(mixer, h, () if total else (h,), scale)  # (T, dim)
            self._mark(f"{name}_product", y)
            self._norm(y, branch.post_norm)
            self._mark(name, y)
            if total:
                self._do(Add(total, y))
            total = total or y
        assert total, "a sum of something"
        self._mark("ffn_moe_combined", total)
        return total

    def _mix(
        self, mixer: Mixer, h: Register, later: tuple[Register, ...], scale: float
    ) -> Register:
        """Result of *mixer* times *scale*; registers that are read *later* keep their rows."""
        methods: dict[type, Callable[..., None]] = {
            Attention: self._attention,
            DeltaNet: self._delta_net,
            Experts: self._experts,
            FeedForward: self._feed_forward,
            LatentAttention: self._latent_attention,
            LayerInput: self._layer_input,
            Mamba2: self._mamba2,
            ShortConvolution: self._short_convolution,
        }
        out = Register("y" if later else "h", self.decoder.dim)
        self._later, self._scale = later, scale
        methods[type(mixer)](mixer, h, out)
        return out

    def _attention(self, its: Attention, h: Register, out: Register) -> None:
        heads, kv = its.heads * its.head_dim, its.kv_heads * its.head_dim
        q, k, v = Register("q", heads), Register("k", kv), Register("v", kv)
        gates: tuple[Register, ...] = ()
        if its.gated:
            both, z = Register("qz", 2 * heads), Register("z", heads)  # (T, H 2 D)
            gates = (z,)
            names = ("attn_q", "attn_k", "attn_v")
            self._linear((both, k, v), h, names, biased=its.biased)
            self._do(Split((q, z), both, its.heads))
        elif its.fused:
            qkv = Register("qkv", heads + 2 * kv)  # (T, (H + 2 KV) D)
            self._linear((qkv,), h, ("attn_qkv",), biased=its.biased)
            self._mark("wqkv", qkv)
            self._do(Split((q, k, v), qkv))
        else:
            names = ("attn_q", "attn_k", "attn_v")
            made = 1 if its.shared_cache is not None else 2 if its.keys_as_values else 3
            # (T, H D), twice (T, KV D)
            self._linear((q, k, v)[:made], h, names[:made], biased=its.biased)
        mixed = self._attend(its, q, k, v, gates)  # (T, H D)
        for z in gates:
            gated = Register("q", heads)  # the queries are read
            self._do(Gate(gated, z, mixed, "sigmoid"))  # (T, H D)
            mixed = gated
        if its.sub_norm:
            self._norm(mixed, "attn_sub_norm")
            self._mark("attn_sub_norm", mixed)
        self._linear((out,), mixed, ("attn_output",), scale=self._scale)  # (T, dim)

    def _attend(
        self, its: Attention, q: Register, k: Register, v: Register, live: tuple[Register, ...]
    ) -> Register:
        """Attention of products of the input; *live* are other registers that are read later."""
        own, mixed = its.shared_cache is None, Register("mixed", q.width)
        changes = bool(its.qk_norm or its.rope or its.growth)
        if changes:
            self._mark_queries("product", q, k, own=own)
        if its.value_norm and own:
            source = k if its.keys_as_values else v
            if not its.keys_as_values:
                self._mark("Vcur_product", v)
            self._do(Norm(v, source, "", self.decoder.norm_eps, width=its.head_dim))
        turned = (("attn_q_norm", q), ("attn_k_norm", k))[: 1 + own]
        if its.qk_norm and its.qk_norm != "rotated":
            self._head_norms(its, turned)
            if its.rope is not None or its.growth:
                self._mark_queries("normed", q, k, own=own)
        if its.rope is not None:
            for _, register in turned:
                self._do(Rotate(register, its.rope, its.head_dim))
        if its.qk_norm == "rotated" or its.growth:
            self._mark_queries("roped", q, k, own=own)
        if its.qk_norm == "rotated":
            self._head_norms(its, turned)
        if its.growth:
            self._do(Temper(q, its.growth, its.growth_length))
        for name, register in (("Qcur", q), ("Kcur", k), ("Vcur", v))[: 3 if own else 1]:
            self._mark(name, register)
        number = self._cache if its.shared_cache is None else its.shared_cache
        keys, values = (k, v) if own else (None, None)
        sinks = self._vector("attn_sinks.weight", (its.heads,)) if its.sinks else ""
        how = its.scale, its.softcap, self.decoder.causal, sinks
        self._do(Attend(mixed, q, keys, values, number, its.reads, *how))
        self._mark("kqv_out", mixed)
        if own:
            self._end_cache(mixed, *live)
        return mixed

    def _mark_queries(self, state: str, q: Register, k: Register, *, own: bool) -> None:
        """Mark queries, and keys of its *own*, before what comes next."""
        self._mark(f"Qcur_{state}", q)
        if own:
            self._mark(f"Kcur_{state}", k)

    def _head_norms(self, its: Attention, turned: tuple[tuple[str, Register], ...]) -> None:
        for name, register in turned:
            self._norm(register, name, register.width if its.qk_norm == "whole" else its.head_dim)

    def _latent_attention(self, its: LatentAttention, h: Register, out: Register) -> None:
        heads, turning = its.heads, its.rope.dims
        q = Register("q", heads * (its.key_dim + turning))
        both = Register("latents", its.latent + turning)
        if its.query_rank:
            low = Register("low", its.query_rank)
            self._linear((low, both), h, ("attn_q_a", "attn_kv_a_mqa"))
            self._mark("q_cmpr", low)
            self._norm(low, "attn_q_a_norm", eps=its.eps)
            self._mark("q_cmpr_normed", low)
            self._linear((q,), low, ("attn_q_b",))  # (T, H (D + R))
        else:
            self._linear((q, both), h, ("attn_q", "attn_kv_a_mqa"))
        self._mark("q", q)
        self._mark("kv_cmpr_pe", both)
        latent, k_turned = Register("v", its.latent), Register("k_turned", turning)
        plain, q_turned = Register("plain", heads * its.key_dim), Register("z", heads * turning)
        self._do(Split((plain, q_turned), q, heads))
        self._do(Split((latent, k_turned), both))  # (T, L), (T, R)
        self._norm(latent, "attn_kv_a_norm", eps=its.eps)
        self._mark("kv_cmpr", latent)
        for register in (q_turned, k_turned):
            self._do(Rotate(register, its.rope, turning))
        every = Register("every", heads)
        self._do(Enumerate(every))
        wide = Register("wide", heads * its.latent)
        self._by_head(wide, plain, every, "attn_k_b")  # (T, H L)
        k, q = Register("k", both.width), Register("q", heads * both.width)
        self._do(Join(k, (latent, k_turned)))  # (T, L + R)
        self._do(Join(q, (wide, q_turned), heads))  # (T, H (L + R))
        self._mark("Qcur", q)
        self._mark("Kcur", k)
        mixed = Register("mixed", q.width)
        how = its.scale, 0.0, self.decoder.causal
        self._do(Attend(mixed, q, k, k, self._cache, its.reads, *how))
        self._end_cache(mixed, every)
        self._do(Split((wide, q_turned), mixed, heads))
        result = Register("v", heads * its.value_dim)
        self._by_head(result, wide, every, "attn_v_b")  # (T, H V)
        self._mark("kqv_out", result)
        self._linear((out,), result, ("attn_output",), scale=self._scale)  # (T, dim)

    def _delta_net(self, its: DeltaNet, h: Register, out: Register) -> None:
        keys, values = its.keys_width, its.values_width
        qkv, mixed = Register("qkv", its.conv_columns), Register("convolved", its.conv_columns)
        z, alpha, beta = (
            Register("z", values),
            Register("alpha", its.heads),
            Register("b", its.heads),
        )
        names = ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta")
        self._linear((qkv, z, alpha, beta), h, names)
        for name, register in (("linear_attn_qkv_mixed", qkv), ("alpha", alpha), ("beta", beta)):
            self._mark(name, register)
        self._convolve(mixed, qkv, "ssm_conv1d", its.kernel, silu=True)  # (T, 2 KH DK + H DV)
        self._mark("conv_output_silu", mixed)
        q, k, v = Register("q", keys), Register("k", keys), Register("v", values)
        self._do(Split((q, k, v), mixed))
        for name, register in (("q_conv", q), ("k_conv", k), ("v_conv", v)):
            self._mark(name, register)
        a, dt = (self._vector(name, (its.heads,)) for name in ("ssm_a", "ssm_dt.bias"))
        read = Register("mixed", values)  # (T, H DV)
        self._do(
            DeltaRule(read, q, k, v, alpha, beta, a, dt, self._cache, its.key_heads, its.grouped)
        )
        self._mark("attn_output", read)
        self._end_cache(read, z)
        self._norm(read, "ssm_norm", its.value_dim)
        gated = Register("v", values)  # the values are read
        self._do(Gate(gated, z, read, "silu"))  # (T, H DV)
        self._mark("final_output", gated)
        basis, weight = self.decoder.basis, f"{self._block}ssm_out.weight"
        if basis and basis.grouped and not its.grouped and weight in basis.weights:
            tiled, gated = gated, Register("mixed", values)
            self._do(Transpose(gated, tiled, its.heads // its.key_heads, its.key_heads))
        self._linear((out,), gated, ("ssm_out",), scale=self._scale)  # (T, dim)

    def _short_convolution(self, its: ShortConvolution, h: Register, out: Register) -> None:
        bcv = Register("bcv", 3 * its.width)
        b, c, v = (Register(name, its.width) for name in ("b", "c", "v"))
        self._linear((bcv,), h, ("shortconv.in_proj",))  # (T, 3 dim)
        self._mark("model.layers.{}.conv.in_proj", bcv)
        self._do(Split((b, c, v), bcv))
        bv, mixed, gated = (Register(name, its.width) for name in ("bv", "convolved", "v"))
        self._do(Gate(bv, b, v, "identity"))
        self._convolve(mixed, bv, "shortconv.conv", its.kernel)
        self._mark("model.layers.{}.conv.conv", mixed)
        self._end_cache(mixed, c)
        self._do(Gate(gated, c, mixed, "identity"))  # (T, dim); the values are read
        self._linear((out,), gated, ("shortconv.out_proj",), scale=self._scale)

    def _mamba2(self, its: Mamba2, h: Register, out: Register) -> None:
        width, states = its.width, its.groups * its.state_size
        columns = its.conv_columns
        both = Register("zvbcdt", width + columns + its.heads)
        z, vbc, dt = Register("z", width), Register("vbc", columns), Register("dt", its.heads)
        self._linear((both,), h, ("ssm_in",))
        self._mark("mamba2_in", both)
        self._do(Split((z, vbc, dt), both))  # (T, H D), (T, H D + 2 G N), (T, H)
        mixed = Register("convolved", columns)
        self._convolve(mixed, vbc, "ssm_conv1d", its.kernel, silu=True)
        self._mark("mamba2_conv", mixed)
        v, b, c = Register("v", width), Register("b", states), Register("c", states)
        self._do(Split((v, b, c), mixed))  # (T, H D), twice (T, G N)
        a, skip = (self._vector(name, (its.heads, 1)) for name in ("ssm_a", "ssm_d"))
        bias = self._vector("ssm_dt.bias", (its.heads,))
        read = Register("mixed", width)
        self._do(SelectiveScan(read, v, b, c, dt, a, bias, skip, self._cache, its.groups))
        self._mark("mamba2_y_add_d", read)  # (T, H D)
        self._end_cache(read, z)
        gated = Register("v", width)  # the values are read
        if its.norm_groups and its.norm_first:
            self._norm(read, "ssm_norm", parts=its.norm_groups)
            self._mark("mamba2_normed", read)
        self._do(Gate(gated, z, read, "silu"))
        self._mark("mamba2_gated", gated)
        if its.norm_groups and not its.norm_first:
            self._norm(gated, "ssm_norm", parts=its.norm_groups)
            self._mark("mamba2_normed", gated)
        self._linear((out,), gated, ("ssm_out",), scale=self._scale)  # (T, dim)
        self._mark("mamba_out", out)

    def _convolve(
        self, out: Register, x: Register, name: str, kernel: int, *, silu: bool = False
    ) -> None:
        weight = self._vector(f"{name}.weight", (x.width, kernel))
        bias = f"{self._block}{name}.bias"
        self.optional[bias] = (x.width,)
        self._do(Convolve(out, x, weight, bias if bias in self.tensors else "", self._cache, silu))

    def _layer_input(self, its: LayerInput, h: Register, out: Register) -> None:
        gate, act = Register("gate", its.width), Register("act", its.width)  # (T, P)
        self._linear((gate,), h, ("inp_gate",))
        self._do(Gate(act, gate, self._parts[self._layer], its.activation))
        self._linear((out,), act, ("proj",), scale=self._scale)  # (T, dim)

    def _end_cache(self, *live: Register) -> None:
        """Count a cache; after the last one, only the rows of the outputs are needed."""
        self._cache += 1
        if self._cache == len(self.decoder.caches):
            live = (*live, *self._later, *self._parts[self._layer :])
            self._do(Select((self.x, *self._early, *live)))
