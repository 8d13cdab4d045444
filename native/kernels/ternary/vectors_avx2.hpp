// Vectors of 256 bits for ternary kernels, two to a tile: all of `Acc` (ternary/products.hpp) but products.
#pragma once

#include "isa/simd_x86.hpp"
#include "ternary/groups.hpp"

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

    static Floats zero_floats() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static Floats add_scaled(Floats sum, Floats a, Floats scale) {
        return {_mm256_fmadd_ps(a.low, scale.low, sum.low), _mm256_fmadd_ps(a.high, scale.high, sum.high)};
    }
    static Floats add_scaled(Floats sum, Floats a, float step) {
        const __m256 both = _mm256_set1_ps(step);
        return add_scaled(sum, a, Floats{both, both});
    }
    static Floats load_halves(const uint8_t* halves) {
        return {_mm256_cvtph_ps(load128(halves)), _mm256_cvtph_ps(load128(halves + 16))};
    }

    static int32_t sum_block(const int8_t* q) {
        const __m256i ones = _mm256_set1_epi8(1);
        __m256i sum = _mm256_setzero_si256();
        for (int i = 0; i < kTernaryBlock; i += 32) sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(ones, load256(q + i)));
        return sum8(widen(sum, 1));
    }

    static void store(const LinearArgs& a, int64_t r, int64_t t, Floats sum) {
        const __m256 s = _mm256_set1_ps(a.step[t]), scale = _mm256_set1_ps(a.scale);
        put(a, r, t, {_mm256_mul_ps(_mm256_div_ps(sum.low, s), scale), _mm256_mul_ps(_mm256_div_ps(sum.high, s), scale)});
    }

    static void put(const LinearArgs& a, int64_t r, int64_t t, Floats sum) {
        float* y = a.y + t * a.rows + r;
        if (a.rows - r >= kTernaryRows) {
            _mm256_storeu_ps(y, sum.low);
            _mm256_storeu_ps(y + 8, sum.high);
            return;
        }
        alignas(32) float all[kTernaryRows];
        _mm256_store_ps(all, sum.low);
        _mm256_store_ps(all + 8, sum.high);
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

// Layouts with a run per digit (ternary/groups.hpp). `Run` has the sums of a digit in the eight lines of a block, in
// which codes are multiplied in place, as multiples of up to eight.
struct TwoBitFields {
    static constexpr int kRuns = 4;
    static constexpr int shift(int f) { return f % 2 * 2; }
    static __m256i isolate(__m256i bytes, int f) {
        return _mm256_and_si256(f < 2 ? bytes : _mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(f % 2 ? 12 : 3));
    }
};

struct OneBitFields {
    static constexpr int kRuns = 8;
    static constexpr int shift(int f) { return f % 4; }
    static __m256i isolate(__m256i bytes, int f) {
        const __m256i moved = f < 4 ? _mm256_add_epi8(bytes, bytes) : _mm256_srli_epi16(bytes, 3);
        return _mm256_and_si256(moved, _mm256_set1_epi8(char(2 << (f % 4))));
    }
};

template <class Fields, class Run>
struct FieldRuns {
    static constexpr int kRuns = Fields::kRuns, kPackedTokens = 2, kPackedAtOnce = 2;

    template <int N>
    static void block(const LinearArgs& a, const uint8_t* lines, int64_t t, int64_t c, TernaryAvx2::Ints (*out)[N]) {
        const Inputs<N> q(a, t);
        for (int i = 0; i < kRunLines; ++i) prefetch_line(lines + 64 * i + 1024);
#pragma GCC unroll 8
        for (int f = 0; f < kRuns; ++f) {
            Run sum[N][2];
#pragma GCC unroll 8
            for (int i = 0; i < kRunLines; ++i)
#pragma GCC unroll 2
                for (int h = 0; h < 2; ++h) {
                    const __m256i field = Fields::isolate(load256(lines + 64 * i + 32 * h), f);
#pragma GCC unroll 2
                    for (int n = 0; n < N; ++n) sum[n][h].add(field, _mm256_set1_epi32(read<int>(q[n] + c + kRun * f + 4 * i)));
                }
            for (int n = 0; n < N; ++n)
                out[f][n] = {_mm256_srai_epi32(sum[n][0].total(), Fields::shift(f)),
                             _mm256_srai_epi32(sum[n][1].total(), Fields::shift(f))};
        }
    }

    static void unpack(const uint8_t* lines, uint8_t* out, int64_t stride) {
        for (int i = 0; i < kRunLines; ++i)
            for (int h = 0; h < 2; ++h) {
                const __m256i bytes = load256(lines + 64 * i + 32 * h);
#pragma GCC unroll 8
                for (int f = 0; f < kRuns; ++f)
                    _mm256_store_si256(reinterpret_cast<__m256i*>(out + (kRunLines * f + i) * stride + 32 * h),
                                       _mm256_srli_epi16(Fields::isolate(bytes, f), Fields::shift(f)));
            }
    }
};

}  // namespace
}  // namespace bitnet
