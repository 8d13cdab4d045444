// The syntax of regular expressions: a pattern as a tree.
#pragma once

#include "tokenizer/charset.hpp"

namespace bitnet {

// Instructions of a compiled pattern. In its tree, nodes of the kinds kEnclosed and kAssert have
// the one that they become.
enum class RegexOp : uint8_t {
    kChar,
    kSet,
    kLoop,
    kPossessive,
    kSplit,
    kJump,
    kLook,     // (?=...)
    kNotLook,  // (?!...)
    kAtomic,   // (?>...)
    kLineStart,
    kLineEnd,
    kTextStart,
    kTextEnd,
    kWordBorder,
    kInsideWord,
    kMatch
};

// A part of a pattern.
struct RegexNode {
    enum Kind {
        kEmpty,
        kChar,
        kSet,
        kConcat,
        kAlternate,
        kRepeat,
        kEnclosed,
        kAssert
    } kind = kEmpty;
    uint32_t value = 0;            // character, or index of a set
    RegexOp op = RegexOp::kMatch;  // of kEnclosed and kAssert
    uint32_t min = 0, max = 0;
    enum Mode { kGreedy, kLazy, kPossessive } mode = kGreedy;
    std::vector<RegexNode> children = {};
    int height = 1;  // of the tree from here down: how deep functions that walk it recurse
};

constexpr uint32_t kUnbounded = 0xFFFFFFFF;

// The tree of *pattern*, whose sets are added to *sets*. Throws std::invalid_argument naming what
// is not supported.
RegexNode parse_regex(const std::string& pattern, std::vector<CharSet>& sets);

}  // namespace bitnet
