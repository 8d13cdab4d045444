#pragma once

#include <cmath>

#include "head/exact_head.hpp"
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

// Into the second level: prefetches into the first can be too few in flight for the memory.
[[maybe_unused]] inline void prefetch_bytes(const uint8_t* begin, int64_t count) {
    for ([[maybe_unused]] int64_t line = 0; line < count; line += 64) {
#if defined(BITNET_X86)
        _mm_prefetch(reinterpret_cast<const char*>(begin + line), _MM_HINT_T1);
#elif defined(BITNET_ARM)
        __builtin_prefetch(begin + line, 0, 2);
#endif
    }
}

[[maybe_unused]] inline void prefetch_block(const uint8_t* block) {
    prefetch_bytes(block + 12 * kHeadBlockBytes, kHeadBlockBytes);
}

}  // namespace
}  // namespace bitnet
