// What every file needs that shows kernels to Python: arrays, a ValueError for what they lack, and
// the state in which they are computed with.
#pragma once

#include <nanobind/ndarray.h>

#include "system/float_mode.hpp"
#include "released.hpp"

namespace bitnet {

// Row-major, in memory; *More* may say how many axes.
template <class T, class... More>
using Array = nanobind::ndarray<T, More..., nanobind::c_contig, nanobind::device::cpu>;

inline void require(bool condition, const char* what) {
    if (!condition) throw nanobind::value_error(what);
}

// While kernels run: without the interpreter's lock, in the floating-point mode they are written for.
struct Computing {
    const Released released;
    const FloatMode mode;
};

}  // namespace bitnet
