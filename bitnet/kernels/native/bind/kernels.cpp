// Python's view of the operations: arrays in, arrays out, the GIL released while they run.
//
// Outputs are allocated by the caller and never converted: a wrong dtype is a TypeError.
#include "bind/kernels.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "system/arena.hpp"
#include "bind/arrays.hpp"
#include "isa/dispatch.hpp"
#include "ops/counters.hpp"
#include "ops/linear.hpp"
#include "ops/ops.hpp"
#include "system/split.hpp"
#include "system/thread_pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace bitnet {
namespace {

using Floats = Array<const float>;
using OutFloats = Array<float>;
using Bytes = Array<const uint8_t>;

Type checked_type(int type, int64_t rows, int64_t cols, const Bytes& weight) {
    require(type >= 0 && type < kTypes, "unknown weight type");
    require(rows > 0 && cols > 0 && row_bytes(Type(type), cols) > 0, "cols is not a whole number of blocks");
    require(rows <= INT64_MAX / (8 * cols), "the matrix is too large");
    require(int64_t(weight.size()) >= weight_bytes(Type(type), rows, cols), "weight has too few bytes");
    return Type(type);
}

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

bool bind_has_kernel(int type) {
    require(type >= 0 && type < kTypes, "unknown weight type");
    return has_kernel(Type(type));
}

bool bind_take_prefill(int type, const std::string& level) {
    require(type >= 0 && type < kTypes, "unknown weight type");
    return take_prefill(Type(type), level);
}

int64_t bind_row_bytes(int type, int64_t cols) {
    require(type >= 0 && type < kTypes && cols > 0, "unknown weight type, or no columns");
    return row_bytes(Type(type), cols);
}

nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> bind_allocate(size_t size) {
    std::shared_ptr<uint8_t> memory = allocate_weights(size);
    if (!memory) throw std::bad_alloc();
    uint8_t* bytes = memory.get();
    const nb::capsule owner(new std::shared_ptr<uint8_t>(std::move(memory)),
                            [](void* p) noexcept { delete static_cast<std::shared_ptr<uint8_t>*>(p); });
    return {bytes, {size}, owner};
}

void bind_pack_rows(int type, const Bytes& weight, int64_t rows, int64_t cols, const Array<uint8_t>& out) {
    const Type checked = checked_type(type, rows, cols, weight);
    require(can_tile(checked), "the encoding has no form with interleaved rows");
    const int64_t stored = (rows + kTileRows - 1) / kTileRows * kTileRows;
    require(int64_t(out.size()) == stored * row_bytes(tiled(checked), cols), "out has the wrong size");
    const Computing computing;
    pack_rows(checked, weight.data(), rows, cols, out.data());
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
    require(kind >= 0 && kind <= int(Gate::relu), "unknown gate");
    require(g.size() == up.size() && g.size() == out.size(), "gate, up and out must have one size");
    run_row_op(Op::gate, int64_t(g.size()), 1024, 1, [&](int64_t i0, int64_t i1) {
        detail::active().gate(Gate(kind), g.data() + i0, up.data() + i0, i1 - i0, out.data() + i0);
    });
}

using Pages = Array<const uint16_t, nb::ndim<4>>;

void bind_attention(const Floats& q, const Pages& pages, int64_t start, float scale, int64_t window, float softcap,
                    const OutFloats& out) {
    require(q.ndim() == 3 && out.size() == q.size(), "q and out must be (tokens, heads, head_dim)");
    AttentionArgs a;
    a.tokens = int64_t(q.shape(0)), a.heads = int64_t(q.shape(1)), a.head_dim = int64_t(q.shape(2));
    a.kv_heads = int64_t(pages.shape(2));
    require(a.tokens > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0 && pages.shape(1) == 2 &&
                int64_t(pages.shape(3)) == a.head_dim * kKeyBlock,
            "pages must be (pages, 2, kv_heads, head_dim * 64)");
    require(start >= 0 && window >= 0 && int64_t(pages.shape(0)) * kKeyBlock >= start + a.tokens,
            "the pages must hold every position up to the last query");
    std::vector<const uint16_t*> each;
    for (size_t i = 0; i < pages.shape(0); ++i) each.push_back(pages.data() + int64_t(i) * pages.stride(0));
    a.q = q.data(), a.pages = each.data(), a.out = out.data();
    a.start = start, a.scale = scale, a.window = window, a.softcap = softcap;
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

void bind_to_half(const Floats& x, const Array<uint16_t>& out) {
    require(x.size() == out.size(), "x and out must have one size");
    const Computing computing;
    to_half(x.data(), int64_t(x.size()), out.data());
}

uint64_t bind_sum_bytes(const Bytes& bytes) {
    const Computing computing;
    return sum_bytes(bytes.data(), int64_t(bytes.size()));
}

std::vector<std::string> type_names() {
    std::vector<std::string> names;
    for (const Encoding& each : kEncodings) names.emplace_back(each.name);
    return names;
}

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names = levels();
    names.erase(names.begin());  // scalar
    return names;
}

}  // namespace

