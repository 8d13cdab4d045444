// Ternary kernels of NEON with dot products: a tile is four registers of four rows each.
#include "ternary/vectors_neon.hpp"

namespace bitnet {
namespace {

struct Acc : TernaryNeon {
    // Four tokens: 16 registers of sums, four of weights and four of activations.
    static constexpr int kTokens = 4, kGroupTokens = 4, kTiles = 1;

    template <int G, int N>
    static void unpacked(const LinearArgs& a, const uint8_t* bytes, int64_t t, int64_t c0, int64_t c1, Ints (*out)[N]) {
        const Inputs<N> q(a, t);
        for (int n = 0; n < N; ++n) out[0][n] = zero();
        for (int64_t c = c0; c < c1; c += kTernaryStep) {
            int8x16_t x[N];
            for (int n = 0; n < N; ++n) x[n] = vld1q_s8(q[n] + c);
#pragma GCC unroll 4
            for (int f = 0; f < 4; ++f)
#pragma GCC unroll 4
                for (int i = 0; i < kRegisters; ++i) {
                    const int8x16_t w = vreinterpretq_s8_u8(vld1q_u8(bytes + 16 * c + 64 * f + 16 * i));
#pragma GCC unroll 4
                    for (int n = 0; n < N; ++n) out[0][n].part[i] = dot_lane(out[0][n].part[i], w, x[n], f);
                }
        }
    }
};
static_assert(Acc::kTiles == 1, "unpacked() multiplies one tile");

struct TwoBits {
    static constexpr int kStep = kTernaryStep, kPackedTokens = 8, kPackedAtOnce = 4, kPrefetch = 512;

    // One token: fields 1 and 2 are masked in place, four and 16 times their code, and have sums of
    // their own. More: fields are shifted down.
    template <int N>
    static void packed(const LinearArgs& a, const uint8_t* codes, int64_t t, int64_t c0, int64_t c1, Acc::Ints* out) {
        constexpr int kSums = N == 1 ? 3 : 1;
        const Inputs<N> q(a, t);
        Acc::Ints sum[N][kSums];
        for (int n = 0; n < N; ++n)
            for (Acc::Ints& s : sum[n]) s = Acc::zero();
        for (int64_t c = c0; c < c1; c += kTernaryStep) {
            prefetch_line(codes + 4 * c + kPrefetch);
            int8x16_t x[N];
            for (int n = 0; n < N; ++n) x[n] = vld1q_s8(q[n] + c);
#pragma GCC unroll 4
            for (int i = 0; i < kRegisters; ++i) {
                const uint8x16_t bytes = vld1q_u8(codes + 4 * c + 16 * i);
#pragma GCC unroll 4
                for (int f = 0; f < 4; ++f) {
                    const bool in_place = kSums == 3 && f < 3;
                    const uint8x16_t field = in_place ? vandq_u8(bytes, vdupq_n_u8(uint8_t(3 << (2 * f)))) : low_field(bytes, f);
#pragma GCC unroll 4
                    for (int n = 0; n < N; ++n) {
                        int32x4_t& to = sum[n][in_place ? f : 0].part[i];
                        to = dot_lane(to, vreinterpretq_s8_u8(field), x[n], f);
                    }
                }
            }
        }
        for (int n = 0; n < N; ++n) {
            out[n] = sum[n][0];
            if constexpr (kSums == 3)
                for (int i = 0; i < kRegisters; ++i) {
                    const int32x4_t four = vshrq_n_s32(sum[n][1].part[i], 2), sixteen = vshrq_n_s32(sum[n][2].part[i], 4);
                    out[n].part[i] = vaddq_s32(out[n].part[i], vaddq_s32(four, sixteen));
                }
        }
    }

    static void unpack(const uint8_t* codes, int64_t cols, uint8_t* out, int64_t stride) {
        for (int64_t i = 0; i < cols / 4; i += 4)
            for (int j = 0; j < kRegisters; ++j) {
                const uint8x16_t bytes = vld1q_u8(codes + 16 * i + 16 * j);
#pragma GCC unroll 4
                for (int f = 0; f < 4; ++f) vst1q_u8(out + (i + f) * stride + 16 * j, low_field(bytes, f));
            }
    }
};

// Codes of digit *f* of a byte, of two bits or of one.
template <int kDigits>
uint8x16_t run_codes(uint8x16_t bytes, int f) {
    if constexpr (kDigits == 4) return low_field(bytes, f);
    return vandq_u8(shift_bytes(bytes, 1 - f), vdupq_n_u8(2));
}

template <int kDigits>
struct FieldRuns {
    static constexpr int kRuns = kDigits, kPackedTokens = 4, kPackedAtOnce = 4;

    template <int N>
    static void block(const LinearArgs& a, const uint8_t* lines, int64_t t, int64_t c, Acc::Ints (*out)[N]) {
        const Inputs<N> q(a, t);
#pragma GCC unroll 8
        for (int f = 0; f < kRuns; ++f) {
            for (int n = 0; n < N; ++n) out[f][n] = Acc::zero();
#pragma GCC unroll 8
            for (int i = 0; i < kRunLines; ++i)
#pragma GCC unroll 4
                for (int j = 0; j < kRegisters; ++j) {
                    const auto codes = vreinterpretq_s8_u8(run_codes<kDigits>(vld1q_u8(lines + 64 * i + 16 * j), f));
#pragma GCC unroll 4
                    for (int n = 0; n < N; ++n) {
                        const int8x16_t x = vld1q_s8(q[n] + c + kRun * f + 16 * (i / 4));
                        out[f][n].part[j] = dot_lane(out[f][n].part[j], codes, x, i % 4);
                    }
                }
        }
    }

    static void unpack(const uint8_t* lines, uint8_t* out, int64_t stride) {
        for (int i = 0; i < kRunLines; ++i)
            for (int j = 0; j < kRegisters; ++j) {
                const uint8x16_t bytes = vld1q_u8(lines + 64 * i + 16 * j);
                for (int f = 0; f < kRuns; ++f)
                    vst1q_u8(out + (kRunLines * f + i) * stride + 16 * j, run_codes<kDigits>(bytes, f));
            }
    }
};

}  // namespace
}  // namespace bitnet

#include "ternary/group_products.hpp"
#include "ternary/products.hpp"

namespace bitnet {

void add_neon_dotprod_ternary(Kernels& k) {
    use<TwoBits, false>(k, Type::Ternary);
    use<TwoBits, true>(k, Type::TernaryBlocks);
    use_whole_bits<FieldRuns<8>, FieldRuns<4>>(k);
}

}  // namespace bitnet
