"""Attention: what its mixers compute.

In the shapes at the ends of lines T is tokens, H query heads and KV key heads of D dimensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitnet.families.blocks import Attention, LatentAttention
    from bitnet.kernels.program import Register
    from bitnet.models.builder import Builder


def attention(write: Builder, mixer: Attention, h: Register, scale: float) -> Register:
    """Attention to keys and values of its own, or to those that an earlier attention cached."""
    q, k, v, gate = _projections(write, mixer, h)
    if mixer.own_gate:
        # one gate for each number of the result, or one for each head
        width = mixer.head_dim if mixer.own_gate == "numbers" else 1
        gate = write.linear(h, "attn_gate", mixer.heads * width)
    if mixer.clamp and k is not None and v is not None:
        q, k, v = (write.clamp(x, mixer.clamp) for x in (q, k, v))
    q, k, v = _prepare(write, mixer, q, k, v)
    if k is not None and v is not None:
        cache = write.next_cache()
    else:
        assert mixer.shared_cache is not None, "an attention without keys reads those of another"
        cache = mixer.shared_cache
    mixed = write.attend(  # (T, H D)
        q,
        k,
        v,
        cache=cache,
        kind=mixer.reads,
        scale=mixer.scale,
        softcap=mixer.softcap,
        sinks=write.vector("attn_sinks.weight", (mixer.heads,)) if mixer.sinks else "",
        slopes=mixer.slopes,
        distances=_distances(write, mixer) if mixer.reach else "",
    )
    write.mark("kqv_out", mixed)
    # An attention that reads another's cache writes none, so it is never the last to write one.
    if mixer.shared_cache is None:
        write.select_outputs_after_last_cache()
    if gate is not None:
        mixed = write.gate(gate, mixed, mixer.gate_activation)
    if mixer.sub_norm:
        mixed = write.norm(mixed, "attn_sub_norm")
        write.mark("attn_sub_norm", mixed)
    return write.linear(mixed, "attn_output", write.decoder.dim, scale=scale)  # (T, dim)


def _distances(write: Builder, mixer: Attention) -> str:
    """Name of the tensor with a bias on scores for each distance of key and query.

    All blocks share it.
    """
    name = "attn_rel_b.weight"
    write.layout.required[name] = (mixer.heads, 2 * mixer.reach + 1)
    write.layout.vectors.add(name)
    return name


def _projections(
    write: Builder, mixer: Attention, h: Register
) -> tuple[Register, Register | None, Register | None, Register | None]:
    """Queries, keys, values and the gate of an attention; ``None`` for those it does not have."""
    heads = mixer.heads * mixer.head_dim
    kv = mixer.kv_heads * mixer.head_dim
    biased = mixer.biased
    if mixer.gated:
        queries_and_gates, k, v = write.linears(
            h, ("attn_q", 2 * heads), ("attn_k", kv), ("attn_v", kv), biased=biased
        )
        write.mark("Qcur_full", queries_and_gates)
        q, gate = write.split(queries_and_gates, heads, heads, groups=mixer.heads)
        return q, k, v, gate
    if mixer.fused:
        qkv = write.linear(h, "attn_qkv", heads + 2 * kv, biased=biased)  # (T, (H + 2 KV) D)
        write.mark("wqkv", qkv)
        q, k, v = write.split(qkv, heads, kv, kv)
        return q, k, v, None
    if mixer.shared_cache is not None:
        return write.linear(h, "attn_q", heads, biased=biased), None, None, None
    if mixer.keys_as_values:
        q, k = write.linears(h, ("attn_q", heads), ("attn_k", kv), biased=biased)
        return q, k, k, None
    q, k, v = write.linears(  # (T, H D), twice (T, KV D)
        h, ("attn_q", heads), ("attn_k", kv), ("attn_v", kv), biased=biased
    )
    return q, k, v, None


def _prepare(
    write: Builder, mixer: Attention, q: Register, k: Register | None, v: Register | None
) -> tuple[Register, Register | None, Register | None]:
    """Queries, keys and values as attention takes them: normed, rotated, scaled."""
    is_normed_first = mixer.qk_norm in ("head", "each", "whole")
    is_normed_last = mixer.qk_norm == "rotated"
    if mixer.qk_norm or mixer.rope or mixer.growth:
        _mark_queries(write, "product", q, k)
    if mixer.value_norm and v is not None:
        if not mixer.keys_as_values:
            write.mark("Vcur_product", v)
        v = write.norm_without_weight(v, mixer.head_dim)
    if is_normed_first:
        q, k = _head_norms(write, mixer, q, k)
        if mixer.rope is not None or mixer.growth:
            _mark_queries(write, "normed", q, k)
    if mixer.rope is not None:
        q = write.rotate(q, mixer.rope, mixer.head_dim)
        if k is not None:
            k = write.rotate(k, mixer.rope, mixer.head_dim)
    if is_normed_last or mixer.growth:
        _mark_queries(write, "roped", q, k)
    if is_normed_last:
        q, k = _head_norms(write, mixer, q, k)
    if mixer.growth:
        q = write.temper(q, mixer.growth, mixer.growth_length)
    write.mark("Qcur", q)
    if k is not None and v is not None:
        write.mark("Kcur", k)
        write.mark("Vcur", v)
    return q, k, v


def _mark_queries(write: Builder, state: str, q: Register, k: Register | None) -> None:
    """Mark the queries in *state*, and the keys if the attention has its own."""
    write.mark(f"Qcur_{state}", q)
    if k is not None:
        write.mark(f"Kcur_{state}", k)


def _head_norms(
    write: Builder, mixer: Attention, q: Register, k: Register | None
) -> tuple[Register, Register | None]:
    """Norms of queries and keys, of each head or of all heads as one vector."""
    if mixer.qk_norm == "each":
        q = write.norm(q, "attn_q_norm", parts=mixer.heads, biased=False)
        if k is not None:
            k = write.norm(k, "attn_k_norm", parts=mixer.kv_heads, biased=False)
        return q, k
    is_whole = mixer.qk_norm == "whole"
    q = write.norm(q, "attn_q_norm", q.width if is_whole else mixer.head_dim)
    if k is not None:
        k = write.norm(k, "attn_k_norm", k.width if is_whole else mixer.head_dim)
    return q, k


def latent_attention(write: Builder, mixer: LatentAttention, h: Register, scale: float) -> Register:
    """Multi-head latent attention: H query heads, and one key and value head that they share.

    A cached row is a latent of width L and a key of R rotary dimensions. Queries have D dimensions
    without a position and R rotary ones; V is the width of a head of the result.
    """
    heads = mixer.heads
    rotary_dims = mixer.rope.dims
    query_width = heads * (mixer.key_dim + rotary_dims)
    latent_and_key_width = mixer.latent + rotary_dims
    if mixer.query_rank:
        low, latent_and_key = write.linears(
            h, ("attn_q_a", mixer.query_rank), ("attn_kv_a_mqa", latent_and_key_width)
        )
        write.mark("q_cmpr", low)
        low = write.norm(low, "attn_q_a_norm", eps=mixer.eps)
        write.mark("q_cmpr_normed", low)
        q = write.linear(low, "attn_q_b", query_width)  # (T, H (D + R))
    else:
        q, latent_and_key = write.linears(
            h, ("attn_q", query_width), ("attn_kv_a_mqa", latent_and_key_width)
        )
    write.mark("q", q)
    write.mark("kv_cmpr_pe", latent_and_key)

    q_plain, q_turned = write.split(q, heads * mixer.key_dim, heads * rotary_dims, groups=heads)
    latent, k_turned = write.split(latent_and_key, mixer.latent, rotary_dims)  # (T, L), (T, R)
    latent = write.norm(latent, "attn_kv_a_norm", eps=mixer.eps)
    write.mark("kv_cmpr", latent)
    if mixer.rotates:
        q_turned = write.rotate(q_turned, mixer.rope, rotary_dims)
        k_turned = write.rotate(k_turned, mixer.rope, rotary_dims)
        write.mark("q_pe", q_turned)
        write.mark("k_pe", k_turned)

    head_numbers = write.enumerate(heads)
    q_latent = write.by_head(q_plain, head_numbers, "attn_k_b", heads * mixer.latent)  # (T, H L)
    k = write.join(latent, k_turned)  # (T, L + R)
    q = write.join(q_latent, q_turned, groups=heads)  # (T, H (L + R))
    if mixer.growth:
        q = write.temper(q, mixer.growth, mixer.growth_length)
    write.mark("Qcur", q)
    write.mark("Kcur", k)
    cache = write.next_cache()
    mixed = write.attend(q, k, k, cache=cache, kind=mixer.reads, scale=mixer.scale)
    write.select_outputs_after_last_cache()

    # The cached keys serve as values, which have no rotary part: its mix is dropped.
    values, _ = write.split(mixed, heads * mixer.latent, heads * rotary_dims, groups=heads)
    result = write.by_head(values, head_numbers, "attn_v_b", heads * mixer.value_dim)  # (T, H V)
    write.mark("kqv_out", result)
    if mixer.gated:
        gate = write.linear(h, "attn_gate", heads)
        write.mark("attn_gate", gate)
        result = write.gate(gate, result, "sigmoid")
    return write.linear(result, "attn_output", write.decoder.dim, scale=scale)  # (T, dim)
