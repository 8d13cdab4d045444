// Vectors of 512 bits, one to a tile of 16 rows, with products of bytes by vpdpbusd.
#pragma once

#include "isa/kernels.hpp"
#include "isa/simd_x86.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {

// A register of floats.
struct Lanes {
    static constexpr int kWidth = 16;
    __m512 v;
    static Lanes set(float f) { return {_mm512_set1_ps(f)}; }
    static Lanes load(const void* p) { return {_mm512_loadu_ps(p)}; }
    static Lanes halves(const uint8_t* p) { return {_mm512_cvtph_ps(load256(p))}; }
    // Floats from their upper 16 bits.
    static Lanes upper(const void* p) {
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(p)), 16))};
    }
    static Lanes unsigned_bytes(const uint8_t* p) {
        return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load128(p)))};
    }
    static Lanes signed_bytes(const uint8_t* p) {
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128(p)))};
    }
    static Lanes half_powers(const uint8_t* p) {  // half_power of encodings/blocks.hpp
        const __m512i power = _mm512_cvtepu8_epi32(load128(p)), one = _mm512_set1_epi32(1);
        const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(power, one), 23);
        return {_mm512_castsi512_ps(
            _mm512_max_epi32(normal, _mm512_slli_epi32(_mm512_add_epi32(power, one), 21)))};
    }
    void store(float* p) const { _mm512_storeu_ps(p, v); }
    // Stores the nearest integers, halves to even, of *a* and then of *b*; they must fit in int16.
    static void round_to(Lanes a, Lanes b, int16_t* p) {
        const __m512i in_turns =
            _mm512_packs_epi32(_mm512_cvtps_epi32(a.v), _mm512_cvtps_epi32(b.v));
        _mm512_storeu_si512(
            p, _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), in_turns));
    }
    friend Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
    friend Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
    friend Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
    friend Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
    static Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
    Lanes negated() const { return {_mm512_xor_ps(v, _mm512_set1_ps(-0.0f))}; }
    // a where it is larger, else b.
    static Lanes larger(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
    // Zero where *x* is below *least*.
    Lanes unless_below(Lanes x, float least) const {
        return {
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(least), _CMP_NLT_UQ), v)};
    }
    __m256 low() const { return _mm512_castps512_ps256(v); }
    __m256 high() const { return _mm512_extractf32x8_ps(v, 1); }
};

// Operations on registers of bytes or of int32, both Int. ops/tile_products.hpp and
// ternary/products.hpp explain the numbers.
struct Avx512 {
    static constexpr int kTokens = 8, kWholeTokens = 8, kFloatTokens = 8, kUnpackFrom = 0;
    static constexpr bool kSignedCodes = false;  // vpdpbusd takes them unsigned
    // Ternary weights: 24 registers of sums and three of weights, which GCC 12 keeps in registers
    // if every loop over them is unrolled. With a scale per group of columns there are fewer tokens
    // and tiles, because sums of runs and sums of groups both take registers.
    static constexpr int kInputs = 4, kUnrolledColumns = 1, kTernaryTokens = 8, kTernaryTiles = 3,
                         kGroupTokens = 4, kGroupTiles = 2;
    static constexpr int kPackedTokens = 16, kPackedAtOnce = 8, kRunTokens = 4, kRunPlaces = 4;
    static constexpr bool kRunsTogether = true;
    static constexpr int places(int tokens) { return tokens <= 2 ? 4 : 1; }
    using Int = __m512i;
    struct Double {
        __m512d low, high;
    };

    static Int zero() { return _mm512_setzero_si512(); }
    static Int set(int32_t n) { return _mm512_set1_epi32(n); }
    static Int load(const uint8_t* p) { return _mm512_loadu_si512(p); }
    static void store(uint8_t* p, Int v) { _mm512_storeu_si512(p, v); }
    static Int and_bytes(Int a, int byte) {
        return _mm512_and_si512(a, _mm512_set1_epi8(char(byte)));
    }
    static Int or_masked(Int a, Int b, int byte) {  // a | (b & byte)
        return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8(char(byte)), 0xf8);
    }
    // Bits of each byte shifted left, or right if *left* is negative; the caller masks those that
    // come from the neighbouring byte.
    static Int shift(Int a, int left) {
        if (left == 0) return a;
        return left < 0 ? _mm512_srli_epi16(a, unsigned(-left))
                        : _mm512_slli_epi16(a, unsigned(left));
    }
    static Int flip(Int a) { return a; }  // only called if kSignedCodes, to make codes signed
    static Int look_up(const int8_t* table, Int nibbles) {
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load128(table)), nibbles);
    }
    static Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
    static Int minus(Int a, int32_t b) { return _mm512_sub_epi32(a, set(b)); }
    // a * 2^n, and a / 2^n.
    static Int times_power(Int a, int n) { return _mm512_slli_epi32(a, unsigned(n)); }
    static Int over_power(Int a, int n) { return n ? _mm512_srai_epi32(a, unsigned(n)) : a; }
    static Lanes to_float(Int a) { return {_mm512_cvtepi32_ps(a)}; }
    // Sum of *n* signed bytes, 64 at a time.
    static int32_t sum_bytes(const int8_t* q, int n) {
        Int sum = zero();
        for (int i = 0; i < n; i += 64)
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), _mm512_loadu_si512(q + i));
        return _mm512_reduce_add_epi32(sum);
    }

    static Double zero_double() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
    // sum + a * scale in float64.
    static Double add_scaled(Double sum, Int a, Lanes scale) {
        return {_mm512_fmadd_pd(_mm512_cvtps_pd(scale.low()),
                                _mm512_cvtepi32_pd(_mm512_castsi512_si256(a)), sum.low),
                _mm512_fmadd_pd(_mm512_cvtps_pd(scale.high()),
                                _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(a, 1)), sum.high)};
    }
    static Lanes to_float(Double a) {
        return {_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(a.low)),
                                   _mm512_cvtpd_ps(a.high), 1)};
    }

    static constexpr int kDepth = 0;  // pairs of products that fit a sum; 0: any number
    static Int dot(Int sum, Int codes, Int x) { return _mm512_dpbusd_epi32(sum, codes, x); }
    template <int = 2, int kOffset = 0, bool = false>
    using Sum = DotSum<Avx512, kOffset>;
};

}  // namespace
}  // namespace bitnet
