// Ternary kernels of AVX-512 VNNI, where vpdpbusd adds four products of bytes to 32 bits at once: vectors,
// and two bits per weight.
#pragma once

#include "isa/simd_x86.hpp"
#include "ternary/groups.hpp"

namespace bitnet {
namespace {

struct Acc {
    using Ints = __m512i;
    using Floats = __m512;
    struct Doubles {
        __m512d low, high;
    };
    // 24 registers of sums, three of weights; GCC 12 keeps them in registers where every loop over them is unrolled.
    static constexpr int kTokens = 8, kTiles = 3;
    static constexpr int kGroupTokens = 4, kGroupTiles = 2;  // sums of runs and of groups in registers as well

    static Ints zero() { return _mm512_setzero_si512(); }
    static Doubles zero_double() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
    static Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
    static Ints minus(Ints a, int32_t b) { return _mm512_sub_epi32(a, _mm512_set1_epi32(b)); }
    static __m512 to_float(Ints a) { return _mm512_cvtepi32_ps(a); }
    static __m512 to_float(Doubles a) {
        return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(a.low)), _mm512_cvtpd_ps(a.high), 1);
    }

    static Doubles add_scaled(Doubles sum, Ints a, const uint8_t* scales) {
        const __m256 low = _mm256_loadu_ps(reinterpret_cast<const float*>(scales));
        const __m256 high = _mm256_loadu_ps(reinterpret_cast<const float*>(scales) + 8);
        return {_mm512_fmadd_pd(_mm512_cvtps_pd(low), _mm512_cvtepi32_pd(_mm512_castsi512_si256(a)), sum.low),
                _mm512_fmadd_pd(_mm512_cvtps_pd(high), _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(a, 1)), sum.high)};
    }

    static Floats zero_floats() { return _mm512_setzero_ps(); }
    static Floats add_scaled(Floats sum, Floats a, Floats scale) { return _mm512_fmadd_ps(a, scale, sum); }
    static Floats add_scaled(Floats sum, Floats a, float step) { return add_scaled(sum, a, _mm512_set1_ps(step)); }
    static Floats load_halves(const uint8_t* halves) { return _mm512_cvtph_ps(load256(halves)); }

    static int32_t sum_block(const int8_t* q) {
        const __m512i ones = _mm512_set1_epi8(1);
        __m512i sum = zero();
        for (int i = 0; i < kTernaryBlock; i += 64) sum = _mm512_dpbusd_epi32(sum, ones, _mm512_loadu_si512(q + i));
        return _mm512_reduce_add_epi32(sum);
    }

    static void store(const LinearArgs& a, int64_t r, int64_t t, __m512 sum) {
        put(a, r, t, _mm512_mul_ps(_mm512_div_ps(sum, _mm512_set1_ps(a.step[t])), _mm512_set1_ps(a.scale)));
    }

    static void put(const LinearArgs& a, int64_t r, int64_t t, Floats y) {
        const int64_t rows = a.rows - r;
        const auto mask = __mmask16(rows >= 16 ? 0xffff : (1 << rows) - 1);
        _mm512_mask_storeu_ps(a.y + t * a.rows + r, mask, y);
    }

    template <int G, int N>
    static void unpacked(const LinearArgs& a, const uint8_t* bytes, int64_t t, int64_t c0, int64_t c1, Ints (*out)[N]) {
        const Inputs<N> q(a, t);
        Ints sum[G][N];
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n)
#pragma GCC unroll 3
            for (int g = 0; g < G; ++g) sum[g][n] = zero();
        for (int64_t c = c0; c < c1; c += 4) {
            Ints w[G];
#pragma GCC unroll 3
            for (int g = 0; g < G; ++g) w[g] = _mm512_load_si512(bytes + (c / 4 * G + g) * 64);
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) {
                const Ints x = _mm512_set1_epi32(read<int>(q[n] + c));
#pragma GCC unroll 3
                for (int g = 0; g < G; ++g) {
                    sum[g][n] = _mm512_dpbusd_epi32(sum[g][n], w[g], x);
                    pin(sum[g][n]);
                }
            }
        }
#pragma GCC unroll 3
        for (int g = 0; g < G; ++g)
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) out[g][n] = sum[g][n];
    }
};

// One or two tokens: a mask leaves one field of every byte in its place, which is its code times 1, 4,
// 16 or 64, so each field has a sum of its own that is shifted in the end. More: fields are shifted down.
struct TwoBits {
    static constexpr int kStep = kTernaryStep, kPackedTokens = 16, kPackedAtOnce = 8, kPrefetch = 512;

    template <int N>
    static void packed(const LinearArgs& a, const uint8_t* codes, int64_t t, int64_t c0, int64_t c1, Acc::Ints* out) {
        constexpr bool kInPlace = N <= 2;
        constexpr int kSums = kInPlace ? 4 : 1;
        const Inputs<N> q(a, t);
        Acc::Ints sum[N][kSums];
        for (int n = 0; n < N; ++n)
            for (int f = 0; f < kSums; ++f) sum[n][f] = Acc::zero();
        for (int64_t c = c0; c < c1; c += kTernaryStep) {
            const uint8_t* at = codes + 4 * c;
            const Acc::Ints bytes = _mm512_loadu_si512(at);
            prefetch_line(at + kPrefetch);
#pragma GCC unroll 4
            for (int f = 0; f < 4; ++f) {
                const Acc::Ints field = kInPlace ? _mm512_and_si512(bytes, _mm512_set1_epi8(char(3 << (2 * f)))) : low_field(bytes, f);
#pragma GCC unroll 8
                for (int n = 0; n < N; ++n) {
                    Acc::Ints& to = sum[n][kInPlace ? f : 0];
                    to = _mm512_dpbusd_epi32(to, field, _mm512_set1_epi32(read<int>(q[n] + c + 4 * f)));
                    pin(to);
                }
            }
        }
        for (int n = 0; n < N; ++n) {
            out[n] = sum[n][0];
            for (int f = 1; f < kSums; ++f) out[n] = Acc::add(out[n], _mm512_srai_epi32(sum[n][f], 2 * unsigned(f)));
        }
    }

