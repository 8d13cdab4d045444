// Sixteen bytes of a text at once: which of them are letters, digits and so on, a bit for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__) || defined(_M_X64)
#include <emmintrin.h>
#define BITNET_ASCII_SSE2
#endif
#if defined(_MSC_VER)
#include <intrin.h>
#endif

namespace bitnet {

// The number of zeros below the lowest bit that is set; one is.
inline unsigned lowest_bit(uint32_t bits) {
#if defined(_MSC_VER) && !defined(__clang__)
    unsigned long at = 0;
    _BitScanForward(&at, bits);
    return at;
#else
    return static_cast<unsigned>(__builtin_ctz(bits));
#endif
}

class Ascii16 {
public:
    static constexpr size_t kBytes = 16;

    explicit Ascii16(const char* p) {
#if defined(BITNET_ASCII_SSE2)
        bytes_ = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
#else
        std::memcpy(bytes_, p, sizeof bytes_);
#endif
    }
    uint32_t letters() const { return within('a', 'z', 0x20); }
    uint32_t capitals() const { return within('A', 'Z', 0); }
    uint32_t digits() const { return within('0', '9', 0); }
    uint32_t spaces() const { return within('\t', '\r', 0) | within(' ', ' ', 0); }
    uint32_t breaks() const { return within('\n', '\n', 0) | within('\r', '\r', 0); }
    uint32_t outside() const {  // bytes of characters outside of ASCII
#if defined(BITNET_ASCII_SSE2)
        return static_cast<uint32_t>(_mm_movemask_epi8(bytes_));
#else
        return gather(bytes_[0]) | gather(bytes_[1]) << 8;
#endif
    }

private:
#if defined(BITNET_ASCII_SSE2)
    uint32_t within(char first, char last, char with) const {
        const __m128i from = _mm_sub_epi8(_mm_or_si128(bytes_, _mm_set1_epi8(with)), _mm_set1_epi8(first));
        const __m128i most = _mm_set1_epi8(static_cast<char>(last - first));
        return static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(from, most), from)));
    }
    __m128i bytes_;
#else
    static constexpr uint64_t kEach = 0x0101010101010101ull, kHigh = 0x80 * kEach;
    // The high bits of eight bytes, side by side.
    static uint32_t gather(uint64_t word) {
        return static_cast<uint32_t>(((word & kHigh) >> 7) * 0x0102040810204080ull >> 56);
    }
    static uint32_t within(uint64_t word, char first, char last, char with) {
        const uint64_t low = (word | static_cast<unsigned char>(with) * kEach) & ~kHigh;
        const uint64_t from = low + static_cast<unsigned char>(0x80 - first) * kEach;
        const uint64_t beyond = low + static_cast<unsigned char>(0x7F - last) * kEach;
        return gather(from & ~beyond & ~word);
    }
    uint32_t within(char first, char last, char with) const {
        return within(bytes_[0], first, last, with) | within(bytes_[1], first, last, with) << 8;
    }
    uint64_t bytes_[2];
#endif
};

}  // namespace bitnet
