// What every file needs that shows kernels to Python: arrays, a ValueError for what they lack, and
// the state in which they are computed with.
#pragma once

#include <nanobind/ndarray.h>

#include <cmath>

#include "ops/experts.hpp"
#include "ops/ops.hpp"
#include "system/float_mode.hpp"
#include "bind/module.hpp"

namespace bitnet {

// Row-major, in memory; *More* may say how many axes.
template <class T, class... More>
using Array = nanobind::ndarray<T, More..., nanobind::c_contig, nanobind::device::cpu>;
using Floats = Array<const float>;
using OutFloats = Array<float>;
using Bytes = Array<const uint8_t>;
using OutBytes = Array<uint8_t>;

inline void require(bool condition, const char* what) {
    if (!condition) throw nanobind::value_error(what);
}

// The type of a matrix, whose bytes *weight* has.
inline Type checked_type(int type, int64_t rows, int64_t cols, const Bytes& weight) {
    require(type >= 0 && type < kTypes, "unknown weight type");
    require(rows > 0 && cols > 0 && row_bytes(Type(type), cols) > 0, "cols is not a whole number of blocks");
    require(rows <= INT64_MAX / (8 * cols), "the matrix is too large");
    require(int64_t(weight.size()) >= weight_bytes(Type(type), rows, cols), "weight has too few bytes");
    return Type(type);
}

inline Gate checked_gate(int kind) {
    require(kind >= 0 && kind <= int(Gate::identity), "unknown gate");
    return Gate(kind);
}

inline Routing checked_routing(int64_t count, int64_t used, int gating, int64_t groups, int64_t groups_used,
                               bool renormalised, float scale) {
    require(gating >= 0 && gating <= int(Gating::sigmoid) && std::isfinite(scale), "unknown gating, or no scale");
    require(groups > 0 && count % groups == 0 && groups_used > 0 && groups_used <= groups, "groups of no sense");
    require(used > 0 && used <= count / groups * groups_used, "fewer experts than are to be chosen");
    return {count, used, groups, groups_used, Gating(gating), renormalised, scale};
}

inline void check_scores(float scale, float softcap) {
    require(std::isfinite(scale) && std::isfinite(softcap) && softcap >= 0.0f, "scale or softcap is out of range");
}

// While kernels run: without the interpreter's lock, in the floating-point mode they are written for.
struct Computing {
    const Released released;
    const FloatMode mode;
};

}  // namespace bitnet
