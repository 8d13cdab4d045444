// A register of floats: what attention needs of an instruction set.
#pragma once

#include <cmath>

#include "ops/float_ops.hpp"

namespace bitnet {
namespace {

#if defined(__AVX512F__)
struct Lanes {
    static constexpr int kWidth = 16;
    __m512 v;
    static Lanes set(float f) { return {_mm512_set1_ps(f)}; }
    static Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
    // Floats of their upper 16 bits.
    static Lanes upper(const uint16_t* p) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
    }
    void store(float* p) const { _mm512_storeu_ps(p, v); }
    // Nearest integers, halves to even, of numbers that int16 holds, those of *a* first.
    static void round_to(Lanes a, Lanes b, int16_t* p) {
        const __m512i in_turns = _mm512_packs_epi32(_mm512_cvtps_epi32(a.v), _mm512_cvtps_epi32(b.v));
        _mm512_storeu_si512(p, _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), in_turns));
    }
    friend Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
    friend Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
    friend Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
    // a where it is larger, else b.
    static Lanes larger(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
    // Zero where *x* is below *least*.
    Lanes unless_below(Lanes x, float least) const {
        return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(least), _CMP_NLT_UQ), v)};
    }
    __m256 low() const { return _mm512_castps512_ps256(v); }
    __m256 high() const { return _mm512_extractf32x8_ps(v, 1); }
};
#elif defined(BITNET_F16C)
struct Lanes {
    static constexpr int kWidth = 8;
    __m256 v;
    static Lanes set(float f) { return {_mm256_set1_ps(f)}; }
    static Lanes load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static Lanes upper(const uint16_t* p) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
    }
    void store(float* p) const { _mm256_storeu_ps(p, v); }
    static void round_to(Lanes a, Lanes b, int16_t* p) {
        const __m256i in_turns = _mm256_packs_epi32(_mm256_cvtps_epi32(a.v), _mm256_cvtps_epi32(b.v));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(in_turns, 0xd8));
    }
    friend Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.v, b.v)}; }
    friend Lanes operator-(Lanes a, Lanes b) { return {_mm256_sub_ps(a.v, b.v)}; }
    friend Lanes operator*(Lanes a, Lanes b) { return {_mm256_mul_ps(a.v, b.v)}; }
    static Lanes larger(Lanes a, Lanes b) { return {_mm256_max_ps(a.v, b.v)}; }
    Lanes unless_below(Lanes x, float least) const {
        return {_mm256_and_ps(_mm256_cmp_ps(x.v, _mm256_set1_ps(least), _CMP_NLT_UQ), v)};
    }
    // *this* times 2^n, a normal number, for *power* = n + 1.5 * 2^23.
    Lanes times_power(Lanes power) const {
        const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(power.v), 23);
        return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), n))};
    }
};
#elif defined(BITNET_NEON)
struct Lanes {
    static constexpr int kWidth = 8;
    float32x4_t low, high;
    static Lanes set(float f) { return {vdupq_n_f32(f), vdupq_n_f32(f)}; }
    static Lanes load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
    static Lanes upper(const uint16_t* p) {
        const uint16x8_t bits = vld1q_u16(p);
        return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(bits, 16))};
    }
    void store(float* p) const { vst1q_f32(p, low), vst1q_f32(p + 4, high); }
    static void round_to(Lanes a, Lanes b, int16_t* p) {
        vst1q_s16(p, vcombine_s16(vmovn_s32(vcvtnq_s32_f32(a.low)), vmovn_s32(vcvtnq_s32_f32(a.high))));
        vst1q_s16(p + 8, vcombine_s16(vmovn_s32(vcvtnq_s32_f32(b.low)), vmovn_s32(vcvtnq_s32_f32(b.high))));
    }
    friend Lanes operator+(Lanes a, Lanes b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
    friend Lanes operator-(Lanes a, Lanes b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
    friend Lanes operator*(Lanes a, Lanes b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
    static Lanes larger(Lanes a, Lanes b) {
        return {vbslq_f32(vcgtq_f32(a.low, b.low), a.low, b.low), vbslq_f32(vcgtq_f32(a.high, b.high), a.high, b.high)};
    }
    Lanes unless_below(Lanes x, float least) const {
        const auto cut = [&](float32x4_t of, float32x4_t by) {
            return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(of), vcltq_f32(by, vdupq_n_f32(least))));
        };
        return {cut(low, x.low), cut(high, x.high)};
    }
    Lanes times_power(Lanes power) const {
        const auto scaled = [](float32x4_t of, float32x4_t by) {
            const uint32x4_t n = vshlq_n_u32(vreinterpretq_u32_f32(by), 23);
            return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(of), n));
        };
        return {scaled(low, power.low), scaled(high, power.high)};
    }
};
#else
struct Lanes {
    static constexpr int kWidth = 8;
    float v[8];
    template <class F>
    static Lanes of(F value) {
        Lanes out;
        for (int i = 0; i < 8; ++i) out.v[i] = value(i);
        return out;
    }
    static Lanes set(float f) {
        return of([&](int) { return f; });
    }
    static Lanes load(const float* p) {
        return of([&](int i) { return p[i]; });
    }
    static Lanes upper(const uint16_t* p) {
        return of([&](int i) { return bits_to_float(uint32_t(p[i]) << 16); });
    }
    void store(float* p) const {
        for (int i = 0; i < 8; ++i) p[i] = v[i];
    }
    static void round_to(const Lanes& a, const Lanes& b, int16_t* p) {
        for (int i = 0; i < 16; ++i) {
            const float f = (i < 8 ? a : b).v[i % 8];
            p[i] = int16_t(f == f ? int32_t(round_half_even(f)) : 0);
        }
    }
    friend Lanes operator+(const Lanes& a, const Lanes& b) {
        return of([&](int i) { return a.v[i] + b.v[i]; });
    }
    friend Lanes operator-(const Lanes& a, const Lanes& b) {
        return of([&](int i) { return a.v[i] - b.v[i]; });
    }
    friend Lanes operator*(const Lanes& a, const Lanes& b) {
        return of([&](int i) { return a.v[i] * b.v[i]; });
    }
    static Lanes larger(const Lanes& a, const Lanes& b) {
        return of([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
    }
    Lanes unless_below(const Lanes& x, float least) const {
        return of([&](int i) { return x.v[i] < least ? 0.0f : v[i]; });
    }
    Lanes times_power(const Lanes& power) const {
        return of([&](int i) { return bits_to_float(float_to_bits(v[i]) + (float_to_bits(power.v[i]) << 23)); });
    }
};
#endif

// Of 16 numbers, in kLanes / kWidth registers: their sum in the order of sum_lanes, and the largest.
#if defined(BITNET_F16C)
struct Sixteen {
#if defined(__AVX512F__)
    explicit Sixteen(const Lanes* v) : low(v->low()), high(v->high()) {}
#else
    explicit Sixteen(const Lanes* v) : low(v[0].v), high(v[1].v) {}
#endif
    float sum() const {
        const __m256 eight = _mm256_add_ps(low, high);
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    float largest() const {
        const __m256 eight = _mm256_max_ps(low, high);
        const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    }
    __m256 low, high;
};
#else
struct Sixteen {
    explicit Sixteen(const Lanes* v) { v[0].store(lane), v[1].store(lane + 8); }
    float sum() { return sum_lanes(lane); }
    float largest() const {
        float top = lane[0];
        for (const float f : lane) top = f > top ? f : top;
        return top;
    }
    float lane[kLanes];
};
#endif

using Parts = Lanes[kLanes / Lanes::kWidth];  // 16 numbers
constexpr int whole_eights(int n) { return (n + 7) / 8 * 8; }
inline void zero(Parts& parts) {
    for (Lanes& lanes : parts) lanes = Lanes::set(0.0f);
}

#if defined(__AVX512F__)
// The same of eight rows at once, with a third of the instructions.
template <class F>
inline void fold_eight(const Parts* rows, float* out, F f) {
    const auto halves = [&](__m512 a, __m512 b) { return f(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee)); };
    const auto quarters = [&](__m512 a, __m512 b) { return f(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd)); };
    const auto of = [&](int row) { return halves(rows[row]->v, rows[row + 1]->v); };
    const __m512d first = _mm512_castps_pd(quarters(of(0), of(2))), second = _mm512_castps_pd(quarters(of(4), of(6)));
    const __m512 two = f(_mm512_castpd_ps(_mm512_unpacklo_pd(first, second)), _mm512_castpd_ps(_mm512_unpackhi_pd(first, second)));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm256_store_ps(out, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, f(two, _mm512_movehdup_ps(two)))));
}
#endif

