#pragma once

#include "isa/kernels.hpp"

namespace bitnet::detail {

// The kernels in use.
const Kernels& active();
// The same, for those who replace some of them.
Kernels& chosen();

}  // namespace bitnet::detail
