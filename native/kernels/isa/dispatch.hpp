#pragma once

#include <vector>

#include "isa/kernels.hpp"

namespace bitnet::detail {

// The kernels in use.
const Kernels& active();
// The same, for those who replace some of them.
Kernels& chosen();
// The tables of all levels that this machine offers, as they are before a kernel is replaced, slowest first.
const std::vector<const Kernels*>& offered();

}  // namespace bitnet::detail
