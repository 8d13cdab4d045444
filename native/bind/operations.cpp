// Python's view of the operations by themselves: what they require of their operands stands here. Outputs are allocated
// by the caller and never converted, so a wrong dtype is a TypeError.
#include "bind/module.hpp"

#include <nanobind/stl/optional.h>

#include <optional>

#include "bind/arrays.hpp"
#include "isa/dispatch.hpp"
#include "ops/counters.hpp"
#include "ops/linear.hpp"
#include "ops/ops.hpp"
#include "system/split.hpp"

namespace bitnet {
namespace {

void bind_linear(int type, const Bytes& weight, int64_t rows, int64_t cols, float scale, const Floats& x,
                 const OutFloats& out) {
    const Type checked = checked_type(type, rows, cols, weight);
    const int64_t tokens = int64_t(x.size()) / cols;
    require(int64_t(x.size()) == tokens * cols && int64_t(out.size()) == tokens * rows,
            "x must be (tokens, cols) and out (tokens, rows)");
    LinearJob job;
    job.matrix.type = checked, job.matrix.data = weight.data(), job.matrix.scale = scale;
    job.matrix.rows = rows, job.matrix.cols = job.matrix.inputs = cols;
    job.y = out.data();
    const Computing computing;
    linear(job, x.data(), tokens);
}

void bind_embed(int type, const Bytes& weight, int64_t rows, int64_t cols, float scale,
                const Array<const int64_t>& ids, const OutFloats& out) {
    const Type checked = checked_type(type, rows, cols, weight);
    require(out.size() == ids.size() * size_t(cols), "out must be (ids, cols)");
    for (size_t i = 0; i < ids.size(); ++i)
        require(ids.data()[i] >= 0 && ids.data()[i] < rows, "a row number is out of range");
    const Computing computing;
    embed(checked, weight.data(), rows, cols, scale, ids.data(), int64_t(ids.size()), out.data());
}

// One call of a kernel of the active instruction set, on several threads: body(first, end) for parts of *n* units of
// *work* elements.
template <class F>
void run_row_op(Op op, int64_t n, int64_t multiple, int64_t work, F&& body) {
    const Computing computing;
    count_call(op);
    Split(n, multiple, n * work < kSerialWork).run(body);
}

int64_t rows_of(const Floats& x, const OutFloats& out, int64_t cols) {
    require(cols > 0 && x.size() % size_t(cols) == 0 && out.size() == x.size(),
            "x and out must be (rows, cols) like the weight");
    return int64_t(x.size()) / cols;
}

void bind_rms_norm(const Floats& x, const Floats& weight, float eps, const OutFloats& out) {
    const auto cols = int64_t(weight.size()), rows = rows_of(x, out, cols);
    run_row_op(Op::rms_norm, rows, 1, cols, [&](int64_t r0, int64_t r1) {
        for (int64_t r = r0; r < r1; ++r)
            detail::active().rms_norm(x.data() + r * cols, weight.data(), cols, eps, out.data() + r * cols);
    });
}

void bind_rope(const Floats& x, const Floats& cos, const Floats& sin, bool half, const OutFloats& out) {
    require(x.ndim() == 3 && cos.ndim() == 2 && cos.shape(0) == x.shape(0) && cos.size() == sin.size() &&
                out.size() == x.size() && 2 * cos.shape(1) <= x.shape(2),
            "x must be (tokens, heads, head_dim), cos and sin (tokens, rotated / 2)");
    RopeArgs a;
    a.x = x.data(), a.cos = cos.data(), a.sin = sin.data(), a.out = out.data();
    a.heads = int64_t(x.shape(1)), a.head_dim = int64_t(x.shape(2)), a.rotated = 2 * int64_t(cos.shape(1));
    a.half = half;
    run_row_op(Op::rope, int64_t(x.shape(0)), 1, a.heads * a.head_dim,
               [&](int64_t t0, int64_t t1) { detail::active().rope(a, t0, t1); });
}

void bind_gate(int kind, const Floats& g, const Floats& up, const OutFloats& out) {
    const Gate checked = checked_gate(kind);
    require(g.size() == up.size() && g.size() == out.size(), "gate, up and out must have one size");
    run_row_op(Op::gate, int64_t(g.size()), 1024, 1, [&](int64_t i0, int64_t i1) {
        detail::active().gate(checked, g.data() + i0, up.data() + i0, i1 - i0, out.data() + i0);
    });
}

void bind_route(const Floats& logits, const std::optional<Floats>& bias, int gating, int64_t groups, int64_t groups_used,
                bool renormalised, float scale, const OutFloats& experts, const OutFloats& weights) {
    require(logits.ndim() == 2 && experts.ndim() == 2 && experts.shape(0) == logits.shape(0) &&
                weights.ndim() == 2 && weights.shape(0) == logits.shape(0) && weights.size() == experts.size(),
            "logits must be (tokens, experts), the results (tokens, used)");
    const auto tokens = int64_t(logits.shape(0)), count = int64_t(logits.shape(1)), used = int64_t(experts.shape(1));
    const Routing its = checked_routing(count, used, gating, groups, groups_used, renormalised, scale);
    require(!bias || int64_t(bias->size()) == count, "a bias for each expert");
    const Computing computing;
    for (int64_t t = 0; t < tokens; ++t)
        route(its, logits.data() + t * count, bias ? bias->data() : nullptr, experts.data() + t * used,
              weights.data() + t * used);
}

using Pages = Array<const int16_t, nb::ndim<4>>;

void bind_attention(const Floats& q, const Pages& pages, int64_t start, float scale, int64_t window, float softcap,
                    const OutFloats& out, const std::optional<Floats>& sinks) {
    require(q.ndim() == 3 && out.size() == q.size(), "q and out must be (tokens, heads, head_dim)");
    AttentionArgs a;
    a.tokens = int64_t(q.shape(0)), a.heads = int64_t(q.shape(1)), a.head_dim = int64_t(q.shape(2));
    a.kv_heads = int64_t(pages.shape(2));
    require(q.size() > 0, "there are no queries");
    // No width of a head has both.
    const auto words = int64_t(pages.shape(3));
    a.kv_type = words == head_words(a.head_dim, KvType::q8) ? KvType::q8 : KvType::f16;
    require(a.kv_heads > 0 && a.heads % a.kv_heads == 0 && pages.shape(1) == 2 && words == head_words(a.head_dim, a.kv_type),
            "pages must be (pages, 2, kv_heads, page_words(head_dim, type)) as in kernels/kv_codes.py");
    require(start >= 0 && window >= 0 && int64_t(pages.shape(0)) * kKeyBlock - a.tokens >= start,
            "the pages must hold every position up to the last query");
    check_scores(scale, softcap);
    std::vector<const int16_t*> each;
    for (size_t i = 0; i < pages.shape(0); ++i) each.push_back(pages.data() + int64_t(i) * pages.stride(0));
    a.q = q.data(), a.pages = each.data(), a.out = out.data();
    require(!sinks || int64_t(sinks->size()) == a.heads, "sinks must be one per head");
    a.start = start, a.scale = scale, a.window = window, a.softcap = softcap;
    a.sinks = sinks ? sinks->data() : nullptr;
    const Computing computing;
    attention({a});
}

void bind_softcap(const Floats& x, float cap, const OutFloats& out) {
    require(x.size() == out.size() && cap > 0.0f, "x and out must have one size, cap must be above 0");
    run_row_op(Op::softcap, int64_t(x.size()), 1024, 1,
               [&](int64_t i0, int64_t i1) { detail::active().softcap(x.data() + i0, i1 - i0, cap, out.data() + i0); });
}

void bind_convolve(const Floats& x, const Floats& weight, const std::optional<Floats>& bias, bool silu,
                   const OutFloats& state, const OutFloats& out) {
    require(x.ndim() == 2 && x.size() > 0 && out.size() == x.size(), "x and out must be (tokens, channels)");
    ConvolveArgs a;
    a.tokens = int64_t(x.shape(0)), a.channels = int64_t(x.shape(1)), a.width = int64_t(weight.size()) / a.channels;
    require(a.width > 0 && int64_t(weight.size()) == a.width * a.channels, "weight must be (channels, width)");
    require(int64_t(state.size()) == (a.width - 1) * a.channels, "state must be (width - 1, channels)");
    require(!bias || int64_t(bias->size()) == a.channels, "bias must be (channels)");
    a.x = x.data(), a.weight = weight.data(), a.state = state.data(), a.out = out.data();
    a.bias = bias ? bias->data() : nullptr, a.silu = silu;
    run_row_op(Op::convolve, a.channels, kLineFloats, a.tokens,
               [&](int64_t c0, int64_t c1) { detail::active().convolve(a, c0, c1); });
}

void bind_delta_rule(const Floats& q, const Floats& k, const Floats& v, const Floats& alpha, const Floats& beta,
                     const Floats& a, const Floats& dt, bool grouped, const OutFloats& state, const OutFloats& out) {
    require(q.ndim() == 3 && k.ndim() == 3 && v.ndim() == 3 && v.size() > 0 && q.size() > 0, "q, k and v must be (tokens, heads, dim)");
    DeltaArgs args;
    args.tokens = int64_t(v.shape(0)), args.heads = int64_t(v.shape(1)), args.value_dim = int64_t(v.shape(2));
    args.key_heads = int64_t(k.shape(1)), args.key_dim = int64_t(k.shape(2));
    require(q.size() == k.size() && q.shape(1) == k.shape(1) && k.shape(0) == v.shape(0) && q.shape(0) == v.shape(0) &&
                args.heads % args.key_heads == 0,
            "q, k and v must have one number of tokens, and heads that key heads divide");
    require(int64_t(a.size()) == args.heads && int64_t(dt.size()) == args.heads &&
                int64_t(alpha.size()) == args.tokens * args.heads && beta.size() == alpha.size(),
            "alpha and beta must be (tokens, heads), a and dt (heads)");
    require(int64_t(state.size()) == args.heads * args.key_dim * args.value_dim && out.size() == v.size(),
            "state must be (heads, key_dim, value_dim), out as v");
    args.q = q.data(), args.k = k.data(), args.v = v.data(), args.alpha = alpha.data(), args.beta = beta.data();
    args.a = a.data(), args.dt = dt.data(), args.state = state.data(), args.out = out.data(), args.grouped = grouped;
    const Computing computing;
    count_call(Op::delta_rule);
    parallel_for(args.heads, [&](int64_t head) { detail::active().delta_rule(args, head); });
}

void bind_selective_scan(const Floats& x, const Floats& b, const Floats& c, const Floats& dt, const Floats& a,
                         const Floats& bias, const Floats& skip, const OutFloats& state, const OutFloats& out) {
    require(x.ndim() == 3 && b.ndim() == 3 && c.ndim() == 3 && x.size() > 0 && b.size() > 0, "x, b and c must be (tokens, heads, dim)");
    ScanArgs args;
    args.tokens = int64_t(x.shape(0)), args.heads = int64_t(x.shape(1)), args.head_dim = int64_t(x.shape(2));
    args.groups = int64_t(b.shape(1)), args.state_size = int64_t(b.shape(2));
    require(b.size() == c.size() && b.shape(1) == c.shape(1) && b.shape(0) == x.shape(0) && c.shape(0) == x.shape(0) &&
                args.heads % args.groups == 0,
            "x, b and c must have one number of tokens, and heads that groups divide");
    require(int64_t(a.size()) == args.heads && bias.size() == a.size() && skip.size() == a.size() &&
                int64_t(dt.size()) == args.tokens * args.heads,
            "dt must be (tokens, heads), a, bias and skip (heads)");
    require(int64_t(state.size()) == args.heads * args.state_size * args.head_dim && out.size() == x.size(),
            "state must be (heads, state_size, head_dim), out as x");
    args.x = x.data(), args.b = b.data(), args.c = c.data(), args.dt = dt.data(), args.a = a.data();
    args.bias = bias.data(), args.skip = skip.data(), args.state = state.data(), args.out = out.data();
    const Computing computing;
    count_call(Op::selective_scan);
    parallel_for(args.heads, [&](int64_t head) { detail::active().selective_scan(args, head); });
}

void bind_turns(const Array<const double>& angles, double scale, const OutFloats& cos, const OutFloats& sin) {
    require(angles.size() == cos.size() && angles.size() == sin.size(), "angles, cos and sin must have one size");
    const Computing computing;
    turns(angles.data(), int64_t(angles.size()), scale, cos.data(), sin.data());
}

}  // namespace

void bind_operations(nb::module_& m) {
    m.def("linear", &bind_linear, "type"_a, "weight"_a.noconvert(), "rows"_a, "cols"_a, "scale"_a,
          "x"_a.noconvert(), "out"_a.noconvert(), "out (tokens, rows) = x (tokens, cols) * weight^T");
    m.def("embed", &bind_embed, "type"_a, "weight"_a.noconvert(), "rows"_a, "cols"_a, "scale"_a,
          "ids"_a.noconvert(), "out"_a.noconvert(), "Weight rows as float32.");
    m.def("rms_norm", &bind_rms_norm, "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a, "out"_a.noconvert());
    m.def("rope", &bind_rope, "x"_a.noconvert(), "cos"_a.noconvert(), "sin"_a.noconvert(), "half"_a,
          "out"_a.noconvert());
    m.def("gate", &bind_gate, "kind"_a, "gate"_a.noconvert(), "up"_a.noconvert(), "out"_a.noconvert(),
          "act(gate) * up; kind 0 silu, 1 gelu (tanh form), 2 squared relu, 3 relu, 4 sigmoid, 5 and 6 clamped "
          "(kernels/ops.py), 7 identity");
    m.def("attention", &bind_attention, "q"_a.noconvert(), "pages"_a.noconvert(), "start"_a, "scale"_a,
          "window"_a, "softcap"_a, "out"_a.noconvert(), "sinks"_a.noconvert().none() = nb::none(),
          "Causal attention over codes of keys and values (kernels/kv_codes.py).");
    m.def("softcap", &bind_softcap, "x"_a.noconvert(), "cap"_a, "out"_a.noconvert(), "cap * tanh(x / cap)");
    m.def("turns", &bind_turns, "angles"_a.noconvert(), "scale"_a, "cos"_a.noconvert(), "sin"_a.noconvert());
    m.def("convolve", &bind_convolve, "x"_a.noconvert(), "weight"_a.noconvert(), "bias"_a.noconvert().none(), "silu"_a,
          "state"_a.noconvert(), "out"_a.noconvert(), "A causal convolution of each channel.");
    m.def("route", &bind_route, "logits"_a.noconvert(), "bias"_a, "gating"_a, "groups"_a, "groups_used"_a,
          "renormalised"_a, "scale"_a, "experts"_a.noconvert(), "weights"_a.noconvert(),
          "Numbers and weights of each token's experts; gating 0 softmax, 1 softmax of the chosen, 2 sigmoid");
    m.def("delta_rule", &bind_delta_rule, "q"_a.noconvert(), "k"_a.noconvert(), "v"_a.noconvert(),
          "alpha"_a.noconvert(), "beta"_a.noconvert(), "a"_a.noconvert(), "dt"_a.noconvert(), "grouped"_a,
          "state"_a.noconvert(), "out"_a.noconvert(), "The gated delta rule (native/kernels/isa/kernels.hpp).");
    m.def("selective_scan", &bind_selective_scan, "x"_a.noconvert(), "b"_a.noconvert(), "c"_a.noconvert(),
          "dt"_a.noconvert(), "a"_a.noconvert(), "bias"_a.noconvert(), "skip"_a.noconvert(), "state"_a.noconvert(),
          "out"_a.noconvert(), "The scan of Mamba-2 (native/kernels/isa/kernels.hpp).");
}

}  // namespace bitnet
