// Normalizers and pre-tokenizers, as steps read from a compiled file.
#pragma once

#include <stdexcept>

#include "tokenizer/regex.hpp"
#include "tokenizer/scanner.hpp"

namespace bitnet {

enum class StepKind : uint32_t {
    // normalizers; up to kLowercase, each leaves the first character where it was
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
    kSpellNormalizer,  // ByteLevel: bytes as the characters of GPT-2's vocabularies
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
    kSpell  // ByteLevel: bytes as the characters of GPT-2's vocabularies
};

// Of a Split: what becomes of the matches, named as in tokenizer.json.
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
    // kSplit...: 1 exchanges the roles of the matches and of the stretches between; kMetaspace: 1
    // splits at its symbol
    uint32_t flag = 0;
    std::string text;   // what it looks for, puts before a text, or the pattern
    std::string other;  // kReplace...: what it puts there
};

// The steps in the section kSteps of a file. Throws std::invalid_argument when it is damaged.
std::vector<TokenizerStep> read_steps(std::string_view bytes);

// A stretch of a text, in bytes.
struct Span {
    size_t begin, end;
};
// Where each byte of a changed text comes from; empty for a text that was not changed.
using Origin = std::vector<Span>;

// A text that normalizers change.
struct Normalized {
    std::string text;
    bool traced = false;  // whether to fill in origin
    Origin origin;        // of text
    // If origin is empty, fills it in for a text that has not changed: each byte comes from its
    // whole character.
    void trace();
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
    // Whether the first character of the result may come from another one than the first.
    bool moves() const;
    // Whether an expression may match the empty text, so that what replaces it comes from none of
    // the text's characters.
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
    bool at_start = false;  // whether a piece whose source begins at 0 begins the whole text
};

// Where a stretch of a changed text comes from. Throws std::logic_error if it ends behind the text.
inline Span source_of(const Origin& origin, Span span) {
    if (origin.empty() || span.begin >= span.end) return span;
    if (span.end > origin.size()) throw std::logic_error("a span ends behind its text");
    return {origin[span.begin].begin, origin[span.end - 1].end};
}
// Composes two changes: *then*, the origin of the second one, becomes that of both.
void compose_origins(const Origin& first, Origin& then);

// Runs pre-tokenizer steps; every worker has its own, since matching needs scratch memory.
class PreTokenizer {
public:
    explicit PreTokenizer(const std::vector<TokenizerStep>& steps);
    bool empty() const { return steps_.empty(); }
    // Whether the only step splits at a string that does not occur (a space, if all became U+2581).
    bool leaves_whole(std::string_view text) const {
        return steps_.size() == 1 && steps_[0].kind == StepKind::kSplitString &&
               steps_[0].flag == 0 && text.find(steps_[0].text) == std::string_view::npos;
    }
    // Whether the only step is an expression that the scanner knows, and whose matches are the
    // pieces.
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
    // Whether a Metaspace step needs origins to know which piece is the first: if normalizers moved
    // the beginning, or if it is not the first step.
    bool asks_for_first(bool moved) const;
    // Cuts the pieces of cut further, at first the whole text. Throws OverBudget.
    void run(Cut& cut, Budget& budget);

private:
    // A stretch of a piece: a match, or what is between two matches.
    struct Match {
        size_t begin, end;
        bool is_match;
    };
    // The expression of a step: the regex engine, and the scanner, which may know it.
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
