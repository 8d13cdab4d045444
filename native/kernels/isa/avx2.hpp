// Vectors of 256 bits with FMA and F16C, two to a tile of 16 rows: all of `Vec` but sums of
// products of bytes.
#pragma once

#include "isa/kernels.hpp"
#include "isa/simd_x86.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

inline __m128i load64(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }

// A register of floats; isa/avx512.hpp explains the functions that have no comment here.
struct Lanes {
    static constexpr int kWidth = 8;
    __m256 v;
    static Lanes set(float f) { return {_mm256_set1_ps(f)}; }
    static Lanes load(const void* p) { return {_mm256_loadu_ps(static_cast<const float*>(p))}; }
    static Lanes halves(const uint8_t* p) { return {_mm256_cvtph_ps(load128(p))}; }
    static Lanes upper(const void* p) {
        return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16))};
    }
    static Lanes unsigned_bytes(const uint8_t* p) {
        return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load64(p)))};
    }
    static Lanes signed_bytes(const uint8_t* p) {
        return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load64(p)))};
    }
    static Lanes half_powers(const uint8_t* p) {  // half_power of encodings/blocks.hpp
        const __m256i power = _mm256_cvtepu8_epi32(load64(p)), one = _mm256_set1_epi32(1);
        const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(power, one), 23);
        return {_mm256_castsi256_ps(
            _mm256_max_epi32(normal, _mm256_slli_epi32(_mm256_add_epi32(power, one), 21)))};
    }
    void store(float* p) const { _mm256_storeu_ps(p, v); }
    static void round_to(Lanes a, Lanes b, int16_t* p) {
        const __m256i in_turns =
            _mm256_packs_epi32(_mm256_cvtps_epi32(a.v), _mm256_cvtps_epi32(b.v));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                            _mm256_permute4x64_epi64(in_turns, 0xd8));
    }
    friend Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.v, b.v)}; }
    friend Lanes operator-(Lanes a, Lanes b) { return {_mm256_sub_ps(a.v, b.v)}; }
    friend Lanes operator*(Lanes a, Lanes b) { return {_mm256_mul_ps(a.v, b.v)}; }
    friend Lanes operator/(Lanes a, Lanes b) { return {_mm256_div_ps(a.v, b.v)}; }
    static Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
    Lanes negated() const { return {_mm256_xor_ps(v, _mm256_set1_ps(-0.0f))}; }
    static Lanes larger(Lanes a, Lanes b) { return {_mm256_max_ps(a.v, b.v)}; }
    Lanes unless_below(Lanes x, float least) const {
        return {_mm256_and_ps(_mm256_cmp_ps(x.v, _mm256_set1_ps(least), _CMP_NLT_UQ), v)};
    }
    // *this* times 2^n, a normal number, for *power* = n + 1.5 * 2^23.
    Lanes times_power(Lanes power) const {
        const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(power.v), 23);
        return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), n))};
    }
};

// A register of bytes, or of int32; likewise. ops/tile_products.hpp and ternary/products.hpp
// explain the numbers.
struct Avx2 {
    static constexpr int kTokens = 4, kWholeTokens = 4, kFloatTokens = 3, kUnpackFrom = 16;
    static constexpr int kInputs = 4, kUnrolledColumns = 4, kTernaryTokens = 4, kTernaryTiles = 1,
                         kGroupTokens = 4, kGroupTiles = 1;
    static constexpr int kPackedTokens = 2, kPackedAtOnce = 2, kRunTokens = 2, kRunPlaces = 2;
    static constexpr bool kRunsTogether = false;
    using Int = __m256i;
    struct Double {
        __m256d low, high;
    };

    static Int zero() { return _mm256_setzero_si256(); }
    static Int set(int32_t n) { return _mm256_set1_epi32(n); }
    static Int load(const uint8_t* p) { return load256(p); }
    static void store(uint8_t* p, Int v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
    static Int and_bytes(Int a, int byte) {
        return _mm256_and_si256(a, _mm256_set1_epi8(char(byte)));
    }
    static Int or_masked(Int a, Int b, int byte) { return _mm256_or_si256(a, and_bytes(b, byte)); }
    static Int shift(Int a, int left) {
        if (left == 0) return a;
        return left < 0 ? _mm256_srli_epi16(a, -left) : _mm256_slli_epi16(a, left);
    }
    static Int flip(Int a) { return _mm256_xor_si256(a, _mm256_set1_epi8(char(0x80))); }
    static Int look_up(const int8_t* table, Int nibbles) {
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(table)), nibbles);
    }
    static Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
    static Int minus(Int a, int32_t b) { return _mm256_sub_epi32(a, set(b)); }
    static Int times_power(Int a, int n) { return _mm256_slli_epi32(a, n); }
    static Int over_power(Int a, int n) { return n ? _mm256_srai_epi32(a, n) : a; }
    static Lanes to_float(Int a) { return {_mm256_cvtepi32_ps(a)}; }
    static int32_t sum_bytes(const int8_t* q, int n) {
        Int sum = zero();
        for (int i = 0; i < n; i += 32)
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_set1_epi8(1), load256(q + i)));
        return sum8(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
    }

    static Double zero_double() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
    static Double add_scaled(Double sum, Int a, Lanes scale) {
        const auto add = [](__m256d to, __m128 scales, __m128i four) {
            return _mm256_fmadd_pd(_mm256_cvtps_pd(scales), _mm256_cvtepi32_pd(four), to);
        };
        return {add(sum.low, _mm256_castps256_ps128(scale.v), _mm256_castsi256_si128(a)),
                add(sum.high, _mm256_extractf128_ps(scale.v, 1), _mm256_extracti128_si256(a, 1))};
    }
    static Lanes to_float(Double a) {
        return {_mm256_set_m128(_mm256_cvtpd_ps(a.high), _mm256_cvtpd_ps(a.low))};
    }
};

}  // namespace
}  // namespace bitnet
