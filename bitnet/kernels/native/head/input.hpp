#pragma once

#include "head/screen.hpp"

namespace bitnet {

// False when *x* is not finite, or so long that products could overflow.
bool screen_input(const ScreenedMatrix& m, const float* x, ScreenInput& out);

}  // namespace bitnet
