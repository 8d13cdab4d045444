// AVX2 with FMA and F16C: products of bytes by vpmaddubsw, added in 16 bits as long as they fit.
#define BITNET_F16C
#include "isa/avx2.hpp"
#include "ops/row_ops.hpp"

namespace bitnet {
namespace {

struct Vec : Avx2 {
    static constexpr bool kSignedCodes = true;  // pairs of codes up to 255 would overflow 16 bits
    static constexpr int places(int) { return 2; }

    static constexpr int kDepth = 64;  // pairs of products of ternary codes that fit a sum
    static_assert(kDepth * 2 * 2 * 127 <= 32767, "16-bit sums overflow");

    // Sums in 16 bits of products with codes up to kMost. They start at -kOffset * sum(q), and may
    // overflow on the way: modulo 2^16 the total is right, because it is that of codes without
    // their offset, whose magnitude is kLargest at most, and fits.
    template <int kMost = 2, int kOffset = 0, bool kSigned = false>
    struct Sum {
        static constexpr int kLargest = kMost - kOffset > kOffset ? kMost - kOffset : kOffset;
        // Whether the products of 16 columns fit; if not, each pair of them is widened at once.
        static constexpr bool kDeep = 4 * 2 * 127 * kLargest <= 32767;
        static_assert(2 * 127 * kMost <= 32767 && (kDeep || kOffset == 0), "16-bit sums overflow");
        Int v;
        static Int widened(Int pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
        void start() { v = zero(); }
        void start(const BlockInput& x, int half) {
            v = kOffset != 0
                    ? _mm256_slli_epi16(set(read<int>(x.minus_pairs[half])), log2_of(kOffset))
                    : zero();
        }
        void add(Int codes, const int8_t* q, int i) {
            const Int x = set(read<int>(q + 4 * i));
            const Int pairs =
                kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
                        : _mm256_maddubs_epi16(codes, x);
            v = kDeep ? _mm256_add_epi16(v, pairs) : _mm256_add_epi32(v, widened(pairs));
            pin(v);
        }
        Int total() const { return kDeep ? widened(v) : v; }
    };
};

// 16 bytes for vpshufb in both halves of a register.
struct Table {
    alignas(32) uint8_t at[32] = {};
    __m256i of(__m256i index) const { return _mm256_shuffle_epi8(load256(at), index); }
    constexpr void put(int i, int value) { at[i] = at[16 + i] = uint8_t(value); }
};
constexpr Table digits_of(int divisor) {
    Table out;
    for (int i = 0; i < 16; ++i) out.put(i, i / divisor % 3);
    return out;
}
// Entry i, for bytes whose upper four bits are i: the largest multiple of 28 up to 16 i.
constexpr Table multiples_of_28() {
    Table out;
    for (int i = 0; i < 16; ++i) out.put(i, i * 16 / 28 * 28);
    return out;
}
// Entry i, for the g whose 28 g has the upper four bits i, which no two g share: a digit of g.
constexpr Table digits_of_multiple(int divisor) {
    Table out;
    for (int g = 0; g < 9; ++g) out.put(28 * g / 16, g / divisor % 3);
    return out;
}

// The five digits of a byte, 28 g + low. 28 g is the multiple that the upper four bits look up, or
// the next one. low is nine times the third digit plus a rest of two digits. Members as of `Fields`
// in ternary/products.hpp.
struct DenseDigits {
    static constexpr int kDigits = 5, kSums = 1, kLargest = 1, kTogether = kDigits;
    static constexpr int place(int) { return 0; }
    static void isolate_all(__m256i bytes, __m256i* out) {
        static constexpr Table kMultiple = multiples_of_28(), kFourth = digits_of_multiple(1),
                               kFifth = digits_of_multiple(3), kFirst = digits_of(1),
                               kSecond = digits_of(3);
        const auto upper = [](__m256i v) {
            return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
        };
        const auto minus = [](__m256i v, int n) {
            return _mm256_sub_epi8(v, _mm256_set1_epi8(char(n)));
        };
        // A difference below zero wraps to a large byte, which the minimum drops.
        __m256i low = _mm256_sub_epi8(bytes, kMultiple.of(upper(bytes)));
        low = _mm256_min_epu8(low, minus(low, 28));
        const __m256i group = upper(_mm256_sub_epi8(bytes, low));
        const __m256i rest = _mm256_min_epu8(low, _mm256_min_epu8(minus(low, 9), minus(low, 18)));
        out[0] = kFirst.of(rest);
        out[1] = kSecond.of(rest);
        // 0, 9 or 18, whose last two bits are 0, 1 or 2.
        out[2] = _mm256_and_si256(_mm256_sub_epi8(low, rest), _mm256_set1_epi8(3));
        out[3] = kFourth.of(group);
        out[4] = kFifth.of(group);
    }
    static __m256i total(const Vec::Sum<> (&sums)[kSums]) { return sums[0].total(); }
};
// The digits of dense lines, as FieldCode in ternary/products.hpp has those of fields.
struct Dense {
    template <int>
    using Digits = DenseDigits;
    using Runs = DenseDigits;
    using Bytes = DenseDigits;
};

}  // namespace
}  // namespace bitnet

#include "head/level.hpp"
#include "ops/tile_products.hpp"
#include "ternary/products.hpp"

namespace bitnet {

const Kernels& avx2_kernels() {
    static const Kernels table = [] {
        Kernels k = scalar_kernels();
        k.name = "avx2";
        add_row_ops(k);
        add_tiled_linear(k);
        add_fields(k);
        use<TernaryProduct<Dense, false>>(k, Type::TernaryDense);
        use<GroupProduct<Dense>>(k, Type::PTQ1_0_R16);
        k.exact_head = {head_tile, sixth_x86, pack_tile};
        return k;
    }();
    return table;
}

}  // namespace bitnet
