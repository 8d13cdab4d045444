// Products with matrices whose rows lie one after the other, as in a file: 16 rows at a time become a tile
// and go through the kernel for tiles, so that results have the same bits.
#pragma once

#include "isa/kernels.hpp"

namespace bitnet {

// A LinearKernel for float and block encodings in rows.
void linear_in_rows(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t* scratch);

#if defined(BITNET_X86)
// pack_tile of floats.
void gather_floats_x86(Type type, const uint8_t* const* rows, int64_t cols, uint8_t* tile);
#endif

// Where rows lie: in memory and, where *file* is a descriptor, *offset* bytes into that file too.
struct FloatRows {
    Type type = Type::F16;
    const uint8_t* weight = nullptr;
    int64_t cols = 0;
    int file = -1;
    int64_t offset = 0;
};

// y (count,) = rows *ids* of a float matrix times x (cols,), on all threads. Rows of a file are read
// from there: a fault for a page of a mapping takes longer, and keeps it in the memory of the process.
void linear_chosen_rows(const FloatRows& m, const float* x, const int64_t* ids, int64_t count, float* y);

}  // namespace bitnet
