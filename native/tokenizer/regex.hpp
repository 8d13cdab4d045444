// The regular expressions of pre-tokenizers, matched as Oniguruma (Ruby syntax) matches them.
//
// Supported are alternatives in order, greedy, lazy and possessive quantifiers, classes with
// properties and intersections, look-ahead and anchors. Compiling a pattern refuses all others.
#pragma once

#include "tokenizer/budget.hpp"
#include "tokenizer/charset.hpp"
#include "tokenizer/syntax.hpp"

namespace bitnet {

// Which characters a part of a pattern can start with; `other` stands for all non-ASCII ones.
struct FirstSet {
    AsciiSet ascii;
    bool other = false;
    bool nullable = false;

    bool admits(const char* p, const char* end) const {
        if (nullable) return true;
        if (p == end) return false;
        const auto c = uint8_t(*p);
        return c < 128 ? ascii.contains(c) : other;
    }
};

// States of the search that are known to fail or, inside a look-ahead, to succeed. Neither depends
// on how the state was reached, so no state is worth exploring twice in one text.
class StateMemo {
public:
    enum Verdict { kUnknown, kFails, kSucceeds };
    static uint64_t key(uint32_t pc, uint32_t pos) { return uint64_t{pc} << 32 | pos; }
    // Forgets all states; of the next text, at most `most` are remembered.
    void reset(size_t most);
    bool empty() const { return count_ == 0; }
    Verdict look_up(uint64_t key) const;
    void note(uint64_t key, Verdict verdict);

private:
    size_t slot(uint64_t key) const;
    void grow();
    std::vector<uint64_t> slots_;  // a hash table: keys, each with two more bits for the verdict
    size_t count_ = 0, most_ = 0;
};

class Regex {
public:
    // Throws std::invalid_argument naming the construct that is not supported.
    explicit Regex(const std::string& pattern);

    // Makes [begin, end) the text that find() searches. All that is known about the text before is
    // forgotten, even if it was at the same address. Throws OverBudget for 4 GiB or more.
    void set_text(const char* begin, const char* end);

    // The leftmost match that begins at from or later. Throws OverBudget.
    bool find(const char* from, Budget& budget, const char** match_begin, const char** match_end);

    // Whether the pattern may match the empty text.
    bool nullable() const { return nullable_; }

    using Op = RegexOp;
    struct Inst {
        Op op;
        uint32_t a = 0;  // character, index of a set, or place to go on, of kSplit the first one
        uint32_t b = 0;  // kSplit: the second place to go on; kLoop, kPossessive: index in loops_
        uint32_t min = 0, max = 0;  // characters of a loop
        int guard = -1;             // kSplit: index in guards_ of what the first way can start with
    };

private:
    static constexpr uint32_t kPlain = 0xFFFFFFFF;  // low of a frame that is not of a loop
    // A way left to try.
    struct Frame {
        uint32_t pc, pos;
        uint32_t low;    // a greedy loop may give back characters down to here, or kPlain
        uint32_t trail;  // states entered later fail when this frame is taken
    };
    // What is known about a greedy loop in this text. Whether the rest of the pattern matches at a
    // position does not depend on how that was reached, so later starts need not try it again.
    // Without this, a search that fails along a run of characters would be quadratic in its length.
    struct Loop {
        uint32_t run_begin = 0, run_end = 0;  // the last run that the loop has taken
        // The rest fails in (low, high]; kPlain: nothing is known.
        uint32_t failed_low = kPlain, failed_high = 0;
    };
    bool run(Op kind, uint32_t pc, uint32_t pos, uint32_t* stop);
    bool back(size_t base, uint32_t* pc, uint32_t* pos);
    bool enter_loop(const Inst& inst, uint32_t pc, uint32_t* pos);
    StateMemo::Verdict enter_state(uint32_t pc, uint32_t pos);
    void push(uint32_t pc, uint32_t pos, uint32_t low);
    void settle(size_t trail, StateMemo::Verdict verdict);
    uint32_t next(uint32_t* pos) const;
    bool is_word_border(uint32_t pos) const;

    std::vector<Inst> program_;
    std::vector<CharSet> sets_;
    std::vector<FirstSet> guards_;
    FirstSet first_;
    bool nullable_ = false;
    // Of one search.
    Budget* budget_ = nullptr;
    uint64_t spent_ = 0;  // steps of the attempt at the current start
    std::vector<Frame> stack_;
    std::vector<uint64_t> trail_;  // keys of the states that were entered on the way here
    // Of one text.
    std::vector<Loop> loops_;
    StateMemo memo_;
    const char* begin_ = nullptr;
    const char* end_ = nullptr;
    uint32_t size_ = 0;
};

// The matches of a text, one after the other, as the `tokenizers` library finds them.
class RegexMatches {
public:
    RegexMatches(Regex& regex, const char* begin, const char* end, Budget& budget)
        : regex_(regex), end_(end), p_(begin), budget_(budget) {
        regex_.set_text(begin, end);
        if (begin == end) p_ = nullptr;  // nothing is looked for in an empty text
    }
    // Throws OverBudget.
    bool next(const char** match_begin, const char** match_end);

private:
    Regex& regex_;
    const char *end_, *p_, *last_ = nullptr;
    Budget& budget_;
};

}  // namespace bitnet
