// Normalizers and pre-tokenizers, as steps read from a compiled file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "regex.hpp"
#include "scanner.hpp"

namespace bitnet {

enum class StepKind : uint32_t {
    // normalizers; the first six are exact only where they are known to change nothing or little
    kNfc = 1, kNfkc, kAsciiIdentity, kLowercase, kBertNormalizer, kPrepend, kReplace,
    kLibrary,  // done outside, but for text in printable ASCII that stays as it is (a)
    // pre-tokenizers
    kSplitRegex = 20, kSplitString, kDigits, kPrefixSpace, kMetaspace, kBertPreTokenizer,
    kWhitespaceSplit, kPunctuation, kWhitespace, kFixedLength
};

enum class Behavior : uint32_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct TokenizerStep {
    StepKind kind;
    uint32_t a = 0;  // behavior, scheme or flags
    uint32_t b = 0;  // invert, split
    std::string text;
    std::string other;
};

// Throws std::invalid_argument when the bytes are not a list of steps.
std::vector<TokenizerStep> read_steps(std::string_view bytes);

// False: the step may change this text in a way only the full Unicode tables know. goes_on: nothing
// is put before the text.
bool normalize(const std::vector<TokenizerStep>& steps, std::string& text, bool goes_on = false);

// A stretch of a text, in bytes.
struct Span {
    size_t begin, end;
};
// Where each byte of a changed text comes from; empty for a text that was not changed.
using Origin = std::vector<Span>;

// A text and the pieces it was cut into.
struct Cut {
    using Piece = Span;
    std::string own;        // set when a step had to change the text
    std::string_view text;
    std::vector<Piece> pieces;
    bool traced = false;    // whether to fill in origin
    Origin origin;          // of text
};

// What a stretch of a changed text comes from.
inline Span source_of(const Origin& origin, Span span) {
    if (origin.empty() || span.begin >= span.end) return span;
    return {origin[span.begin].begin, origin[span.end - 1].end};
}
// Makes then, the origin of a second change, that of both.
void follow(const Origin& first, Origin& then);

// Runs pre-tokenizer steps; every worker has its own, since matching needs scratch memory.
class PreTokenizer {
public:
    explicit PreTokenizer(const std::vector<TokenizerStep>& steps);
    bool empty() const { return steps_.empty(); }
    // Whether the only step looks for a text that is not there (a space, where all became U+2581).
    bool leaves_whole(std::string_view text) const {
        return steps_.size() == 1 && steps_[0].kind == StepKind::kSplitString && steps_[0].b == 0 &&
               text.find(steps_[0].text) == std::string_view::npos;
    }
    // Whether the only step is an expression whose matches, found one by one, are the pieces.
    bool scans() const;
    // The end of the piece that begins at p, of a text in [begin, end).
    const char* scan(const char* begin, const char* p, const char* end, Budget& budget) {
        const char* stop = expressions_[0].scanner.next(p, end);
        return stop != nullptr ? stop : expressions_[0].match(begin, p, end, budget);
    }
    // cut.text is set, cut.pieces holds the whole of it; first: nothing came before this text.
    // Throws OverBudget.
    void run(Cut& cut, bool first, Budget& budget);

private:
    struct Match {
        size_t begin, end;
        bool is_match;
    };
    // The expression of a step: the engine, and a scanner where there is one for it.
    struct Expression {
        explicit Expression(const std::string& pattern) : regex(pattern), scanner(pattern) {}
        const char* match(const char* begin, const char* p, const char* end, Budget& budget);
        Regex regex;
        Scanner scanner;
    };
    void find(const TokenizerStep& step, Expression* expression, std::string_view text);
    void prefix(Cut& cut, const TokenizerStep& step, bool first);
    void split(Cut& cut, const TokenizerStep& step, Expression* expression);
    void arrange(Behavior behavior);

    const std::vector<TokenizerStep>& steps_;
    std::vector<Expression> expressions_;  // of the kSplitRegex steps, in order
    std::vector<Match> matches_;
    Budget* budget_ = nullptr;  // of the text that is being cut
    std::vector<Cut::Piece> pieces_;
};

}  // namespace bitnet
