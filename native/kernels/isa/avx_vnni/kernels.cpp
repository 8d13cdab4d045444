// AVX-VNNI: AVX2 and vpdpbusd of 256 bits, which adds four products of bytes to 32 bits at once.
// Intel's processors for desktops and laptops have it since 2021, without AVX-512.
//
// BITNET_AVX_VNNI_PLAIN makes it plain C++, so that these kernels can be compared with the others on any
// processor with AVX2; BITNET_AVX_VNNI_EVEX takes the instruction of AVX-512 VL, to measure with.
#include "head/pack.hpp"
#include "head/tile_avx2.hpp"
#include "isa/vectors_avx2.hpp"
#include "ternary/vectors_avx2.hpp"

namespace bitnet {
namespace {

// Per lane of 32 bits: sum + four products of unsigned *a* and signed *b*.
inline __m256i dpbusd(__m256i sum, __m256i a, __m256i b) {
#if defined(BITNET_AVX_VNNI_PLAIN)
    int32_t total[8];
    uint8_t x[32];
    int8_t y[32];
    std::memcpy(total, &sum, 32), std::memcpy(x, &a, 32), std::memcpy(y, &b, 32);
    for (int i = 0; i < 32; ++i) total[i / 4] += int32_t(x[i]) * y[i];
    return load256(total);
#elif defined(BITNET_AVX_VNNI_EVEX)
    return _mm256_dpbusd_epi32(sum, a, b);
#else
    return _mm256_dpbusd_avx_epi32(sum, a, b);
#endif
}

struct Vec : Avx2 {
    static constexpr bool kSignedCodes = false;  // vpdpbusd wants them unsigned

    template <int kMax, int kOffset, bool kSigned>
    struct Products {
        Int wide = _mm256_setzero_si256();
        void start(const BlockInput& x, int half) {
            if constexpr (kOffset != 0) wide = _mm256_slli_epi32(_mm256_set1_epi32(x.minus_q[half]), log2_of(kOffset));
        }
        void add(Int w, const int8_t* q, int) {
            wide = dpbusd(wide, w, _mm256_set1_epi32(read<int>(q)));
            pin(wide);
        }
        Float total() const { return _mm256_cvtepi32_ps(wide); }
    };
};

struct Acc : TernaryAvx2 {
    static constexpr int kTokens = 6, kGroupTokens = 6, kTiles = 1, kGroupTiles = 1;

    template <int G, int N>
    static void unpacked(const LinearArgs& a, const uint8_t* bytes, int64_t t, int64_t c0, int64_t c1, Ints (*out)[N]) {
        static_assert(G == 1, "one tile");
        const Inputs<N> q(a, t);
        __m256i sum[N][2];
        for (int n = 0; n < N; ++n) sum[n][0] = sum[n][1] = _mm256_setzero_si256();
        for (int64_t c = c0; c < c1; c += 4) {
            const __m256i low = load256(bytes + 16 * c), high = load256(bytes + 16 * c + 32);
#pragma GCC unroll 6
            for (int n = 0; n < N; ++n) {
                const __m256i x = _mm256_set1_epi32(read<int>(q[n] + c));
                sum[n][0] = dpbusd(sum[n][0], low, x);
                sum[n][1] = dpbusd(sum[n][1], high, x);
                pin(sum[n][0]);
                pin(sum[n][1]);
            }
        }
        for (int n = 0; n < N; ++n) out[0][n] = {sum[n][0], sum[n][1]};
    }
};

// One token: a mask leaves one field of every byte in its place, which is its code times 1, 4, 16 or 64,
// so each field has sums of its own that are shifted in the end. Two: fields are shifted down.
struct TwoBits {
    static constexpr int kStep = kTernaryStep, kPackedTokens = 2, kPackedAtOnce = 2, kPrefetch = 512;

