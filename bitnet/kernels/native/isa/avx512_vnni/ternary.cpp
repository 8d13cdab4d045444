// Ternary kernels of AVX-512 VNNI for two bits per weight.
#include "ternary/simd_avx512.hpp"

#include "isa/cpu.hpp"

namespace bitnet {
namespace {

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

}  // namespace
}  // namespace bitnet

#include "ternary/products.hpp"

namespace bitnet {

void add_avx512_vbmi_ternary(Kernels&);  // another folder

void add_avx512_vnni_ternary(Kernels& k) {
    add_avx2_ternary(k);  // TernaryDense, for processors without VBMI
    use<TwoBits, false>(k, Type::Ternary);
    use<TwoBits, true>(k, Type::TernaryBlocks);
    if (cpu_features().avx512_vbmi) add_avx512_vbmi_ternary(k);
}

}  // namespace bitnet
