#pragma once

#include "head/exact_head.hpp"

namespace bitnet {

// False when *x* is not finite, or so long that products could overflow.
bool head_input(const ExactHead& m, const float* x, HeadInput& out);

}  // namespace bitnet
