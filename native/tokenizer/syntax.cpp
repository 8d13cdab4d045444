#include "tokenizer/syntax.hpp"

#include <stdexcept>

#include "tokenizer/budget.hpp"

namespace bitnet {
namespace {

using Op = RegexOp;

constexpr uint32_t kLongS = 0x17F;    // folds to s
constexpr uint32_t kKelvin = 0x212A;  // folds to k

[[noreturn]] void refuse(const std::string& what) {
    throw std::invalid_argument("regular expression: " + what + " is not supported");
}

bool is_letter(uint32_t code) {
    return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
}

CharSet::Item range(uint32_t first, uint32_t last) {
    return {CharSet::Item::kRange, false, first, last};
}

// Makes a node the child of another. Every tree is built with this, so none is too high to walk.
void adopt(RegexNode& parent, RegexNode child) {
    parent.height = std::max(parent.height, child.height + 1);
    if (parent.height > 3 * limits::kPatternDepth) refuse("nesting this deep");
    parent.children.push_back(std::move(child));
}

// Reads a pattern by recursive descent, from alternatives down to classes.
class Parser {
public:
    Parser(const std::string& pattern, std::vector<CharSet>& sets)
        : p_(pattern.data()), end_(pattern.data() + pattern.size()), sets_(sets) {}

    RegexNode parse() {
        RegexNode node = alternation();
        if (p_ != end_) refuse("an unmatched )");
        return node;
    }

private:
    bool at(char c) const { return p_ != end_ && *p_ == c; }
    bool take(char c) {
        if (!at(c)) return false;
        ++p_;
        return true;
    }
    bool take(const char* text) {
        const std::string wanted(text);
        if (size_t(end_ - p_) < wanted.size()) return false;
        if (!std::equal(wanted.begin(), wanted.end(), p_)) return false;
        p_ += wanted.size();
        return true;
    }
    uint32_t character() {
        if (p_ == end_) refuse("an unfinished pattern");
        return unicode::next(p_, end_);
    }

    RegexNode alternation() {
        if (++depth_ > limits::kPatternDepth) refuse("nesting this deep");
        RegexNode node{RegexNode::kAlternate};
        do adopt(node, concatenation());
        while (take('|'));
        --depth_;
        if (node.children.size() == 1) {
            RegexNode only = std::move(node.children[0]);
            return only;
        }
        return node;
    }

    RegexNode concatenation() {
        RegexNode node{RegexNode::kConcat};
        while (p_ != end_ && *p_ != '|' && *p_ != ')') adopt(node, quantified());
        refuse_folding_pairs(node);
        return node;
    }

    // If case is ignored, a ligature or a sharp s would match some pairs of letters.
    void refuse_folding_pairs(const RegexNode& node) const {
        if (!fold_) return;
        std::string text;
        for (const RegexNode& child : node.children) {
            // A letter is a set of both cases; a class of several items may count as one, too.
            const bool letter =
                child.kind == RegexNode::kSet && sets_[child.value].items.size() >= 2;
            text += letter ? char(sets_[child.value].items[0].first | 0x20) : ' ';  // lower case
        }
        for (const char* pair : {"ss", "ff", "fi", "fl", "st"}) {
            if (text.find(pair) != std::string::npos) refuse("ignoring case of these letters");
        }
    }

    RegexNode quantified() {
        RegexNode node = atom();
        for (int quantifiers = 0; p_ != end_; ++quantifiers) {
            if (quantifiers > limits::kPatternDepth) refuse("nesting this deep");
            RegexNode repeat{RegexNode::kRepeat};
            bool interval = false;
            if (take('*')) {
                repeat.max = kUnbounded;
            } else if (take('+')) {
                repeat.min = 1;
                repeat.max = kUnbounded;
            } else if (take('?')) {
                repeat.max = 1;
            } else if (at('{') && braces(repeat)) {
                interval = true;
            } else {
                break;
            }
            if (take('?')) {
                repeat.mode = RegexNode::kLazy;
                if (interval && repeat.min == repeat.max) refuse("{n}?");
            } else if (!interval && take('+')) {  // {m,n}+ repeats the interval in this syntax
                repeat.mode = RegexNode::kPossessive;
            }
            adopt(repeat, std::move(node));
            node = std::move(repeat);
        }
        return node;
    }

    // Reads digits; false if there are none.
    bool number(uint32_t& value) {
        const char* start = p_;
        value = 0;
        while (p_ != end_ && *p_ >= '0' && *p_ <= '9') {
            value = value * 10 + uint32_t(*p_++ - '0');
            if (value > limits::kPatternRepeat) refuse("a repeat count above 1000");
        }
        return p_ != start;
    }

