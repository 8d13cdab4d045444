// A tile of the exact head with vectors of 256 bits: its 16 rows are the lanes of two registers.
#pragma once

#include "head/sixth_x86.hpp"
#include "head/tile.hpp"
#include "isa/simd_x86.hpp"

namespace bitnet {
namespace {

// Sums of code * q over the 64 columns of a block for twice 8 rows, q in two digits of base 128.
using BlockProduct = void (*)(const uint8_t* block, const int8_t* high, const int8_t* low, __m256i product[2]);

template <BlockProduct block_product>
void head_tile_256(const uint8_t* tile, int64_t blocks, const HeadInput& x, const float* step, const float* residual,
                     const float* norm, float* approx, float* upper) {
    const uint8_t *norms = tile, *codes = tile + head_codes(blocks);
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, error[2] = {sum[0], sum[0]};
    for (int64_t b = 0; b < blocks; ++b) {
        const uint8_t* block = codes + b * kHeadBlockBytes;
        prefetch_block(block);
        const __m256i middle = _mm256_set1_epi32(x.middle[size_t(b)]);
        const __m256 scale = _mm256_set1_ps(x.step[size_t(b)]), length = _mm256_set1_ps(x.norm[size_t(b)]);
        __m256i product[2];
        block_product(block, &x.high[size_t(b * kHeadBlock)], &x.low[size_t(b * kHeadBlock)], product);
        for (int half = 0; half < 2; ++half) {
            const __m256i centred = _mm256_sub_epi32(_mm256_slli_epi32(product[half], 1), middle);
            sum[half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(centred), scale, sum[half]);
            const auto* counts = reinterpret_cast<const __m128i*>(norms + b * kHeadRows + 8 * half);
            const __m256 left = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(counts)));
            error[half] = _mm256_fmadd_ps(left, length, error[half]);
        }
    }
    for (int half = 0; half < 2; ++half) {
        const __m256 value = _mm256_mul_ps(sum[half], _mm256_loadu_ps(step + 8 * half));
        const __m256 total = _mm256_fmadd_ps(error[half], _mm256_loadu_ps(residual + 8 * half),
                                             _mm256_mul_ps(_mm256_set1_ps(x.slack), _mm256_loadu_ps(norm + 8 * half)));
        const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), value);
        const __m256 rounding = _mm256_mul_ps(size, _mm256_set1_ps(0x1p-20f));
        const __m256 margin = _mm256_fmadd_ps(total, _mm256_set1_ps(1.0f + 0x1p-20f), rounding);
        _mm256_storeu_ps(approx + 8 * half, value);
        _mm256_storeu_ps(upper + 8 * half, _mm256_add_ps(value, margin));
    }
}

}  // namespace
}  // namespace bitnet
