// What every file needs that shows kernels to Python: arrays, and a ValueError for what they lack.
#pragma once

#include <nanobind/ndarray.h>

namespace bitnet {

// Row-major, in memory; *More* may say how many axes.
template <class T, class... More>
using Array = nanobind::ndarray<T, More..., nanobind::c_contig, nanobind::device::cpu>;

inline void require(bool condition, const char* what) {
    if (!condition) throw nanobind::value_error(what);
}

}  // namespace bitnet
