"""Layers with a state of fixed size (linear attention, state spaces): what their mixers compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitnet.families.blocks import DeltaNet, KimiDelta, Mamba1, Mamba2, ShortConvolution
    from bitnet.kernels.program import Register
    from bitnet.models.builder import Builder


def delta_net(write: Builder, mixer: DeltaNet, h: Register, scale: float) -> Register:
    """Linear attention by the gated delta rule.

    H value heads have DV dimensions, KH key heads DK.
    """
    keys = mixer.keys_width
    values = mixer.values_width
    heads = mixer.heads
    parts = {"q": keys, "k": keys, "v": values} if mixer.apart else {}
    projections = ("attn_qkv", mixer.conv_columns), ("attn_gate", values)
    if mixer.apart:
        *qkv_parts, z, alpha, beta = write.linears(
            h,
            *((f"ssm_{part}", width) for part, width in parts.items()),
            ("attn_gate", values),
            ("ssm_alpha", heads),
            ("ssm_beta", heads),
        )
        qkv = write.join(*qkv_parts)
    elif mixer.joined:
        qkv, z, both = write.linears(h, *projections, ("ssm_ba", 2 * heads))
        beta, alpha = write.split(both, heads, heads, groups=mixer.key_heads)
    else:
        qkv, z, alpha, beta = write.linears(
            h, *projections, ("ssm_alpha", heads), ("ssm_beta", heads)
        )
    write.mark("linear_attn_qkv_mixed", qkv)
    write.mark("z", z)
    write.mark("alpha", alpha)
    write.mark("beta", beta)

    cache = write.next_cache()
    mixed = write.convolve(qkv, "ssm_conv1d", mixer.kernel, cache=cache, silu=True, parts=parts)
    write.mark("conv_output_silu", mixed)  # (T, 2 KH DK + H DV)
    q, k, v = write.split(mixed, keys, keys, values)
    write.mark("q_conv", q)
    write.mark("k_conv", k)
    write.mark("v_conv", v)

    result = write.delta_rule(  # (T, H DV)
        q,
        k,
        v,
        alpha=alpha,
        beta=beta,
        cache=cache,
        key_heads=mixer.key_heads,
        grouped=mixer.grouped,
        strength=mixer.strength,
    )
    write.mark("attn_output", result)
    write.select_outputs_after_last_cache()
    gated = write.gate(z, write.norm(result, "ssm_norm", mixer.value_dim, eps=mixer.eps), "silu")
    write.mark("final_output", gated)
    if _needs_neighbours(write, mixer):
        gated = write.transpose(gated, heads // mixer.key_heads, mixer.key_heads)
    return write.linear(gated, "ssm_out", write.decoder.dim, scale=scale)  # (T, dim)


def _needs_neighbours(write: Builder, mixer: DeltaNet) -> bool:
    """True if the rotated output matrix has heads in another order than the result of *mixer*."""
    # Grouped: the heads of one key head are side by side, as in a folder. A file with a rotated
    # ssm_out may keep the folder's order of heads; the result here is in GGUF's.
    basis = write.decoder.basis
    if basis is None or not basis.grouped or mixer.grouped:
        return False
    return write.is_in_basis(f"{write.block}ssm_out.weight")


def kimi_delta(write: Builder, mixer: KimiDelta, h: Register, scale: float) -> Register:
    """Kimi delta attention of H heads of D dimensions; each row of a head's state has a decay."""
    width = mixer.width
    low = mixer.head_dim if mixer.low_rank else width
    q, k, v, beta, decays, gates = write.linears(
        h,
        *((f"attn_{part}", width) for part in "qkv"),
        ("ssm_beta", mixer.heads),
        ("ssm_f_a", low),
        ("ssm_g_a", low),
    )
    write.mark("kda_q", q)
    write.mark("kda_k", k)
    write.mark("kda_v", v)
    write.mark("beta", beta)
    cache = write.next_cache()
    mixed = write.convolve(
        write.join(q, k, v),
        "ssm_conv1d",
        mixer.kernel,
        cache=cache,
        silu=True,
        parts=dict.fromkeys("qkv", width),
    )
    q, k, v = write.split(mixed, width, width, width)
    alpha = write.linear(decays, "ssm_f_b", width) if mixer.low_rank else decays  # (T, H D)
    write.mark("alpha", alpha)
    result = write.delta_rule(  # (T, H D)
        q,
        k,
        v,
        alpha=alpha,
        beta=beta,
        cache=cache,
        key_heads=mixer.heads,
        grouped=True,
        floor=mixer.floor,
    )
    write.mark("attn_output", result)
    write.select_outputs_after_last_cache()
    gate = write.linear(gates, "ssm_g_b", width) if mixer.low_rank else gates
    normed = write.norm(result, "ssm_norm", mixer.head_dim)
    write.mark("kda_normed", normed)
    gated = write.gate(gate, normed, "sigmoid")
    write.mark("kda_gated", gated)
    return write.linear(gated, "attn_output", write.decoder.dim, scale=scale)  # (T, dim)


