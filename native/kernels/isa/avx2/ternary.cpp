// Ternary kernels of AVX2: products of bytes by vpmaddubsw, added in 16 bits as deep as they fit.
//
// Activations are within -127 .. 127 (quantize_ternary), so a pair of products is at most 508.
#include "ternary/vectors_avx2.hpp"

namespace bitnet {
namespace {

constexpr int kPair = 2 * 2 * 127;

struct Acc : TernaryAvx2 {
    static constexpr int kTokens = 4, kGroupTokens = 4, kTiles = 1, kGroupTiles = 1;
    static constexpr int64_t kColumns = 256;  // until 16-bit sums are widened; four are one addition
    static_assert(kColumns / 4 * kPair <= 32767, "16-bit sums overflow");

    template <int G, int N>
    static void unpacked(const LinearArgs& a, const uint8_t* bytes, int64_t t, int64_t c0, int64_t c1, Ints (*out)[N]) {
        const Inputs<N> q(a, t);
        for (int n = 0; n < N; ++n) out[0][n] = zero();
        for (int64_t start = c0; start < c1; start += kColumns) {
            const int64_t end = start + kColumns < c1 ? start + kColumns : c1;
            __m256i sum[N][2];
            for (int n = 0; n < N; ++n) sum[n][0] = sum[n][1] = _mm256_setzero_si256();
#pragma GCC unroll 4
            for (int64_t c = start; c < end; c += 4) {
                const __m256i low = load256(bytes + 16 * c), high = load256(bytes + 16 * c + 32);
#pragma GCC unroll 4
                for (int n = 0; n < N; ++n) {
                    const __m256i x = _mm256_set1_epi32(read<int>(q[n] + c));
                    sum[n][0] = _mm256_add_epi16(sum[n][0], _mm256_maddubs_epi16(low, x));
                    sum[n][1] = _mm256_add_epi16(sum[n][1], _mm256_maddubs_epi16(high, x));
                    pin(sum[n][0]);
                    pin(sum[n][1]);
                }
            }
            for (int n = 0; n < N; ++n) out[0][n] = add(out[0][n], {widen(sum[n][0], 1), widen(sum[n][1], 1)});
        }
    }
};
static_assert(Acc::kTiles == 1, "unpacked() multiplies one tile");

// A byte's fields are its codes times 1, 4, 16 and 64. It is shifted once by four, and the fields that
// are four times their code have sums of their own.
struct TwoBits {
    static constexpr int kStep = kTernaryStep, kPackedTokens = 2, kPackedAtOnce = 2, kPrefetch = 512;
    static constexpr int64_t kColumns = 128;  // until 16-bit sums are widened
    static_assert(kColumns / kStep * 2 * 4 * kPair <= 32767, "16-bit sums overflow");

    template <int N>
    static void packed(const LinearArgs& a, const uint8_t* codes, int64_t t, int64_t c0, int64_t c1, Acc::Ints* out) {
        const __m256i mask1 = _mm256_set1_epi8(3), mask4 = _mm256_set1_epi8(12);
        const Inputs<N> q(a, t);
        for (int n = 0; n < N; ++n) out[n] = Acc::zero();  // four times the sums, until the end
        for (int64_t start = c0; start < c1; start += kColumns) {
            const int64_t end = start + kColumns < c1 ? start + kColumns : c1;
            __m256i once[N][2], fourfold[N][2];
            for (int n = 0; n < N; ++n)
                once[n][0] = once[n][1] = fourfold[n][0] = fourfold[n][1] = _mm256_setzero_si256();
            for (int64_t c = start; c < end; c += kTernaryStep) {
                _mm_prefetch(reinterpret_cast<const char*>(codes + 4 * c) + kPrefetch, _MM_HINT_T0);
#pragma GCC unroll 2
                for (int h = 0; h < 2; ++h) {
                    const __m256i bytes = load256(codes + 4 * c + 32 * h), upper = _mm256_srli_epi16(bytes, 4);
                    const __m256i field[4] = {_mm256_and_si256(bytes, mask1), _mm256_and_si256(bytes, mask4),
                                              _mm256_and_si256(upper, mask1), _mm256_and_si256(upper, mask4)};
#pragma GCC unroll 2
                    for (int n = 0; n < N; ++n) {
                        const auto product = [&](int f) {
                            return _mm256_maddubs_epi16(field[f], _mm256_set1_epi32(read<int>(q[n] + c + 4 * f)));
                        };
                        once[n][h] = _mm256_add_epi16(once[n][h], _mm256_add_epi16(product(0), product(2)));
                        fourfold[n][h] = _mm256_add_epi16(fourfold[n][h], _mm256_add_epi16(product(1), product(3)));
                        pin(once[n][h]);
                        pin(fourfold[n][h]);
                    }
                }
            }
            const auto sums = [&](int n, int h) {
                return _mm256_add_epi32(Acc::widen(once[n][h], 4), Acc::widen(fourfold[n][h], 1));
            };
            for (int n = 0; n < N; ++n) out[n] = Acc::add(out[n], {sums(n, 0), sums(n, 1)});
        }
        for (int n = 0; n < N; ++n) out[n] = {_mm256_srai_epi32(out[n].low, 2), _mm256_srai_epi32(out[n].high, 2)};
    }

