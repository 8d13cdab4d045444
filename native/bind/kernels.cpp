// Python binding of the kernels: the instruction sets, counters and threads; packing and quantizing
// of weights; and single operations, whose operands are checked here.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bind/module.hpp"
#include "ops/ops.hpp"
#include "ops/linear.hpp"
#include "system/thread_pool.hpp"
#include "ternary/layout.hpp"

namespace bitnet {
namespace {

// Array of *size* bytes of allocate_weights, which are freed with it.
nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> bind_allocate(size_t size) {
    std::shared_ptr<uint8_t> memory = allocate_weights(size);
    if (!memory) throw std::bad_alloc();
    uint8_t* bytes = memory.get();
    const nb::capsule owner(new std::shared_ptr<uint8_t>(std::move(memory)), [](void* p) noexcept {
        delete static_cast<std::shared_ptr<uint8_t>*>(p);
    });
    return {bytes, {size}, owner};
}

// *type*, which must be an encoding in rows that `tiled` has a form for.
Type checked_row_type(int type) {
    require(can_tile(known_type(type)), "the encoding has no form with interleaved rows");
    return Type(type);
}

void bind_pack_rows(int type, const Bytes& weight, int64_t rows, int64_t cols,
                    const OutBytes& out) {
    const Type checked = checked_type(type, rows, cols, weight);
    checked_row_type(type);
    require(int64_t(out.size()) == weight_bytes(tiled(checked), rows, tiled_cols(checked, cols)),
            "out has the wrong size");
    const Computing computing;
    pack_rows(checked, weight.data(), rows, cols, out.data());
}

void bind_quantize_rows(int ggml_id, const Floats& x, const std::optional<Floats>& importance,
                        const OutBytes& out) {
    const Quantizer* address = find_quantizer(ggml_id);
    require(address != nullptr, "the type has no quantizer");
    const Quantizer& quantizer = *address;
    require(x.ndim() == 2 && x.size() > 0 && int64_t(x.shape(1)) % quantizer.weights == 0,
            "x must be (rows, cols) of whole blocks");
    require(int64_t(out.size()) == int64_t(x.size()) / quantizer.weights * quantizer.bytes,
            "out has the wrong size");
    require(!importance || importance->size() == x.shape(1), "importance must be (cols,)");
    const Computing computing;
    quantize_rows(quantizer, x.data(), importance ? importance->data() : nullptr,
                  int64_t(x.shape(0)), int64_t(x.shape(1)), out.data());
}

// Names of TernarySource, in its order; those of encodings of files are as in bitnet/quants.
constexpr std::string_view kSources[] = {"CODES", "I2_S", "TQ2_0", "TQ1_0", "PACKED_U8", "IQ2_BN"};
static_assert(sizeof(kSources) / sizeof(kSources[0]) == size_t(TernarySource::kCount));

// False if a weight is not ternary; see pack_ternary.
bool bind_pack_ternary(const std::string& source, const Bytes& weight, int64_t rows, int64_t inputs,
                       int type, int64_t cols, const OutBytes& out) {
    const auto kind = TernarySource(place_of(kSources, source, "unknown ternary source"));
    check_shape(rows, inputs);
    check_shape(rows, cols);
    const int64_t size = ternary_source_bytes(kind, rows, inputs);
    require(size > 0 && int64_t(weight.size()) >= size,
            "weight has too few bytes or a wrong shape");
    require(type >= 0 && type < kTypes && is_ternary(Type(type)), "unknown ternary type");
    const auto packed = Type(type);
    require(cols >= inputs && cols % ternary_step(packed) == 0 &&
                int64_t(out.size()) >= ternary_code_bytes(packed, rows, cols),
            "out must hold whole tiles of cols columns");
    require(cols <= most_ternary_cols(packed), "too many columns for ternary tiles");
    const Computing computing;
    return pack_ternary(kind, weight.data(), rows, inputs, packed, cols, out.data());
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

// ---- single operations: the caller allocates the outputs. Arrays are never converted, so a wrong
// dtype is a TypeError

void bind_linear(int type, const Bytes& weight, int64_t rows, int64_t cols, float scale,
                 const Floats& x, const OutFloats& out) {
    const Type checked = checked_type(type, rows, cols, weight);
    const int64_t tokens = int64_t(x.size()) / cols;
    require(int64_t(x.size()) == tokens * cols && int64_t(out.size()) == tokens * rows,
            "x must be (tokens, cols) and out (tokens, rows)");
    LinearJob job;
    job.matrix.type = checked;
    job.matrix.data = weight.data();
    job.matrix.scale = scale;
    job.matrix.rows = rows;
    job.matrix.cols = job.matrix.inputs = cols;
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

// Counts one call of *op* and divides *n* units, of *work* elements each, among the threads:
// body(begin, end) for parts that are a multiple of *multiple* units.
template <class F>
void run_row_op(Op op, int64_t n, int64_t multiple, int64_t work, F&& body) {
    const Computing computing;
    count_call(op);
    Split(n, multiple, n * work < kSerialWork).run(body);
}

void bind_rope(const Floats& x, const Floats& cos, const Floats& sin, bool half,
               const OutFloats& out) {
    require(x.ndim() == 3 && cos.ndim() == 2 && cos.shape(0) == x.shape(0) &&
                cos.size() == sin.size() && out.size() == x.size() &&
                2 * cos.shape(1) <= x.shape(2),
            "x must be (tokens, heads, head_dim), cos and sin (tokens, rotated / 2)");
    RopeArgs a;
    a.x = x.data();
    a.cos = cos.data();
    a.sin = sin.data();
    a.out = out.data();
    a.heads = int64_t(x.shape(1));
    a.head_dim = int64_t(x.shape(2));
    a.rotated = 2 * int64_t(cos.shape(1));
    a.half = half;
    run_row_op(Op::rope, int64_t(x.shape(0)), 1, a.heads * a.head_dim,
               [&](int64_t t0, int64_t t1) { detail::active().rope(a, t0, t1); });
}

using Pages = Array<const int16_t, nb::ndim<4>>;

void bind_attention(const Floats& q, const Pages& pages, int64_t start, float scale, int64_t window,
                    float softcap, const OutFloats& out, const std::optional<Floats>& sinks) {
    require(q.ndim() == 3 && out.size() == q.size(), "q and out must be (tokens, heads, head_dim)");
    AttentionArgs a;
    a.tokens = int64_t(q.shape(0));
    a.heads = int64_t(q.shape(1));
    a.head_dim = int64_t(q.shape(2));
    a.kv_heads = int64_t(pages.shape(2));
    require(q.size() > 0, "there are no queries");
    // The type follows from the size: for one head_dim, those of the two types always differ.
    const auto words = int64_t(pages.shape(3));
    a.kv_type = words == head_words(a.head_dim, KvType::q8) ? KvType::q8 : KvType::f16;
    require(
        a.kv_heads > 0 && a.heads % a.kv_heads == 0 && pages.shape(1) == 2 &&
            words == head_words(a.head_dim, a.kv_type),
        "pages must be (pages, 2, kv_heads, page_words(head_dim, type)) as in kernels/kv_codes.py");
    require(start >= 0 && window >= 0 && int64_t(pages.shape(0)) * kKeyBlock - a.tokens >= start,
            "the pages must hold every position up to the last query");
    check_scores(scale, softcap);
    std::vector<const int16_t*> starts;
    for (size_t i = 0; i < pages.shape(0); ++i)
        starts.push_back(pages.data() + int64_t(i) * pages.stride(0));
    a.q = q.data();
    a.pages = starts.data();
    a.out = out.data();
    require(!sinks || int64_t(sinks->size()) == a.heads, "sinks must be one per head");
    a.start = start;
    a.scale = scale;
    a.window = window;
    a.softcap = softcap;
    a.sinks = sinks ? sinks->data() : nullptr;
    const Computing computing;
    attention({a});
}

void bind_softcap(const Floats& x, float cap, const OutFloats& out) {
    require(x.size() == out.size() && cap > 0.0f,
            "x and out must have one size, cap must be above 0");
    run_row_op(Op::softcap, int64_t(x.size()), 1024, 1, [&](int64_t i0, int64_t i1) {
        detail::active().softcap(x.data() + i0, i1 - i0, cap, out.data() + i0);
    });
}

// Cosines and sines of *angles*, times *scale*.
void bind_turns(const Array<const double>& angles, double scale, const OutFloats& cos,
                const OutFloats& sin) {
    require(angles.size() == cos.size() && angles.size() == sin.size(),
            "angles, cos and sin must have one size");
    const Computing computing;
    turns(angles.data(), int64_t(angles.size()), scale, cos.data(), sin.data());
}

}  // namespace

void bind_kernels(nb::module_& m) {
    m.def("linear", &bind_linear, "type"_a, "weight"_a.noconvert(), "rows"_a, "cols"_a, "scale"_a,
          "x"_a.noconvert(), "out"_a.noconvert());
    m.def("embed", &bind_embed, "type"_a, "weight"_a.noconvert(), "rows"_a, "cols"_a, "scale"_a,
          "ids"_a.noconvert(), "out"_a.noconvert());
    m.def("rope", &bind_rope, "x"_a.noconvert(), "cos"_a.noconvert(), "sin"_a.noconvert(), "half"_a,
          "out"_a.noconvert());
    m.def("attention", &bind_attention, "q"_a.noconvert(), "pages"_a.noconvert(), "start"_a,
          "scale"_a, "window"_a, "softcap"_a, "out"_a.noconvert(),
          "sinks"_a.noconvert().none() = nb::none());
    m.def("softcap", &bind_softcap, "x"_a.noconvert(), "cap"_a, "out"_a.noconvert());
    m.def("turns", &bind_turns, "angles"_a.noconvert(), "scale"_a, "cos"_a.noconvert(),
          "sin"_a.noconvert());
    m.def("kernel_types", &type_names);
    m.def("kernel_levels", &levels);
    m.def("kernel_level", &level);
    m.def("set_kernel_level", &set_level, "name"_a);
    m.def("has_kernel", [](int type) { return has_kernel(known_type(type)); }, "type"_a);
    m.def("dense_pays", &dense_pays);
    // Keeps the interpreter's lock, because it may change the level that other calls use.
    m.def("kernel_self_test", [] {
        const FloatMode mode;
        return self_test();
    });
    m.def("kernel_counters", &counters);
    m.def("threads", &threads);
    m.def("set_threads", &set_threads, "count"_a);
    m.def(
        "row_bytes", [](int type, int64_t cols) { return row_bytes(known_type(type), cols); },
        "type"_a, "cols"_a);
    m.def("allocate_weights", &bind_allocate, "size"_a);
    m.def("pack_rows", &bind_pack_rows, "type"_a, "weight"_a.noconvert(), "rows"_a, "cols"_a,
          "out"_a.noconvert());
    m.def("pack_ternary", &bind_pack_ternary, "source"_a, "weight"_a.noconvert(), "rows"_a,
          "inputs"_a, "type"_a, "cols"_a, "out"_a.noconvert());
    m.def(
        "tiled_columns",
        [](int type, int64_t cols) { return tiled_cols(checked_row_type(type), cols); }, "type"_a,
        "cols"_a);
    m.def("quantize_rows", &bind_quantize_rows, "ggml_id"_a, "x"_a.noconvert(),
          "importance"_a.none(), "out"_a.noconvert());
    m.def("sum_bytes", &bind_sum_bytes, "bytes"_a.noconvert());
}

}  // namespace bitnet
