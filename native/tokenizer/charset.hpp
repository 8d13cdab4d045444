// Sets of code points, as classes of regular expressions name them.
#pragma once

#include "tokenizer/unicode.hpp"

namespace bitnet {

// Some of the first 128 code points.
struct AsciiSet {
    uint64_t bits[2] = {0, 0};
    bool contains(uint32_t code) const { return (bits[code >> 6] >> (code & 63) & 1) != 0; }
    void add(uint32_t code) { bits[code >> 6] |= uint64_t{1} << (code & 63); }
    void add(const AsciiSet& other) {
        bits[0] |= other.bits[0];
        bits[1] |= other.bits[1];
    }
};

// A set of code points: a union of items, cut with other sets, perhaps inverted.
struct CharSet {
    struct Item {
        enum Kind { kRange, kSpace, kWord, kScript, kSet } kind;
        bool negated = false;
        uint32_t first = 0, last = 0;
        const unicode::Script* script = nullptr;
        std::vector<CharSet> set = {};  // exactly one for kSet
    };
    uint32_t categories = 0;  // bits of unicode::category_mask
    bool negated = false;
    std::vector<Item> items;
    std::vector<std::pair<uint32_t, uint32_t>> ranges;  // those of the items, sorted and joined
    std::vector<CharSet> cuts;                          // sets that the union is intersected with
    AsciiSet ascii;                                     // the answer for the first 128 code points
    uint32_t cost = 1;                                  // steps of one evaluation

    bool contains(uint32_t code) const {
        return code < 128 ? ascii.contains(code) : evaluate(code);
    }
    // As contains(), without the table for ASCII.
    bool evaluate(uint32_t code) const;
    uint32_t cost_of(uint32_t code) const { return code < 128 ? 1 : cost; }
    // Fills in ranges, ascii and cost, when all else is set.
    void finish();
};

}  // namespace bitnet
