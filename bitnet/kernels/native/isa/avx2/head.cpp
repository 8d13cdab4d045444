// The screen with AVX2: the 16 rows of a tile are the lanes of two registers.
#include <immintrin.h>

#include "head/pack.hpp"
#include "head/sixth_x86.hpp"
#include "head/tile.hpp"
#include "isa/kernels.hpp"
#include "isa/simd_x86.hpp"

namespace bitnet {
namespace {

// Sums of code * q over the 64 columns of a block for twice 8 rows, q in two digits of base 128.
// Pairs of 31 * 127 add up to 7874 and of 31 * 64 to 3968: four and eight of them fit 16 bits. One after
// the other, the 8 rows would have compilers keep the digits of the whole block in memory: 1.4 times as long.
inline void block_product(const uint8_t* block, const int8_t* high, const int8_t* low, __m256i product[2]) {
    const __m256i nibble = _mm256_set1_epi8(15), bit = _mm256_set1_epi8(16);
    product[0] = product[1] = _mm256_setzero_si256();
    for (int half = 0; half < 2; ++half, block += 320, high += 32, low += 32) {
        const __m256i bits[2] = {load256(block), load256(block + 32)};
        __m256i fine[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 2
        for (int quarter = 0; quarter < 2; ++quarter) {
            __m256i coarse[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                const int g = 4 * quarter + i;
                const __m256i h = _mm256_set1_epi32(read<int>(high + 4 * g)), l = _mm256_set1_epi32(read<int>(low + 4 * g));
#pragma GCC unroll 2
                for (int rows = 0; rows < 2; ++rows) {
                    const __m256i pair = load256(block + 64 * (1 + g / 2) + 32 * rows);
                    const __m256i nibbles = _mm256_and_si256(g % 2 ? _mm256_srli_epi16(pair, 4) : pair, nibble);
                    const __m256i moved =
                        g < 4 ? _mm256_slli_epi16(bits[rows], 4 - g) : _mm256_srli_epi16(bits[rows], g - 4);
                    const __m256i codes = _mm256_or_si256(nibbles, _mm256_and_si256(moved, bit));
                    coarse[rows] = _mm256_add_epi16(coarse[rows], _mm256_maddubs_epi16(codes, h));
                    fine[rows] = _mm256_add_epi16(fine[rows], _mm256_maddubs_epi16(codes, l));
                }
            }
            for (int rows = 0; rows < 2; ++rows)
                product[rows] = _mm256_add_epi32(product[rows], _mm256_madd_epi16(coarse[rows], _mm256_set1_epi16(128)));
        }
        for (int rows = 0; rows < 2; ++rows)
            product[rows] = _mm256_add_epi32(product[rows], _mm256_madd_epi16(fine[rows], _mm256_set1_epi16(1)));
    }
}

void tile_avx2(const uint8_t* tile, int64_t blocks, const ScreenInput& x, const float* step, const float* residual,
               const float* norm, float* approx, float* upper) {
    const uint8_t *norms = tile, *codes = tile + screen_codes(blocks);
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, error[2] = {sum[0], sum[0]};
    for (int64_t b = 0; b < blocks; ++b) {
        const uint8_t* block = codes + b * kScreenBlockBytes;
        prefetch_block(block);
        const __m256i middle = _mm256_set1_epi32(x.middle[size_t(b)]);
        const __m256 scale = _mm256_set1_ps(x.step[size_t(b)]), length = _mm256_set1_ps(x.norm[size_t(b)]);
        __m256i product[2];
        block_product(block, &x.high[size_t(b * kScreenBlock)], &x.low[size_t(b * kScreenBlock)], product);
        for (int half = 0; half < 2; ++half) {
            const __m256i centred = _mm256_sub_epi32(_mm256_slli_epi32(product[half], 1), middle);
            sum[half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(centred), scale, sum[half]);
            const auto* counts = reinterpret_cast<const __m128i*>(norms + b * kScreenRows + 8 * half);
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

void add_avx2_head(Kernels& k) { k.screen = {tile_avx2, sixth_x86, pack_tile}; }

}  // namespace bitnet
