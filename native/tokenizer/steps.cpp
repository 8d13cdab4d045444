#include "tokenizer/steps.hpp"

#include "tokenizer/unicode.hpp"

namespace bitnet {
namespace {

// Reads numbers and texts from a section of a compiled file.
class Reader {
public:
    explicit Reader(std::string_view bytes) : rest_(bytes) {}
    uint32_t number() {
        uint32_t value = 0;
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
        return value;
    }
    std::string text() {
        const std::string_view found = take(number());
        if (!unicode::is_utf8(found))
            throw std::invalid_argument("compiled tokenizer: a step with a text that is not UTF-8");
        return std::string(found);
    }

private:
    std::string_view take(size_t n) {
        if (n > rest_.size()) throw std::invalid_argument("compiled tokenizer: steps end early");
        const std::string_view found = rest_.substr(0, n);
        rest_.remove_prefix(n);
        return found;
    }
    std::string_view rest_;
};

// The largest mode of a step, see TokenizerStep.
uint32_t largest_mode(StepKind kind) {
    switch (kind) {
        case StepKind::kPrefixSpace:
        case StepKind::kMetaspace:
            return kAlways;
        case StepKind::kFixedLength:
            return INT32_MAX;
        case StepKind::kBertNormalizer:
            return kCleanText | kBertLowercase | kStripAccents | kChineseChars;
        case StepKind::kStrip:
            return kLeft | kRight;
        default:  // the other normalizers have none
            return kind < StepKind::kSplitRegex ? 0 : uint32_t(Behavior::kContiguous);
    }
}

}  // namespace

std::vector<TokenizerStep> read_steps(std::string_view bytes) {
    std::vector<TokenizerStep> steps;
    if (bytes.empty()) return steps;
    Reader in(bytes);
    uint32_t count = in.number();
    if (count > limits::kSteps) throw std::invalid_argument("compiled tokenizer: too many steps");
    for (; count > 0; --count) {
        TokenizerStep step{};
        step.kind = StepKind(in.number());
        step.mode = in.number();
        step.flag = in.number();
        step.text = in.text();
        step.other = in.text();
        const bool known = (step.kind >= StepKind::kNfc && step.kind <= StepKind::kPrecompiled) ||
                           (step.kind >= StepKind::kSplitRegex && step.kind <= StepKind::kSpell);
        if (!known) throw std::invalid_argument("compiled tokenizer: unknown step");
        const bool searches = step.kind == StepKind::kReplace ||
                              step.kind == StepKind::kSplitString ||
                              step.kind == StepKind::kMetaspace;
        if (step.kind == StepKind::kFixedLength && step.mode == 0)
            throw std::invalid_argument("compiled tokenizer: pieces without a length");
        if (searches && step.text.empty())
            throw std::invalid_argument("compiled tokenizer: a step that looks for the empty text");
        if (step.mode > largest_mode(step.kind))
            throw std::invalid_argument("compiled tokenizer: a step with an unknown mode");
        steps.push_back(std::move(step));
    }
    return steps;
}

void compose_origins(const Origin& first, Origin& then) {
    if (first.empty()) return;
    for (Span& span : then) span = source_of(first, span);
}

PreTokenizer::PreTokenizer(const std::vector<TokenizerStep>& steps) : steps_(steps) {
    for (const TokenizerStep& step : steps_) {
        if (step.kind == StepKind::kSplitRegex) expressions_.emplace_back(step.text);
    }
}

bool PreTokenizer::scans() const {
    // An inverted kRemoved keeps the matches alone: the same pieces, as they cover every text.
    const auto wanted = [](const TokenizerStep& step) {
        return Behavior(step.mode) == (step.flag != 0 ? Behavior::kRemoved : Behavior::kIsolated);
    };
    return steps_.size() == 1 && steps_[0].kind == StepKind::kSplitRegex && wanted(steps_[0]) &&
           expressions_[0].scanner.known();
}

// The end of the match at p by the regex engine, where the scanner is not certain. The expression
// covers every text, so a match begins at p.
const char* PreTokenizer::Expression::match(const char* p, const char* end, Budget& budget) {
    const char *from = nullptr, *to = nullptr;
    return regex.find(p, budget, &from, &to) && from == p ? to : end;
}

bool PreTokenizer::asks_for_first(bool moved) const {
    const auto asks = [](const TokenizerStep& step) {
        return step.kind == StepKind::kMetaspace && step.mode == kFirst;
    };
    return std::any_of(steps_.begin() + (moved || steps_.empty() ? 0 : 1), steps_.end(), asks);
}

void PreTokenizer::run(Cut& cut, Budget& budget) {
    budget_ = &budget;
    auto expression = expressions_.begin();
    for (const TokenizerStep& step : steps_) {
        if (step.kind == StepKind::kSpell) {
            spell(cut);
            continue;
        }
        if (step.kind == StepKind::kPrefixSpace || step.kind == StepKind::kMetaspace) {
            prefix(cut, step);
            if (step.kind == StepKind::kPrefixSpace || step.flag == 0) continue;
        }
        split(cut, step, step.kind == StepKind::kSplitRegex ? &*expression++ : nullptr);
    }
}

// Makes *out* the text of *cut*, with pieces_ as its pieces and *origin* in the text so far.
void PreTokenizer::rewrite(Cut& cut, std::string out, Origin origin) {
    compose_origins(cut.origin, origin);
    cut.origin = std::move(origin);
    cut.own = std::move(out);
    cut.text = cut.own;
    cut.pieces.swap(pieces_);
}

// Puts a space before pieces that do not start with one. Metaspace puts its symbol there, and in
// place of every space.
void PreTokenizer::prefix(Cut& cut, const TokenizerStep& step) {
    const bool meta = step.kind == StepKind::kMetaspace;
    std::string out;
    out.reserve(cut.text.size() * 2);
    pieces_.clear();
    Origin origin;
    for (const Cut::Piece& piece : cut.pieces) {
        const std::string_view text = cut.text.substr(piece.begin, piece.end - piece.begin);
        const bool is_first = cut.at_start && source_of(cut.origin, piece).begin == 0;
        const bool begins = text.compare(0, step.text.size(), step.text) == 0 ||
                            (meta && !text.empty() && text[0] == ' ');
        const size_t begin = out.size();
        // As in the library, the origin of what is put before a piece is its first character.
        const size_t width = text.empty() ? 0 : unicode::length(text, 0);
        const auto add = [&](std::string_view part, Span from) {
            out += part;
            if (cut.traced) origin.insert(origin.end(), part.size(), from);
        };
        if (!begins && (step.mode == kAlways || (step.mode == kFirst && is_first)))
            add(step.text, {piece.begin, piece.begin + width});
        for (size_t i = piece.begin; i < piece.end; ++i)
            add(meta && cut.text[i] == ' ' ? std::string_view(step.text) : cut.text.substr(i, 1),
                {i, i + 1});
        pieces_.push_back({begin, out.size()});
    }
    rewrite(cut, std::move(out), std::move(origin));
}

// Writes the bytes of every piece as the characters that stand for them.
void PreTokenizer::spell(Cut& cut) {
    std::string out;
    Origin origin;
    pieces_.clear();
    for (const Cut::Piece& piece : cut.pieces) {
        const size_t begin = out.size();
        for (size_t at = piece.begin, n = 0; at < piece.end; at += n) {
            n = std::min(unicode::length(cut.text, at), piece.end - at);
            const size_t before = out.size();
            for (size_t i = at; i < at + n; ++i)
                unicode::append(out, byte_character(uint8_t(cut.text[i])));
            if (cut.traced) origin.insert(origin.end(), out.size() - before, {at, at + n});
        }
        pieces_.push_back({begin, out.size()});
    }
    rewrite(cut, std::move(out), std::move(origin));
}

void PreTokenizer::split(Cut& cut, const TokenizerStep& step, Expression* expression) {
    const auto behavior =
        step.kind == StepKind::kMetaspace ? Behavior::kMergedWithNext : Behavior(step.mode);
    const bool invert = step.flag != 0 && step.kind != StepKind::kMetaspace;
    pieces_.clear();
    for (const Cut::Piece& piece : cut.pieces) {
        find(step, expression, cut.text.substr(piece.begin, piece.end - piece.begin));
        // These steps fill matches_ with pieces.
        const bool arranged =
            step.kind == StepKind::kBertPreTokenizer || step.kind == StepKind::kWhitespace ||
            step.kind == StepKind::kFixedLength || step.kind == StepKind::kUnicodeScripts;
        if (!arranged) {
            if (invert) {
                for (Match& match : matches_) match.is_match = !match.is_match;
            }
            arrange(behavior);
        }
        for (const Match& match : matches_) {
            if (match.begin == match.end) continue;
            pieces_.push_back({piece.begin + match.begin, piece.begin + match.end});
        }
    }
    cut.pieces.swap(pieces_);
}

// Fills matches_ with what the step matches in text, and with the stretches between.
void PreTokenizer::find(const TokenizerStep& step, Expression* expression, std::string_view text) {
    matches_.clear();
    size_t done = 0;
    const auto add = [&](size_t begin, size_t end) {
        if (done < begin) matches_.push_back({done, begin, false});
        matches_.push_back({begin, end, true});
        done = end;
    };
    const char* const begin = text.data();
    const char* const end = begin + text.size();
    const auto each_code = [&](auto take) {
        for (const char* p = begin; p != end;) {
            const auto at = size_t(p - begin);
            const uint32_t code = unicode::next(p, end);
            take(code, at, size_t(p - begin));
        }
    };
    const auto each = [&](auto test) {
        each_code([&](uint32_t code, size_t from, size_t to) {
            if (test(code)) add(from, to);
        });
    };
    switch (step.kind) {
        case StepKind::kSplitRegex: {
            const char *from = nullptr, *to = nullptr;
            if (expression->scanner.known()) {
                expression->regex.set_text(begin, end);
                for (from = begin; from != end; from = to) {
                    to = expression->scanner.next(from, end);
                    if (to == nullptr) to = expression->match(from, end, *budget_);
                    add(size_t(from - begin), size_t(to - begin));
                }
                break;
            }
            RegexMatches matches(expression->regex, begin, end, *budget_);
            while (matches.next(&from, &to)) add(size_t(from - begin), size_t(to - begin));
            break;
        }
        case StepKind::kSplitString:
        case StepKind::kMetaspace:
            for (size_t at = text.find(step.text); at != std::string_view::npos;
                 at = text.find(step.text, done)) {
                add(at, at + step.text.size());
            }
            break;
        case StepKind::kDigits:
            each(unicode::is_numeric);
            break;
        case StepKind::kPunctuation:
            each(unicode::is_punctuation);
            break;
        case StepKind::kWhitespaceSplit:
            each(unicode::is_space);
            break;
        case StepKind::kBertPreTokenizer:  // spaces are removed, punctuation marks are pieces
            each_code([&](uint32_t code, size_t from, size_t to) {
                const bool space = unicode::is_space(code);
                if (!space && !unicode::is_punctuation(code)) return;
                if (done < from) matches_.push_back({done, from, false});
                if (!space) matches_.push_back({from, to, true});
                done = to;
            });
            break;
        case StepKind::kWhitespace: {  // runs of word characters, and of others but spaces
            int kind = 0;
            each_code([&](uint32_t code, size_t from, size_t to) {
                const int found = unicode::is_space(code) ? 0 : unicode::is_rust_word(code) ? 1 : 2;
                if (found != 0 && found == kind)
                    matches_.back().end = to;
                else if (found != 0)
                    matches_.push_back({from, to, true});
                kind = found;
                done = to;
            });
            break;
        }
        case StepKind::kFixedLength: {
            size_t count = 0;
            each_code([&](uint32_t, size_t from, size_t to) {
                if (count++ % step.mode == 0)
                    matches_.push_back({from, to, true});
                else
                    matches_.back().end = to;
                done = to;
            });
            break;
        }
        case StepKind::kUnicodeScripts: {  // what comes before the first script is removed
            uint8_t last = 0;
            each_code([&](uint32_t code, size_t from, size_t to) {
                const uint8_t script = unicode::script(code);
                if (script != 0 && script != last)
                    matches_.push_back({from, to, true});
                else if (!matches_.empty())
                    matches_.back().end = to;
                if (script != 0) last = script;
                done = to;
            });
            break;
        }
        default:
            break;
    }
    if (done < text.size()) matches_.push_back({done, text.size(), false});
}

// Joins or removes entries of matches_ as the behavior says.
void PreTokenizer::arrange(Behavior behavior) {
    std::vector<Match>& m = matches_;
    size_t n = 0;           // entries of the result
    bool previous = false;  // whether the entry before is a match
    switch (behavior) {
        case Behavior::kIsolated:
            return;
        case Behavior::kRemoved:
            m.erase(std::remove_if(m.begin(), m.end(), [](const Match& x) { return x.is_match; }),
                    m.end());
            return;
        case Behavior::kContiguous:
        case Behavior::kMergedWithPrevious:
            for (const Match& match : m) {
                const bool joins = behavior == Behavior::kContiguous ? match.is_match == previous
                                                                     : match.is_match && !previous;
                previous = match.is_match;
                if (joins && n > 0)
                    m[n - 1].end = match.end;
                else
                    m[n++] = match;
            }
            break;
        case Behavior::kMergedWithNext:
            std::reverse(m.begin(), m.end());
            for (const Match& match : m) {
                const bool joins = match.is_match && !previous;
                previous = match.is_match;
                if (joins && n > 0)
                    m[n - 1].begin = match.begin;
                else
                    m[n++] = match;
            }
            break;
    }
    m.resize(n);
    if (behavior == Behavior::kMergedWithNext) std::reverse(m.begin(), m.end());
}

}  // namespace bitnet
