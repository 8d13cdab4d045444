// Loads, horizontal sums and a hint to the compiler that every x86 kernel file uses.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace bitnet {
namespace {

inline __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

inline void prefetch_line(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

// Keeps *v* where it is: GCC 12 otherwise reorders the additions of neighbouring accumulators until
// they no longer fit into the registers, which halves the speed of an unrolled inner loop.
template <class Vector>
inline void pin(Vector& v) {
#if defined(__GNUC__)
    asm("" : "+v"(v));
#else
    (void)v;
#endif
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

}  // namespace
}  // namespace bitnet
