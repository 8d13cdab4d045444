#include "tokenizer/scanner.hpp"

#include "tokenizer/unicode.hpp"

namespace bitnet {
namespace {

// Classes of characters, a bit each.
enum : uint8_t {
    kLetter = 1,
    kNumber = 2,
    kSpace = 4,
    kBreak = 8,
    kUpper = 16,  // in o200k's set of capitals, which has Lm, Lo and M too (cased_words)
    kLower = 32,  // in o200k's set of small letters, which has these too
    kMark = 64
};
constexpr uint32_t kFlat = 0x34000;  // code points in the table of classes; those above are rare

// The classes of a code point.
uint8_t classify(uint32_t code) {
    static const auto of_category = [] {
        std::array<uint8_t, 32> classes{};
        const auto set = [&](const char* name, unsigned bits) {
            for (size_t i = 0; i < classes.size(); ++i) {
                if (unicode::category_mask(name) >> i & 1u) classes[i] = uint8_t(classes[i] | bits);
            }
        };
        set("L", kLetter);
        set("N", kNumber);
        set("M", kMark | kUpper | kLower);
        set("Lu", kUpper);
        set("Lt", kUpper);
        set("Ll", kLower);
        set("Lm", kUpper | kLower);
        set("Lo", kUpper | kLower);
        return classes;
    }();
    const uint8_t bits = of_category[unicode::category(code)];
    if (bits != 0 || !unicode::is_space(code)) return bits;
    return code == '\n' || code == '\r' ? kSpace | kBreak : kSpace;
}

// The classes of code points below kFlat.
const uint8_t* classes() {
    static const std::vector<uint8_t> table = [] {
        std::vector<uint8_t> made(kFlat);
        for (uint32_t code = 0; code < kFlat; ++code) made[code] = classify(code);
        return made;
    }();
    return table.data();
}

// The classes of the character at p; moves p past it.
uint8_t take(const uint8_t* table, const char*& p, const char* end) {
    const auto first = uint8_t(*p);
    if (first < 0x80) {
        ++p;
        return table[first];
    }
    const uint32_t code = unicode::next(p, end);
    return code < kFlat ? table[code] : classify(code);
}

// The end of the characters from p on that are in one of the classes; without kIn, in none of them.
template <bool kIn = true>
const char* run(const uint8_t* table, const char* p, const char* end, uint8_t bits) {
    while (kIn && bits & kLetter && size_t(end - p) >= Ascii16::kBytes) {
        const unsigned count = lowest_bit(~Ascii16(p).letters());
        p += count;
        if (count < Ascii16::kBytes) break;
    }
    while (p < end) {
        const char* ahead = p;
        if (((take(table, ahead, end) & bits) != 0) != kIn) break;
        p = ahead;
    }
    return p;
}

// The parts of a pattern between each | that is outside of groups and sets.
std::vector<std::string_view> alternatives(std::string_view pattern) {
    std::vector<std::string_view> parts;
    size_t begin = 0;
    int depth = 0;
    bool in_class = false;
    for (size_t i = 0; i < pattern.size(); ++i) {
        const char c = pattern[i];
        if (c == '\\')
            ++i;
        else if (in_class)
            in_class = c != ']';
        else if (c == '[')
            in_class = true;
        else if (c == '(')
            ++depth;
        else if (c == ')')
            --depth;
        else if (c == '|' && depth == 0) {
            parts.push_back(pattern.substr(begin, i - begin));
            begin = i + 1;
        }
    }
    parts.push_back(pattern.substr(begin));
    return parts;
}

// Contractions as the expressions write them, and what all expressions end with.
constexpr std::string_view kAnyCase = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
constexpr std::string_view kAnyCaseShort = "'(?i:[sdmt]|ll|ve|re)";
constexpr std::array<std::string_view, 7> kAsWritten{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
constexpr std::string_view kTail[] = {"\\s+(?!\\S)", "\\s+"};

// The two alternatives of o200k for words, with the suffix behind both.
std::array<std::string, 2> cased_words(std::string_view suffix) {
    const std::string prefix = "[^\\r\\n\\p{L}\\p{N}]?",
                      upper = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]",
                      lower = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]", end(suffix);
    return {prefix + upper + "*" + lower + "+" + end, prefix + upper + "+" + lower + "*" + end};
}

// Length of the contraction that begins at p, an apostrophe: 0 for none, -1 where only the engine
// can fold the case of the letter.
int contraction(const char* p, const char* end, bool any_case) {
    const auto letter = [&](const char* at) -> char {
        if (at >= end) return 0;
        return any_case && *at >= 'A' && *at <= 'Z' ? char(*at | 0x20) : *at;
    };
    const char first = letter(p + 1);
    if (any_case && (first & 0x80)) return -1;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    const char second = letter(p + 2);
    const bool two =
        ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
    return two ? 3 : 0;
}

}  // namespace

