// Sums of products of bytes, four at a time: what attention needs of an instruction set for its bytes.
//
// `Quads` holds four neighbouring bytes of each of kWidth sums. Keys are bytes without a sign, values have one; codes of
// weights have 14 bits. The sums are integers, so any order of additions gives the same.
#pragma once

#include "ops/lanes.hpp"

namespace bitnet {
namespace {

// Rows of a tile, and registers of keys or of elements whose sums are held for up to kFew of them, and for more.
#if defined(__AVX512F__)
constexpr int kByteRows = 6, kFewByteRows = 6, kFewQuads = 2;
#elif defined(BITNET_F16C)
constexpr int kByteRows = 4, kFewByteRows = 2, kFewQuads = 2;
#elif defined(BITNET_NEON)
constexpr int kByteRows = 4, kFewByteRows = 2, kFewQuads = 2;
#else
constexpr int kByteRows = 1, kFewByteRows = 1, kFewQuads = 1;
#endif

#if defined(BITNET_F16C) && !defined(__AVX512F__)
// Two products of 16 bits at a time: bytes 0 and 2 of each four, and bytes 1 and 3.
struct Quads {
    __m256i even, odd;
    static __m256i low(__m256i v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); }
    static __m256i high(__m256i v) { return _mm256_srai_epi16(v, 8); }
    static Quads keys(const uint8_t* p) {
        const __m256i v = load256(p);
        return {_mm256_and_si256(v, _mm256_set1_epi16(255)), _mm256_srli_epi16(v, 8)};
    }
    static Quads values(const uint8_t* p) {
        const __m256i v = load256(p);
        return {low(v), high(v)};
    }
};
struct WeightCodes {
    alignas(32) int16_t code[kKeyBlock];  // of each four in the order 0 2 1 3
    void set(const float* weights, const float* scales) {
        const auto rounded = [&](int i) { return _mm256_cvtps_epi32((Lanes::load(weights + i) * Lanes::load(scales + i)).v); };
        const __m256i turned = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,  //
                                                0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
        for (int i = 0; i < kKeyBlock; i += 16) {
            const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(rounded(i), rounded(i + 8)), 0xd8);
            _mm256_store_si256(reinterpret_cast<__m256i*>(code + i), _mm256_shuffle_epi8(both, turned));
        }
    }
};
struct QuadSums {
    __m256i v;
    void add(Quads a, __m256i even, __m256i odd) {
        v = _mm256_add_epi32(v, _mm256_add_epi32(_mm256_madd_epi16(a.even, even), _mm256_madd_epi16(a.odd, odd)));
        pin(v);
    }
    Lanes numbers() const { return {_mm256_cvtepi32_ps(v)}; }
};
struct KeySums : QuadSums {
    void start(int32_t at) { v = _mm256_set1_epi32(at); }
    void add(Quads keys, const int8_t* query) {
        const __m256i x = _mm256_set1_epi32(read<int32_t>(query));
        QuadSums::add(keys, Quads::low(x), Quads::high(x));
    }
};
constexpr int kDigits = 1;  // in which weights are multiplied, each with a sum of its own
struct ValueSums : QuadSums {
    ValueSums() { v = _mm256_setzero_si256(); }
    void add(int, Quads values, const WeightCodes& w, unsigned quad) {
        QuadSums::add(values, _mm256_set1_epi32(read<int32_t>(w.code + 4 * quad)), _mm256_set1_epi32(read<int32_t>(w.code + 4 * quad + 2)));
    }
    static Lanes numbers(const ValueSums* digits) { return digits->QuadSums::numbers(); }
};
#else
constexpr int kDigits = 2;  // of seven bits, the upper ones first; each has a sum of its own
struct WeightCodes {
    alignas(64) int8_t digit[kDigits][kKeyBlock];
#if defined(__AVX512F__)
    // Packing takes four lanes of each register in turn, which keeps fours of keys together.
    static unsigned place(unsigned quad) { return quad % 4 * 16 + quad / 4 * 4; }
    void set(const float* weights, const float* scales) {
        const auto rounded = [&](int i) { return _mm512_cvtps_epi32((Lanes::load(weights + i) * Lanes::load(scales + i)).v); };
        const __m512i first = _mm512_packs_epi32(rounded(0), rounded(16)), second = _mm512_packs_epi32(rounded(32), rounded(48));
        const __m512i lower = _mm512_set1_epi16(127);
        _mm512_store_si512(digit[0], _mm512_packus_epi16(_mm512_srli_epi16(first, 7), _mm512_srli_epi16(second, 7)));
        _mm512_store_si512(digit[1], _mm512_packus_epi16(_mm512_and_si512(first, lower), _mm512_and_si512(second, lower)));
    }
#else
    static unsigned place(unsigned quad) { return 4 * quad; }
    void set(const float* weights, const float* scales) {
        int16_t code[kKeyBlock];
        const auto scaled = [&](int i) { return Lanes::load(weights + i) * Lanes::load(scales + i); };
        for (int i = 0; i < kKeyBlock; i += 2 * Lanes::kWidth) Lanes::round_to(scaled(i), scaled(i + Lanes::kWidth), code + i);
        for (int i = 0; i < kKeyBlock; ++i) digit[0][i] = int8_t(code[i] >> 7 & 127), digit[1][i] = int8_t(code[i] & 127);
    }
#endif
};
#if defined(__AVX512F__)
struct Quads {
    __m512i v;
    static Quads keys(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
    static Quads values(const uint8_t* p) { return keys(p); }
};
inline __m512i four_bytes(const int8_t* p) { return _mm512_set1_epi32(read<int32_t>(p)); }
struct KeySums {
    __m512i v;
    void start(int32_t at) { v = _mm512_set1_epi32(at); }
    void add(Quads keys, const int8_t* query) {
        v = _mm512_dpbusd_epi32(v, keys.v, four_bytes(query));
        pin(v);
    }
    Lanes numbers() const { return {_mm512_cvtepi32_ps(v)}; }
};
struct ValueSums {
    __m512i v = _mm512_setzero_si512();
    void add(int digit, Quads values, const WeightCodes& w, unsigned quad) {
        v = _mm512_dpbusd_epi32(v, four_bytes(w.digit[digit] + WeightCodes::place(quad)), values.v);
        pin(v);
    }
    static Lanes numbers(const ValueSums* digits) {
        return {_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(digits[0].v, 7), digits[1].v))};
    }
};
#elif defined(BITNET_NEON)
struct Quads {
    int8x16_t low, high;
    static Quads values(const uint8_t* p) { return {vld1q_s8(reinterpret_cast<const int8_t*>(p)), vld1q_s8(reinterpret_cast<const int8_t*>(p) + 16)}; }
    static Quads keys(const uint8_t* p) {
        const int8x16_t flip = vdupq_n_s8(-128);  // with a sign again: 128 less
        const Quads q = values(p);
        return {veorq_s8(q.low, flip), veorq_s8(q.high, flip)};
    }
};
inline int8x16_t four_bytes(const int8_t* p) { return vreinterpretq_s8_s32(vdupq_n_s32(read<int32_t>(p))); }
struct KeySums {
    int32x4_t low, high;
    void start(int32_t) { low = high = vdupq_n_s32(0); }  // keys have a sign here
    void add(Quads keys, const int8_t* query) {
        const int8x16_t x = four_bytes(query);
        low = vdotq_s32(low, keys.low, x), high = vdotq_s32(high, keys.high, x);
    }
    Lanes numbers() const { return {vcvtq_f32_s32(low), vcvtq_f32_s32(high)}; }
};
struct ValueSums {
    int32x4_t low = vdupq_n_s32(0), high = low;
    void add(int digit, Quads values, const WeightCodes& w, unsigned quad) {
        const int8x16_t x = four_bytes(w.digit[digit] + 4 * quad);
        low = vdotq_s32(low, values.low, x), high = vdotq_s32(high, values.high, x);
    }
    static Lanes numbers(const ValueSums* digits) {
        const auto number = [](int32x4_t upper, int32x4_t lower) { return vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(upper, 7), lower)); };
        return {number(digits[0].low, digits[1].low), number(digits[0].high, digits[1].high)};
    }
};
#else
struct Quads {
    const uint8_t* bytes;
    static Quads keys(const uint8_t* p) { return {p}; }
    static Quads values(const uint8_t* p) { return {p}; }
};
struct KeySums {
    int32_t v[Lanes::kWidth];
    void start(int32_t at) { std::fill_n(v, Lanes::kWidth, at); }
    void add(Quads keys, const int8_t* query) {
        for (int i = 0; i < 4 * Lanes::kWidth; ++i) v[i / 4] += keys.bytes[i] * query[i % 4];
    }
    Lanes numbers() const {
        return Lanes::of([&](int i) { return float(v[i]); });
    }
};
struct ValueSums {
    int32_t v[Lanes::kWidth] = {};
    void add(int digit, Quads values, const WeightCodes& w, unsigned quad) {
        for (int i = 0; i < 4 * Lanes::kWidth; ++i) v[i / 4] += w.digit[digit][4 * quad + i % 4] * int8_t(values.bytes[i]);
    }
    static Lanes numbers(const ValueSums* digits) {
        return Lanes::of([&](int i) { return float(128 * digits[0].v[i] + digits[1].v[i]); });
    }
};
#endif
#endif

}  // namespace
}  // namespace bitnet