    // Reads {n}, {n,}, {,m} or {n,m}; false, without moving, for a brace that is only a character.
    bool braces(RegexNode& repeat) {
        const char* start = p_++;
        const bool low = number(repeat.min);
        repeat.max = repeat.min;
        bool good = low;
        if (take(',')) {
            const bool high = number(repeat.max);
            if (!high) repeat.max = kUnbounded;
            good = low || high;
        }
        if (!good || !take('}')) {
            p_ = start;
            return false;
        }
        if (repeat.max < repeat.min) refuse("a reversed interval");
        return true;
    }

    RegexNode atom() {
        const uint32_t code = character();
        switch (code) {
            case '(':
                return group();
            case '[':
                return add(char_class());
            case '.': {
                CharSet set;
                set.items.push_back(range('\n', '\n'));
                set.negated = true;
                return add(std::move(set));
            }
            case '^':
                return assertion(Op::kLineStart);
            case '$':
                return assertion(Op::kLineEnd);
            case '\\':
                return escape();
            case '*':
            case '+':
            case '?':
                refuse("a quantifier without a target");
            default:
                return literal(code);
        }
    }

    RegexNode group() {
        if (!take('?')) {
            return finish_group(alternation());  // captures are never asked for
        }
        const bool fold = fold_;
        Op op = Op::kMatch;  // stands for a group that has no other purpose
        if (take(':')) {
        } else if (take("i:")) {
            fold_ = true;
        } else if (take("-i:")) {
            fold_ = false;
        } else if (take('=')) {
            op = Op::kLook;
        } else if (take('!')) {
            op = Op::kNotLook;
        } else if (take('>')) {
            op = Op::kAtomic;
        } else if (take("i)")) {  // to the end of the enclosing group
            fold_ = true;
            RegexNode rest = alternation();
            fold_ = fold;
            return rest;
        } else {
            refuse("this kind of group");
        }
        RegexNode body = finish_group(alternation());
        fold_ = fold;
        if (op == Op::kMatch) return body;
        RegexNode node{RegexNode::kEnclosed, 0, op};
        adopt(node, std::move(body));
        return node;
    }

    RegexNode finish_group(RegexNode body) {
        if (!take(')')) refuse("a group without )");
        return body;
    }

    static RegexNode assertion(Op op) { return {RegexNode::kAssert, 0, op}; }

    RegexNode literal(uint32_t code) {
        if (!fold_) return {RegexNode::kChar, code};
        if (code >= 0x80) refuse("ignoring the case of non-ASCII characters");
        CharSet set;
        add_folded(set, code, code);
        return add(std::move(set));
    }

    // Adds a range of ASCII, and the characters that equal its letters if case is ignored.
    void add_folded(CharSet& set, uint32_t first, uint32_t last) {
        if (last >= 0x80) refuse("ignoring the case of non-ASCII characters");
        set.items.push_back(range(first, last));
        for (uint32_t code = first; code <= last; ++code) {
            if (!is_letter(code)) continue;
            set.items.push_back(range(code ^ 0x20, code ^ 0x20));
            const uint32_t lower = code | 0x20;
            if (lower == 's') set.items.push_back(range(kLongS, kLongS));
            if (lower == 'k') set.items.push_back(range(kKelvin, kKelvin));
        }
    }

    // The node of a complete set.
    RegexNode add(CharSet set) {
        set.finish();
        sets_.push_back(std::move(set));
        return {RegexNode::kSet, uint32_t(sets_.size() - 1)};
    }

    RegexNode escape() {
        CharSet set;
        if (shorthand(set)) return add(std::move(set));
        if (take('A')) return assertion(Op::kTextStart);
        if (take('z')) return assertion(Op::kTextEnd);
        if (take('b')) return assertion(Op::kWordBorder);
        if (take('B')) return assertion(Op::kInsideWord);
        return literal(escaped_character());
    }

    // Reads \s, \p{L} and the like, in and outside of brackets; false for other escapes.
    bool shorthand(CharSet& set) {
        if (p_ == end_) refuse("a pattern that ends in a backslash");
        CharSet::Item item{CharSet::Item::kSpace};
        switch (*p_) {
            case 's':
                break;
            case 'S':
                item.negated = true;
                break;
            case 'w':
                item.kind = CharSet::Item::kWord;
                break;
            case 'W':
                item.kind = CharSet::Item::kWord;
                item.negated = true;
                break;
            case 'd':
                ++p_;
                set.categories |= unicode::category_mask("Nd");
                return true;
            case 'D':
                ++p_;
                set.categories |= ~unicode::category_mask("Nd");
                return true;
            case 'p':
            case 'P':
                property(set);
                return true;
            default:
                return false;
        }
        ++p_;
        set.items.push_back(item);
        return true;
    }