Scanner::Scanner(std::string_view pattern) : classes_(classes()) {
    const std::vector<std::string_view> ways = alternatives(pattern);
    size_t at = 0;  // alternatives that were recognised so far
    const auto is = [&](std::string_view way) {
        if (at >= ways.size() || ways[at] != way) return false;
        ++at;
        return true;
    };
    const auto are = [&](const auto& several) {
        if (ways.size() < at + std::size(several) ||
            !std::equal(std::begin(several), std::end(several),
                        ways.begin() + static_cast<long>(at))) {
            return false;
        }
        at += std::size(several);
        return true;
    };
    if (are(kAsWritten))
        contractions_ = Contractions::kAsWritten;
    else if (is(kAnyCase) || is(kAnyCaseShort))
        contractions_ = Contractions::kAnyCase;

    Kind kind = Kind::kWords;
    // What is neither letters nor numbers nor white space.
    std::string_view others = " ?[^\\s\\p{L}\\p{N}]+";
    if (is(" ?\\p{L}+")) {
        kind = Kind::kGpt2;
    } else if (is("[^\\r\\n\\p{L}\\p{N}]?\\p{L}+")) {
        letters_ = kLetter;
    } else if (is("[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+")) {
        letters_ = kLetter | kMark;
        others = " ?[^\\s\\p{L}\\p{M}\\p{N}]+";
    } else if (contractions_ == Contractions::kNone &&
               are(cased_words(std::string(kAnyCase) + "?"))) {
        kind = Kind::kCasedWords;
        contractions_ = Contractions::kAnyCase;
    } else if (contractions_ == Contractions::kNone && are(cased_words(""))) {
        kind = Kind::kCasedWords;
    } else {
        return;
    }
    ask_apostrophe_ = contractions_ != Contractions::kNone && kind != Kind::kCasedWords;
    for (uint32_t code = 0; code < 128; ++code)
        before_word_[code] =
            kind == Kind::kGpt2 ? code == ' ' : !(classify(code) & (kLetter | kNumber | kBreak));
    if (kind == Kind::kGpt2) {
        if (is(" ?\\p{N}+") && is(others) && are(kTail) && at == ways.size()) kind_ = kind;
        return;
    }
    if (is("\\p{N}") || is("\\p{N}{1}"))
        max_digits_ = 1;
    else if (is("\\p{N}{1,3}"))
        max_digits_ = 3;
    else if (!is("\\p{N}+"))
        return;
    if (at == ways.size() || ways[at].substr(0, others.size()) != others) return;
    const std::string_view rest = ways[at++].substr(others.size());
    slashes_ = rest == "[\\r\\n/]*";
    breaks_follow_ = slashes_ || rest == "[\\r\\n]*";
    if (!rest.empty() && !breaks_follow_) return;
    breaks_end_ = is("\\s*[\\r\\n]+") || is("\\s*[\\r\\n]");
    if (are(kTail) && at == ways.size()) kind_ = kind;
}

bool Scanner::may_cut(std::string_view text, size_t at) {
    const char* const begin = text.data();
    const char* const end = begin + text.size();
    const auto class_before = [&](const char*& p) {
        const char* ahead = p = unicode::previous(p, begin);
        return take(classes(), ahead, end);
    };
    const char *before = begin + at, *behind = before;
    if (at == 0 || at >= text.size()) return false;
    const uint8_t bits = class_before(before);
    if (*behind == ' ') return (bits & kLetter) != 0;
    if (!(bits & kBreak) || before == begin || !(take(classes(), behind, end) & kLetter))
        return false;
    return !(class_before(before) & kSpace);
}

