#include "tokenizer/unicode.hpp"

#include <cstring>
#include <iterator>
#include <unordered_map>

#include "tokenizer/unicode_tables.hpp"

namespace bitnet::unicode {
namespace {

// Code points in flat tables. Those above are rare (tags, private use) and need a binary search.
constexpr uint32_t kFlat = 0x34000;

// Reads the numbers of a table: digits of five bits, the lowest first, plus 32 if another one
// follows. unicode_tables.py writes them, and says what the numbers of each kind of table mean.
class Digits {
public:
    explicit Digits(const char* table) : at_(table) {}
    bool at_end() const { return *at_ == '\0'; }
    uint32_t next() {
        uint32_t value = 0, digit = 32;
        for (unsigned shift = 0; digit >= 32; shift += 5) {
            digit = uint32_t(*at_++ - '0');
            value |= (digit & 31) << shift;
        }
        return value;
    }
    // A signed number in zigzag form, to be added modulo 2^32.
    uint32_t next_difference() {
        const uint32_t value = next();
        return value >> 1 ^ (0 - (value & 1));
    }

private:
    const char* at_;
};

// Code points from first to last, with the value of each.
struct Run {
    uint32_t first, last;
    uint8_t value;
};

// Values of code points, 0 for most of them.
class Runs {
public:
    explicit Runs(Digits digits) {
        for (uint32_t at = 0; !digits.at_end();) {
            const uint32_t size = digits.next(), value = digits.next();
            if (value != 0) runs_.push_back({at, at + size - 1, uint8_t(value)});
            at += size;
        }
    }
    explicit Runs(const char* table) : Runs(Digits(table)) {}
    uint8_t of(uint32_t code) const {
        const auto found =
            std::lower_bound(runs_.begin(), runs_.end(), code,
                             [](const Run& run, uint32_t value) { return run.last < value; });
        return found != runs_.end() && found->first <= code ? found->value : 0;
    }
    auto begin() const { return runs_.begin(); }
    auto end() const { return runs_.end(); }

private:
    std::vector<Run> runs_;
};

// A set of code points: those of some general categories, except in runs where it differs.
class Set {
public:
    explicit Set(const char* table);
    bool contains(uint32_t code) const {
        return (std::upper_bound(edges_.begin(), edges_.end(), code) - edges_.begin()) % 2 != 0;
    }

private:
    std::vector<uint32_t> edges_;  // the first code point inside, the first one outside, and so on
};

// Code points that some code points become, see encode_mapping in unicode_tables.py.
class Mapping {
public:
    struct Entry {
        uint32_t code;
        uint16_t at, size;  // what it becomes, in codes_
    };
    explicit Mapping(const char* table) {
        uint32_t code = 0, before[kLongest] = {};  // before: in each place, the last code so far
        for (Digits digits(table); !digits.at_end(); ++code) {
            const uint32_t gap = digits.next(), length = gap & 1 ? digits.next() : 1,
                           step = gap & 1 ? digits.next() : 1;
            const uint32_t size = digits.next();
            code += gap >> 1;
            for (uint32_t i = 0; i < size; ++i) before[i] += digits.next_difference();
            for (uint32_t i = 0;; ++i) {
                entries_.push_back({code, uint16_t(codes_.size()), uint16_t(size)});
                codes_.insert(codes_.end(), before, before + size);
                if (i + 1 == length) break;
                code += step;
                before[0] += step;
            }
        }
    }
    Codes of(const Entry& entry) const { return {codes_.data() + entry.at, entry.size}; }
    Codes of(uint32_t code) const {
        const auto found =
            std::lower_bound(entries_.begin(), entries_.end(), code,
                             [](const Entry& entry, uint32_t value) { return entry.code < value; });
        return found != entries_.end() && found->code == code ? of(*found) : Codes{};
    }
    auto begin() const { return entries_.begin(); }
    auto end() const { return entries_.end(); }

private:
    static constexpr size_t kLongest = 18;  // code points, of an Arabic ligature
    std::vector<Entry> entries_;
    std::vector<uint32_t> codes_;
};

// A table, which is read by the first call.
template <class Table, const char* kDigits>
const Table& read() {
    static const Table table(kDigits);
    return table;
}

constexpr auto categories = read<Runs, kCategories>;
constexpr auto canonical_mapping = read<Mapping, kCanonical>;
constexpr auto not_composed = read<Set, kNotComposed>;

Set::Set(const char* table) {
    Digits digits(table);
    const uint32_t mask = digits.next();
    std::vector<uint32_t> whole, differing, all;
    const auto add = [](std::vector<uint32_t>& edges, const Run& run) {
        edges.insert(edges.end(), {run.first, run.last + 1});
    };
    for (const Run& run : categories()) {
        if (mask >> run.value & 1u) add(whole, run);
    }
    for (const Run& run : Runs(digits)) add(differing, run);
    std::merge(whole.begin(), whole.end(), differing.begin(), differing.end(),
               std::back_inserter(all));
    for (const uint32_t edge : all) {  // two equal edges cancel each other
        if (edges_.empty() || edges_.back() != edge)
            edges_.push_back(edge);
        else
            edges_.pop_back();
    }
}

// Code points to which pairs of code points compose. A longer decomposition is a pair of what its
// first code points compose to, and its last code point.
class Compositions {
public:
    Compositions() {
        for (uint16_t size = 2; size <= kLongest; ++size) {
            for (const Mapping::Entry& entry : canonical_mapping()) {
                if (entry.size != size || not_composed().contains(entry.code)) continue;
                const Codes parts = canonical_mapping().of(entry);
                uint32_t first = parts.at[0];
                for (uint16_t i = 1; i + 1 < size; ++i) first = of(first, parts.at[i]);
                pairs_.emplace(key(first, parts.at[size - 1]), entry.code);
            }
        }
    }
    uint32_t of(uint32_t first, uint32_t second) const {
        const auto found = pairs_.find(key(first, second));
        return found != pairs_.end() ? found->second : 0;
    }

private:
    static constexpr uint16_t kLongest = 4;  // code points, of Greek letters
    static uint64_t key(uint32_t first, uint32_t second) { return uint64_t{first} << 32 | second; }
    std::unordered_map<uint64_t, uint32_t> pairs_;
};

}  // namespace

uint8_t category(uint32_t code) {
    static const std::vector<uint8_t> flat = [] {
        std::vector<uint8_t> table(kFlat, 0);
        for (const Run& run : categories()) {
            if (run.first < kFlat)
                std::memset(&table[run.first], run.value,
                            std::min(run.last, kFlat - 1) - run.first + 1);
        }
        return table;
    }();
    return code < kFlat ? flat[code] : categories().of(code);
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
    static const std::vector<Script> scripts = [] {
        std::vector<Script> made(std::size(kScriptNames));
        for (const Run& run : read<Runs, kScripts>())
            made[run.value - 1].emplace_back(run.first, run.last);
        return made;
    }();
    const auto found = std::find(std::begin(kScriptNames), std::end(kScriptNames), name);
    return found != std::end(kScriptNames) ? &scripts[size_t(found - std::begin(kScriptNames))]
                                           : nullptr;
}

bool in_script(const Script* script, uint32_t code) {
    const auto found =
        std::lower_bound(script->begin(), script->end(), code,
                         [](const auto& range, uint32_t value) { return range.second < value; });
    return found != script->end() && found->first <= code;
}

bool is_space(uint32_t code) {
    if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13);
    return read<Set, kSpace>().contains(code);
}

