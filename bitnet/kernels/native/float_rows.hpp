// Products with float matrices whose rows lie one after the other, as in a file: 16 rows at a time
// become a tile and go through the kernel for tiles, so that results have the same bits.
#pragma once

#include "kernels.hpp"

namespace bitnet {

// A LinearKernel for F32, F16 and BF16.
void linear_float_rows(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch);

// y (count,) = rows *ids* of a float matrix times x (cols,), on all threads.
void linear_chosen_rows(Type type, const uint8_t* weight, int64_t cols, const float* x, const int64_t* ids,
                        int64_t count, float* y);

}  // namespace bitnet
