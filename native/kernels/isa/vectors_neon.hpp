// Vectors of NEON, two to a tile: all of `Vec` (ops/tile_products.hpp) but products.
#pragma once

#include "isa/kernels.hpp"
#include "isa/simd_neon.hpp"

namespace bitnet {
namespace {

// Eight rows in two registers. With four tokens the sums of half a tile fill 24 of the 32.
struct Neon {
    static constexpr int kLanes = 8, kTokens = 4, kWholeTokens = 2, kFloatTokens = 4, kUnpackFrom = 0;
    struct Float {
        float32x4_t low, high;
    };
    struct Int {
        uint8x16_t low, high;
    };
    struct Wide {
        int32x4_t low, high;
    };

    static Int load(const uint8_t* p) { return {vld1q_u8(p), vld1q_u8(p + 16)}; }
    static Int flip(Int a) {
        const uint8x16_t top = vdupq_n_u8(0x80);
        return {veorq_u8(a.low, top), veorq_u8(a.high, top)};
    }
    static Int and_bytes(Int a, int byte) {
        const uint8x16_t mask = vdupq_n_u8(uint8_t(byte));
        return {vandq_u8(a.low, mask), vandq_u8(a.high, mask)};
    }
    static Int or_masked(Int a, Int b, int byte) {
        const Int some = and_bytes(b, byte);
        return {vorrq_u8(a.low, some.low), vorrq_u8(a.high, some.high)};
    }
    static Int shift(Int a, int left) { return {shift_bytes(a.low, left), shift_bytes(a.high, left)}; }
    static Int shift_right(Int a, int n) { return shift(a, -n); }

    static Int look_up(const int8_t* table, Int nibbles) {
        const uint8x16_t codes = vreinterpretq_u8_s8(vld1q_s8(table));
        return {vqtbl1q_u8(codes, nibbles.low), vqtbl1q_u8(codes, nibbles.high)};
    }

    static Float load_float(const uint8_t* p) {
        return {vreinterpretq_f32_u8(vld1q_u8(p)), vreinterpretq_f32_u8(vld1q_u8(p + 16))};
    }
    static Float load_half(const uint8_t* p) {
        const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(p));
        return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
    }
    static Float load_bf16(const uint8_t* p) {
        const uint16x8_t top = vreinterpretq_u16_u8(vld1q_u8(p));
        return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(top), 16)),
                vreinterpretq_f32_u32(vshll_high_n_u16(top, 16))};
    }
    static Float load_u8(const uint8_t* p) {
        const uint16x8_t wide = vmovl_u8(vld1_u8(p));
        return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_high_u16(wide))};
    }
    static Float load_s8(const uint8_t* p) {
        const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
        return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))};
    }
    static Float load_half_power(const uint8_t* p) {  // half_power of encodings/blocks.hpp
        const uint16x8_t wide = vmovl_u8(vld1_u8(p));
        const auto four = [](uint16x4_t powers) {
            const int32x4_t power = vreinterpretq_s32_u32(vmovl_u16(powers)), one = vdupq_n_s32(1);
            const int32x4_t normal = vshlq_n_s32(vsubq_s32(power, one), 23);
            return vreinterpretq_f32_s32(vmaxq_s32(normal, vshlq_n_s32(vaddq_s32(power, one), 21)));
        };
        return {four(vget_low_u16(wide)), four(vget_high_u16(wide))};
    }
    static Float set(float f) { return {vdupq_n_f32(f), vdupq_n_f32(f)}; }
    static Float zero_float() { return set(0.0f); }
    static Float negated(Float a) { return {vnegq_f32(a.low), vnegq_f32(a.high)}; }
    static Float add(Float a, Float b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
    static Float mul(Float a, Float b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
    static Float fma(Float a, Float b, Float c) {
        return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
    }
    static void store(float* p, Float v) { vst1q_f32(p, v.low), vst1q_f32(p + 4, v.high); }
};

}  // namespace
}  // namespace bitnet
