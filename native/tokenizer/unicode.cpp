#include "tokenizer/unicode.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tokenizer/unicode_tables.hpp"

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

template <size_t N>
uint8_t class_of(const Class (&ranges)[N], uint32_t code) {
    const Class* found = std::lower_bound(
        ranges, ranges + N, code, [](const Class& range, uint32_t value) { return range.last < value; });
    return found != ranges + N && found->first <= code ? found->value : 0;
}

template <size_t N, size_t M>
Codes expansion(const Expansion (&entries)[N], const uint32_t (&codes)[M], uint32_t code) {
    const Expansion* found = std::lower_bound(
        entries, entries + N, code, [](const Expansion& entry, uint32_t value) { return entry.code < value; });
    if (found == entries + N || found->code != code) return {};
    return {codes + found->at, found->size};
}

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

bool is_combining_mark(uint32_t code) { return code >= 0x300 && contains(kCombiningMarks, code); }
bool is_nonspacing_mark(uint32_t code) { return code >= 0x300 && contains(kNonspacingMarks, code); }
bool is_control(uint32_t code) { return contains(kControls, code); }
Codes canonical(uint32_t code) {
    return code < 0xC0 ? Codes{} : expansion(kCanonical, kCanonicalCodes, code);
}
Codes compatible(uint32_t code) {
    if (code < 0xA0) return {};
    const Codes found = expansion(kCompatible, kCompatibleCodes, code);
    return found.size != 0 ? found : canonical(code);
}
Codes lower(uint32_t code) { return expansion(kLower, kLowerCodes, code); }
uint8_t combining_class(uint32_t code) { return code < 0x300 ? 0 : class_of(kCombiningClasses, code); }
uint8_t script(uint32_t code) { return class_of(kScriptRuns, code); }

uint32_t compose(uint32_t first, uint32_t second) {
    constexpr uint32_t kL = 0x1100, kV = 0x1161, kT = 0x11A7, kS = 0xAC00;
    if (first - kL < 19 && second - kV < 21) return kS + ((first - kL) * 21 + (second - kV)) * 28;
    if (first - kS < 11172 && (first - kS) % 28 == 0 && second - kT - 1 < 27) return first + (second - kT);
    const auto key = [](const Pair& pair) { return uint64_t{pair.first} << 32 | pair.second; };
    const Pair wanted{first, second, 0};
    const Pair* const end = std::end(kCompositions);
    const Pair* const found = std::lower_bound(std::begin(kCompositions), end, wanted,
                                               [&](const Pair& a, const Pair& b) { return key(a) < key(b); });
    return found != end && key(*found) == key(wanted) ? found->whole : 0;
}

size_t grapheme(std::string_view text, size_t at) {
    enum : uint8_t { kOther, kJoins, kPrepends, kControl, kPicture, kL, kV, kT, kLV, kLVT };
    constexpr uint32_t kJoiner = 0x200D;
    const auto class_at = [&](uint32_t code) -> uint8_t {
        if ((code >= 0x1100 && code < 0x1160) || (code >= 0xA960 && code <= 0xA97C)) return kL;
        if ((code >= 0x1160 && code < 0x11A8) || (code >= 0xD7B0 && code <= 0xD7C6)) return kV;
        if ((code >= 0x11A8 && code < 0x1200) || (code >= 0xD7CB && code <= 0xD7FB)) return kT;
        if (code >= 0xAC00 && code <= 0xD7A3) return (code - 0xAC00) % 28 == 0 ? kLV : kLVT;
        return code >= 0x20 && code < 0x7F ? uint8_t{kOther} : class_of(kGraphemes, code);
    };
    const char* const begin = text.data() + at;
    const char* const end = text.data() + text.size();
    const char* p = begin;
    uint32_t before = next(p, end);
    uint8_t kind = class_at(before);
    bool picture = kind == kPicture;
    while (p != end) {
        const char* ahead = p;
        const uint32_t code = next(ahead, end);
        const uint8_t then = class_at(code);
        bool joins = then == kJoins || kind == kPrepends || (picture && before == kJoiner && then == kPicture);
        joins = joins || (kind == kL && (then == kL || then == kV || then == kLV || then == kLVT));
        joins = joins || ((kind == kLV || kind == kV) && (then == kV || then == kT));
        joins = joins || ((kind == kLVT || kind == kT) && then == kT);
        if (kind == kControl || then == kControl) joins = before == '\r' && code == '\n';
        if (!joins) break;
        picture = then == kPicture || (picture && then == kJoins);
        before = code;
        kind = then;
        p = ahead;
    }
    return static_cast<size_t>(p - begin);
}

namespace {

// For each character below kFlat: 1 where NFC may change it, 2 where NFKC may.
std::vector<uint8_t> flat_changes() {
    std::vector<uint8_t> table(kFlat, 0);
    const auto set = [&](uint32_t first, uint32_t last, uint8_t bits) {
        for (uint32_t code = first; code <= std::min(last, kFlat - 1); ++code) table[code] |= bits;
    };
    const uint32_t marks = category_mask("M");
    for (const CategoryRange& range : kCategories) {
        if (marks >> range.category & 1u) set(range.first, range.last, 3);
    }
    for (const Range& range : kNfcChanges) set(range.first, range.last, 1);
    for (const Range& range : kNfkcChanges) set(range.first, range.last, 2);
    set(0x1100, 0x11FF, 3);
    return table;
}

bool may_change(uint32_t code, uint8_t bit) {
    static const std::vector<uint8_t> table = flat_changes();
    if (code < kFlat) return (table[code] & bit) != 0;
    return is_mark(code) || (bit == 1 ? contains(kNfcChanges, code) : contains(kNfkcChanges, code));
}

}  // namespace

bool may_change_nfc(uint32_t code) { return code >= 0x300 && may_change(code, 1); }

bool may_change_nfkc(uint32_t code) { return code >= 0x80 && may_change(code, 2); }

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
