// The regular expressions of pre-tokenizers, matched as Oniguruma (Ruby syntax) matches them.
//
// Alternatives in order, greedy, lazy and possessive quantifiers, classes with properties and
// intersections, look-ahead, anchors. What is not here is refused when the pattern is compiled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bitnet {

namespace unicode {
struct Script;
}

// A set of code points: a union of items, cut with other sets, perhaps inverted.
struct CharSet {
    struct Item {
        enum Kind { kRange, kSpace, kWord, kScript, kSet } kind;
        bool negated = false;
        uint32_t first = 0, last = 0;
        const unicode::Script* script = nullptr;
        std::vector<CharSet> set = {};  // exactly one for kSet
    };
    uint32_t categories = 0;
    bool negated = false;
    std::vector<Item> items;
    std::vector<CharSet> cuts;
    uint64_t ascii[2] = {0, 0};  // the answer for the first 128 code points

    bool contains(uint32_t code) const {
        if (code < 128) return (ascii[code >> 6] >> (code & 63) & 1) != 0;
        return evaluate(code);
    }
    bool evaluate(uint32_t code) const;
    void finish();
};

// Which characters a part of a pattern can start with; bit 128 stands for all non-ASCII ones.
struct FirstSet {
    uint64_t ascii[2] = {0, 0};
    bool other = false;
    bool nullable = false;

    bool admits(const char* p, const char* end) const {
        if (nullable) return true;
        if (p == end) return false;
        const auto c = static_cast<unsigned char>(*p);
        return c < 128 ? (ascii[c >> 6] >> (c & 63) & 1) != 0 : other;
    }
};

class Regex {
public:
    // Throws std::invalid_argument naming the construct that is not supported.
    explicit Regex(const std::string& pattern);

    // The leftmost match in [from, end) of a text that starts at begin.
    bool find(const char* begin, const char* from, const char* end, const char** match_begin,
              const char** match_end);

    enum class Op : uint8_t {
        kChar, kSet, kLoop, kPossessive, kSplit, kJump, kLook, kNotLook, kAtomic,
        kLineStart, kLineEnd, kTextStart, kTextEnd, kMatch
    };
    struct Inst {
        Op op;
        uint32_t a = 0;         // character, set, first target
        uint32_t b = 0;         // second target, number of a loop
        uint32_t min = 0, max = 0;
        int guard = -1;         // kSplit: what the first way can start with
    };

private:
    struct Frame {
        uint32_t pc;
        const char* pos;
        const char* low;  // a greedy loop may give back characters down to here
    };
    // What is known about a greedy loop in this text. Whether the rest of the pattern matches at a
    // position does not depend on how it was reached, so a later start need not try again: without
    // this, a search that fails along a run would be quadratic in the run.
    struct Loop {
        const char *run_begin = nullptr, *run_end = nullptr;      // a run, to its very end
        const char *failed_low = nullptr, *failed_high = nullptr; // fails in (low, high]
    };
    static void note_failure(Loop& loop, const char* low, const char* high);
    bool run(uint32_t pc, const char* pos, const char** stop);

    std::vector<Inst> program_;
    std::vector<CharSet> sets_;
    std::vector<FirstSet> guards_;
    FirstSet first_;
    std::vector<Frame> stack_;
    std::vector<Loop> loops_;
    const char* begin_ = nullptr;
    const char* end_ = nullptr;
};

// What the parser makes of a pattern; regex.cpp turns it into a program.
struct RegexNode {
    enum Kind {
        kEmpty, kChar, kSet, kConcat, kAlternate, kRepeat, kLook, kNotLook, kAtomic,
        kLineStart, kLineEnd, kTextStart, kTextEnd
    } kind = kEmpty;
    uint32_t value = 0;  // character, or index of a set
    uint32_t min = 0, max = 0;
    enum Mode { kGreedy, kLazy, kPossessive } mode = kGreedy;
    std::vector<RegexNode> children = {};
};

constexpr uint32_t kUnbounded = 0xFFFFFFFF;

RegexNode parse_regex(const std::string& pattern, std::vector<CharSet>& sets);

}  // namespace bitnet
