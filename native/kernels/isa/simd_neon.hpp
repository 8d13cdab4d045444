// Loads and products of bytes that every NEON kernel file uses.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace bitnet {
namespace {

inline void prefetch_line(const uint8_t* p) { __builtin_prefetch(p); }

// 16 bytes of each of 16 rows, from *at* on, as four lines of dwords, one of each row.
inline void transpose_lines(const uint8_t* const* rows, int64_t at, uint8_t* out) {
    for (int quarter = 0; quarter < 4; ++quarter) {
        uint32x4_t row[4];
        for (int i = 0; i < 4; ++i) row[i] = vreinterpretq_u32_u8(vld1q_u8(rows[4 * quarter + i] + at));
        const uint32x4x2_t a = vzipq_u32(row[0], row[2]), b = vzipq_u32(row[1], row[3]);
        for (int i = 0; i < 2; ++i) {
            const uint32x4x2_t two = vzipq_u32(a.val[i], b.val[i]);
            for (int j = 0; j < 2; ++j) vst1q_u8(out + 64 * (2 * i + j) + 16 * quarter, vreinterpretq_u8_u32(two.val[j]));
        }
    }
}

// Bytes 0, 1, 2 and 3 of the dwords of a line, 16 each.
inline void planes(const uint8_t* line, uint8_t* out) {
    const uint8x16x4_t bytes = vld4q_u8(line);
    for (int i = 0; i < 4; ++i) vst1q_u8(out + 16 * i, bytes.val[i]);
}

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
