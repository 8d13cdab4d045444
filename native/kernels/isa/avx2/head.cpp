// The exact head with AVX2.
#include "head/pack.hpp"
#include "head/tile_avx2.hpp"
#include "isa/kernels.hpp"

namespace bitnet {
namespace {

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

}  // namespace

void add_avx2_head(Kernels& k) { k.exact_head = {head_tile_256<block_product>, sixth_x86, pack_tile}; }

}  // namespace bitnet
