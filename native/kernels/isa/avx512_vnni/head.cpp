// The exact head with AVX-512 VNNI: the 16 rows of a tile are the 16 lanes of a register.
#include <immintrin.h>

#include "head/pack.hpp"
#include "head/sixth_x86.hpp"
#include "head/tile.hpp"
#include "isa/kernels.hpp"

namespace bitnet {
namespace {

inline __m512i load512(const void* p) { return _mm512_loadu_si512(p); }

// Sum of code * q over the 64 columns of a block, q in two digits of base 128.
inline __m512i block_product(const uint8_t* block, const int8_t* high, const int8_t* low) {
    const __m512i nibble = _mm512_set1_epi8(15), bit = _mm512_set1_epi8(16);
    __m512i first = _mm512_setzero_si512(), second = first;
    for (int half = 0; half < 2; ++half) {
        const __m512i bits = load512(block + 320 * half);
#pragma GCC unroll 8
        for (int g = 0; g < 8; ++g) {
            const __m512i pair = load512(block + 320 * half + 64 * (1 + g / 2));
            const __m512i nibbles = _mm512_and_si512(g % 2 ? _mm512_srli_epi16(pair, 4) : pair, nibble);
            const __m512i moved = g < 4 ? _mm512_slli_epi16(bits, unsigned(4 - g)) : _mm512_srli_epi16(bits, unsigned(g - 4));
            const __m512i codes = _mm512_ternarylogic_epi64(nibbles, moved, bit, 0xf8);  // a | (b & c)
            const int place = 4 * (8 * half + g);
            first = _mm512_dpbusd_epi32(first, codes, _mm512_set1_epi32(read<int>(high + place)));
            second = _mm512_dpbusd_epi32(second, codes, _mm512_set1_epi32(read<int>(low + place)));
        }
    }
    return _mm512_add_epi32(_mm512_slli_epi32(first, 7), second);
}

void tile_avx512(const uint8_t* tile, int64_t blocks, const HeadInput& x, const float* step, const float* residual,
                 const float* norm, float* approx, float* upper) {
    const uint8_t *norms = tile, *codes = tile + head_codes(blocks);
    __m512 sum = _mm512_setzero_ps(), error = sum;
    for (int64_t b = 0; b < blocks; ++b) {
        const uint8_t* block = codes + b * kHeadBlockBytes;
        prefetch_block(block);
        const __m512i product = block_product(block, &x.high[size_t(b * kHeadBlock)], &x.low[size_t(b * kHeadBlock)]);
        const __m512i centred = _mm512_sub_epi32(_mm512_slli_epi32(product, 1), _mm512_set1_epi32(x.middle[size_t(b)]));
        sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(centred), _mm512_set1_ps(x.step[size_t(b)]), sum);
        const __m512i counts = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(norms + b * kHeadRows)));
        error = _mm512_fmadd_ps(_mm512_cvtepi32_ps(counts), _mm512_set1_ps(x.norm[size_t(b)]), error);
    }
    const __m512 value = _mm512_mul_ps(sum, _mm512_loadu_ps(step));
    const __m512 total = _mm512_fmadd_ps(error, _mm512_loadu_ps(residual),
                                         _mm512_mul_ps(_mm512_set1_ps(x.slack), _mm512_loadu_ps(norm)));
    const __m512 rounding = _mm512_mul_ps(_mm512_abs_ps(value), _mm512_set1_ps(0x1p-20f));
    _mm512_storeu_ps(approx, value);
    _mm512_storeu_ps(upper, _mm512_add_ps(value, _mm512_fmadd_ps(total, _mm512_set1_ps(1.0f + 0x1p-20f), rounding)));
}

}  // namespace

void add_avx512_vnni_head(Kernels& k) { k.exact_head = {tile_avx512, sixth_x86, pack_tile}; }

}  // namespace bitnet
