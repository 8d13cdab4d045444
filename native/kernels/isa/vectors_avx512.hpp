// Vectors of 512 bits, one to a tile: all of `Vec` (ops/tile_products.hpp) but products.
#pragma once

#include "isa/kernels.hpp"
#include "isa/simd_x86.hpp"

namespace bitnet {
namespace {

struct Avx512 {
    static constexpr int kLanes = 16, kTokens = 8, kWholeTokens = 8, kFloatTokens = 8, kUnpackFrom = 0;
    using Float = __m512;
    using Int = __m512i;

    static Int load(const uint8_t* p) { return _mm512_loadu_si512(p); }
    static Int flip(Int a) { return a; }
    static Int and_bytes(Int a, int byte) { return _mm512_and_si512(a, _mm512_set1_epi8(char(byte))); }
    static Int or_masked(Int a, Int b, int byte) {  // a | (b & byte)
        return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8(char(byte)), 0xf8);
    }
    static Int shift_right(Int a, int n) { return _mm512_srli_epi16(a, unsigned(n)); }
    static Int shift(Int a, int left) {
        return left < 0 ? _mm512_srli_epi16(a, unsigned(-left)) : _mm512_slli_epi16(a, unsigned(left));
    }
    static Int look_up(const int8_t* table, Int nibbles) {
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load128(table)), nibbles);
    }
    static void store(uint8_t* p, Int v) { _mm512_storeu_si512(p, v); }

    static Float load_float(const uint8_t* p) { return _mm512_loadu_ps(p); }
    static Float load_half(const uint8_t* p) { return _mm512_cvtph_ps(load256(p)); }
    static Float load_bf16(const uint8_t* p) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(p)), 16));
    }
    static Float load_u8(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load128(p))); }
    static Float load_s8(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128(p))); }
    static Float load_half_power(const uint8_t* p) {  // half_power of encodings/blocks.hpp
        const Int power = _mm512_cvtepu8_epi32(load128(p)), one = _mm512_set1_epi32(1);
        const Int normal = _mm512_slli_epi32(_mm512_sub_epi32(power, one), 23);
        return _mm512_castsi512_ps(_mm512_max_epi32(normal, _mm512_slli_epi32(_mm512_add_epi32(power, one), 21)));
    }
    static Float set(float f) { return _mm512_set1_ps(f); }
    static Float zero_float() { return _mm512_setzero_ps(); }
    static Float negated(Float a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
    static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
    static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
    static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
    static void store(float* p, Float v) { _mm512_storeu_ps(p, v); }
};

}  // namespace
}  // namespace bitnet
