// How each encoding becomes 32 codes in a 256-bit register, for avx2.cpp and avx512.cpp.
//
// A format gives, for weights 32g .. 32g+31 of a row, `codes` (u8, or s8 if kSigned) and for eight
// groups at once `scales`: w = s * code + m. Formats with kOffset have m = -kOffset * s. Where a
// block has 32 weights a row may end anywhere, so `scale` gives those of one group.
#pragma once

#include "kernels.hpp"
#include "simd_x86.hpp"

namespace bitnet {
namespace {

// Scales of groups g .. g+7, and of their halves where a group has two (kHalves).
struct Scales {
    __m256 s, m;
    __m256 second;  // kHalves: s holds the scales of the first 16 weights, second of the others
};

inline float one_half(const uint8_t* p) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(read<uint16_t>(p))));
}

// Eight u16 at a fixed distance.
template <int kStride>
inline __m128i strided_u16(const uint8_t* p) {
    const auto at = [&](int i) { return short(read<uint16_t>(p + i * kStride)); };
    return _mm_setr_epi16(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
}

// 16 bytes as 32 nibbles, the low ones first.
inline __m256i nibbles(const uint8_t* p) {
    const __m128i bytes = load128(p);
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes), _mm_srli_epi16(bytes, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

// Bit i of 32 becomes 16 in byte i.
inline __m256i fifth_bits(const uint8_t* p) {
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i word = _mm256_shuffle_epi8(_mm256_set1_epi32(read<int>(p)), spread);
    const __m256i bit = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(word, bit), bit);
    return _mm256_and_si256(is_set, _mm256_set1_epi8(16));
}

template <int kBytesPerBlock, int kOffsetOfCodes>
struct Symmetric {  // d * (code - offset)
    static constexpr int kBytes = kBytesPerBlock, kBlock = 32;
    static constexpr bool kHalves = false;
    template <int kOffset>
    static Scales scales_minus(const uint8_t* row, int64_t g) {
        const __m256 d = _mm256_cvtph_ps(strided_u16<kBytes>(row + g * kBytes));
        return {d, _mm256_mul_ps(d, _mm256_set1_ps(-float(kOffset))), d};
    }
    static const uint8_t* code_bytes(const uint8_t* row, int64_t g) { return row + g * kBytes + kOffsetOfCodes; }
};

struct FormatQ8_0 : Symmetric<34, 2> {
    static constexpr bool kSigned = true;
    static constexpr int kMax = 127, kOffset = 0;
    static __m256i codes(const uint8_t* row, int64_t g) { return load256(code_bytes(row, g)); }
    static Scales scales(const uint8_t* row, int64_t g) { return scales_minus<0>(row, g); }
    static void scale(const uint8_t* row, int64_t g, float& s, float& m) {
        s = one_half(row + g * kBytes);
        m = 0.0f;
    }
};

struct FormatQ4_0 : Symmetric<18, 2> {
    static constexpr bool kSigned = false;
    static constexpr int kMax = 15, kOffset = 8;
    static __m256i codes(const uint8_t* row, int64_t g) { return nibbles(code_bytes(row, g)); }
    static Scales scales(const uint8_t* row, int64_t g) { return scales_minus<kOffset>(row, g); }
    static void scale(const uint8_t* row, int64_t g, float& s, float& m) {
        s = one_half(row + g * kBytes);
        m = s * -float(kOffset);
    }
};

struct FormatQ5_0 : Symmetric<22, 6> {
    static constexpr bool kSigned = false;
    static constexpr int kMax = 31, kOffset = 16;
    static __m256i codes(const uint8_t* row, int64_t g) {
        const uint8_t* q = code_bytes(row, g);
        return _mm256_or_si256(nibbles(q), fifth_bits(q - 4));
    }
    static Scales scales(const uint8_t* row, int64_t g) { return scales_minus<kOffset>(row, g); }
    static void scale(const uint8_t* row, int64_t g, float& s, float& m) {
        s = one_half(row + g * kBytes);
        m = s * -float(kOffset);
    }
};

template <int kBytesPerBlock>
struct WithMinimum {  // d * code + m, d and m side by side
    static constexpr int kBytes = kBytesPerBlock, kBlock = 32;
    static constexpr bool kSigned = false, kHalves = false;
    static constexpr int kOffset = 0;
    static Scales scales(const uint8_t* row, int64_t g) {
        const uint8_t* p = row + g * kBytes;
        const auto at = [&](int i) { return read<int>(p + i * kBytes); };
        const __m128i a = _mm_setr_epi32(at(0), at(1), at(2), at(3));
        const __m128i b = _mm_setr_epi32(at(4), at(5), at(6), at(7));
        const __m128i low = _mm_set1_epi32(0xffff);
        const __m128i d = _mm_packus_epi32(_mm_and_si128(a, low), _mm_and_si128(b, low));
        const __m128i m = _mm_packus_epi32(_mm_srli_epi32(a, 16), _mm_srli_epi32(b, 16));
        const __m256 s = _mm256_cvtph_ps(d);
        return {s, _mm256_cvtph_ps(m), s};
    }
    static void scale(const uint8_t* row, int64_t g, float& s, float& m) {
        s = one_half(row + g * kBytes);
        m = one_half(row + g * kBytes + 2);
    }
};

struct FormatQ4_1 : WithMinimum<20> {
    static constexpr int kMax = 15;
    static __m256i codes(const uint8_t* row, int64_t g) { return nibbles(row + g * kBytes + 4); }
};

struct FormatQ5_1 : WithMinimum<24> {
    static constexpr int kMax = 31;
    static __m256i codes(const uint8_t* row, int64_t g) {
        const uint8_t* q = row + g * kBytes + 8;
        return _mm256_or_si256(nibbles(q), fifth_bits(q - 4));
    }
};

// Super-blocks: g counts groups of 32, eight to a block, and a row is whole blocks.
template <int kBytesPerBlock>
struct KScales {
    static constexpr int kBytes = kBytesPerBlock, kBlock = 256;
    static constexpr bool kSigned = false, kHalves = false;
    static constexpr int kOffset = 0;
    static Scales scales(const uint8_t* row, int64_t g) {
        const uint8_t* block = row + g / 8 * kBytes;
        const uint32_t a = read<uint32_t>(block + 4), b = read<uint32_t>(block + 8), c = read<uint32_t>(block + 12);
        const uint32_t s0 = a & 0x3f3f3f3f, m0 = b & 0x3f3f3f3f;
        const uint32_t s1 = (c & 0x0f0f0f0f) | ((a >> 2) & 0x30303030);
        const uint32_t m1 = ((c >> 4) & 0x0f0f0f0f) | ((b >> 2) & 0x30303030);
        const __m256 s = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(int64_t(s1) << 32 | s0)));
        const __m256 m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(int64_t(m1) << 32 | m0)));
        const __m256 scaled = _mm256_mul_ps(s, _mm256_set1_ps(one_half(block)));
        return {scaled, _mm256_mul_ps(m, _mm256_set1_ps(-one_half(block + 2))), scaled};
    }
};

