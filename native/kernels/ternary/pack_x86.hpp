// Packing of encodings with two-bit fields in 32 bytes per 128 columns, eight rows at a time.
#pragma once

#include "isa/simd_x86.hpp"
#include "ternary/layout.hpp"

namespace bitnet {
namespace {

// row[i] becomes column i of 8 x 8 words.
inline void transpose8(__m256i* row) {
    __m256i pair[8], four[8];
    for (int i = 0; i < 8; i += 2) {
        pair[i] = _mm256_unpacklo_epi32(row[i], row[i + 1]);
        pair[i + 1] = _mm256_unpackhi_epi32(row[i], row[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; ++j) {
            four[i + 2 * j] = _mm256_unpacklo_epi64(pair[i + j], pair[i + j + 2]);
            four[i + 2 * j + 1] = _mm256_unpackhi_epi64(pair[i + j], pair[i + j + 2]);
        }
    for (int i = 0; i < 4; ++i) {
        row[i] = _mm256_permute2x128_si256(four[i], four[i + 4], 0x20);
        row[i + 4] = _mm256_permute2x128_si256(four[i], four[i + 4], 0x31);
    }
}

// Bits of *a* selected by *mask*, and those of *b* moved up beside them; then the other half of both.
template <int kShift>
inline void exchange(__m256i& a, __m256i& b, __m256i mask) {
    const __m256i low = _mm256_or_si256(_mm256_and_si256(a, mask), _mm256_slli_epi16(_mm256_and_si256(b, mask), kShift));
    b = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, kShift), mask), _mm256_andnot_si256(mask, b));
    a = low;
}

// Field f of word i becomes field i of word f.
inline void transpose_fields(__m256i* word) {
    const __m256i nibble = _mm256_set1_epi8(15), crumb = _mm256_set1_epi8(51);
    exchange<4>(word[0], word[2], nibble);
    exchange<4>(word[1], word[3], nibble);
    exchange<2>(word[0], word[1], crumb);
    exchange<2>(word[2], word[3], crumb);
}

// A whole tile; returns whether a code is 3. In I2_S the first 32 columns are in the highest bits.
inline bool pack_two_bit_tile(TernarySource source, const uint8_t* rows, int64_t cols, uint8_t* out) {
    const bool i2_s = source == TernarySource::i2_s;
    const int64_t row_bytes = i2_s ? cols / 4 : cols / 256 * 66;
    __m256i threes = _mm256_setzero_si256();
    for (int64_t p = 0; p < cols / 128; ++p) {
        const uint8_t* part = rows + (i2_s ? 32 * p : p / 2 * 66 + p % 2 * 32);
        for (int half = 0; half < 2; ++half) {
            __m256i word[8];
            for (int i = 0; i < 8; ++i) {
                word[i] = load256(part + (8 * half + i) * row_bytes);
                threes = _mm256_or_si256(threes, _mm256_and_si256(word[i], _mm256_srli_epi16(word[i], 1)));
            }
            transpose8(word);
            transpose_fields(word);
            transpose_fields(word + 4);
            for (int f = 0; f < 4; ++f)
                for (int h = 0; h < 2; ++h)
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + (8 * p + 2 * f + h) * 64 + 32 * half),
                                        word[4 * h + (i2_s ? 3 - f : f)]);
        }
    }
    return !_mm256_testz_si256(threes, _mm256_set1_epi8(0x55));
}

}  // namespace
}  // namespace bitnet