    static void unpack(const uint8_t* codes, int64_t cols, uint8_t* out, int64_t stride) {
        Acc::unpack_two_bits(codes, cols, out, stride);
    }
};

// 16 bytes for vpshufb in both halves of a register: at[i] = i / divisor % 3.
struct Digits {
    alignas(32) uint8_t at[32];
    __m256i of(__m256i index) const { return _mm256_shuffle_epi8(load256(at), index); }
};
constexpr Digits digits_of(int divisor) {
    Digits out{};
    for (int i = 0; i < 32; ++i) out.at[i] = uint8_t(i % 16 / divisor % 3);
    return out;
}
// By the upper four bits of a byte: the largest multiple of 28 that is not larger.
constexpr Digits multiples_of_28() {
    Digits out{};
    for (int i = 0; i < 32; ++i) out.at[i] = uint8_t(i % 16 * 16 / 28 * 28);
    return out;
}
// By the upper four bits of 28 g, which no two g share: a digit of g.
constexpr Digits digits_of_multiple(int divisor) {
    Digits out{};
    for (int g = 0; g < 9; ++g)
        for (int half = 0; half < 32; half += 16) out.at[half + 28 * g / 16] = uint8_t(g / divisor % 3);
    return out;
}

struct Dense {
    static constexpr int kStep = kDenseStep, kPackedTokens = 2, kPackedAtOnce = 2, kPrefetch = 512;
    static constexpr int64_t kColumns = 240;  // until 16-bit sums are widened
    static_assert(kColumns % kStep == 0 && kColumns / 4 * kPair <= 32767, "16-bit sums overflow");
    static constexpr int kDigits = 5;

    // The digits of 32 bytes, each in bytes of their own. A byte is 28 g + low: 28 g is the multiple
    // at or before its upper four bits, or the next one. Low is 9 d + the rest, which has two digits.
    static void digits(__m256i bytes, __m256i* out) {
        static constexpr Digits kMultiple = multiples_of_28(), kFourth = digits_of_multiple(1), kFifth = digits_of_multiple(3),
                                kFirst = digits_of(1), kSecond = digits_of(3);
        const auto upper = [](__m256i v) { return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15)); };
        const auto minus = [](__m256i v, int n) { return _mm256_sub_epi8(v, _mm256_set1_epi8(char(n))); };
        __m256i low = _mm256_sub_epi8(bytes, kMultiple.of(upper(bytes)));
        low = _mm256_min_epu8(low, minus(low, 28));
        const __m256i group = upper(_mm256_sub_epi8(bytes, low));
        const __m256i rest = _mm256_min_epu8(low, _mm256_min_epu8(minus(low, 9), minus(low, 18)));
        out[0] = kFirst.of(rest);
        out[1] = kSecond.of(rest);
        out[2] = _mm256_and_si256(_mm256_sub_epi8(low, rest), _mm256_set1_epi8(3));  // of 0, 9 and 18
        out[3] = kFourth.of(group);
        out[4] = kFifth.of(group);
    }

