// Ternary kernels of AVX2: products of bytes by vpmaddubsw, added in 16 bits as deep as they fit.
#include "kernels.hpp"
#include "simd_x86.hpp"

namespace bitnet {
namespace {

inline __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

struct TernarySum {
    __m256i narrow = _mm256_setzero_si256(), wide = _mm256_setzero_si256();
    void add(__m256i codes, __m256i q, int) { narrow = _mm256_add_epi16(narrow, _mm256_maddubs_epi16(codes, q)); }
    // 8 parts are 32 additions of at most 2 * 2 * 128: within 16 bits.
    void end_part(int64_t i) {
        if (i % 8 == 7) flush();
    }
    void flush() {
        wide = _mm256_add_epi32(wide, widen(narrow));
        narrow = _mm256_setzero_si256();
    }
    int32_t total() {
        flush();
        return sum8(wide);
    }
};

struct TernaryVec {
    static constexpr int kLanes = 8, kTokens = 4;
    using Int = __m256i;

    static Int load(const uint8_t* p) { return load256(p); }
    static void store_int(int32_t* p, Int v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }

    struct Products {
        __m256i wide = _mm256_setzero_si256(), narrow = _mm256_setzero_si256();
        void add(__m256i w, const int8_t* q) {
            narrow = _mm256_add_epi16(narrow, _mm256_maddubs_epi16(w, _mm256_set1_epi32(read<int>(q))));
        }
        void end_part() {  // 32 additions of at most 2 * 2 * 128
            wide = _mm256_add_epi32(wide, widen(narrow));
            narrow = _mm256_setzero_si256();
        }
        Int total() const { return wide; }
    };
};

}  // namespace
}  // namespace bitnet

#include "ternary_x86.hpp"

namespace bitnet {

void add_avx2_ternary(Kernels& k) { fill_ternary_tables(k); }

}  // namespace bitnet
