// What every file needs that shows kernels to Python: arrays, a ValueError for what they lack, and
// the state in which they are computed with.
#pragma once

#include <nanobind/ndarray.h>

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

// The type of a matrix, whose bytes *weight* has.
inline Type checked_type(int type, int64_t rows, int64_t cols, const Bytes& weight) {
    require(type >= 0 && type < kTypes, "unknown weight type");
    require(rows > 0 && cols > 0 && row_bytes(Type(type), cols) > 0, "cols is not a whole number of blocks");
    require(rows <= INT64_MAX / (8 * cols), "the matrix is too large");
    require(int64_t(weight.size()) >= weight_bytes(Type(type), rows, cols), "weight has too few bytes");
    return Type(type);
}

// While kernels run: without the interpreter's lock, in the floating-point mode they are written for.
struct Computing {
    const Released released;
    const FloatMode mode;
};

}  // namespace bitnet
