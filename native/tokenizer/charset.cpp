#include "tokenizer/charset.hpp"

#include <iterator>

namespace bitnet {

bool CharSet::evaluate(uint32_t code) const {
    bool inside = (categories >> unicode::category(code) & 1u) != 0;
    const auto range = std::upper_bound(ranges.begin(), ranges.end(), std::make_pair(code, ~0u));
    inside = inside || (range != ranges.begin() && code <= std::prev(range)->second);
    for (auto item = items.begin(); !inside && item != items.end(); ++item) {
        bool found = false;
        switch (item->kind) {
            case Item::kRange:
                continue;  // in ranges
            case Item::kSpace:
                found = unicode::is_space(code);
                break;
            case Item::kWord:
                found = unicode::is_word(code);
                break;
            case Item::kScript:
                found = unicode::in_script(item->script, code);
                break;
            case Item::kSet:
                found = item->set[0].contains(code);
                break;
        }
        inside = found != item->negated;
    }
    for (const CharSet& cut : cuts) inside = inside && cut.contains(code);
    return inside != negated;
}

void CharSet::finish() {
    ranges.clear();
    cost = 1;
    for (const Item& item : items) {
        if (item.kind == Item::kRange)
            ranges.emplace_back(item.first, item.last);
        else
            cost += 1 + (item.kind == Item::kSet ? item.set[0].cost : 0);
    }
    for (const CharSet& cut : cuts) cost += cut.cost;
    std::sort(ranges.begin(), ranges.end());
    size_t n = 0;
    for (const auto& range : ranges) {
        if (n > 0 && range.first <= ranges[n - 1].second) {
            ranges[n - 1].second = std::max(ranges[n - 1].second, range.second);
        } else {
            ranges[n++] = range;
        }
    }
    ranges.resize(n);
    ascii = {};
    for (uint32_t code = 0; code < 128; ++code) {
        if (evaluate(code)) ascii.add(code);
    }
}

}  // namespace bitnet