    template <int N>
    static void packed(const LinearArgs& a, const uint8_t* codes, int64_t t, int64_t c0, int64_t c1, Acc::Ints* out) {
        constexpr bool kInPlace = N == 1;
        constexpr int kSums = kInPlace ? 4 : 1;
        const Inputs<N> q(a, t);
        __m256i sum[N][kSums][2];
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n)
#pragma GCC unroll 4
            for (int f = 0; f < kSums; ++f) sum[n][f][0] = sum[n][f][1] = _mm256_setzero_si256();
        for (int64_t c = c0; c < c1; c += kTernaryStep) {
            prefetch_line(codes + 4 * c + kPrefetch);
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) {
                const __m256i bytes = load256(codes + 4 * c + 32 * h);
#pragma GCC unroll 4
                for (int f = 0; f < 4; ++f) {
                    const __m256i moved = kInPlace ? bytes : _mm256_srli_epi16(bytes, 2 * f);
                    const __m256i field = _mm256_and_si256(moved, _mm256_set1_epi8(char(kInPlace ? 3 << (2 * f) : 3)));
#pragma GCC unroll 2
                    for (int n = 0; n < N; ++n) {
                        __m256i& to = sum[n][kInPlace ? f : 0][h];
                        to = dpbusd(to, field, _mm256_set1_epi32(read<int>(q[n] + c + 4 * f)));
                        pin(to);
                    }
                }
            }
        }
        for (int n = 0; n < N; ++n) {
            out[n] = {sum[n][0][0], sum[n][0][1]};
            for (int f = 1; f < kSums; ++f)
                out[n] = Acc::add(out[n], {_mm256_srai_epi32(sum[n][f][0], 2 * f), _mm256_srai_epi32(sum[n][f][1], 2 * f)});
        }
    }

    static void unpack(const uint8_t* codes, int64_t cols, uint8_t* out, int64_t stride) {
        Acc::unpack_two_bits(codes, cols, out, stride);
    }
};

struct Run32 {
    __m256i sum = _mm256_setzero_si256();
    void add(__m256i field, __m256i x) {
        sum = dpbusd(sum, field, x);
        pin(sum);
    }
    __m256i total() const { return sum; }
};

inline void block_product(const uint8_t* block, const int8_t* high, const int8_t* low, __m256i product[2]) {
    const __m256i nibble = _mm256_set1_epi8(15), bit = _mm256_set1_epi8(16);
    __m256i coarse[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, fine[2] = {coarse[0], coarse[0]};
    for (int half = 0; half < 2; ++half, block += 320, high += 32, low += 32) {
        const __m256i bits[2] = {load256(block), load256(block + 32)};
#pragma GCC unroll 8
        for (int g = 0; g < 8; ++g) {
            const __m256i h = _mm256_set1_epi32(read<int>(high + 4 * g)), l = _mm256_set1_epi32(read<int>(low + 4 * g));
#pragma GCC unroll 2
            for (int rows = 0; rows < 2; ++rows) {
                const __m256i pair = load256(block + 64 * (1 + g / 2) + 32 * rows);
                const __m256i nibbles = _mm256_and_si256(g % 2 ? _mm256_srli_epi16(pair, 4) : pair, nibble);
                const __m256i moved = g < 4 ? _mm256_slli_epi16(bits[rows], 4 - g) : _mm256_srli_epi16(bits[rows], g - 4);
                const __m256i codes = _mm256_or_si256(nibbles, _mm256_and_si256(moved, bit));
                coarse[rows] = dpbusd(coarse[rows], codes, h);
                fine[rows] = dpbusd(fine[rows], codes, l);
                pin(coarse[rows]);
                pin(fine[rows]);
            }
        }
    }
    for (int rows = 0; rows < 2; ++rows) product[rows] = _mm256_add_epi32(_mm256_slli_epi32(coarse[rows], 7), fine[rows]);
}

}  // namespace
}  // namespace bitnet

#include "ops/tile_products.hpp"
#include "ternary/group_products.hpp"
#include "ternary/products.hpp"

namespace bitnet {

const Kernels& avx_vnni_kernels() {
    static const Kernels table = [] {
        Kernels k = avx2_kernels();
        k.name = "avx_vnni";
        add_block_linear(k);
        use<TwoBits, false>(k, Type::Ternary);
        use<TwoBits, true>(k, Type::TernaryBlocks);
        use_whole_bits<FieldRuns<OneBitFields, Run32>, FieldRuns<TwoBitFields, Run32>>(k);
        k.exact_head = {head_tile_256<block_product>, sixth_x86, pack_tile};
        return k;
    }();
    return table;
}

}  // namespace bitnet
