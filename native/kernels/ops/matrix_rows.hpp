// Products with matrices whose rows lie one after the other, as in a file: 16 rows at a time become a tile
// and go through the kernel for tiles, so that results have the same bits.
#pragma once

#include "isa/kernels.hpp"

namespace bitnet {

// A LinearKernel for float and block encodings in rows.
void linear_in_rows(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch);

#if defined(BITNET_X86)
// pack_float_tile, faster.
void gather_floats_x86(Type type, const uint8_t* const* rows, int64_t cols, uint8_t* tile);
#endif

}  // namespace bitnet
