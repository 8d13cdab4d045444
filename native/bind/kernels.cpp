// Python's view of the kernels: which there are, their counters and threads, and how weights are packed for them.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bind/arrays.hpp"
#include "encodings/quantize.hpp"
#include "isa/cpu.hpp"
#include "ops/counters.hpp"
#include "ops/linear.hpp"
#include "ops/ops.hpp"
#include "system/arena.hpp"
#include "system/thread_pool.hpp"
#include "ternary/layout.hpp"

namespace bitnet {
namespace {

bool bind_has_kernel(int type) {
    require(type >= 0 && type < kTypes, "unknown weight type");
    return has_kernel(Type(type));
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

void bind_pack_rows(int type, const Bytes& weight, int64_t rows, int64_t cols, const OutBytes& out) {
    const Type checked = checked_type(type, rows, cols, weight);
    require(can_tile(checked), "the encoding has no form with interleaved rows");
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
constexpr const char* kSources[] = {"CODES", "I2_S", "TQ2_0", "TQ1_0", "PACKED_U8", "IQ2_BN"};
static_assert(sizeof(kSources) / sizeof(kSources[0]) == size_t(TernarySource::kCount));

bool bind_pack_ternary(const std::string& source, const Bytes& weight, int64_t rows, int64_t inputs, int type, int64_t cols,
               const OutBytes& out) {
    const auto* found = std::find(std::begin(kSources), std::end(kSources), source);
    require(found != std::end(kSources), "unknown ternary source");
    const auto kind = TernarySource(found - std::begin(kSources));
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

int64_t bind_tiled_columns(int type, int64_t cols) {
    require(type >= 0 && type < kTypes && can_tile(Type(type)) && cols > 0, "the encoding has no form with interleaved rows");
    return tiled_cols(Type(type), cols);
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
    m.def("dense_pays", &dense_pays, "Whether the level in use multiplies dense ternary weights faster.");
    m.def("kernel_self_test", &self_test, "Compare with scalar; names of the kernels that were replaced.");
    m.def("plant_wrong_kernel", &plant_wrong_kernel, "what"_a,
          "For tests of kernel_self_test: a kernel is wrong until set_kernel_level; False if there is none of that name.");
    m.def("kernel_counters", &counters, "Calls of each kernel since the process began.");
    m.def("threads", &threads, "Compute threads.");
    m.def("set_threads", &set_threads, "count"_a, "Change the number of compute threads.");
    m.def("row_bytes", &bind_row_bytes, "type"_a, "cols"_a, "Bytes of a row, 0 if cols is not a whole number of blocks.");
    m.def("allocate_weights", &bind_allocate, "size"_a, "Bytes for a repacked matrix, near those of others.");
    m.def("pack_rows", &bind_pack_rows, "type"_a, "weight"_a.noconvert(), "rows"_a, "cols"_a, "out"_a.noconvert(),
          "The matrix with its rows interleaved 16 by 16, of type NAME_R16 and tiled_columns.");
    m.def("pack_ternary", &bind_pack_ternary, "source"_a, "weight"_a.noconvert(), "rows"_a, "inputs"_a, "type"_a, "cols"_a,
          "out"_a.noconvert(), "Pack a ternary matrix into tiles; False if a code means nothing.");
    m.def("tiled_columns", &bind_tiled_columns, "type"_a, "cols"_a, "Columns of a matrix of cols as pack_rows makes it.");
    m.def("quantize_rows", &bind_quantize_rows, "ggml_id"_a, "x"_a.noconvert(), "importance"_a.none(),
          "out"_a.noconvert(), "Round rows of floats to blocks as llama-quantize does.");
    m.def("sum_bytes", &bind_sum_bytes, "bytes"_a.noconvert(), "Sum of 64-bit words, at the speed of memory.");
}

}  // namespace bitnet
