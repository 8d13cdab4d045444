// AVX2 with FMA and F16C: products of bytes by vpmaddubsw, added in 16 bits as deep as they fit.
#define BITNET_F16C
#include "isa/vectors_avx2.hpp"
#include "ops/matrix_rows.hpp"
#include "ops/row_ops.hpp"

namespace bitnet {
namespace {

struct Vec : Avx2 {
    static constexpr bool kSignedCodes = true;  // codes to 255 would overflow 16 bits

    // Codes in a byte are summed in 16 bits over a whole group. Those above the offset may overflow on the
    // way, but the sums start at -offset * sum(q), modulo 2^16, and end within 16 bits.
    template <int kMax, int kOffset, bool kSigned>
    struct Products {
        static constexpr int kLargest = kMax - kOffset > kOffset ? kMax - kOffset : kOffset;
        static constexpr bool kDeep = 4 * 2 * 127 * kLargest <= 32767;  // else sums of two products
        static_assert(2 * 127 * kMax <= 32767 && (kDeep || kOffset == 0), "16-bit sums overflow");
        Int wide = _mm256_setzero_si256(), narrow = _mm256_setzero_si256();
        void start(const BlockInput& x, int half) {
            if constexpr (kOffset != 0)
                narrow = _mm256_slli_epi16(_mm256_set1_epi32(read<int>(x.minus_pairs[half])), log2_of(kOffset));
        }
        void add(Int w, const int8_t* q, int i) {
            const Int x = _mm256_set1_epi32(read<int>(q));
            const Int pairs = kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
                                      : _mm256_maddubs_epi16(w, x);
            narrow = !kDeep || (i == 0 && kOffset == 0) ? pairs : _mm256_add_epi16(narrow, pairs);
            pin(narrow);
            if (i == 3 || !kDeep) wide = _mm256_add_epi32(wide, _mm256_madd_epi16(narrow, _mm256_set1_epi16(1)));
        }
        Float total() const { return _mm256_cvtepi32_ps(wide); }
    };
};

}  // namespace
}  // namespace bitnet

#include "ops/quantize_x86.hpp"
#include "ops/tile_gather.hpp"
#include "ops/tile_products.hpp"

namespace bitnet {

const Kernels& avx2_kernels() {
    static const Kernels table = [] {
        Kernels k = scalar_kernels();
        k.name = "avx2";
        add_row_ops(k);
        add_tiled_linear(k);
        add_avx2_ternary(k);
        add_avx2_head(k);
        k.quantize_block = quantize_block_x86, k.quantize_ternary = quantize_ternary_x86, k.gather = gather_tile<gather_floats_x86>;
        return k;
    }();
    return table;
}

}  // namespace bitnet