bool is_word(uint32_t code) { return read<Set, kWord>().contains(code); }
bool is_rust_word(uint32_t code) { return read<Set, kAddedTokenWord>().contains(code); }
bool is_punctuation(uint32_t code) { return read<Set, kPunctuation>().contains(code); }
bool is_numeric(uint32_t code) { return read<Set, kNumeric>().contains(code); }
bool is_mark(uint32_t code) {
    static const uint32_t marks = category_mask("M");
    return (marks >> category(code) & 1u) != 0;
}

bool is_combining_mark(uint32_t code) {
    return code >= 0x300 && read<Set, kCombiningMarks>().contains(code);
}
bool is_nonspacing_mark(uint32_t code) {
    return code >= 0x300 && read<Set, kNonspacingMarks>().contains(code);
}
bool is_control(uint32_t code) { return read<Set, kControls>().contains(code); }
Codes canonical(uint32_t code) { return code < 0xC0 ? Codes{} : canonical_mapping().of(code); }

Codes compatible(uint32_t code) {
    if (code < 0xA0) return {};
    const Codes found = read<Mapping, kCompatible>().of(code);
    return found.size != 0 ? found : canonical(code);
}

Codes lower(uint32_t code) { return read<Mapping, kLower>().of(code); }
uint8_t combining_class(uint32_t code) {
    return code < 0x300 ? 0 : read<Runs, kCombiningClasses>().of(code);
}
uint8_t script(uint32_t code) { return read<Runs, kScriptNumbers>().of(code); }

uint32_t compose(uint32_t first, uint32_t second) {
    // Hangul: a leading consonant and a vowel, or these and a trailing consonant.
    constexpr uint32_t kL = 0x1100, kV = 0x1161, kT = 0x11A7, kS = 0xAC00;
    if (first - kL < 19 && second - kV < 21) return kS + ((first - kL) * 21 + (second - kV)) * 28;
    if (first - kS < 11172 && (first - kS) % 28 == 0 && second - kT - 1 < 27)
        return first + (second - kT);
    static const Compositions compositions;
    return compositions.of(first, second);
}

