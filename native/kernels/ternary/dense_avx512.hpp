// Five weights per byte with AVX-512 VBMI: vpermb looks digits up.
#pragma once

#include "ternary/simd_avx512.hpp"

namespace bitnet {
namespace {

// What vpermb finds by the lowest six bits of a byte, with i / divisor % modulus * factor at i.
struct Table {
    alignas(64) uint8_t at[64];
    __m512i of(__m512i index) const { return _mm512_permutexvar_epi8(index, _mm512_load_si512(at)); }
};
constexpr Table table(int divisor, int modulus, int factor) {
    Table out{};
    for (int i = 0; i < 64; ++i) out.at[i] = uint8_t(i / divisor % modulus * factor);
    return out;
}

constexpr uint32_t inverse(uint32_t odd) {  // modulo 2^32, by Newton's method
    uint32_t x = odd;
    for (int i = 0; i < 4; ++i) x *= 2 - odd * x;
    return x;
}
static_assert(inverse(21) * 21 == 1);

// A byte is 28 g + low, and its upper six bits divided by seven are g.
struct Dense {
    static constexpr int kStep = kDenseStep, kPackedTokens = 16, kPackedAtOnce = 8, kPrefetch = 512;
    static constexpr int kDigits = 5;

    // The digits of 64 bytes, the last two of them as the multiple of 28 and of 84 they stand for,
    // which spares a table, or as they are.
    template <bool kInPlace>
    static void digits(__m512i bytes, __m512i* out) {
        static constexpr Table kFirst = table(1, 3, 1), kSecond = table(3, 3, 1), kThird = table(9, 3, 1),
                               kGroup = table(7, 9, 28), kFourth = table(7, 3, kInPlace ? 28 : 1),
                               kFifth = table(21, 3, kInPlace ? 84 : 1);
        const __m512i upper = _mm512_srli_epi16(bytes, 2);
        out[3] = kFourth.of(upper);
        out[4] = kFifth.of(upper);
        const __m512i low = _mm512_sub_epi8(bytes, kInPlace ? _mm512_add_epi8(out[3], out[4]) : kGroup.of(upper));
        out[0] = kFirst.of(low);
        out[1] = kSecond.of(low);
        out[2] = kThird.of(low);
    }

    // One or two tokens: every digit has a sum of its own.
    template <int N>
    static void packed(const LinearArgs& a, const uint8_t* codes, int64_t t, int64_t c0, int64_t c1, Acc::Ints* out) {
        constexpr bool kInPlace = N <= 2;
        constexpr int kSums = kInPlace ? kDigits : 1;
        const Inputs<N> q(a, t);
        Acc::Ints sum[N][kSums];
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n)
#pragma GCC unroll 5
            for (int d = 0; d < kSums; ++d) sum[n][d] = Acc::zero();
        const uint8_t* line = codes + c0 / kStep * 64;
        for (int64_t c = c0; c < c1; c += kStep, line += 64) {
            __m512i digit[kDigits];
            digits<kInPlace>(_mm512_loadu_si512(line), digit);
            prefetch_line(line + kPrefetch);
#pragma GCC unroll 5
            for (int d = 0; d < kDigits; ++d)
#pragma GCC unroll 8
                for (int n = 0; n < N; ++n) {
                    Acc::Ints& to = sum[n][kInPlace ? d : 0];
                    to = _mm512_dpbusd_epi32(to, digit[d], _mm512_set1_epi32(read<int>(q[n] + c + 4 * d)));
                    pin(to);
                }
        }
        for (int n = 0; n < N; ++n) {
            if constexpr (kInPlace) out[n] = total(sum[n]);
            else out[n] = sum[n][0];
        }
    }

    // 28 times the fourth sum and 84 times the fifth: together a multiple of 84 = 4 x 21.
    static __m512i total(const __m512i* sum) {
        const __m512i three = _mm512_add_epi32(_mm512_add_epi32(sum[3], sum[3]), sum[3]);
        const __m512i quarter = _mm512_srai_epi32(_mm512_add_epi32(three, sum[4]), 2);
        const __m512i upper = _mm512_mullo_epi32(quarter, _mm512_set1_epi32(int(inverse(21))));
        return Acc::add(Acc::add(sum[0], sum[1]), Acc::add(sum[2], upper));
    }

    static void unpack(const uint8_t* codes, int64_t cols, uint8_t* out, int64_t stride) {
        for (int64_t line = 0; line < cols / kStep; ++line) {
            __m512i digit[kDigits];
            digits<false>(_mm512_loadu_si512(codes + 64 * line), digit);
#pragma GCC unroll 5
            for (int d = 0; d < kDigits; ++d) _mm512_store_si512(out + (kDigits * line + d) * stride, digit[d]);
        }
    }
};

struct DenseRuns {
    static constexpr int kRuns = Dense::kDigits, kPackedTokens = 4, kPackedAtOnce = 2;
    static constexpr int shift(int) { return 0; }
    static void isolate(Acc::Ints bytes, Acc::Ints* out) { Dense::digits<false>(bytes, out); }
    template <int N>
    static void block(const LinearArgs& a, const uint8_t* lines, int64_t t, int64_t c, Acc::Ints (*out)[N]) {
        multiply_block<DenseRuns, N>(a, lines, t, c, out);
    }
    static void unpack(const uint8_t* lines, uint8_t* out, int64_t stride) {
        for (int i = 0; i < kRunLines; ++i) {
            Acc::Ints digit[kRuns];
            isolate(_mm512_loadu_si512(lines + 64 * i), digit);
#pragma GCC unroll 5
            for (int f = 0; f < kRuns; ++f) _mm512_store_si512(out + (kRunLines * f + i) * stride, digit[f]);
        }
    }
};

}  // namespace
}  // namespace bitnet
