// The expressions of the pre-tokenizers that most models share, matched without an engine.
//
// GPT-2's, LLaMA-3's (also Qwen's, cl100k's) and o200k's expressions are lists of alternatives that
// differ in a few places. Each covers every text, so one match begins where the last one ended.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#if defined(__SSE2__) || defined(_M_X64)
#include <emmintrin.h>
#define BITNET_ASCII_SSE2
#endif
#if defined(_MSC_VER)
#include <intrin.h>
#endif

namespace bitnet {

// Number of trailing zeros of bits, which is not 0.
inline unsigned lowest_bit(uint32_t bits) {
#if defined(_MSC_VER) && !defined(__clang__)
    unsigned long at = 0;
    _BitScanForward(&at, bits);
    return at;
#else
    return unsigned(__builtin_ctz(bits));
#endif
}

// Sixteen bytes of a text at once: which of them are letters, digits and so on, a bit for each.
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
        return uint32_t(_mm_movemask_epi8(bytes_));
#else
        return gather(bytes_[0]) | gather(bytes_[1]) << 8;
#endif
    }

private:
#if defined(BITNET_ASCII_SSE2)
    // Which bytes lie in [first, last] after an OR with `with`: 0x20 makes capitals small.
    uint32_t within(char first, char last, char with) const {
        const __m128i from =
            _mm_sub_epi8(_mm_or_si128(bytes_, _mm_set1_epi8(with)), _mm_set1_epi8(first));
        const __m128i most = _mm_set1_epi8(char(last - first));
        return uint32_t(_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(from, most), from)));
    }
    __m128i bytes_;
#else
    static constexpr uint64_t kEach = 0x0101010101010101ull, kHigh = 0x80 * kEach;
    // The high bits of eight bytes, as eight bits.
    static uint32_t gather(uint64_t word) {
        return uint32_t(((word & kHigh) >> 7) * 0x0102040810204080ull >> 56);
    }
    // As above, for eight bytes: adding to the low seven bits of a byte sets its high bit from
    // first on, or beyond last.
    static uint32_t within(uint64_t word, char first, char last, char with) {
        const uint64_t low = (word | uint8_t(with) * kEach) & ~kHigh;
        const uint64_t from = low + uint8_t(0x80 - first) * kEach;
        const uint64_t beyond = low + uint8_t(0x7F - last) * kEach;
        return gather(from & ~beyond & ~word);
    }
    uint32_t within(char first, char last, char with) const {
        return within(bytes_[0], first, last, with) | within(bytes_[1], first, last, with) << 8;
    }
    uint64_t bytes_[2];
#endif
};

// Finds the matches of one of these expressions, one after the other.
class Scanner {
public:
    Scanner() = default;  // knows no expression
    // Recognises a pattern by its alternatives; known() is false if it is not one of these
    // expressions.
    explicit Scanner(std::string_view pattern);
    bool known() const { return kind_ != Kind::kNone; }

    // The end of the match that begins at p, before end; nullptr where only the regex engine can
    // tell: an apostrophe before a letter outside of ASCII, which may equal an ASCII one if case is
    // ignored.
    const char* next(const char* p, const char* end) const {
        if (size_t(end - p) >= Ascii16::kBytes) {
            if (const char* stop = next_in_16_bytes(p)) return stop;
        }
        return next_by_character(p, end);
    }

    // True if all of these expressions match the text before text[at], and the text from there on,
    // as they do with the other side left away. That is so between a letter and a space: no match
    // has both, and a match that ends at the letter does not depend on the space. It is so between
    // a line break and a letter, unless white space is before the line break, which \\s+(?!\\S)
    // would then leave to the next match.
    static bool may_cut(std::string_view text, size_t at);

private:
    // Of GPT-2, LLaMA-3 and o200k.
    enum class Kind : uint8_t { kNone, kGpt2, kWords, kCasedWords };
    enum class Contractions : uint8_t { kNone, kAsWritten, kAnyCase };

