// Sums, maxima and powers for attention, with registers of floats, `Lanes` of the including file.
#pragma once

#include "ops/float_ops.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

// The sum, in the order of sum_lanes, and the largest of 16 numbers in kLanes / kWidth registers.
#if defined(BITNET_F16C)
struct Sixteen {
#if defined(__AVX512F__)
    explicit Sixteen(const Lanes* v) : low(v->low()), high(v->high()) {}
#else
    explicit Sixteen(const Lanes* v) : low(v[0].v), high(v[1].v) {}
#endif
    float sum() const {
        const __m256 eight = _mm256_add_ps(low, high);
        const __m128 four =
            _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    float largest() const {
        const __m256 eight = _mm256_max_ps(low, high);
        const __m128 four =
            _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    }
    __m256 low, high;
};
#else
struct Sixteen {
    explicit Sixteen(const Lanes* v) {
        v[0].store(lane);
        v[1].store(lane + 8);
    }
    float sum() { return sum_lanes(lane); }  // overwrites the numbers
    float largest() const {
        float top = lane[0];
        for (const float f : lane) top = f > top ? f : top;
        return top;
    }
    float lane[kLanes];
};
#endif

using RowLanes = Lanes[kLanes / Lanes::kWidth];  // 16 numbers, of one row
constexpr int whole_eights(int n) { return (n + 7) / 8 * 8; }
inline void zero(RowLanes& parts) {
    for (Lanes& lanes : parts) lanes = Lanes::set(0.0f);
}

#if defined(__AVX512F__)
// fold_rows for eight rows at once, with a third of the instructions; f(a, b) adds or is a maximum.
//
// Each step folds the 16 numbers of a row to half as many, in the order of sum_lanes, and puts
// twice as many rows into a register: two rows of eight numbers, four of four, eight of two, and of
// one.
template <class F>
inline void fold_eight(const RowLanes* rows, float* out, F f) {
    const auto halves = [&](__m512 a, __m512 b) {
        return f(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    };
    const auto quarters = [&](__m512 a, __m512 b) {
        return f(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    const auto two_rows = [&](int row) { return halves(rows[row]->v, rows[row + 1]->v); };
    const __m512d first = _mm512_castps_pd(quarters(two_rows(0), two_rows(2)));
    const __m512d second = _mm512_castps_pd(quarters(two_rows(4), two_rows(6)));
    const __m512 pairs = f(_mm512_castpd_ps(_mm512_unpacklo_pd(first, second)),
                           _mm512_castpd_ps(_mm512_unpackhi_pd(first, second)));
    const __m512 folded = f(pairs, _mm512_movehdup_ps(pairs));
    // The lanes in which the eight results lie, by row.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm256_store_ps(out, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, folded)));
}
#endif

// The sums (kSum) or the largest numbers of N rows; *rows* and *out* have room for whole eights.
template <int N, bool kSum>
inline void fold_rows(const RowLanes* rows, float* out) {
    int n = 0;
#if defined(__AVX512F__)
    if constexpr (N > 4)
        for (; n < N; n += 8)
            fold_eight(rows + n, out + n, [](__m512 a, __m512 b) {
                return kSum ? _mm512_add_ps(a, b) : _mm512_max_ps(a, b);
            });
#endif
    for (; n < N; ++n) out[n] = kSum ? Sixteen(rows[n]).sum() : Sixteen(rows[n]).largest();
}

// `power_or_zero` of each lane, with the same bits.
inline Lanes power(Lanes x) {
    const Lanes clamped = Lanes::larger(Lanes::set(kLeastPower), x);
    const Lanes round = Lanes::set(12582912.0f);  // 1.5 * 2^23: adding it shifts the fraction out
    const Lanes shifted = clamped + round, n = shifted - round, r = clamped - n;
    Lanes p = Lanes::set(kPower[0]);
    for (int i = 1; i < 6; ++i) p = p * r + Lanes::set(kPower[i]);
#if defined(__AVX512F__)
    return {_mm512_maskz_scalef_ps(
        _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(kLeastPower), _CMP_NLT_UQ), p.v, n.v)};
#else
    return p.times_power(shifted).unless_below(x, kLeastPower);
#endif
}

}  // namespace
}  // namespace bitnet
