// NEON: vectors of 256 bits, in two registers, two to a tile of 16 rows; products of bytes by sdot.
#pragma once

#include <arm_neon.h>

#include "isa/kernels.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

inline void prefetch_line(const uint8_t* p) { __builtin_prefetch(p); }

// 16 bytes of each of 16 rows, from *at* on, as four lines of dwords, one of each row.
inline void transpose_lines(const uint8_t* const* rows, int64_t at, uint8_t* out) {
    for (int quarter = 0; quarter < 4; ++quarter) {
        uint32x4_t row[4];
        for (int i = 0; i < 4; ++i)
            row[i] = vreinterpretq_u32_u8(vld1q_u8(rows[4 * quarter + i] + at));
        const uint32x4x2_t a = vzipq_u32(row[0], row[2]), b = vzipq_u32(row[1], row[3]);
        for (int i = 0; i < 2; ++i) {
            const uint32x4x2_t two = vzipq_u32(a.val[i], b.val[i]);
            for (int j = 0; j < 2; ++j)
                vst1q_u8(out + 64 * (2 * i + j) + 16 * quarter, vreinterpretq_u8_u32(two.val[j]));
        }
    }
}

// The first bytes of the 16 dwords of a line, then the second, third and fourth ones.
inline void planes(const uint8_t* line, uint8_t* out) {
    const uint8x16x4_t bytes = vld4q_u8(line);
    for (int i = 0; i < 4; ++i) vst1q_u8(out + 16 * i, bytes.val[i]);
}

// *sum* plus, in each of four lanes, the products of its four bytes with bytes 4 lane .. 4 lane + 3
// of *x*. The instruction takes the lane as a constant, which *lane* is once loops are unrolled.
inline int32x4_t dot_lane(int32x4_t sum, int8x16_t w, int8x16_t x, int lane) {
    switch (lane) {
        case 0:
            return vdotq_laneq_s32(sum, w, x, 0);
        case 1:
            return vdotq_laneq_s32(sum, w, x, 1);
        case 2:
            return vdotq_laneq_s32(sum, w, x, 2);
        default:
            return vdotq_laneq_s32(sum, w, x, 3);
    }
}

// Bits of each byte shifted left by *n*, or right if *n* is negative.
inline uint8x16_t shift_bytes(uint8x16_t a, int n) { return vshlq_u8(a, vdupq_n_s8(int8_t(n))); }

