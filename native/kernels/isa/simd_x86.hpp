// Loads, sums, transpositions and a hint to the compiler that the kernel files of x86 share.
#pragma once

#include <immintrin.h>

#include "isa/kernels.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

inline __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

inline void prefetch_line(const uint8_t* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}

// Makes the compiler finish *v* here: GCC 12 otherwise reorders the additions of neighbouring
// accumulators until they no longer fit into the registers, which halves the speed of an unrolled
// inner loop. The operand is a copy: if elements of an array are operands of assembly, GCC 12 keeps
// the array in memory, and stores every sum of the loop.
template <class Vector>
inline void pin(Vector& v) {
#if defined(__GNUC__)
    Vector copy = v;
    asm("" : "+v"(copy));
    v = copy;
#else
    (void)v;
#endif
}

// Sums of products of unsigned codes and signed inputs, one in each lane of 32 bits. `add` adds the
// four products of columns 4 i .. 4 i + 3, whose inputs are at q + 4 i. Sums begin with `start`:
// GCC 12 runs a constructor in a loop, and then keeps an array of sums in memory.
template <class Vec, int kOffset>
struct DotSum {
    typename Vec::Int v;
    void start() { v = Vec::zero(); }
    // Begins with -kOffset * sum(q), so that the total is that of codes without their offset.
    void start(const BlockInput& x, int half) {
        v = kOffset != 0 ? Vec::times_power(Vec::set(x.minus_q[half]), log2_of(kOffset))
                         : Vec::zero();
    }
    void add(typename Vec::Int codes, const int8_t* q, int i) {
        v = Vec::dot(v, codes, Vec::set(read<int>(q + 4 * i)));
        pin(v);
    }
    typename Vec::Int total() const { return v; }
};

// 16 bytes of each of 16 rows, from *at* on, as four lines of dwords, one of each row.
inline void transpose_lines(const uint8_t* const* rows, int64_t at, uint8_t* out) {
    BITNET_UNROLL(2) for (int half = 0; half < 2; ++half) {
        __m256i row[4];
        BITNET_UNROLL(4)
        for (int i = 0; i < 4; ++i)
            row[i] =
                _mm256_inserti128_si256(_mm256_castsi128_si256(load128(rows[8 * half + i] + at)),
                                        load128(rows[8 * half + 4 + i] + at), 1);
        const __m256i a = _mm256_unpacklo_epi32(row[0], row[1]),
                      b = _mm256_unpacklo_epi32(row[2], row[3]);
        const __m256i c = _mm256_unpackhi_epi32(row[0], row[1]),
                      d = _mm256_unpackhi_epi32(row[2], row[3]);
        auto* to = reinterpret_cast<__m256i*>(out + 32 * half);
        _mm256_storeu_si256(to, _mm256_unpacklo_epi64(a, b));
        _mm256_storeu_si256(to + 2, _mm256_unpackhi_epi64(a, b));
        _mm256_storeu_si256(to + 4, _mm256_unpacklo_epi64(c, d));
        _mm256_storeu_si256(to + 6, _mm256_unpackhi_epi64(c, d));
    }
}

// 16 bytes of each of 16 rows, from *at* on, as eight half lines of words, one of each row.
inline void transpose_halves(const uint8_t* const* rows, int64_t at, uint8_t* out) {
    for (int half = 0; half < 2; ++half, rows += 8, out += 16) {
        __m128i a[8], b[8];
        for (int r = 0; r < 8; ++r) a[r] = load128(rows[r] + at);
        for (int r = 0; r < 4; ++r) {
            b[2 * r] = _mm_unpacklo_epi16(a[2 * r], a[2 * r + 1]);
            b[2 * r + 1] = _mm_unpackhi_epi16(a[2 * r], a[2 * r + 1]);
        }
        for (int h = 0; h < 2; ++h)
            for (int r = 0; r < 2; ++r) {
                a[4 * h + 2 * r] = _mm_unpacklo_epi32(b[4 * h + r], b[4 * h + r + 2]);
                a[4 * h + 2 * r + 1] = _mm_unpackhi_epi32(b[4 * h + r], b[4 * h + r + 2]);
            }
        for (int c = 0; c < 4; ++c) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 64 * c),
                             _mm_unpacklo_epi64(a[c], a[4 + c]));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 64 * c + 32),
                             _mm_unpackhi_epi64(a[c], a[4 + c]));
        }
    }
}

// The first bytes of the 16 dwords of a line, then the second, third and fourth ones.
inline void planes(const uint8_t* line, uint8_t* out) {
    const __m256i bytes = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i dwords = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i a =
        _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(load256(line), bytes), dwords);
    const __m256i b =
        _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(load256(line + 32), bytes), dwords);
    const __m256i even = _mm256_unpacklo_epi64(a, b), odd = _mm256_unpackhi_epi64(a, b);
    auto* to = reinterpret_cast<__m128i*>(out);
    _mm_storeu_si128(to, _mm256_castsi256_si128(even));
    _mm_storeu_si128(to + 1, _mm256_castsi256_si128(odd));
    _mm_storeu_si128(to + 2, _mm256_extracti128_si256(even, 1));
    _mm_storeu_si128(to + 3, _mm256_extracti128_si256(odd, 1));
}

inline float sum8(__m256 v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline int32_t sum8(__m256i v) {
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}

// `HeadKernels::sixth` with AVX2; AVX-512 would not make it faster, since a row has only 32 bytes
// for 256 columns. A lane of 16 bits adds up eight pairs of digits of at most 127: 2,032 at most.
[[maybe_unused]] void sixth_x86(const uint8_t* row, int64_t cols, const HeadInput& x, float* sum,
                                float* error) {
    const uint8_t *norms = row + sizeof(float), *bits = row + head_bits(cols);
    const __m256i one = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
    __m256 total = _mm256_setzero_ps(), bound = total;
    for (int64_t g = 0; g < head_groups(cols); ++g) {
        const __m256i word = load256(bits + g * kHeadGroupBytes);
        __m256i high = _mm256_setzero_si256(), low = high;
        BITNET_UNROLL(8) for (int i = 0; i < 8; ++i) {
            const __m256i bit = _mm256_and_si256(_mm256_srli_epi16(word, i), one);
            const auto at = size_t((8 * g + i) * kHeadGroupBytes);
            high = _mm256_add_epi16(high, _mm256_maddubs_epi16(bit, load256(&x.sixth_high[at])));
            low = _mm256_add_epi16(low, _mm256_maddubs_epi16(bit, load256(&x.sixth_low[at])));
        }
        const __m256i doubled =
            _mm256_add_epi32(_mm256_slli_epi32(_mm256_madd_epi16(high, ones), 8),
                             _mm256_slli_epi32(_mm256_madd_epi16(low, ones), 1));
        const __m256i middle = load256(&x.sixth_middle[size_t(8 * g)]);
        total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(doubled, middle)),
                                _mm256_loadu_ps(&x.sixth_step[size_t(8 * g)]), total);
    }
    for (int64_t b = 0; b < head_blocks(cols); b += 8) {  // x.norm has zeros after the last block
        const __m128i counts = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(norms + b));
        bound = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(counts)),
                                _mm256_loadu_ps(&x.norm[size_t(b)]), bound);
    }
    *sum = sum8(total);
    *error = sum8(bound);
}

}  // namespace
}  // namespace bitnet
