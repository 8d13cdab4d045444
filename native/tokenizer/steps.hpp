// Normalizers and pre-tokenizers, as steps read from a compiled file.
#pragma once

#include "tokenizer/regex.hpp"
#include "tokenizer/scanner.hpp"

namespace bitnet {

enum class StepKind : uint32_t {
    // normalizers; the first five leave the first character where it was
    kNfc = 1,
    kNfkc,
    kNfd,
    kNfkd,
    kLowercase,
    kStripAccents,
    kBertNormalizer,
    kPrepend,
    kReplace,
    kReplaceRegex,
    kNmt,
    kStrip,
    kSpellNormalizer,
    kPrecompiled,
    // pre-tokenizers
    kSplitRegex = 20,
    kSplitString,
    kDigits,
    kPrefixSpace,
    kMetaspace,
    kBertPreTokenizer,
    kWhitespaceSplit,
    kPunctuation,
    kWhitespace,
    kFixedLength,
    kUnicodeScripts,
    kSpell
};

enum class Behavior : uint32_t {
    kRemoved,
    kIsolated,
    kMergedWithPrevious,
    kMergedWithNext,
    kContiguous
};

// Which pieces get the symbol of kPrefixSpace or kMetaspace before them.
enum Scheme : uint32_t { kNever, kFirst, kAlways };
// Bits of kBertNormalizer, and of kStrip.
enum BertOption : uint32_t {
    kCleanText = 1,
    kBertLowercase = 2,
    kStripAccents = 4,
    kChineseChars = 8
};
enum StripSide : uint32_t { kLeft = 1, kRight = 2 };

struct TokenizerStep {
    StepKind kind;
    uint32_t mode = 0;  // Behavior, Scheme, bits of BertOption or StripSide, or a length of pieces
    uint32_t flag = 0;  // kSplit...: 1 keeps the matches; kMetaspace: 1 splits at its symbol
    std::string text;
    std::string other;
};

// Throws std::invalid_argument when the bytes are not a list of steps.
std::vector<TokenizerStep> read_steps(std::string_view bytes);

// A stretch of a text, in bytes.
struct Span {
    size_t begin, end;
};
// Where each byte of a changed text comes from; empty for a text that was not changed.
using Origin = std::vector<Span>;

// A text behind normalizers.
struct Normalized {
    std::string text;
    bool traced = false;  // whether to fill in origin
    Origin origin;        // of text
    void trace();         // makes origin that of a text that has not changed, by characters
};

// The character that spells a byte in GPT-2's vocabularies.
uint32_t byte_character(unsigned char byte);

class CharsMap;

// Runs normalizer steps; every worker has its own, since matching needs scratch memory.
class Normalizer {
public:
    // Throws std::invalid_argument for what cannot be run.
    Normalizer(const std::vector<TokenizerStep>& steps, const CharsMap& charsmap);
    bool empty() const { return steps_.empty(); }
    // Whether the first character may be another one afterwards.
    bool moves() const;
    // Whether it may put characters before a text that come from none of its own.
    bool inserts() const { return inserts_; }
    // Throws OverBudget, and std::invalid_argument for a fault of the character map that only this
    // text shows.
    void run(Normalized& text, Budget& budget);

private:
    const std::vector<TokenizerStep>& steps_;
    const CharsMap& charsmap_;
    std::vector<Regex> expressions_;  // of the kReplaceRegex steps, in order
    bool inserts_ = false;
};

// A text and the pieces it was cut into.
struct Cut {
    using Piece = Span;
    std::string own;  // set when a step had to change the text
    std::string_view text;
    std::vector<Piece> pieces;
    bool traced = false;    // whether to fill in origin
    Origin origin;          // of text
    bool at_start = false;  // whether the text begins where the whole does
};

// What a stretch of a changed text comes from.
inline Span source_of(const Origin& origin, Span span) {
    if (origin.empty() || span.begin >= span.end) return span;
    return {origin[span.begin].begin, origin[span.end - 1].end};
}
// Composes two changes: *then*, the origin of the second one, becomes that of both.
void follow(const Origin& first, Origin& then);

// Runs pre-tokenizer steps; every worker has its own, since matching needs scratch memory.
class PreTokenizer {
public:
    explicit PreTokenizer(const std::vector<TokenizerStep>& steps);
    bool empty() const { return steps_.empty(); }
    // Whether the only step looks for a text that is not there (a space, where all became U+2581).
    bool leaves_whole(std::string_view text) const {
        return steps_.size() == 1 && steps_[0].kind == StepKind::kSplitString &&
               steps_[0].flag == 0 && text.find(steps_[0].text) == std::string_view::npos;
    }
    // Whether the only step is an expression whose matches, found one by one, are the pieces.
    bool scans() const;
    // Makes [begin, end) the text that scan() cuts.
    void begin_scan(const char* begin, const char* end) {
        expressions_[0].regex.set_text(begin, end);
    }
    // The end of the piece that begins at p, in a text that ends at end.
    const char* scan(const char* p, const char* end, Budget& budget) {
        const char* stop = expressions_[0].scanner.next(p, end);
        return stop != nullptr ? stop : expressions_[0].match(p, end, budget);
    }
    // Whether a step depends on a piece being the first, where that is not simply the first byte.
    bool asks_for_first(bool moved) const;
    // cut.text is set, cut.pieces holds the whole of it. Throws OverBudget.
    void run(Cut& cut, Budget& budget);

private:
    struct Match {
        size_t begin, end;
        bool is_match;
    };
    // The expression of a step: the engine, and a scanner where there is one for it.
    struct Expression {
        explicit Expression(const std::string& pattern) : regex(pattern), scanner(pattern) {}
        const char* match(const char* p, const char* end, Budget& budget);
        Regex regex;
        Scanner scanner;
    };
    void find(const TokenizerStep& step, Expression* expression, std::string_view text);
    void rewrite(Cut& cut, std::string out, Origin origin);
    void prefix(Cut& cut, const TokenizerStep& step);
    void spell(Cut& cut);
    void split(Cut& cut, const TokenizerStep& step, Expression* expression);
    void arrange(Behavior behavior);

    const std::vector<TokenizerStep>& steps_;
    std::vector<Expression> expressions_;  // of the kSplitRegex steps, in order
    std::vector<Match> matches_;
    Budget* budget_ = nullptr;  // of the text that is being cut
    std::vector<Cut::Piece> pieces_;
};

}  // namespace bitnet
