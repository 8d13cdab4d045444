// Python's view of the kernels: which there are, their counters and threads, and how weights are packed for them.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/module.hpp"
#include "ops/ops.hpp"
#include "ops/linear.hpp"
#include "system/thread_pool.hpp"
#include "ternary/layout.hpp"

namespace bitnet {
namespace {

nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> bind_allocate(size_t size) {
    std::shared_ptr<uint8_t> memory = allocate_weights(size);
    if (!memory) throw std::bad_alloc();
    uint8_t* bytes = memory.get();
    const nb::capsule owner(new std::shared_ptr<uint8_t>(std::move(memory)),
                            [](void* p) noexcept { delete static_cast<std::shared_ptr<uint8_t>*>(p); });
    return {bytes, {size}, owner};
}

Type known_row_type(int type) {
    return require(can_tile(known_type(type)), "the encoding has no form with interleaved rows"), Type(type);
}

void bind_pack_rows(int type, const Bytes& weight, int64_t rows, int64_t cols, const OutBytes& out) {
    const Type checked = checked_type(type, rows, cols, weight);
    known_row_type(type);
    require(int64_t(out.size()) == weight_bytes(tiled(checked), rows, tiled_cols(checked, cols)), "out has the wrong size");
    const Computing computing;
    pack_rows(checked, weight.data(), rows, cols, out.data());
}

void bind_quantize_rows(int ggml_id, const Floats& x, const std::optional<Floats>& importance, const OutBytes& out) {
    const Quantizer* found = find_quantizer(ggml_id);
    require(found != nullptr, "the type has no quantizer");
    const Quantizer& its = *found;
    require(x.ndim() == 2 && x.size() > 0 && int64_t(x.shape(1)) % its.weights == 0, "x must be (rows, cols) of whole blocks");
    require(int64_t(out.size()) == int64_t(x.size()) / its.weights * its.bytes, "out has the wrong size");
    require(!importance || importance->size() == x.shape(1), "importance must be (cols,)");
    const Computing computing;
    quantize_rows(its, x.data(), importance ? importance->data() : nullptr, int64_t(x.shape(0)), int64_t(x.shape(1)),
                  out.data());
}

// In the order of TernarySource; encodings by the names the quants package gives them.
constexpr std::string_view kSources[] = {"CODES", "I2_S", "TQ2_0", "TQ1_0", "PACKED_U8", "IQ2_BN"};
static_assert(sizeof(kSources) / sizeof(kSources[0]) == size_t(TernarySource::kCount));

bool bind_pack_ternary(const std::string& source, const Bytes& weight, int64_t rows, int64_t inputs, int type, int64_t cols,
               const OutBytes& out) {
    const auto kind = TernarySource(place_of(kSources, source, "unknown ternary source"));
    const int64_t size = rows > 0 && inputs > 0 ? ternary_source_bytes(kind, rows, inputs) : 0;
    require(size > 0 && int64_t(weight.size()) >= size, "weight has too few bytes or a wrong shape");
    require(type >= 0 && type < kTypes && is_ternary(Type(type)), "unknown ternary type");
    const auto packed = Type(type);
    require(cols >= inputs && cols % ternary_step(packed) == 0 && int64_t(out.size()) >= ternary_code_bytes(packed, rows, cols),
            "out must hold whole tiles of cols columns");
    require(packed != Type::TernaryDense || cols <= kDenseCols, "too many columns for dense tiles");
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

}  // namespace

void bind_kernels(nb::module_& m) {
    m.def("kernel_types", &type_names);
    m.def("kernel_levels", &levels);
    m.def("kernel_level", &level);
    m.def("set_kernel_level", &set_level, "name"_a);
    m.def("has_kernel", [](int type) { return has_kernel(known_type(type)); }, "type"_a);
    m.def("dense_pays", &dense_pays);
    m.def("kernel_self_test", &self_test);
    m.def("kernel_counters", &counters);
    m.def("threads", &threads);
    m.def("set_threads", &set_threads, "count"_a);
    m.def("row_bytes", [](int type, int64_t cols) { return row_bytes(known_type(type), cols); }, "type"_a, "cols"_a);
    m.def("allocate_weights", &bind_allocate, "size"_a);
    m.def("pack_rows", &bind_pack_rows, "type"_a, "weight"_a.noconvert(), "rows"_a, "cols"_a, "out"_a.noconvert());
    m.def("pack_ternary", &bind_pack_ternary, "source"_a, "weight"_a.noconvert(), "rows"_a, "inputs"_a, "type"_a, "cols"_a,
          "out"_a.noconvert());
    m.def("tiled_columns", [](int type, int64_t cols) { return tiled_cols(known_row_type(type), cols); }, "type"_a, "cols"_a);
    m.def("quantize_rows", &bind_quantize_rows, "ggml_id"_a, "x"_a.noconvert(), "importance"_a.none(), "out"_a.noconvert());
    m.def("sum_bytes", &bind_sum_bytes, "bytes"_a.noconvert());
}

}  // namespace bitnet