// Eight floats; isa/avx512.hpp, and isa/avx2.hpp for times_power, explain the functions.
struct Lanes {
    static constexpr int kWidth = 8;
    float32x4_t low, high;
    static Lanes set(float f) { return {vdupq_n_f32(f), vdupq_n_f32(f)}; }
    static Lanes load(const void* p) {
        return {vld1q_f32(static_cast<const float*>(p)),
                vld1q_f32(static_cast<const float*>(p) + 4)};
    }
    static Lanes halves(const uint8_t* p) {
        const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(p));
        return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
    }
    static Lanes upper(const void* p) {
        const uint16x8_t bits = vld1q_u16(static_cast<const uint16_t*>(p));
        return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)),
                vreinterpretq_f32_u32(vshll_high_n_u16(bits, 16))};
    }
    static Lanes unsigned_bytes(const uint8_t* p) {
        const uint16x8_t wide = vmovl_u8(vld1_u8(p));
        return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_high_u16(wide))};
    }
    static Lanes signed_bytes(const uint8_t* p) {
        const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
        return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))};
    }
    static Lanes half_powers(const uint8_t* p) {  // half_power of encodings/blocks.hpp
        const uint16x8_t wide = vmovl_u8(vld1_u8(p));
        const auto four = [](uint16x4_t powers) {
            const int32x4_t power = vreinterpretq_s32_u32(vmovl_u16(powers)), one = vdupq_n_s32(1);
            const int32x4_t normal = vshlq_n_s32(vsubq_s32(power, one), 23);
            return vreinterpretq_f32_s32(vmaxq_s32(normal, vshlq_n_s32(vaddq_s32(power, one), 21)));
        };
        return {four(vget_low_u16(wide)), four(vget_high_u16(wide))};
    }
    void store(float* p) const {
        vst1q_f32(p, low);
        vst1q_f32(p + 4, high);
    }
    static void round_to(Lanes a, Lanes b, int16_t* p) {
        vst1q_s16(
            p, vcombine_s16(vmovn_s32(vcvtnq_s32_f32(a.low)), vmovn_s32(vcvtnq_s32_f32(a.high))));
        vst1q_s16(p + 8, vcombine_s16(vmovn_s32(vcvtnq_s32_f32(b.low)),
                                      vmovn_s32(vcvtnq_s32_f32(b.high))));
    }
    friend Lanes operator+(Lanes a, Lanes b) {
        return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)};
    }
    friend Lanes operator-(Lanes a, Lanes b) {
        return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)};
    }
    friend Lanes operator*(Lanes a, Lanes b) {
        return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)};
    }
    friend Lanes operator/(Lanes a, Lanes b) {
        return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)};
    }
    static Lanes fma(Lanes a, Lanes b, Lanes c) {
        return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
    }
    Lanes negated() const { return {vnegq_f32(low), vnegq_f32(high)}; }
    static Lanes larger(Lanes a, Lanes b) {
        return {vbslq_f32(vcgtq_f32(a.low, b.low), a.low, b.low),
                vbslq_f32(vcgtq_f32(a.high, b.high), a.high, b.high)};
    }
    Lanes unless_below(Lanes x, float least) const {
        const auto cut = [&](float32x4_t values, float32x4_t compared) {
            return vreinterpretq_f32_u32(
                vbicq_u32(vreinterpretq_u32_f32(values), vcltq_f32(compared, vdupq_n_f32(least))));
        };
        return {cut(low, x.low), cut(high, x.high)};
    }
    Lanes times_power(Lanes power) const {
        const auto scaled = [](float32x4_t values, float32x4_t powers) {
            const uint32x4_t n = vshlq_n_u32(vreinterpretq_u32_f32(powers), 23);
            return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(values), n));
        };
        return {scaled(low, power.low), scaled(high, power.high)};
    }
};

// 32 bytes, or eight int32; isa/avx512.hpp explains the functions, ops/tile_products.hpp and
// ternary/products.hpp the numbers. With four tokens the sums of half a tile fill 24 of the 32
// registers.
struct Neon {
    static constexpr int kTokens = 4, kWholeTokens = 2, kFloatTokens = 4, kUnpackFrom = 0;
    static constexpr bool kSignedCodes = true;  // as sdot takes them
    // Ternary weights, four tokens: 16 registers of sums, four of weights and four of inputs.
    static constexpr int kInputs = 16, kUnrolledColumns = 1, kTernaryTokens = 4, kTernaryTiles = 1,
                         kGroupTokens = 4, kGroupTiles = 1;
    static constexpr int kPackedTokens = 8, kPackedAtOnce = 4, kRunTokens = 4, kRunPlaces = 1;
    static constexpr bool kRunsTogether = false;
    static constexpr int places(int tokens) { return tokens == 1 ? 3 : 1; }
    struct Int {
        uint8x16_t low, high;
    };
    struct Double {
        float64x2_t part[4];
    };
    // f of both registers.
    template <class F>
    static Int both(Int a, F f) {
        return {f(a.low), f(a.high)};
    }
    static int32x4_t ints(uint8x16_t a) { return vreinterpretq_s32_u8(a); }
    static uint8x16_t bytes(int32x4_t a) { return vreinterpretq_u8_s32(a); }