const char* Scanner::next_by_character(const char* p, const char* end) const {
    if (kind_ == Kind::kGpt2) return gpt2(p, end);
    if (*p == '\'' && contractions_ != Contractions::kNone && kind_ == Kind::kWords) {
        const int length = contraction(p, end, contractions_ == Contractions::kAnyCase);
        if (length != 0) return length < 0 ? nullptr : p + length;
    }
    const char* second = p;
    const uint8_t first = take(classes_, second, end);
    if (first & kNumber) {
        for (int n = 1; n != max_digits_ && second < end; ++n) {
            const char* ahead = second;
            if (!(take(classes_, ahead, end) & kNumber)) break;
            second = ahead;
        }
        return second;
    }
    if (!(first & kBreak)) {
        bool certain = true;
        const char* word = kind_ == Kind::kWords ? this->word(first, second, end)
                                                 : cased_word(p, first, second, end, &certain);
        if (!certain) return nullptr;
        if (word != nullptr) return word;
    }
    const uint8_t known = kLetter | kNumber | kSpace | (letters_ & kMark);
    const char* other = *p == ' ' ? second : p;
    if (const char* stop = run<false>(classes_, other, end, known); stop > other) {
        while (breaks_follow_ && stop < end &&
               (*stop == '\n' || *stop == '\r' || (slashes_ && *stop == '/')))
            ++stop;
        return stop;
    }
    return space(p, end);
}

// Letters, after at most one character that is neither letter, number nor line break.
const char* Scanner::word(uint8_t first, const char* second, const char* end) const {
    if (first & letters_) return run(classes_, second, end, letters_);
    const char* stop = run(classes_, second, end, letters_);
    return stop > second ? stop : nullptr;
}

// What o200k calls a word: capitals and then small letters, or capitals alone.
const char* Scanner::cased_word(const char* p, uint8_t first, const char* second, const char* end,
                                bool* certain) const {
    const bool optional = !(first & kLetter);  // the first character may be one before the word
    const char* stop = nullptr;
    if (optional) stop = capitals_and_small(second, end);
    if (stop == nullptr) stop = capitals_and_small(p, end);
    if (stop == nullptr && optional) {
        const char* ahead = run(classes_, second, end, kUpper);
        if (ahead > second) stop = run(classes_, ahead, end, kLower);
    }
    if (stop == nullptr) {
        const char* ahead = run(classes_, p, end, kUpper);
        if (ahead > p) stop = run(classes_, ahead, end, kLower);
    }
    if (stop != nullptr && stop < end && *stop == '\'' && contractions_ != Contractions::kNone) {
        const int length = contraction(stop, end, true);
        *certain = length >= 0;
        stop += length;
    }
    return stop;
}

// Characters that can be capitals, as many as leave one or more that can be small; nullptr for
// none.
const char* Scanner::capitals_and_small(const char* p, const char* end) const {
    const char* last = nullptr;  // behind the last of them that can be small
    while (p < end) {
        const char* ahead = p;
        const uint8_t bits = take(classes_, ahead, end);
        if (!(bits & kUpper)) break;
        p = ahead;
        if (bits & kLower) last = p;
    }
    const char* stop = run(classes_, p, end, kLower);
    return stop > p ? stop : last;
}

const char* Scanner::gpt2(const char* p, const char* end) const {
    if (*p == '\'' && contractions_ != Contractions::kNone) {
        const int length = contraction(p, end, contractions_ == Contractions::kAnyCase);
        if (length != 0) return length < 0 ? nullptr : p + length;
    }
    const char* start = *p == ' ' && end - p > 1 ? p + 1 : p;
    const char* ahead = start;
    const uint8_t first = take(classes_, ahead, end);
    if (first & kLetter) return run(classes_, ahead, end, kLetter);
    if (first & kNumber) return run(classes_, ahead, end, kNumber);
    if (!(first & kSpace)) return run<false>(classes_, ahead, end, kLetter | kNumber | kSpace);
    return space(p, end);
}

// White space up to its last line break, or all but its last character when text follows.
const char* Scanner::space(const char* p, const char* end) const {
    const char *last = p, *at = p, *behind_break = nullptr;
    while (at < end) {
        const char* ahead = at;
        const uint8_t bits = take(classes_, ahead, end);
        if (!(bits & kSpace)) break;
        last = at;
        at = ahead;
        if (bits & kBreak) behind_break = at;
    }
    if (breaks_end_ && behind_break != nullptr) return behind_break;
    return at == end || last == p ? at : last;
}

}  // namespace bitnet
