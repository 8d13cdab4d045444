// Loads and products of bytes that every NEON kernel file uses.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace bitnet {
namespace {

inline void prefetch_line(const uint8_t* p) { __builtin_prefetch(p); }

// *sum* plus, in each of four lanes, the products of its four bytes with bytes 4 lane .. 4 lane + 3
// of *x*. The instruction takes the lane as a constant, which *lane* is once loops are unrolled.
inline int32x4_t dot_lane(int32x4_t sum, int8x16_t w, int8x16_t x, int lane) {
    switch (lane) {
        case 0: return vdotq_laneq_s32(sum, w, x, 0);
        case 1: return vdotq_laneq_s32(sum, w, x, 1);
        case 2: return vdotq_laneq_s32(sum, w, x, 2);
        default: return vdotq_laneq_s32(sum, w, x, 3);
    }
}

// Bits of each byte moved up by *n*, down when it is negative.
inline uint8x16_t shift_bytes(uint8x16_t a, int n) { return vshlq_u8(a, vdupq_n_s8(int8_t(n))); }

}  // namespace
}  // namespace bitnet