    static Acc::Ints low_field(Acc::Ints bytes, int f) {
        return _mm512_and_si512(_mm512_srli_epi16(bytes, 2 * unsigned(f)), _mm512_set1_epi8(3));
    }

    static void unpack(const uint8_t* codes, int64_t cols, uint8_t* out, int64_t stride) {
        for (int64_t i = 0; i < cols / 4; i += 4) {
            const Acc::Ints bytes = _mm512_loadu_si512(codes + 16 * i);
#pragma GCC unroll 4
            for (int f = 0; f < 4; ++f)
                _mm512_store_si512(out + (i + f) * stride, low_field(bytes, f));
        }
    }
};

// The products of a block, a run per digit. Its codes are multiplied in place, as multiples that the sums lose
// in the end.
template <class Fields, int N>
inline void multiply_block(const LinearArgs& a, const uint8_t* lines, int64_t t, int64_t c, Acc::Ints (*out)[N]) {
    const Inputs<N> q(a, t);
#pragma GCC unroll 8
    for (int f = 0; f < Fields::kRuns; ++f)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) out[f][n] = Acc::zero();
#pragma GCC unroll 8
    for (int i = 0; i < kRunLines; ++i) {
        Acc::Ints field[Fields::kRuns];
        Fields::isolate(_mm512_loadu_si512(lines + 64 * i), field);
        prefetch_line(lines + 64 * i + 1024);
#pragma GCC unroll 8
        for (int f = 0; f < Fields::kRuns; ++f)
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) {
                out[f][n] = _mm512_dpbusd_epi32(out[f][n], field[f], _mm512_set1_epi32(read<int>(q[n] + c + kRun * f + 4 * i)));
                pin(out[f][n]);
            }
    }
#pragma GCC unroll 8
    for (int f = 0; f < Fields::kRuns; ++f)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n)
            if (Fields::shift(f)) out[f][n] = _mm512_srai_epi32(out[f][n], unsigned(Fields::shift(f)));
}

struct TwoBitRuns {
    static constexpr int kRuns = 4, kPackedTokens = 4, kPackedAtOnce = 4;
    static constexpr int shift(int f) { return 2 * f; }
    static void isolate(Acc::Ints bytes, Acc::Ints* out) {
#pragma GCC unroll 4
        for (int f = 0; f < kRuns; ++f) out[f] = _mm512_and_si512(bytes, _mm512_set1_epi8(char(3 << (2 * f))));
    }
    template <int N>
    static void block(const LinearArgs& a, const uint8_t* lines, int64_t t, int64_t c, Acc::Ints (*out)[N]) {
        multiply_block<TwoBitRuns, N>(a, lines, t, c, out);
    }
    static void unpack(const uint8_t* lines, uint8_t* out, int64_t stride) {
        for (int i = 0; i < kRunLines; ++i) {
            const Acc::Ints bytes = _mm512_loadu_si512(lines + 64 * i);
#pragma GCC unroll 4
            for (int f = 0; f < kRuns; ++f) _mm512_store_si512(out + (kRunLines * f + i) * stride, TwoBits::low_field(bytes, f));
        }
    }
};

// A bit in the place of the one above is its code, times 1 to 64; the last one stays where it is.
struct OneBitRuns {
    static constexpr int kRuns = 8, kPackedTokens = 4, kPackedAtOnce = 2;
    static constexpr int shift(int f) { return f < 6 ? f : 6; }
    static void isolate(Acc::Ints bytes, Acc::Ints* out) {
        const Acc::Ints codes = _mm512_add_epi8(bytes, bytes);
#pragma GCC unroll 7
        for (int f = 0; f < 7; ++f) out[f] = _mm512_and_si512(codes, _mm512_set1_epi8(char(2 << f)));
        out[7] = _mm512_and_si512(bytes, _mm512_set1_epi8(char(128)));
    }
    template <int N>
    static void block(const LinearArgs& a, const uint8_t* lines, int64_t t, int64_t c, Acc::Ints (*out)[N]) {
        multiply_block<OneBitRuns, N>(a, lines, t, c, out);
    }
    static void unpack(const uint8_t* lines, uint8_t* out, int64_t stride) {
        for (int i = 0; i < kRunLines; ++i) {
            const Acc::Ints bytes = _mm512_loadu_si512(lines + 64 * i), codes = _mm512_add_epi8(bytes, bytes);
#pragma GCC unroll 8
            for (int f = 0; f < kRuns; ++f)
                _mm512_store_si512(out + (kRunLines * f + i) * stride,
                                   _mm512_and_si512(f ? _mm512_srli_epi16(bytes, unsigned(f - 1)) : codes, _mm512_set1_epi8(2)));
        }
    }
};

}  // namespace
}  // namespace bitnet
