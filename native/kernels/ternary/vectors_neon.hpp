// Vectors of NEON for ternary kernels, four to a tile: all of `Acc` (ternary/products.hpp) but products.
#pragma once

#include "isa/simd_neon.hpp"
#include "ternary/groups.hpp"

namespace bitnet {
namespace {

constexpr int kRegisters = kTernaryRows / 4;

struct TernaryNeon {
    struct Ints {
        int32x4_t part[kRegisters];
    };
    struct Doubles {
        float64x2_t part[2 * kRegisters];
    };
    struct Floats {
        float32x4_t part[kRegisters];
    };
    static Ints zero() {
        Ints out;
        for (int32x4_t& v : out.part) v = vdupq_n_s32(0);
        return out;
    }
    static Doubles zero_double() {
        Doubles out;
        for (float64x2_t& v : out.part) v = vdupq_n_f64(0.0);
        return out;
    }
    static Ints minus(Ints a, int32_t b) {
        for (int32x4_t& v : a.part) v = vsubq_s32(v, vdupq_n_s32(b));
        return a;
    }
    static Floats to_float(const Ints& a) {
        Floats out;
        for (int i = 0; i < kRegisters; ++i) out.part[i] = vcvtq_f32_s32(a.part[i]);
        return out;
    }
    static Floats to_float(const Doubles& a) {
        Floats out;
        for (int i = 0; i < kRegisters; ++i)
            out.part[i] = vcvt_high_f32_f64(vcvt_f32_f64(a.part[2 * i]), a.part[2 * i + 1]);
        return out;
    }

    static Doubles add_scaled(Doubles sum, const Ints& a, const uint8_t* scales) {
        for (int i = 0; i < kRegisters; ++i) {
            const float32x4_t scale = vreinterpretq_f32_u8(vld1q_u8(scales + 16 * i));
            float64x2_t &low = sum.part[2 * i], &high = sum.part[2 * i + 1];
            low = vfmaq_f64(low, vcvt_f64_f32(vget_low_f32(scale)), vcvtq_f64_s64(vmovl_s32(vget_low_s32(a.part[i]))));
            high = vfmaq_f64(high, vcvt_high_f64_f32(scale), vcvtq_f64_s64(vmovl_high_s32(a.part[i])));
        }
        return sum;
    }

    static Floats zero_floats() {
        Floats out;
        for (float32x4_t& v : out.part) v = vdupq_n_f32(0.0f);
        return out;
    }
    static Floats add_scaled(Floats sum, const Floats& a, const Floats& scale) {
        for (int i = 0; i < kRegisters; ++i) sum.part[i] = vfmaq_f32(sum.part[i], a.part[i], scale.part[i]);
        return sum;
    }
    static Floats add_scaled(Floats sum, const Floats& a, float step) {
        for (int i = 0; i < kRegisters; ++i) sum.part[i] = vfmaq_n_f32(sum.part[i], a.part[i], step);
        return sum;
    }
    static Floats load_halves(const uint8_t* halves) {
        Floats out;
        for (int i = 0; i < kRegisters; ++i) out.part[i] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(halves + 8 * i)));
        return out;
    }

    static int32_t sum_block(const int8_t* q) {
        int32x4_t sum = vdupq_n_s32(0);
        for (int i = 0; i < kTernaryBlock; i += 16) sum = vdotq_s32(sum, vdupq_n_s8(1), vld1q_s8(q + i));
        return vaddvq_s32(sum);
    }

    static void store(const LinearArgs& a, int64_t r, int64_t t, const Floats& sum) {
        const float32x4_t s = vdupq_n_f32(a.step[t]), scale = vdupq_n_f32(a.scale);
        Floats scaled;
        for (int i = 0; i < kRegisters; ++i) scaled.part[i] = vmulq_f32(vdivq_f32(sum.part[i], s), scale);
        put(a, r, t, scaled);
    }

    static void put(const LinearArgs& a, int64_t r, int64_t t, const Floats& sum) {
        float all[kTernaryRows], *y = a.y + t * a.rows + r;
        const bool whole = a.rows - r >= kTernaryRows;
        float* to = whole ? y : all;
        for (int i = 0; i < kRegisters; ++i) vst1q_f32(to + 4 * i, sum.part[i]);
        if (!whole) std::memcpy(y, all, size_t(a.rows - r) * 4);
    }
};

// Field *f* of bytes of two bits each.
inline uint8x16_t low_field(uint8x16_t bytes, int f) {
    return f == 3 ? vshrq_n_u8(bytes, 6) : vandq_u8(shift_bytes(bytes, -2 * f), vdupq_n_u8(3));
}

}  // namespace
}  // namespace bitnet
