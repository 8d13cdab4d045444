// Rounding of activations to int8 with AVX2: the bits of `quantize_block` and `quantize_ternary` in ops/float_ops.hpp.
#pragma once

#include <cmath>

#include "isa/kernels.hpp"
#include "isa/simd_x86.hpp"
#include "ops/float_ops.hpp"

namespace bitnet {
namespace {

// In each half of eight lanes: the largest magnitude, as bits, of 16 floats.
inline __m256i largest_of_16(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const auto bits = [&](__m256 x) { return _mm256_and_si256(_mm256_castps_si256(x), magnitude); };
    const __m256i first = _mm256_max_epi32(bits(a), bits(b)), second = _mm256_max_epi32(bits(c), bits(d));
    __m256i top = _mm256_max_epi32(_mm256_permute2x128_si256(first, second, 0x20),
                                   _mm256_permute2x128_si256(first, second, 0x31));
    top = _mm256_max_epi32(top, _mm256_shuffle_epi32(top, 0x4e));
    return _mm256_max_epi32(top, _mm256_shuffle_epi32(top, 0xb1));
}

// 32 numbers, the first 16 times *first*, the others times *second*, none above 127, as int8.
inline __m256i round_32(const float* x, __m256 first, __m256 second) {
    const auto round = [](const float* from, __m256 s) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from), s)); };
    const __m256i ab = _mm256_packs_epi32(round(x, first), round(x + 8, first));
    const __m256i cd = _mm256_packs_epi32(round(x + 16, second), round(x + 24, second));
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

inline void quantize_32(const float* x, BlockInput& out) {
    const __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8);
    const __m256 c = _mm256_loadu_ps(x + 16), d = _mm256_loadu_ps(x + 24);
    const __m256 top = _mm256_castsi256_ps(largest_of_16(a, b, c, d)), range = _mm256_set1_ps(127.0f);
    const __m256 finite = _mm256_cmp_ps(top, _mm256_set1_ps(3.4e38f), _CMP_LE_OQ);
    const __m256 nonzero = _mm256_cmp_ps(top, _mm256_set1_ps(1e-30f), _CMP_GE_OQ);
    const __m256 scale = _mm256_and_ps(_mm256_div_ps(range, top), nonzero);
    __m256 step = _mm256_and_ps(_mm256_div_ps(top, range), nonzero);
    step = _mm256_blendv_ps(_mm256_set1_ps(NAN), step, finite);

    const __m256 first = _mm256_permute2f128_ps(scale, scale, 0x00), second = _mm256_permute2f128_ps(scale, scale, 0x11);
    const __m256i q = _mm256_and_si256(round_32(x, first, second), _mm256_castps_si256(finite));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out.q), q);

    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
    pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
    const __m256i sum = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    const __m256i minus = _mm256_sub_epi16(_mm256_setzero_si256(), pairs);
    const __m256 scaled = _mm256_mul_ps(step, _mm256_cvtepi32_ps(sum));
    out.step[0] = _mm256_cvtss_f32(step);
    out.step[1] = _mm_cvtss_f32(_mm256_extractf128_ps(step, 1));
    out.sum = _mm256_cvtss_f32(scaled) + _mm_cvtss_f32(_mm256_extractf128_ps(scaled, 1));
    out.minus_q[0] = -_mm_cvtsi128_si32(_mm256_castsi256_si128(sum));
    out.minus_q[1] = -_mm_cvtsi128_si32(_mm256_extracti128_si256(sum, 1));
    const int32_t packed[2] = {_mm_cvtsi128_si32(_mm256_castsi256_si128(minus)),
                               _mm_cvtsi128_si32(_mm256_extracti128_si256(minus, 1))};
    std::memcpy(out.minus_pairs, packed, sizeof packed);
}

void quantize_ternary_x86(const float* x, int64_t cols, int8_t* q, float* s, int32_t* sum) {
    const int64_t whole = cols / 32 * 32;
    const float top = max_abs(x, cols);
    *sum = 0;
    if (!(top <= 3.4e38f)) {
        std::memset(q, 0, size_t(cols));
        *s = NAN;
        return;
    }
    *s = 127.0f / (top > 1e-5f ? top : 1e-5f);
    const __m256 by = _mm256_set1_ps(*s);
    __m256i sums = _mm256_setzero_si256();
    for (int64_t i = 0; i < whole; i += 32) {
        const __m256i codes = round_32(x + i, by, by);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + i), codes);
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    *sum = sum8(sums) + round_to_int8(x + whole, int(cols - whole), *s, q + whole);
}

void quantize_block_x86(const float* x, int64_t cols, BlockInput* out) {
    for (int64_t g = 0; g < cols / 32; ++g) quantize_32(x + 32 * g, out[g]);
}

}  // namespace
}  // namespace bitnet