inline __m256i half_nibbles(const uint8_t* q, int j) {
    const __m256i bytes = load256(q + 32 * (j / 2));
    return _mm256_and_si256(j % 2 ? _mm256_srli_epi16(bytes, 4) : bytes, _mm256_set1_epi8(15));
}

struct FormatQ4_K : KScales<144> {
    static constexpr int kMax = 15;
    static __m256i codes(const uint8_t* row, int64_t g) {
        return half_nibbles(row + g / 8 * kBytes + 16, int(g % 8));
    }
};

struct FormatQ5_K : KScales<176> {
    static constexpr int kMax = 31;
    static __m256i codes(const uint8_t* row, int64_t g) {
        const uint8_t* block = row + g / 8 * kBytes;
        const int j = int(g % 8);
        const __m256i bit = _mm256_set1_epi8(char(1 << j));
        const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(load256(block + 16), bit), bit);
        return _mm256_or_si256(half_nibbles(block + 48, j), _mm256_and_si256(is_set, _mm256_set1_epi8(16)));
    }
};

struct FormatQ6_K {
    static constexpr int kBytes = 210, kBlock = 256, kMax = 63, kOffset = 32;
    static constexpr bool kSigned = false, kHalves = true;
    static __m256i codes(const uint8_t* row, int64_t g) {
        const uint8_t* block = row + g / 8 * kBytes;
        const int half = int(g % 8) / 4, quarter = int(g % 4);
        const __m256i bytes = load256(block + 64 * half + 32 * (quarter % 2));
        const __m256i low = _mm256_and_si256(quarter / 2 ? _mm256_srli_epi16(bytes, 4) : bytes, _mm256_set1_epi8(15));
        const __m256i high = load256(block + 128 + 32 * half);
        const __m256i shifted = quarter == 3 ? _mm256_srli_epi16(high, 2)
                                : quarter == 2 ? high
                                : quarter == 1 ? _mm256_slli_epi16(high, 2)
                                               : _mm256_slli_epi16(high, 4);
        return _mm256_or_si256(low, _mm256_and_si256(shifted, _mm256_set1_epi8(0x30)));
    }
    static Scales scales(const uint8_t* row, int64_t g) {
        const uint8_t* block = row + g / 8 * kBytes;
        const __m128i packed = load128(block + 192);
        const __m256 d = _mm256_set1_ps(one_half(block + 208));
        // Scales of first halves are at even places, of second halves at odd ones.
        const __m256i words = _mm256_cvtepi16_epi32(_mm_srai_epi16(_mm_slli_epi16(packed, 8), 8));
        const __m256i odd = _mm256_cvtepi16_epi32(_mm_srai_epi16(packed, 8));
        return {_mm256_mul_ps(_mm256_cvtepi32_ps(words), d), _mm256_setzero_ps(),
                _mm256_mul_ps(_mm256_cvtepi32_ps(odd), d)};
    }
};

inline __m256 load_floats(Type type, const uint8_t* row, int64_t i) {
    if (type == Type::F32) return _mm256_loadu_ps(reinterpret_cast<const float*>(row + 4 * i));
    const __m128i h = load128(row + 2 * i);
    if (type == Type::F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

}  // namespace
}  // namespace bitnet
