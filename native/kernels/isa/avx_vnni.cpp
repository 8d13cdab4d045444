// AVX-VNNI: AVX2 and vpdpbusd of 256 bits, which adds four products of bytes to 32 bits at once.
// Intel's processors for desktops and laptops have it since 2021, without AVX-512.
//
// BITNET_AVX_VNNI_PLAIN replaces the instruction by plain C++, so that these kernels can be
// compared with the others on any processor with AVX2. BITNET_AVX_VNNI_EVEX replaces it by that of
// AVX-512 VL, so that their speed can be measured on processors with AVX-512.
#include "isa/avx2.hpp"

namespace bitnet {
namespace {

// Per lane of 32 bits: sum + four products of unsigned *a* and signed *b*.
inline __m256i dpbusd(__m256i sum, __m256i a, __m256i b) {
#if defined(BITNET_AVX_VNNI_PLAIN)
    int32_t total[8];
    uint8_t x[32];
    int8_t y[32];
    std::memcpy(total, &sum, 32);
    std::memcpy(x, &a, 32);
    std::memcpy(y, &b, 32);
    for (int i = 0; i < 32; ++i) total[i / 4] += int32_t(x[i]) * y[i];
    return load256(total);
#elif defined(BITNET_AVX_VNNI_EVEX)
    return _mm256_dpbusd_epi32(sum, a, b);
#else
    return _mm256_dpbusd_avx_epi32(sum, a, b);
#endif
}

struct Vec : Avx2 {
    static constexpr bool kSignedCodes = false;  // vpdpbusd takes them unsigned
    // Tokens of a pass over unpacked weights, whose sums stay in registers (ternary/products.hpp).
    static constexpr int kTernaryTokens = 6, kGroupTokens = 6;
    static constexpr int kDepth = 0;  // sums of 32 bits hold any number of products
    // Neighbouring digits of a byte that are multiplied without a shift (`Fields` in
    // ternary/products.hpp).
    static constexpr int places(int tokens) { return tokens == 1 ? 4 : 1; }

    static Int dot(Int sum, Int codes, Int x) { return dpbusd(sum, codes, x); }
    // Only sums of 16 bits depend on the largest code and on whether codes are signed.
    template <int /*kMost*/ = 2, int kOffset = 0, bool /*kSigned*/ = false>
    using Sum = DotSum<Vec, kOffset>;
};

}  // namespace
}  // namespace bitnet

#include "head/level.hpp"
#include "ops/tile_products.hpp"
#include "ternary/products.hpp"

namespace bitnet {

const Kernels& avx_vnni_kernels() {
    static const Kernels table = [] {
        Kernels k = avx2_kernels();
        k.name = "avx_vnni";
        add_block_linear(k);
        add_fields(k);
        k.exact_head = {head_tile, sixth_x86, pack_tile};
        return k;
    }();
    return table;
}

}  // namespace bitnet