    static Int zero() { return {vdupq_n_u8(0), vdupq_n_u8(0)}; }
    static Int load(const uint8_t* p) { return {vld1q_u8(p), vld1q_u8(p + 16)}; }
    static void store(uint8_t* p, Int v) {
        vst1q_u8(p, v.low);
        vst1q_u8(p + 16, v.high);
    }
    static Int and_bytes(Int a, int byte) {
        return both(a, [=](uint8x16_t v) { return vandq_u8(v, vdupq_n_u8(uint8_t(byte))); });
    }
    static Int or_masked(Int a, Int b, int byte) {
        const Int some = and_bytes(b, byte);
        return {vorrq_u8(a.low, some.low), vorrq_u8(a.high, some.high)};
    }
    static Int shift(Int a, int left) {
        return both(a, [=](uint8x16_t v) { return shift_bytes(v, left); });
    }
    static Int flip(Int a) {
        return both(a, [](uint8x16_t v) { return veorq_u8(v, vdupq_n_u8(0x80)); });
    }
    static Int look_up(const int8_t* table, Int nibbles) {
        return both(nibbles, [=](uint8x16_t v) {
            return vqtbl1q_u8(vreinterpretq_u8_s8(vld1q_s8(table)), v);
        });
    }
    static Int add(Int a, Int b) {
        return {bytes(vaddq_s32(ints(a.low), ints(b.low))),
                bytes(vaddq_s32(ints(a.high), ints(b.high)))};
    }
    static Int minus(Int a, int32_t b) {
        return both(a, [=](uint8x16_t v) { return bytes(vsubq_s32(ints(v), vdupq_n_s32(b))); });
    }
    static Int times_power(Int a, int n) {
        return both(a, [=](uint8x16_t v) { return bytes(vshlq_s32(ints(v), vdupq_n_s32(n))); });
    }
    static Int over_power(Int a, int n) { return times_power(a, -n); }
    static Lanes to_float(Int a) {
        return {vcvtq_f32_s32(ints(a.low)), vcvtq_f32_s32(ints(a.high))};
    }
    static int32_t sum_bytes(const int8_t* q, int n) {
        int32x4_t sum = vdupq_n_s32(0);
        for (int i = 0; i < n; i += 16) sum = vdotq_s32(sum, vdupq_n_s8(1), vld1q_s8(q + i));
        return vaddvq_s32(sum);
    }

    static Double zero_double() {
        const float64x2_t zero = vdupq_n_f64(0.0);
        return {{zero, zero, zero, zero}};
    }
    static Double add_scaled(Double sum, Int a, Lanes scale) {
        const auto add = [](float64x2_t* to, int32x4_t four, float32x4_t scales) {
            to[0] = vfmaq_f64(to[0], vcvt_f64_f32(vget_low_f32(scales)),
                              vcvtq_f64_s64(vmovl_s32(vget_low_s32(four))));
            to[1] =
                vfmaq_f64(to[1], vcvt_high_f64_f32(scales), vcvtq_f64_s64(vmovl_high_s32(four)));
        };
        add(sum.part, ints(a.low), scale.low);
        add(sum.part + 2, ints(a.high), scale.high);
        return sum;
    }
    static Lanes to_float(Double a) {
        const auto four = [&](int i) {
            return vcvt_high_f32_f64(vcvt_f32_f64(a.part[i]), a.part[i + 1]);
        };
        return {four(0), four(2)};
    }

    static constexpr int kDepth = 0;
    template <int kMost = 2, int kOffset = 0, bool kSigned = false>
    struct Sum {
        static_assert(kSigned || kMost <= 127, "codes are read as signed bytes");
        int32x4_t low, high;
        void start() { low = high = vdupq_n_s32(0); }
        void start(const BlockInput& x, int half) {
            low = high = kOffset != 0 ? vdupq_n_s32(x.minus_q[half] * kOffset) : vdupq_n_s32(0);
        }
        // All 16 inputs are loaded: calls for i from 0 to 3 share one load.
        void add(Int codes, const int8_t* q, int i) {
            const int8x16_t x = vld1q_s8(q);
            low = dot_lane(low, vreinterpretq_s8_u8(codes.low), x, i);
            high = dot_lane(high, vreinterpretq_s8_u8(codes.high), x, i);
        }
        Int total() const { return {bytes(low), bytes(high)}; }
    };
};

}  // namespace
}  // namespace bitnet
