#pragma once

#include <cmath>

#include "screen.hpp"
#if defined(BITNET_X86)
#include <xmmintrin.h>
#endif

namespace bitnet {
namespace {

// *error* is rounded too low by less than 2^-20 of itself, and so is the sum.
[[maybe_unused]] inline void finish_row(float value, float error, float& approx, float& upper) {
    approx = value;
    upper = value + (error * (1.0f + 0x1p-20f) + std::fabs(value) * 0x1p-20f);
}

#if defined(BITNET_X86) || defined(BITNET_ARM)
// Into the second level: prefetches into the first can be too few in flight for the memory.
[[maybe_unused]] inline void prefetch_block(const uint8_t* block) {
    for (int64_t line = 0; line < kScreenBlockBytes; line += 64) {
        const uint8_t* ahead = block + 12 * kScreenBlockBytes + line;
#if defined(BITNET_X86)
        _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T1);
#else
        __builtin_prefetch(ahead, 0, 2);
#endif
    }
}
#endif

}  // namespace
}  // namespace bitnet
