// Vectors of 256 bits for ternary kernels, two to a tile: all of `Acc` (ternary/products.hpp) but products.
#pragma once

#include "isa/simd_x86.hpp"
#include "ternary/layout.hpp"

namespace bitnet {
namespace {

struct TernaryAvx2 {
    struct Ints {
        __m256i low, high;  // rows 0 .. 7 and 8 .. 15 of a tile
    };
    struct Doubles {
        __m256d part[4];
    };
    struct Floats {
        __m256 low, high;
    };
    static __m256i widen(__m256i sums, int factor) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(short(factor))); }

    static Ints zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static Doubles zero_double() {
        const __m256d z = _mm256_setzero_pd();
        return {{z, z, z, z}};
    }
    static Ints add(Ints a, Ints b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
    static Ints minus(Ints a, int32_t b) {
        const __m256i all = _mm256_set1_epi32(b);
        return {_mm256_sub_epi32(a.low, all), _mm256_sub_epi32(a.high, all)};
    }
    static Floats to_float(Ints a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
    static Floats to_float(Doubles a) {
        return {_mm256_set_m128(_mm256_cvtpd_ps(a.part[1]), _mm256_cvtpd_ps(a.part[0])),
                _mm256_set_m128(_mm256_cvtpd_ps(a.part[3]), _mm256_cvtpd_ps(a.part[2]))};
    }

    static Doubles add_scaled(Doubles sum, Ints a, const uint8_t* scales) {
        const __m128i four[4] = {_mm256_castsi256_si128(a.low), _mm256_extracti128_si256(a.low, 1),
                                 _mm256_castsi256_si128(a.high), _mm256_extracti128_si256(a.high, 1)};
        for (int i = 0; i < 4; ++i) {
            const __m256d scale = _mm256_cvtps_pd(_mm_loadu_ps(reinterpret_cast<const float*>(scales) + 4 * i));
            sum.part[i] = _mm256_fmadd_pd(scale, _mm256_cvtepi32_pd(four[i]), sum.part[i]);
        }
        return sum;
    }

    static int32_t sum_block(const int8_t* q) {
        const __m256i ones = _mm256_set1_epi8(1);
        __m256i sum = _mm256_setzero_si256();
        for (int i = 0; i < kTernaryBlock; i += 32) sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(ones, load256(q + i)));
        return sum8(widen(sum, 1));
    }

    static void store(const LinearArgs& a, int64_t r, int64_t t, Floats sum) {
        const __m256 s = _mm256_set1_ps(a.step[t]), scale = _mm256_set1_ps(a.scale);
        const __m256 low = _mm256_mul_ps(_mm256_div_ps(sum.low, s), scale);
        const __m256 high = _mm256_mul_ps(_mm256_div_ps(sum.high, s), scale);
        float* y = a.y + t * a.rows + r;
        if (a.rows - r >= kTernaryRows) {
            _mm256_storeu_ps(y, low);
            _mm256_storeu_ps(y + 8, high);
            return;
        }
        alignas(32) float all[kTernaryRows];
        _mm256_store_ps(all, low);
        _mm256_store_ps(all + 8, high);
        std::memcpy(y, all, size_t(a.rows - r) * 4);
    }

    // Codes of *cols* columns of a tile with two bits per weight as bytes (cols / 4, 16, 4), every *stride*.
    static void unpack_two_bits(const uint8_t* codes, int64_t cols, uint8_t* out, int64_t stride) {
        const __m256i mask = _mm256_set1_epi8(3);
        for (int64_t i = 0; i < cols / 4; i += 4)
            for (int h = 0; h < 2; ++h) {
                const __m256i bytes = load256(codes + 16 * i + 32 * h);
#pragma GCC unroll 4
                for (int f = 0; f < 4; ++f)
                    _mm256_store_si256(reinterpret_cast<__m256i*>(out + (i + f) * stride + 32 * h),
                                       _mm256_and_si256(_mm256_srli_epi16(bytes, 2 * f), mask));
            }
    }
};

}  // namespace
}  // namespace bitnet