def short_convolution(
    write: Builder, mixer: ShortConvolution, h: Register, scale: float
) -> Register:
    """``out(c * convolution(b * v))``."""
    bcv = write.linear(h, "shortconv.in_proj", 3 * mixer.width)  # (T, 3 dim)
    write.mark("model.layers.{}.conv.in_proj", bcv)
    b, c, v = write.split(bcv, mixer.width, mixer.width, mixer.width)
    cache = write.next_cache()
    bv = write.gate(b, v, "identity")
    mixed = write.convolve(bv, "shortconv.conv", mixer.kernel, cache=cache)
    write.mark("model.layers.{}.conv.conv", mixed)
    write.select_outputs_after_last_cache()
    gated = write.gate(c, mixed, "identity")
    return write.linear(gated, "shortconv.out_proj", write.decoder.dim, scale=scale)


def mamba1(write: Builder, mixer: Mamba1, h: Register, scale: float) -> Register:
    """A state space of N numbers for each of C channels; the time steps have rank R."""
    width = mixer.width
    size = mixer.state_size
    both = write.linear(h, "ssm_in", 2 * width)
    write.mark("mamba_in", both)
    x, z = write.split(both, width, width)  # (T, C), twice
    cache = write.next_cache()
    x = write.convolve(x, "ssm_conv1d", mixer.kernel, cache=cache, silu=True)
    write.mark("mamba_conv", x)
    low = write.linear(x, "ssm_x", mixer.step_rank + 2 * size)
    write.mark("mamba_dt_b_c", low)
    dt, b, c = write.split(low, mixer.step_rank, size, size)  # (T, R), twice (T, N)
    if mixer.norms == "weighted":
        dt = write.norm(dt, "ssm_dt_norm", eps=mixer.eps)
        b = write.norm(b, "ssm_b_norm", eps=mixer.eps)
        c = write.norm(c, "ssm_c_norm", eps=mixer.eps)
        write.mark("mamba_dt_normed", dt)
        write.mark("mamba_b_normed", b)
        write.mark("mamba_c_normed", c)
    elif mixer.norms == "bare":
        dt, b, c = (write.norm_without_weight(part, part.width, mixer.eps) for part in (dt, b, c))
    dt = write.linear(dt, "ssm_dt", width, biased=True)  # (T, C)
    write.mark("mamba_dt", dt)
    result = write.selective_scan(x, b, c, dt, cache=cache, groups=1, decays=size)
    write.mark("mamba_y_add_d", result)  # (T, C)
    write.select_outputs_after_last_cache()
    gated = write.gate(z, result, "silu")
    y = write.linear(gated, "ssm_out", write.decoder.dim, scale=scale)  # (T, dim)
    write.mark("mamba_out", y)
    return y


def mamba2(write: Builder, mixer: Mamba2, h: Register, scale: float) -> Register:
    """A state space of H heads of D dimensions, with G groups of N inputs and outputs."""
    width = mixer.width
    states = mixer.groups * mixer.state_size
    columns = mixer.conv_columns
    heads = mixer.heads
    everything = write.linear(h, "ssm_in", width + columns + heads)
    write.mark("mamba2_in", everything)
    z, vbc, dt = write.split(everything, width, columns, heads)

    cache = write.next_cache()
    mixed = write.convolve(vbc, "ssm_conv1d", mixer.kernel, cache=cache, silu=True)
    write.mark("mamba2_conv", mixed)
    v, b, c = write.split(mixed, width, states, states)  # (T, H D), twice (T, G N)
    result = write.selective_scan(v, b, c, dt, cache=cache, groups=mixer.groups)
    write.mark("mamba2_y_add_d", result)  # (T, H D)
    write.select_outputs_after_last_cache()

    if mixer.norm_groups and mixer.norm_first:
        result = _group_norm(write, mixer, result)
    gated = write.gate(z, result, "silu")
    write.mark("mamba2_gated", gated)
    if mixer.norm_groups and not mixer.norm_first:
        gated = _group_norm(write, mixer, gated)
    y = write.linear(gated, "ssm_out", write.decoder.dim, scale=scale)  # (T, dim)
    write.mark("mamba_out", y)
    return y


def _group_norm(write: Builder, mixer: Mamba2, x: Register) -> Register:
    normed = write.norm(x, "ssm_norm", parts=mixer.norm_groups)
    write.mark("mamba2_normed", normed)
    return normed
