// Sixth bits with AVX2, which AVX-512 would not make faster: a row is 32 bytes for every 256 columns.
#pragma once

#include <immintrin.h>

#include "head/exact_head.hpp"
#include "isa/simd_x86.hpp"

namespace bitnet {
namespace {

// Eight bits of pairs of digits of at most 127 add up to 2032, which 16 bits hold.
void sixth_x86(const uint8_t* row, int64_t cols, const HeadInput& x, float* sum, float* error) {
    const uint8_t *norms = row + sizeof(float), *bits = row + head_bits(cols);
    const __m256i one = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
    __m256 total = _mm256_setzero_ps(), left = total;
    for (int64_t g = 0; g < head_groups(cols); ++g) {
        const __m256i word = load256(bits + g * kHeadGroupBytes);
        __m256i high = _mm256_setzero_si256(), low = high;
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            const __m256i bit = _mm256_and_si256(_mm256_srli_epi16(word, i), one);
            const auto at = size_t((8 * g + i) * kHeadGroupBytes);
            high = _mm256_add_epi16(high, _mm256_maddubs_epi16(bit, load256(&x.sixth_high[at])));
            low = _mm256_add_epi16(low, _mm256_maddubs_epi16(bit, load256(&x.sixth_low[at])));
        }
        const __m256i doubled = _mm256_add_epi32(_mm256_slli_epi32(_mm256_madd_epi16(high, ones), 8),
                                                 _mm256_slli_epi32(_mm256_madd_epi16(low, ones), 1));
        const __m256i middle = load256(&x.sixth_middle[size_t(8 * g)]);
        total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(doubled, middle)),
                                _mm256_loadu_ps(&x.sixth_step[size_t(8 * g)]), total);
    }
    for (int64_t b = 0; b < head_blocks(cols); b += 8) {  // beyond the norms the state has zeros
        const __m128i counts = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(norms + b));
        left = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(counts)), _mm256_loadu_ps(&x.norm[size_t(b)]), left);
    }
    *sum = sum8(total);
    *error = sum8(left);
}

}  // namespace
}  // namespace bitnet
