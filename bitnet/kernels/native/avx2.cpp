// AVX2 with FMA and F16C: products of bytes by vpmaddubsw, added in 16 bits as deep as they fit.
#define BITNET_F16C
#include "float_ops.hpp"
#include "formats_x86.hpp"

namespace bitnet {
namespace {

inline __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

inline __m256i dot32(__m256i u, __m256i s) { return widen(_mm256_maddubs_epi16(u, s)); }

inline __m256i dot32_signed(__m256i a, __m256i b) {
    return widen(_mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a)));
}

struct Vec {
    static constexpr int kLanes = 8, kTokens = 4, kFloatTokens = 8;
    static constexpr int kSignedOffset = 0;
    using Float = __m256;
    using Int = __m256i;

    static Int load(const uint8_t* p) { return load256(p); }
    static Float load_float(const float* p) { return _mm256_loadu_ps(p); }
    static Float set(float f) { return _mm256_set1_ps(f); }
    static Float zero_float() { return _mm256_setzero_ps(); }
    static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
    static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
    static void store(float* p, Float v) { _mm256_storeu_ps(p, v); }

    template <int kMax, bool kSigned>
    struct Products {
        // Steps whose sums fit 16 bits, of the four steps of a group.
        static constexpr int kDepth = kMax <= 31 ? 4 : kMax <= 63 ? 2 : 1;
        static_assert(kDepth * 2 * 127 * kMax <= 32767, "16-bit sums overflow");
        __m256i wide = _mm256_setzero_si256(), narrow = _mm256_setzero_si256();
        void start(int32_t v) { wide = _mm256_set1_epi32(v); }
        void add(__m256i w, const int8_t* q, int i) {
            const __m256i x = _mm256_set1_epi32(read<int>(q));
            const __m256i pairs = kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
                                          : _mm256_maddubs_epi16(w, x);
            narrow = i % kDepth == 0 ? pairs : _mm256_add_epi16(narrow, pairs);
            if (i % kDepth == kDepth - 1) wide = _mm256_add_epi32(wide, widen(narrow));
        }
        __m256 total() const { return _mm256_cvtepi32_ps(wide); }
    };
};

}  // namespace
}  // namespace bitnet

#include "decode_x86.hpp"
#include "prefill_x86.hpp"

namespace bitnet {

const Kernels& avx2_kernels() {
    static const Kernels table = [] {
        Kernels k = {"avx2", BITNET_X86_LINEAR, quantize_block, quantize_ternary, dequantize,
                     rms_norm, layer_norm, rope, gate, attention};
        add_avx2_ternary(k);
        return k;
    }();
    return table;
}

}  // namespace bitnet