void bind_kernels(nb::module_& m) {
    m.def("kernel_types", &type_names, "Names of the weight encodings; a name's place is its type number.");
    m.def("cpu_features", &instruction_sets, "Names of the instruction sets that can be used on this machine.");
    m.def("kernel_levels", &levels, "Instruction sets the kernels can use here, slowest first.");
    m.def("kernel_level", &level, "The instruction set in use.");
    m.def("set_kernel_level", &set_level, "name"_a, "Use another of kernel_levels(); False if it is none.");
    m.def("has_kernel", &bind_has_kernel, "type"_a, "Whether the level in use has a kernel of its own for a type.");
    m.def("take_prefill", &bind_take_prefill, "type"_a, "level"_a,
          "Multiply batches of a type with the kernel of another level, or of this one again; False if it is the same.");
    m.def("kernel_self_test", &self_test, "Compare with scalar; names of the kernels that were replaced.");
    m.def("plant_wrong_kernel", &plant_wrong_kernel, "what"_a,
          "For tests of kernel_self_test: a kernel is wrong until set_kernel_level; False if there is none of that name.");
    m.def("kernel_counters", &counters, "Calls of each kernel since the process began.");
    m.def("threads", &threads, "Compute threads.");
    m.def("set_threads", &set_threads, "count"_a, "Change the number of compute threads.");
    m.def("linear", &bind_linear, "type"_a, "weight"_a.noconvert(), "rows"_a, "cols"_a, "scale"_a,
          "x"_a.noconvert(), "out"_a.noconvert(), "out (tokens, rows) = x (tokens, cols) * weight^T");
    m.def("row_bytes", &bind_row_bytes, "type"_a, "cols"_a, "Bytes of a row, 0 if cols is no whole number of blocks.");
    m.def("allocate_weights", &bind_allocate, "size"_a, "Bytes for a repacked matrix, near those of others.");
    m.def("pack_rows", &bind_pack_rows, "type"_a, "weight"_a.noconvert(), "rows"_a, "cols"_a,
          "out"_a.noconvert(), "The matrix with its rows interleaved 16 by 16: type NAME_R16.");
    m.def("embed", &bind_embed, "type"_a, "weight"_a.noconvert(), "rows"_a, "cols"_a, "scale"_a,
          "ids"_a.noconvert(), "out"_a.noconvert(), "Weight rows as float32.");
    m.def("rms_norm", &bind_rms_norm, "x"_a.noconvert(), "weight"_a.noconvert(), "eps"_a, "out"_a.noconvert());
    m.def("rope", &bind_rope, "x"_a.noconvert(), "cos"_a.noconvert(), "sin"_a.noconvert(), "half"_a,
          "out"_a.noconvert());
    m.def("gate", &bind_gate, "kind"_a, "gate"_a.noconvert(), "up"_a.noconvert(), "out"_a.noconvert(),
          "act(gate) * up; kind 0 silu, 1 gelu (tanh form), 2 squared relu, 3 relu");
    m.def("attention", &bind_attention, "q"_a.noconvert(), "pages"_a.noconvert(), "start"_a, "scale"_a,
          "window"_a, "softcap"_a, "out"_a.noconvert(),
          "Causal attention over f16 keys (kv_heads, head_dim, 64) and values (kv_heads, 64, head_dim).");
    m.def("softcap", &bind_softcap, "x"_a.noconvert(), "cap"_a, "out"_a.noconvert(), "cap * tanh(x / cap)");
    m.def("turns", &bind_turns, "angles"_a.noconvert(), "scale"_a, "cos"_a.noconvert(), "sin"_a.noconvert());
    m.def("sum_bytes", &bind_sum_bytes, "bytes"_a.noconvert(), "Sum of 64-bit words, at the speed of memory.");
    m.def("to_half", &bind_to_half, "x"_a.noconvert(), "out"_a.noconvert(), "Bits of the nearest f16.");
}

}  // namespace bitnet
