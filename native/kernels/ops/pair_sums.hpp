// Sums of products of int16, two at a time: what attention needs of an instruction set for its codes.
//
// A register of `Pairs` holds two neighbouring codes of each of kWidth sums. The sums are integers, so
// any order of additions gives the same. They begin with `start`, not with a constructor: GCC 12 runs that in a loop, and
// keeps an array that loops go over in memory.
#pragma once

#include "ops/lanes.hpp"

namespace bitnet {
namespace {

struct PairCodes {  // of a row's weights
    alignas(64) int16_t code[kKeyBlock];
    const int16_t* at(int key) const { return code + key; }
};

#if defined(__AVX512F__)
struct PairSums {
    using Pairs = __m512i;
    __m512i v;
    template <class... Any>
    void start(const Any&...) { v = _mm512_setzero_si512(); }
    static Pairs load(const int16_t* p) { return _mm512_loadu_si512(p); }
    void add(Pairs a, const int16_t* pair) {
        v = _mm512_dpwssd_epi32(v, a, _mm512_set1_epi32(read<int32_t>(pair)));
        pin(v);
    }
    Lanes numbers() const { return {_mm512_cvtepi32_ps(v)}; }
};
#elif defined(BITNET_F16C)
struct PairSums {
    using Pairs = __m256i;
    __m256i v;
    template <class... Any>
    void start(const Any&...) { v = _mm256_setzero_si256(); }
    static Pairs load(const int16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
    void add(Pairs a, const int16_t* pair) {
        const __m256i b = _mm256_set1_epi32(read<int32_t>(pair));
#if defined(__GNUC__)
        // In place: GCC 12 adds into the register of the product and moves it back.
        asm("vpaddd %1, %0, %0" : "+v"(v) : "v"(_mm256_madd_epi16(a, b)));
#else
        v = _mm256_add_epi32(v, _mm256_madd_epi16(a, b));
#endif
    }
    Lanes numbers() const { return {_mm256_cvtepi32_ps(v)}; }
};
#elif defined(BITNET_NEON)
struct PairSums {  // the products of the first and of the second code of a pair apart
    struct Pairs {
        int16x8_t low, high;
    };
    int32x4_t v[4];
    template <class... Any>
    void start(const Any&...) { v[0] = v[1] = v[2] = v[3] = vdupq_n_s32(0); }
    static Pairs load(const int16_t* p) { return {vld1q_s16(p), vld1q_s16(p + 8)}; }
    void add(Pairs a, const int16_t* pair) {
        const int16x8_t b = vreinterpretq_s16_s32(vdupq_n_s32(read<int32_t>(pair)));
        v[0] = vmlal_s16(v[0], vget_low_s16(a.low), vget_low_s16(b));
        v[1] = vmlal_high_s16(v[1], a.low, b);
        v[2] = vmlal_s16(v[2], vget_low_s16(a.high), vget_low_s16(b));
        v[3] = vmlal_high_s16(v[3], a.high, b);
    }
    Lanes numbers() const { return {vcvtq_f32_s32(vpaddq_s32(v[0], v[1])), vcvtq_f32_s32(vpaddq_s32(v[2], v[3]))}; }
};
#else
struct PairSums {
    using Pairs = const int16_t*;
    uint32_t v[8];  // modulo 2^32: sums over keys out of sight, whose codes may be anything, are not used
    template <class... Any>
    void start(const Any&...) { std::fill_n(v, 8, 0u); }
    static Pairs load(const int16_t* p) { return p; }
    void add(Pairs a, const int16_t* pair) {
        for (int i = 0; i < 16; ++i) v[i / 2] += uint32_t(int32_t(a[i]) * pair[i % 2]);
    }
    Lanes numbers() const {
        return Lanes::of([&](int i) { return float(int32_t(v[i])); });
    }
};
#endif

}  // namespace
}  // namespace bitnet