size_t grapheme(std::string_view text, size_t at) {
    // Classes of UAX #29, the first five as grapheme_classes in unicode_tables.py numbers them;
    // kJoins are Extend, ZWJ and SpacingMark. The others are of Hangul.
    enum : uint8_t { kOther, kJoins, kPrepends, kControl, kPicture, kL, kV, kT, kLV, kLVT };
    constexpr uint32_t kJoiner = 0x200D;
    const auto class_at = [&](uint32_t code) -> uint8_t {
        if ((code >= 0x1100 && code < 0x1160) || (code >= 0xA960 && code <= 0xA97C)) return kL;
        if ((code >= 0x1160 && code < 0x11A8) || (code >= 0xD7B0 && code <= 0xD7C6)) return kV;
        if ((code >= 0x11A8 && code < 0x1200) || (code >= 0xD7CB && code <= 0xD7FB)) return kT;
        if (code >= 0xAC00 && code <= 0xD7A3) return (code - 0xAC00) % 28 == 0 ? kLV : kLVT;
        return code >= 0x20 && code < 0x7F ? uint8_t{kOther} : read<Runs, kGraphemes>().of(code);
    };
    const char* const begin = text.data() + at;
    const char* const end = text.data() + text.size();
    const char* p = begin;
    uint32_t before = next(p, end);
    uint8_t kind = class_at(before);
    bool picture = kind == kPicture;  // whether a picture is before, with nothing but kJoins behind
    while (p != end) {
        const char* ahead = p;
        const uint32_t code = next(ahead, end);
        const uint8_t then = class_at(code);
        bool joins = then == kJoins || kind == kPrepends ||
                     (picture && before == kJoiner && then == kPicture);
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
    return size_t(p - begin);
}

namespace {

// Whether NFC (if bit is 1) or NFKC (2) may change a character: it is a mark, composes with a
// character before, or is decomposed and not composed again.
bool may_change(uint32_t code, uint8_t bit) {
    static const std::vector<uint8_t> flat = [] {
        std::vector<uint8_t> table(kFlat, 0);
        for (uint32_t letter = 0x1100; letter < 0x1200; ++letter) table[letter] = 3;  // Hangul
        for (const Run& run : categories()) {
            if (run.first < kFlat && is_mark(run.first))
                std::memset(&table[run.first], 3, run.last - run.first + 1);
        }
        for (const Mapping::Entry& entry : read<Mapping, kCompatible>()) table[entry.code] |= 2;
        for (const Mapping::Entry& entry : canonical_mapping()) {
            if (entry.size == 1 || not_composed().contains(entry.code)) table[entry.code] |= 3;
        }
        return table;
    }();
    return code < kFlat ? (flat[code] & bit) != 0 : is_mark(code);
}

}  // namespace

bool may_change_nfc(uint32_t code) { return code >= 0x300 && may_change(code, 1); }

bool may_change_nfkc(uint32_t code) { return code >= 0x80 && may_change(code, 2); }

bool is_utf8(std::string_view text) {
    // Lowest code point of a character, by its number of bytes.
    constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    const char* const end = text.data() + text.size();
    for (const char* p = text.data(); p != end;) {
        uint64_t eight = ~uint64_t{0};
        if (end - p >= 8) std::memcpy(&eight, p, sizeof eight);
        if ((eight & 0x8080808080808080ull) == 0)
            p += 8;
        else if (uint8_t(*p) < 0x80)
            ++p;
        else {
            const char* const first = p;
            const size_t size = length(*first);
            if (continues(*first) || uint8_t(*first) > 0xF4 || size_t(end - p) < size) return false;
            const uint32_t code = next(p, end);
            if (!std::all_of(first + 1, p, continues) || code < kLeast[size] || code > 0x10FFFF ||
                code - 0xD800 < 0x800)
                return false;
        }
    }
    return true;
}

void append(std::string& out, uint32_t code) {
    if (code < 0x80) {
        out += char(code);
        return;
    }
    const auto tail = [&](int shift) { out += char(0x80 | (code >> shift & 0x3F)); };
    if (code < 0x800) {
        out += char(0xC0 | code >> 6);
    } else if (code < 0x10000) {
        out += char(0xE0 | code >> 12);
        tail(6);
    } else {
        out += char(0xF0 | code >> 18);
        tail(12);
        tail(6);
    }
    tail(0);
}

}  // namespace bitnet::unicode