    template <int N>
    static void packed(const LinearArgs& a, const uint8_t* codes, int64_t t, int64_t c0, int64_t c1, Acc::Ints* out) {
        const Inputs<N> q(a, t);
        for (int n = 0; n < N; ++n) out[n] = Acc::zero();
        const uint8_t* line = codes + c0 / kStep * 64;
        for (int64_t start = c0; start < c1; start += kColumns) {
            const int64_t end = start + kColumns < c1 ? start + kColumns : c1;
            __m256i sum[N][2];
            for (int n = 0; n < N; ++n) sum[n][0] = sum[n][1] = _mm256_setzero_si256();
            for (int64_t c = start; c < end; c += kStep, line += 64) {
                prefetch_line(line + kPrefetch);
#pragma GCC unroll 2
                for (int h = 0; h < 2; ++h) {
                    __m256i digit[kDigits];
                    digits(load256(line + 32 * h), digit);
#pragma GCC unroll 5
                    for (int d = 0; d < kDigits; ++d)
#pragma GCC unroll 2
                        for (int n = 0; n < N; ++n) {
                            const __m256i x = _mm256_set1_epi32(read<int>(q[n] + c + 4 * d));
                            sum[n][h] = _mm256_add_epi16(sum[n][h], _mm256_maddubs_epi16(digit[d], x));
                            pin(sum[n][h]);
                        }
                }
            }
            for (int n = 0; n < N; ++n)
                out[n] = Acc::add(out[n], {Acc::widen(sum[n][0], 1), Acc::widen(sum[n][1], 1)});
        }
    }

    static void unpack(const uint8_t* codes, int64_t cols, uint8_t* out, int64_t stride) {
        for (int64_t line = 0; line < cols / kStep; ++line)
            for (int h = 0; h < 2; ++h) {
                __m256i digit[kDigits];
                digits(load256(codes + 64 * line + 32 * h), digit);
                for (int d = 0; d < kDigits; ++d)
                    _mm256_store_si256(reinterpret_cast<__m256i*>(out + (kDigits * line + d) * stride + 32 * h), digit[d]);
            }
    }
};

// The products of a run, in 16 bits: at most eight times code 3, or 16 times code 2 / 2, of eight pairs.
struct Run16 {
    static_assert(kRunLines * 2 * 16 * 127 <= 32767, "16-bit sums overflow");
    __m256i sum = _mm256_setzero_si256();
    void add(__m256i field, __m256i x) {
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(field, x));
        pin(sum);
    }
    __m256i total() const { return Acc::widen(sum, 1); }
};

struct DenseRuns {
    static constexpr int kRuns = Dense::kDigits, kPackedTokens = 2, kPackedAtOnce = 2;

    template <int N>
    static void block(const LinearArgs& a, const uint8_t* lines, int64_t t, int64_t c, Acc::Ints (*out)[N]) {
        const Inputs<N> q(a, t);
        Run16 sum[N][kRuns][2];
        for (int i = 0; i < kRunLines; ++i) {
            prefetch_line(lines + 64 * i + 1024);
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) {
                __m256i digit[kRuns];
                Dense::digits(load256(lines + 64 * i + 32 * h), digit);
#pragma GCC unroll 5
                for (int f = 0; f < kRuns; ++f)
#pragma GCC unroll 2
                    for (int n = 0; n < N; ++n)
                        sum[n][f][h].add(digit[f], _mm256_set1_epi32(read<int>(q[n] + c + kRun * f + 4 * i)));
            }
        }
        for (int f = 0; f < kRuns; ++f)
            for (int n = 0; n < N; ++n) out[f][n] = {sum[n][f][0].total(), sum[n][f][1].total()};
    }

    static void unpack(const uint8_t* lines, uint8_t* out, int64_t stride) {
        for (int i = 0; i < kRunLines; ++i)
            for (int h = 0; h < 2; ++h) {
                __m256i digit[kRuns];
                Dense::digits(load256(lines + 64 * i + 32 * h), digit);
                for (int f = 0; f < kRuns; ++f)
                    _mm256_store_si256(reinterpret_cast<__m256i*>(out + (kRunLines * f + i) * stride + 32 * h), digit[f]);
            }
    }
};

}  // namespace
}  // namespace bitnet

#include "ternary/group_products.hpp"
#include "ternary/pack_x86.hpp"
#include "ternary/products.hpp"

namespace bitnet {

void add_avx2_ternary(Kernels& k) {
    use<TwoBits, false>(k, Type::Ternary);
    use<TwoBits, true>(k, Type::TernaryBlocks);
    use<Dense, false>(k, Type::TernaryDense);
    use_whole_bits<FieldRuns<OneBitFields, Run16>, FieldRuns<TwoBitFields, Run16>>(k);
    use_groups<DenseRuns, Type::PTQ1_0_R16>(k);
    k.pack_two_bits = pack_two_bit_tile;
    k.make_dense = make_dense;
}

}  // namespace bitnet
