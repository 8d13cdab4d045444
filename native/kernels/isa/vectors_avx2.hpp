// Vectors of 256 bits with FMA and F16C, two to a tile: all of `Vec` (ops/tile_products.hpp) but products.
#pragma once

#include "isa/kernels.hpp"
#include "isa/simd_x86.hpp"

namespace bitnet {
namespace {

struct Avx2 {
    static constexpr int kLanes = 8, kTokens = 4, kWholeTokens = 4, kFloatTokens = 3, kUnpackFrom = 16;
    using Float = __m256;
    using Int = __m256i;

    static Int load(const uint8_t* p) { return load256(p); }
    static Int flip(Int a) { return _mm256_xor_si256(a, _mm256_set1_epi8(char(0x80))); }
    static Int and_bytes(Int a, int byte) { return _mm256_and_si256(a, _mm256_set1_epi8(char(byte))); }
    static Int or_masked(Int a, Int b, int byte) { return _mm256_or_si256(a, and_bytes(b, byte)); }
    static Int shift_right(Int a, int n) { return _mm256_srli_epi16(a, n); }
    static Int shift(Int a, int left) { return left < 0 ? _mm256_srli_epi16(a, -left) : _mm256_slli_epi16(a, left); }
    static Int look_up(const int8_t* table, Int nibbles) {
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(table)), nibbles);
    }
    static void store(uint8_t* p, Int v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }

    static Float load_float(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
    static Float load_half(const uint8_t* p) { return _mm256_cvtph_ps(load128(p)); }
    static Float load_bf16(const uint8_t* p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
    }
    static Float load_u8(const uint8_t* p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    static Float load_s8(const uint8_t* p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    static Float load_half_power(const uint8_t* p) {  // half_power of encodings/blocks.hpp
        const Int power = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
        const Int one = _mm256_set1_epi32(1), normal = _mm256_slli_epi32(_mm256_sub_epi32(power, one), 23);
        return _mm256_castsi256_ps(_mm256_max_epi32(normal, _mm256_slli_epi32(_mm256_add_epi32(power, one), 21)));
    }
    static Float set(float f) { return _mm256_set1_ps(f); }
    static Float zero_float() { return _mm256_setzero_ps(); }
    static Float negated(Float a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
    static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
    static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
    static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
    static void store(float* p, Float v) { _mm256_storeu_ps(p, v); }
};

}  // namespace
}  // namespace bitnet