    // The end of the match at p: nullptr if sixteen bytes do not settle it, or only the engine can.
    const char* next_in_16_bytes(const char* p) const;
    const char* next_by_character(const char* p, const char* end) const;
    // The ends of matches of single alternatives; nullptr where these do not match.
    const char* gpt2(const char* p, const char* end) const;
    const char* word(uint8_t first, const char* second, const char* end) const;
    const char* cased_word(const char* p, uint8_t first, const char* second, const char* end,
                           bool* certain) const;
    const char* capitals_and_small(const char* p, const char* end) const;
    const char* space(const char* p, const char* end) const;

    const uint8_t* classes_ = nullptr;  // of characters, by code point
    Kind kind_ = Kind::kNone;
    Contractions contractions_ = Contractions::kNone;
    uint8_t letters_ = 0;          // kWords: classes that words are made of
    int max_digits_ = 0;           // of a number; 0 for any
    bool breaks_follow_ = false;   // line breaks behind punctuation belong to it
    bool slashes_ = false;         // slashes behind it do as well
    bool breaks_end_ = false;      // a match of white space ends at its last line break
    bool ask_apostrophe_ = false;  // an apostrophe may begin a match, a contraction
    // Characters of ASCII that may be before the letters of a word.
    std::array<bool, 256> before_word_{};
};

// The end of a match that the sixteen bytes at p settle, nullptr where they do not.
inline const char* Scanner::next_in_16_bytes(const char* p) const {
    const Ascii16 bytes(p);
    const uint32_t letters = bytes.letters(), outside = bytes.outside();
    // The end of a match of so many bytes; nullptr if it may go on beyond the sixteen, or with a
    // character outside of ASCII.
    const auto settled = [&](unsigned size) {
        return size < Ascii16::kBytes && !(outside >> size & 1) ? p + size : nullptr;
    };
    if (ask_apostrophe_ && *p == '\'') return nullptr;
    const unsigned before = ~letters & 1;  // bytes before the letters
    const uint32_t word = letters >> before;
    if (word & 1 && (before == 0 || before_word_[uint8_t(*p)])) {
        if (kind_ != Kind::kCasedWords) return settled(before + lowest_bit(~word));
        const uint32_t capitals = bytes.capitals() >> before;
        const unsigned upper = lowest_bit(~capitals),
                       lower = lowest_bit(~((word & ~capitals) >> upper));
        const char* stop = settled(before + upper + lower);
        return stop != nullptr && *stop == '\'' && contractions_ != Contractions::kNone ? nullptr
                                                                                        : stop;
    }
    const uint32_t digits = bytes.digits(), spaces = bytes.spaces();
    const unsigned space = *p == ' ';
    // Of GPT-2, a space that a number may have before it.
    const unsigned sign = kind_ == Kind::kGpt2 ? space : 0;
    if (digits >> sign & 1) {
        const unsigned size = lowest_bit(~(digits >> sign)), most = unsigned(max_digits_);
        return most != 0 && size >= most ? p + most : settled(sign + size);
    }
    const uint32_t others = ~(letters | digits | spaces | outside | ~uint32_t{0xFFFF});
    if (others >> space & 1) {
        unsigned size = space + lowest_bit(~(others >> space));
        while (breaks_follow_ && size < Ascii16::kBytes &&
               (p[size] == '\n' || p[size] == '\r' || (slashes_ && p[size] == '/'))) {
            ++size;
        }
        return settled(size);
    }
    // White space up to its last line break, or, as text follows if it is settled, all but its last
    // character.
    const unsigned size = lowest_bit(~spaces);
    if (size == 0 || settled(size) == nullptr) return nullptr;
    uint32_t breaks = breaks_end_ ? bytes.breaks() & ((uint32_t{1} << size) - 1) : 0;
    if (breaks == 0) return p + (size == 1 ? 1 : size - 1);
    unsigned last = 0;
    for (; breaks != 0; breaks &= breaks - 1) last = lowest_bit(breaks);
    return p + last + 1;
}

}  // namespace bitnet
