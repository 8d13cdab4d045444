// Python's view of the operations by themselves: what they require of their operands stands here. Outputs are allocated
// by the caller and never converted, so a wrong dtype is a TypeError.
#include "bind/module.hpp"

#include <nanobind/stl/optional.h>

#include <optional>

#include "ops/linear.hpp"
#include "system/thread_pool.hpp"

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

void bind_turns(const Array<const double>& angles, double scale, const OutFloats& cos, const OutFloats& sin) {
    require(angles.size() == cos.size() && angles.size() == sin.size(), "angles, cos and sin must have one size");
    const Computing computing;
    turns(angles.data(), int64_t(angles.size()), scale, cos.data(), sin.data());
}

}  // namespace

void bind_operations(nb::module_& m) {
    m.def("linear", &bind_linear, "type"_a, "weight"_a.noconvert(), "rows"_a, "cols"_a, "scale"_a, "x"_a.noconvert(),
          "out"_a.noconvert());
    m.def("embed", &bind_embed, "type"_a, "weight"_a.noconvert(), "rows"_a, "cols"_a, "scale"_a, "ids"_a.noconvert(),
          "out"_a.noconvert());
    m.def("rope", &bind_rope, "x"_a.noconvert(), "cos"_a.noconvert(), "sin"_a.noconvert(), "half"_a, "out"_a.noconvert());
    m.def("attention", &bind_attention, "q"_a.noconvert(), "pages"_a.noconvert(), "start"_a, "scale"_a, "window"_a,
          "softcap"_a, "out"_a.noconvert(), "sinks"_a.noconvert().none() = nb::none());
    m.def("softcap", &bind_softcap, "x"_a.noconvert(), "cap"_a, "out"_a.noconvert());
    m.def("turns", &bind_turns, "angles"_a.noconvert(), "scale"_a, "cos"_a.noconvert(), "sin"_a.noconvert());
}

}  // namespace bitnet
