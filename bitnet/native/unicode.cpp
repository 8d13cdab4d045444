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

bool is_utf8(std::string_view text) {
    const char* p = text.data();
    const char* const end = p + text.size();
    while (p != end) {
        for (uint64_t eight; end - p >= 8; p += 8) {
            std::memcpy(&eight, p, sizeof eight);
            if (eight & 0x8080808080808080ull) break;
        }
        if (p == end) break;
        const char* const start = p;
        const auto first = static_cast<unsigned char>(*p);
        if (first < 0x80) {
            ++p;
            continue;
        }
        const size_t left = static_cast<size_t>(end - p);
        if (first >= 0xE1 && first <= 0xEC && left >= 3 && continues(p[1]) && continues(p[2])) {
            p += 3;
            continue;
        }
        const size_t size = length(*p);
        if (first < 0xC2 || first > 0xF4 || static_cast<size_t>(end - p) < size) return false;
        if (!std::all_of(start + 1, start + size, continues)) return false;
        const uint32_t code = next(p, end);
        const uint32_t least = size == 2 ? 0x80 : size == 3 ? 0x800 : 0x10000;
        if (code < least || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
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