// The sums, or the largest, of N rows; *rows* and *out* have room for whole eights.
template <int N, bool kSum>
inline void fold_rows(const Parts* rows, float* out) {
    int n = 0;
#if defined(__AVX512F__)
    if constexpr (N > 4)
        for (; n < N; n += 8)
            fold_eight(rows + n, out + n, [](__m512 a, __m512 b) { return kSum ? _mm512_add_ps(a, b) : _mm512_max_ps(a, b); });
#endif
    for (; n < N; ++n) out[n] = kSum ? Sixteen(rows[n]).sum() : Sixteen(rows[n]).largest();
}

// 2^x of numbers that are not above 0, and zero below 2^-100: `power_or_zero`.
inline Lanes power(Lanes x) {
    const Lanes round = Lanes::set(12582912.0f), clamped = Lanes::larger(Lanes::set(kLeastPower), x);
    const Lanes shifted = clamped + round, n = shifted - round, r = clamped - n;
    Lanes p = Lanes::set(kPower[0]);
    for (int i = 1; i < 6; ++i) p = p * r + Lanes::set(kPower[i]);
#if defined(__AVX512F__)
    return {_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(kLeastPower), _CMP_NLT_UQ), p.v, n.v)};
#else
    return p.times_power(shifted).unless_below(x, kLeastPower);
#endif
}

}  // namespace
}  // namespace bitnet
