// Python's view of ternary packing.
#include "bind/kernels.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>

#include "bind/arrays.hpp"
#include "ternary/layout.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace bitnet {
namespace {

// In the order of TernarySource; encodings by the names the quants package gives them.
constexpr const char* kSources[] = {"CODES", "I2_S", "TQ2_0", "TQ1_0", "PACKED_U8", "IQ2_BN"};
static_assert(sizeof(kSources) / sizeof(kSources[0]) == size_t(TernarySource::kCount));

bool bind_pack(const std::string& source, const Bytes& weight, int64_t rows, int64_t inputs, int type, int64_t cols,
               const OutBytes& out) {
    const auto* found = std::find(std::begin(kSources), std::end(kSources), source);
    if (found == std::end(kSources)) throw nb::value_error("unknown ternary source");
    const auto kind = TernarySource(found - std::begin(kSources));
    const int64_t size = rows > 0 && inputs > 0 ? ternary_source_bytes(kind, rows, inputs) : 0;
    if (size == 0 || int64_t(weight.size()) < size) throw nb::value_error("weight has too few bytes or a wrong shape");
    if (type < 0 || type >= kTypes || !is_ternary(Type(type))) throw nb::value_error("unknown ternary type");
    const auto packed = Type(type);
    if (cols < inputs || cols % ternary_step(packed) || int64_t(out.size()) < ternary_code_bytes(packed, rows, cols))
        throw nb::value_error("out must hold whole tiles of cols columns");
    if (packed == Type::TernaryDense && cols > kDenseCols) throw nb::value_error("too many columns for dense tiles");
    const Computing computing;
    return pack_ternary(kind, weight.data(), rows, inputs, packed, cols, out.data());
}

}  // namespace

void bind_ternary(nb::module_& m) {
    m.def("pack_ternary", &bind_pack, "source"_a, "weight"_a.noconvert(), "rows"_a, "inputs"_a, "type"_a, "cols"_a,
          "out"_a.noconvert(), "Pack a ternary matrix into tiles; False if a code means nothing.");
}

}  // namespace bitnet
