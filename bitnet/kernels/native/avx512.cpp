// AVX-512 F, BW, DQ, VL and VNNI: vpdpbusd adds four products of bytes to 32 bits at once.
#define BITNET_F16C
#include "float_ops.hpp"
#include "formats_x86.hpp"

namespace bitnet {
namespace {

inline __m256i dot32(__m256i u, __m256i s) { return _mm256_dpbusd_epi32(_mm256_setzero_si256(), u, s); }

inline __m256i dot32_signed(__m256i a, __m256i b) { return dot32(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a)); }

struct Vec {
    static constexpr int kLanes = 16, kTokens = 8, kFloatTokens = 16;
    static constexpr int kSignedOffset = 128;  // vpdpbusd needs one unsigned side
    using Float = __m512;
    using Int = __m512i;

    static Int load(const uint8_t* p) { return _mm512_loadu_si512(p); }
    static Float load_float(const float* p) { return _mm512_loadu_ps(p); }
    static Float set(float f) { return _mm512_set1_ps(f); }
    static Float zero_float() { return _mm512_setzero_ps(); }
    static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
    static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
    static void store(float* p, Float v) { _mm512_storeu_ps(p, v); }

    template <int kMax, bool kSigned>
    struct Products {
        __m512i sum = _mm512_setzero_si512();
        void start(int32_t v) { sum = _mm512_set1_epi32(v); }
        void add(__m512i w, const int8_t* q, int) {
            sum = _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(read<int>(q)));
        }
        __m512 total() const { return _mm512_cvtepi32_ps(sum); }
    };
};

}  // namespace
}  // namespace bitnet

#include "decode_x86.hpp"
#include "prefill_x86.hpp"

namespace bitnet {

const Kernels& avx512_kernels() {
    static const Kernels table = [] {
        Kernels k = {"avx512_vnni", BITNET_X86_LINEAR, quantize_block, quantize_ternary, dequantize,
                     rms_norm, layer_norm, rope, gate, attention};
        add_avx512_ternary(k);
        return k;
    }();
    return table;
}

}  // namespace bitnet
