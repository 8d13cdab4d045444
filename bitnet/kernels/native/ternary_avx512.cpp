// Ternary kernels of AVX-512 VNNI: vpdpbusd adds four products of bytes to 32 bits at once.
#include "kernels.hpp"
#include "simd_x86.hpp"

namespace bitnet {
namespace {

struct TernarySum {
    // One sum per quarter of a part: vpdpbusd takes four cycles and can start every half cycle.
    __m256i sum[4] = {};
    void add(__m256i codes, __m256i q, int quarter) { sum[quarter] = _mm256_dpbusd_epi32(sum[quarter], codes, q); }
    void end_part(int64_t) {}
    int32_t total() const {
        return sum8(_mm256_add_epi32(_mm256_add_epi32(sum[0], sum[1]), _mm256_add_epi32(sum[2], sum[3])));
    }
};

struct TernaryVec {
    static constexpr int kLanes = 16, kTokens = 16;
    using Int = __m512i;

    static Int load(const uint8_t* p) { return _mm512_loadu_si512(p); }
    static void store_int(int32_t* p, Int v) { _mm512_storeu_si512(p, v); }

    struct Products {
        __m512i sum = _mm512_setzero_si512();
        void add(__m512i w, const int8_t* q) {
            sum = _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(read<int>(q)));
        }
        void end_part() {}
        Int total() const { return sum; }
    };
};

}  // namespace
}  // namespace bitnet

#include "ternary_x86.hpp"

namespace bitnet {

void add_avx512_ternary(Kernels& k) { fill_ternary_tables(k); }

}  // namespace bitnet