    void property(CharSet& set) {
        bool negated = *p_++ == 'P';
        if (!take('{')) refuse("a property without braces");
        if (take('^')) negated = !negated;
        std::string name;
        while (p_ != end_ && *p_ != '}') name += *p_++;
        if (!take('}')) refuse("an unfinished property");
        if (fold_ && name.size() == 2 && name[0] == 'L') refuse("ignoring case in a property");
        if (const uint32_t mask = unicode::category_mask(name)) {
            set.categories |= negated ? ~mask : mask;
            return;
        }
        CharSet::Item item{CharSet::Item::kScript, negated};
        item.script = unicode::find_script(name);
        if (item.script == nullptr) refuse("the property " + name);
        set.items.push_back(item);
    }

    // A number of *least* to *most* hexadecimal digits; if braced, up to the closing brace.
    uint32_t hex(int least, int most, bool braced) {
        uint32_t value = 0;
        int digits = 0;
        for (; digits < most && p_ != end_; ++digits) {
            const char c = *p_;
            if (braced && c == '}') break;
            const int lower = c | 0x20;
            if (c >= '0' && c <= '9')
                value = value * 16 + uint32_t(c - '0');
            else if (lower >= 'a' && lower <= 'f')
                value = value * 16 + uint32_t(lower - 'a' + 10);
            else
                refuse("this hexadecimal escape");
            ++p_;
        }
        if (digits < least || (braced && !take('}'))) refuse("an unfinished hexadecimal escape");
        if (value > 0x10FFFF) refuse("a character above U+10FFFF");
        return value;
    }

    uint32_t escaped_character() {
        const uint32_t code = character();
        switch (code) {
            case 'n':
                return '\n';
            case 'r':
                return '\r';
            case 't':
                return '\t';
            case 'f':
                return '\f';
            case 'v':
                return '\v';
            case 'a':
                return 7;
            case 'e':
                return 27;
            case 'u':
                return hex(4, 4, false);
            case 'x': {
                if (take('{')) return hex(1, 8, true);
                const uint32_t value = hex(1, 2, false);
                if (value >= 0x80) refuse("\\x of a byte above 7F");
                return value;
            }
            default:
                if (is_letter(code) || (code >= '0' && code <= '9')) refuse("this escape");
                return code;
        }
    }

    // Reads a class from behind its [, as the intersection of the parts between each &&.
    CharSet char_class() {
        if (++depth_ > limits::kPatternDepth) refuse("nesting this deep");
        CharSet whole;
        whole.negated = take('^');
        CharSet part;
        bool first = true;
        while (true) {
            if (p_ == end_) refuse("a class without ]");
            if (take(']')) {
                if (first) refuse("an empty class");
                break;
            }
            if (take("&&")) {
                part.finish();
                whole.cuts.push_back(std::move(part));
                part = CharSet{};
                continue;
            }
            first = false;
            class_item(part);
        }
        --depth_;
        if (whole.cuts.empty()) {
            part.negated = whole.negated;
            part.finish();
            return part;
        }
        part.finish();
        whole.cuts.push_back(std::move(part));
        whole.categories = 0xFFFFFFFF;  // everything, cut with the parts
        whole.finish();
        return whole;
    }

    void class_item(CharSet& set) {
        if (at('[')) {
            if (take("[:")) refuse("a POSIX class");
            ++p_;
            CharSet::Item item{CharSet::Item::kSet};
            item.set.push_back(char_class());
            set.items.push_back(std::move(item));
            return;
        }
        uint32_t low = character();
        if (low == '\\') {
            if (shorthand(set)) return;
            low = escaped_character();
        }
        uint32_t high = low;
        if (at('-') && p_ + 1 != end_ && p_[1] != ']') {
            ++p_;
            if (at('[')) refuse("a class as the end of a range");
            high = character();
            if (high == '\\') {
                CharSet unused;
                if (shorthand(unused)) refuse("a set as the end of a range");
                high = escaped_character();
            }
            if (high < low) refuse("a reversed range");
        }
        if (fold_)
            add_folded(set, low, high);
        else
            set.items.push_back(range(low, high));
    }

    const char* p_;
    const char* end_;
    std::vector<CharSet>& sets_;
    bool fold_ = false;
    int depth_ = 0;
};

}  // namespace

RegexNode parse_regex(const std::string& pattern, std::vector<CharSet>& sets) {
    if (pattern.size() > limits::kPatternBytes)
        refuse("a pattern of more than " + std::to_string(limits::kPatternBytes) + " bytes");
    if (!unicode::is_utf8(pattern)) refuse("a pattern that is not UTF-8");
    return Parser(pattern, sets).parse();
}

}  // namespace bitnet
