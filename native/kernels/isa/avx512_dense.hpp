// Five weights per byte with AVX-512 VBMI: vpermb looks digits up.
#pragma once

#include "isa/avx512.hpp"

namespace bitnet {
// Each instruction set compiles its own copy: no unit may run code of another's flags.
namespace {
using Vec = Avx512;
}
}  // namespace bitnet

#include "ternary/products.hpp"

namespace bitnet {
namespace {

// A table that vpermb looks up by the lowest six bits of a byte; entry i is
// i / divisor % modulus * factor.
struct Table {
    alignas(64) uint8_t at[64];
    __m512i of(__m512i index) const {
        return _mm512_permutexvar_epi8(index, _mm512_load_si512(at));
    }
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

// A byte is 28 g + low, and its upper six bits divided by seven are g. If kInPlace, the last two
// digits stay multiples of 28 and of 84, which spares a table, and every digit has a sum of its
// own; otherwise they are plain digits, and one sum has all of them. Members as of `Fields` in
// ternary/products.hpp.
template <bool kInPlace>
struct DenseDigits {
    static constexpr int kDigits = 5, kSums = kInPlace ? kDigits : 1, kLargest = 1,
                         kTogether = kDigits;
    static constexpr int place(int) { return 0; }
    static void isolate_all(__m512i bytes, __m512i* out) {
        static constexpr Table kFirst = table(1, 3, 1), kSecond = table(3, 3, 1),
                               kThird = table(9, 3, 1), kGroup = table(7, 9, 28),
                               kFourth = table(7, 3, kInPlace ? 28 : 1),
                               kFifth = table(21, 3, kInPlace ? 84 : 1);
        const __m512i upper = _mm512_srli_epi16(bytes, 2);
        out[3] = kFourth.of(upper);
        out[4] = kFifth.of(upper);
        const __m512i low =
            _mm512_sub_epi8(bytes, kInPlace ? _mm512_add_epi8(out[3], out[4]) : kGroup.of(upper));
        out[0] = kFirst.of(low);
        out[1] = kSecond.of(low);
        out[2] = kThird.of(low);
    }
    // The sums of the last two digits are 28 and 84 times too large. So three times the former
    // plus the latter is a multiple of 84 = 4 x 21: a shift divides it by 4, and the inverse by 21.
    static __m512i total(const Vec::Sum<> (&sums)[kSums]) {
        const auto sum = [&](int i) { return sums[i].total(); };
        if constexpr (kInPlace) {
            const __m512i three = Vec::add(Vec::add(sum(3), sum(3)), sum(3));
            const __m512i upper = _mm512_mullo_epi32(Vec::over_power(Vec::add(three, sum(4)), 2),
                                                     Vec::set(int(inverse(21))));
            return Vec::add(Vec::add(sum(0), sum(1)), Vec::add(sum(2), upper));
        } else {
            return sum(0);
        }
    }
};
// The digits of dense lines, as FieldCode in ternary/products.hpp has those of fields.
struct Dense {
    template <int N>
    using Digits = DenseDigits<(N <= 2)>;
    using Runs = DenseDigits<false>;
    using Bytes = DenseDigits<false>;
};

}  // namespace
}  // namespace bitnet
