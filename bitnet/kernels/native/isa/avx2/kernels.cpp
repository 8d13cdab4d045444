// AVX2 with FMA and F16C: products of bytes by vpmaddubsw, added in 16 bits as deep as they fit.
#define BITNET_F16C
#include "isa/simd_x86.hpp"
#include "ops/float_rows.hpp"
#include "ops/row_ops.hpp"

namespace bitnet {
namespace {

struct Vec {
    static constexpr int kLanes = 8, kTokens = 4, kWholeTokens = 4, kFloatTokens = 3, kUnpackFrom = 16;
    static constexpr bool kSignedCodes = true;  // codes to 255 would overflow 16 bits
    using Float = __m256;
    using Int = __m256i;

    static Int load(const uint8_t* p) { return load256(p); }
    static Int flip(Int a) { return _mm256_xor_si256(a, _mm256_set1_epi8(char(0x80))); }
    static Int and_bytes(Int a, int byte) { return _mm256_and_si256(a, _mm256_set1_epi8(char(byte))); }
    static Int or_masked(Int a, Int b, int byte) { return _mm256_or_si256(a, and_bytes(b, byte)); }
    static Int shift_right(Int a, int n) { return _mm256_srli_epi16(a, n); }
    static Int shift(Int a, int left) { return left < 0 ? _mm256_srli_epi16(a, -left) : _mm256_slli_epi16(a, left); }
    static void store(uint8_t* p, Int v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }

    static Float load_float(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
    static Float load_half(const uint8_t* p) { return _mm256_cvtph_ps(load128(p)); }
    static Float load_bf16(const uint8_t* p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
    }
    static Float load_u8(const uint8_t* p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    static Float load_s8(const uint8_t* p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    static Float set(float f) { return _mm256_set1_ps(f); }
    static Float zero_float() { return _mm256_setzero_ps(); }
    static Float negated(Float a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
    static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
    static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
    static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
    static void store(float* p, Float v) { _mm256_storeu_ps(p, v); }

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
        k.quantize_block = quantize_block_x86, k.gather = gather_rows_x86;
        return k;
    }();
    return table;
}

}  // namespace bitnet
