#include "unicode.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "unicode_tables.hpp"

namespace bitnet::unicode {
namespace {

// Everything above is rare (tags, private use) and found by binary search.
constexpr uint32_t kFlat = 0x34000;
constexpr uint8_t kUnassigned = 0;

std::vector<uint8_t> flat_categories() {
    std::vector<uint8_t> table(kFlat, kUnassigned);
    for (const CategoryRange& range : kCategories) {
        if (range.first >= kFlat) continue;
        const uint32_t last = std::min(range.last, kFlat - 1);
        std::memset(table.data() + range.first, range.category, last - range.first + 1);
    }
    return table;
}

bool contains(const Range* ranges, size_t count, uint32_t code) {
    const Range* end = ranges + count;
    const Range* found = std::lower_bound(
        ranges, end, code, [](const Range& range, uint32_t value) { return range.last < value; });
    return found != end && found->first <= code;
}

template <size_t N>
bool contains(const Range (&ranges)[N], uint32_t code) {
    return contains(ranges, N, code);
}

bool is_conjoining_jamo(uint32_t code) { return code >= 0x1100 && code <= 0x11FF; }

}  // namespace

uint8_t category(uint32_t code) {
    static const std::vector<uint8_t> table = flat_categories();
    if (code < kFlat) return table[code];
    const auto end = std::end(kCategories);
    const auto found = std::lower_bound(
        std::begin(kCategories), end, code,
        [](const CategoryRange& range, uint32_t value) { return range.last < value; });
    return found != end && found->first <= code ? found->category : kUnassigned;
}

uint32_t category_mask(const std::string& name) {
    uint32_t mask = 0;
    uint32_t bit = 1;
    for (const char* known : kCategoryNames) {
        const bool whole = name == known || name == "Any";
        if (whole || (name.size() == 1 && name[0] == known[0])) mask |= bit;
        bit <<= 1;
    }
    return mask;
}

const Script* find_script(const std::string& name) {
    for (const Script& script : kScripts) {
        if (name == script.name) return &script;
    }
    return nullptr;
}

bool in_script(const Script* script, uint32_t code) {
    return contains(script->ranges, script->count, code);
}

bool is_space(uint32_t code) {
    if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13);
    return contains(kSpace, code);
}

bool is_word(uint32_t code) { return contains(kWord, code); }
bool is_added_word(uint32_t code) { return contains(kAddedTokenWord, code); }
bool is_punctuation(uint32_t code) { return contains(kPunctuation, code); }
bool is_numeric(uint32_t code) { return contains(kNumeric, code); }

bool is_mark(uint32_t code) {
    static const uint32_t marks = category_mask("M");
    return (marks >> category(code) & 1u) != 0;
}

bool may_change_nfc(uint32_t code) {
    return code >= 0x300 && (is_mark(code) || is_conjoining_jamo(code) || contains(kNfcChanges, code));
}

bool may_change_nfkc(uint32_t code) {
    return code >= 0x80 &&
           (is_mark(code) || is_conjoining_jamo(code) || contains(kNfkcChanges, code));
}

namespace {

// UTF-8 as an automaton. A state is the place of six bits in a row, which are the state after it.
enum Utf8State : unsigned {
    kWhole = 0, kBroken = 6, kOneMore = 12, kTwoMore = 18, kThreeMore = 24,
    kAfterE0 = 30, kAfterED = 36, kAfterF0 = 42, kAfterF4 = 48
};

constexpr uint64_t utf8_row(unsigned byte) {
    const auto in = [byte](unsigned first, unsigned last) { return byte >= first && byte <= last; };
    const uint64_t begun = in(0, 0x7F)                          ? kWhole
                           : in(0xC2, 0xDF)                     ? kOneMore
                           : byte == 0xE0                       ? kAfterE0
                           : byte == 0xED                       ? kAfterED
                           : in(0xE1, 0xEF)                     ? kTwoMore
                           : byte == 0xF0                       ? kAfterF0
                           : in(0xF1, 0xF3)                     ? kThreeMore
                           : byte == 0xF4                       ? kAfterF4
                                                                : kBroken;
    const auto then = [&](unsigned first, unsigned last, uint64_t state) {
        return in(first, last) ? state : uint64_t{kBroken};
    };
    return begun << kWhole | uint64_t{kBroken} << kBroken | then(0x80, 0xBF, kWhole) << kOneMore |
           then(0x80, 0xBF, kOneMore) << kTwoMore | then(0x80, 0xBF, kTwoMore) << kThreeMore |
           then(0xA0, 0xBF, kOneMore) << kAfterE0 | then(0x80, 0x9F, kOneMore) << kAfterED |
           then(0x90, 0xBF, kTwoMore) << kAfterF0 | then(0x80, 0x8F, kTwoMore) << kAfterF4;
}

struct Utf8Rows {
    uint64_t of[256] = {};
    constexpr Utf8Rows() {
        for (unsigned byte = 0; byte < 256; ++byte) of[byte] = utf8_row(byte);
    }
};
constexpr Utf8Rows kUtf8Rows;

}  // namespace

bool is_utf8(std::string_view text) {
    // Four stretches at a time, since each byte waits for the one before it.
    constexpr size_t kStretches = 4;
    const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
    size_t at[kStretches + 1] = {}, least = text.size();
    for (size_t i = 1; i <= kStretches; ++i) {
        at[i] = text.size() * i / kStretches;
        while (i < kStretches && at[i] > at[i - 1] && continues(text[at[i]])) --at[i];
        least = std::min(least, at[i] - at[i - 1]);
    }
    uint64_t state[kStretches] = {};
    const auto step = [&](size_t i, size_t n) { state[i] = kUtf8Rows.of[bytes[at[i] + n]] >> (state[i] & 63); };
    for (size_t n = 0; n < least; ++n) {
        for (size_t i = 0; i < kStretches; ++i) step(i, n);
    }
    for (size_t i = 0; i < kStretches; ++i) {
        for (size_t n = least; n < at[i + 1] - at[i]; ++n) step(i, n);
        if ((state[i] & 63) != kWhole) return false;
    }
    return true;
}

void append(std::string& out, uint32_t code) {
    if (code < 0x80) {
        out += static_cast<char>(code);
        return;
    }
    const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
    if (code < 0x800) {
        out += static_cast<char>(0xC0 | code >> 6);
    } else if (code < 0x10000) {
        out += static_cast<char>(0xE0 | code >> 12);
        tail(6);
    } else {
        out += static_cast<char>(0xF0 | code >> 18);
        tail(12);
        tail(6);
    }
    tail(0);
}

}  // namespace bitnet::unicode
