// SentencePiece: its normalizer and its two models (normalizer.cc, bpe_model.cc, unigram_model.cc).
#include <limits>
#include <queue>

#include "tokenizer/models.hpp"
#include "tokenizer/unicode.hpp"

namespace bitnet {
namespace {

constexpr float kUnknownPenalty = 10.0f;  // kUnkPenalty of unigram_model.cc

// Appends the ids of a piece that begins at `at` in the text. after_unknown says whether the piece
// before was unknown: unknown neighbours become one id.
void add_piece(const TokenizerFile& file, std::string_view piece, size_t at, bool& after_unknown,
               Ids& out, Spans* spans) {
    const auto add = [&](uint32_t id, size_t begin, size_t end) {
        out.push_back(id);
        if (spans != nullptr) spans->push_back({begin, end});
    };
    const uint32_t id = file.find(piece.data(), piece.size());
    if (id != kNoId && !(file.flags(id) & kUnused)) {
        add(id, at, at + piece.size());
        after_unknown = false;
    } else if (file.config.flags & kByteFallback) {
        for (const char c : piece) add(file.byte_id(uint8_t(c)), at, at + piece.size());
    } else if (file.config.unknown_id != kNoId) {
        if (!after_unknown)
            add(file.config.unknown_id, at, at + piece.size());
        else if (spans != nullptr)
            spans->back().end = at + piece.size();
        after_unknown = true;
    }
}

// Darts-clone: bits of a unit of the double-array trie.
constexpr uint32_t kLeaf = 1u << 31, kHasLeaf = 1u << 8;

size_t child_offset(uint32_t unit) { return size_t(unit >> 10) << ((unit & (1u << 9)) >> 6); }

struct Segment {
    size_t begin, end;
    bool unknown;  // a character without a piece, or the unknown piece itself
};

// The pieces of *text* with the best sum of scores. rate(begin, end, id, score) sets the score of a
// piece, or returns false if it may not be used. A character that is not a piece scores *unknown*;
// if unknown_needs_id, using one without an unknown id throws. Sums are rounded to Score before
// they are compared, so that equal paths stay equal.
template <class Score, class Rate>
std::vector<Segment> best_segments(const TokenizerFile& file, std::string_view text, Budget& budget,
                                   Score unknown, bool unknown_needs_id, const Rate& rate) {
    // The best way to a place in the text, and the last segment of it.
    struct Node {
        Score score = 0;
        bool unknown = false;
        int64_t begin = -1;  // of that segment; -1 before there is a way
    };
    std::vector<Node> nodes(text.size() + 1);
    const auto offer = [&](size_t begin, size_t end, Score score, bool is_unknown) {
        const Score candidate = score + nodes[begin].score;
        Node& node = nodes[end];
        if (node.begin >= 0 && !(candidate > node.score)) return;
        if (is_unknown && unknown_needs_id && file.config.unknown_id == kNoId)
            throw std::invalid_argument(kNoUnknown);
        node = {candidate, is_unknown, int64_t(begin)};
    };
    const Trie& known = file.pieces();
    for (size_t begin = 0; begin < text.size();) {
        const size_t width = unicode::length(text, begin);
        bool has_single = false;  // whether the character alone is a piece
        size_t end = begin + 1;
        for (uint32_t node = known.start(text[begin]); node != 0; ++end) {
            const uint32_t id = known.value(node);
            Score score = 0;
            if (id != kNoId && rate(begin, end, id, score)) {
                offer(begin, end, score, id == file.config.unknown_id);
                has_single = has_single || end - begin == width;
            }
            node = end < text.size() ? known.follow(node, text[end]) : 0;
        }
        budget.spend(end - begin);
        if (!has_single) offer(begin, begin + width, unknown, true);
        begin += width;
    }
    std::vector<Segment> segments;
    for (size_t end = text.size(); end > 0; end = segments.back().begin)
        segments.push_back({size_t(nodes[end].begin), end, nodes[end].unknown});
    std::reverse(segments.begin(), segments.end());
    return segments;
}

}  // namespace

CharsMap::CharsMap(std::string_view blob) {
    const auto wrong = [](const char* what) {
        throw std::invalid_argument(std::string("character map: ") + what);
    };
    if (blob.empty()) return;
    uint32_t size = 0;
    if (blob.size() < sizeof size) wrong("too short");
    std::memcpy(&size, blob.data(), sizeof size);
    blob.remove_prefix(sizeof size);
    if (size >= blob.size() || size % 4 != 0 || size == 0) wrong("the size of its trie is wrong");
    units_.resize(size / 4);
    std::memcpy(units_.data(), blob.data(), size);
    strings_ = blob.substr(size);
    if (strings_.back() != '\0' || !unicode::is_utf8(strings_)) wrong("its texts are not UTF-8");
    for (size_t i = 0; i < units_.size(); ++i) {
        if (units_[i] & kLeaf || !(units_[i] & kHasLeaf)) continue;
        const size_t leaf = i ^ child_offset(units_[i]);
        if (leaf >= units_.size() || !(units_[leaf] & kLeaf)) wrong("an entry without a value");
        const size_t value = units_[leaf] & ~kLeaf;
        if (value >= strings_.size() || unicode::continues(strings_[value]))
            wrong("an entry that points outside of its texts");
    }
}

template <class Each>
void CharsMap::walk(std::string_view text, Each each) const {
    size_t at = child_offset(units_[0]);
    for (size_t size = 1; size <= text.size(); ++size) {
        if (size > limits::kCharsmapKeyBytes) {
            throw std::invalid_argument("character map: an entry for more than " +
                                        std::to_string(limits::kCharsmapKeyBytes) + " bytes");
        }
        const auto byte = uint8_t(text[size - 1]);
        at ^= byte;
        if (byte == 0 || at >= units_.size() || (units_[at] & (kLeaf | 0xFF)) != byte) return;
        const uint32_t unit = units_[at];
        at ^= child_offset(unit);
        if (at >= units_.size() || (unit & kHasLeaf && !each(size, units_[at] & ~kLeaf))) return;
    }
}

size_t CharsMap::replace(std::string_view text, size_t at, std::string& out) const {
    size_t best = 0, value = 0;
    walk(text.substr(at), [&](size_t size, size_t matched) {
        best = size;
        value = matched;
        return true;
    });
    if (best == 0) {
        best = unicode::length(text, at);
        out.append(text.substr(at, best));
        return best;
    }
    if (at + best < text.size() && unicode::continues(text[at + best]))
        throw std::invalid_argument("character map: an entry that ends inside a character");
    out.append(replacement(value));
    return best;
}

bool CharsMap::shortest(std::string_view text, std::string_view* made) const {
    bool known = false;
    walk(text, [&](size_t, size_t value) {
        *made = replacement(value);
        known = true;
        return false;
    });
    return known;
}

std::string normalize_sentencepiece(const TokenizerFile& file, const CharsMap& map,
                                    const AddedMatcher& untouched, std::string_view text,
                                    Origin* origin) {
    const uint32_t flags = file.config.flags;
    const bool trim = (flags & kRemoveExtraWhitespaces) != 0;
    std::string out;
    out.reserve(text.size() + text.size() / 2 + 3);
    std::vector<size_t> starts;  // of each byte of out, in text
    // Appends the part that text[at] and perhaps characters after it become.
    const auto add = [&](std::string_view part, size_t at) {
        for (const char c : part) {
            if (c == ' ')
                out += kSpaceSymbol;
            else
                out += c;
        }
        if (origin != nullptr) starts.resize(out.size(), at);
    };
    const size_t most = limits::kGrowthBase + limits::kGrowth * text.size();
    const bool plain = map.empty() && !trim && origin == nullptr;  // the text is one part
    bool after_space = trim, begins = true;                        // begins: nothing was added
    std::string chunk;
    size_t n = 0;
    for (size_t i = 0; i < text.size(); i += n) {
        if (out.size() > most) throw OverBudget("a normalizer that makes the text too long");
        const AddedToken* kept = plain ? nullptr : untouched.longest(text, i);
        std::string_view part;
        if (plain) {
            part = text;
            n = part.size();
        } else if (kept != nullptr) {
            part = kept->text;
            n = part.size();
        } else if (map.empty()) {
            n = unicode::length(text, i);
            part = text.substr(i, n);
        } else {
            chunk.clear();
            n = map.replace(text, i, chunk);
            part = chunk;
        }
        if (trim && begins && part == " ") continue;  // spaces at the start belong to nothing
        if (begins && flags & kAddSpacePrefix) add(" ", i);
        begins = false;
        while (after_space && !part.empty() && part[0] == ' ') part.remove_prefix(1);
        add(part, i);
        if (trim && !part.empty()) after_space = part.back() == ' ';
    }
    starts.push_back(text.size());
    while (trim && out.size() >= 3 && out.compare(out.size() - 3, 3, kSpaceSymbol) == 0) {
        out.resize(out.size() - 3);
        if (origin != nullptr) starts.resize(out.size() + 1);
    }
    // Of a character of several bytes only the last ends behind it, which is all that a token's end
    // needs.
    for (size_t i = 0; origin != nullptr && i < out.size(); ++i)
        origin->push_back({starts[i], starts[i + 1]});
    return out;
}

void encode_spm(const TokenizerFile& file, std::string_view text, Budget& budget, Ids& out,
                Spans* spans) {
    struct Symbol {
        size_t begin, size;
        int64_t previous, next;
    };
    struct Candidate {
        float score;
        int64_t left, right;
        size_t size;
        bool operator<(const Candidate& other) const {
            return score != other.score ? score < other.score : left > other.left;
        }
    };
    std::vector<Symbol> symbols;
    symbols.reserve(text.size());
    for (size_t i = 0, n = 0; i < text.size(); i += n) {
        n = unicode::length(text, i);
        const auto at = int64_t(symbols.size());
        symbols.push_back({i, n, at - 1, i + n < text.size() ? at + 1 : -1});
    }
    std::priority_queue<Candidate> agenda;
    // For an unused piece, the size of the left half of which it was last made.
    std::unordered_map<std::string_view, size_t> unused;
    const auto consider = [&](int64_t left, int64_t right) {
        if (left < 0 || right < 0) return;
        const Symbol& a = symbols[size_t(left)];
        const size_t size = a.size + symbols[size_t(right)].size;
        budget.spend(2 + size / 8);
        const uint32_t id = file.find(text.data() + a.begin, size);
        if (id == kNoId) return;
        agenda.push({file.score(id), left, right, size});
        if (file.flags(id) & kUnused) unused[text.substr(a.begin, size)] = a.size;
    };
    for (size_t i = 0; i + 1 < symbols.size(); ++i) consider(int64_t(i), int64_t(i) + 1);
    while (!agenda.empty()) {
        const Candidate top = agenda.top();
        agenda.pop();
        Symbol& left = symbols[size_t(top.left)];
        Symbol& right = symbols[size_t(top.right)];
        // Out of date: one of the two was merged since.
        if (left.size == 0 || right.size == 0 || left.size + right.size != top.size) continue;
        left.size = top.size;
        right.size = 0;
        left.next = right.next;
        if (right.next >= 0) symbols[size_t(right.next)].previous = top.left;
        consider(left.previous, top.left);
        consider(top.left, left.next);
    }
    bool after_unknown = false;
    std::vector<std::string_view> stack;
    for (const Symbol& symbol : symbols) {
        if (symbol.size == 0) continue;
        stack.push_back(text.substr(symbol.begin, symbol.size));
        while (!stack.empty()) {  // intermediates that are not tokens are taken apart again
            const std::string_view piece = stack.back();
            stack.pop_back();
            const auto found = unused.find(piece);
            if (found == unused.end()) {
                add_piece(file, piece, size_t(piece.data() - text.data()), after_unknown, out,
                          spans);
            } else {
                stack.push_back(piece.substr(found->second));
                stack.push_back(piece.substr(0, found->second));
            }
        }
    }
}

void SpmParts::add(const char* begin, const char* end, const char* readable_end, Budget& budget,
                   Ids& out) {
    const std::string_view part(begin, size_t(end - begin));
    if (part.size() <= decltype(words_)::Key::kBytes)
        add_kept(words_, part, readable_end, budget, out);
    else if (part.size() <= decltype(phrases_)::Key::kBytes)
        add_kept(phrases_, part, readable_end, budget, out);
    else
        encode_spm(file_, part, budget, out);
}

template <typename Cache>
void SpmParts::add_kept(Cache& cache, std::string_view part, const char* readable_end,
                        Budget& budget, Ids& out) {
    const typename Cache::Key key(part.data(), part.size(), readable_end);
    uint32_t ids[Cache::kMost];
    const uint32_t* const kept = cache.find(key);
    const size_t count = kept != nullptr ? Cache::copy(kept, ids) : 0;
    if (count != 0) {
        out.insert(out.end(), ids, ids + count);
        return;
    }
    const size_t first = out.size();
    encode_spm(file_, part, budget, out);
    if (out.size() != first) cache.put(key, out.data() + first, out.size() - first);
}

double lowest_score(const TokenizerFile& file) {
    constexpr double kMax = std::numeric_limits<double>::max();
    const bool exact = (file.config.flags & kSteps) != 0;
    double lowest = kMax;
    for (uint32_t id = 0; id < file.n_tokens; ++id) {
        const uint8_t flags = file.flags(id);
        if (!(flags & kInModel) || flags & (kUserDefined | kUnused)) continue;
        lowest = std::min(lowest, exact ? file.exact_score(id) : double(file.score(id)));
    }
    return lowest == kMax ? 0.0 : lowest;
}

void encode_unigram(const TokenizerFile& file, double lowest, std::string_view text, Budget& budget,
                    Ids& out, Spans* spans) {
    const auto rate = [&](size_t begin, size_t end, uint32_t id, float& score) {
        const bool whole = end == text.size() || !unicode::continues(text[end]);
        if (!whole || file.flags(id) & kUnused) return false;
        // A user-defined piece gets a bonus that beats any other way (sentencepiece 0.2.3).
        const bool bonus = (file.flags(id) & kUserDefined) != 0;
        score = bonus ? float(0.1 * double(end - begin - 1)) : file.score(id);
        return true;
    };
    const float unknown = float(lowest) - kUnknownPenalty;
    bool after_unknown = false;
    for (const Segment& part : best_segments(file, text, budget, unknown, false, rate))
        add_piece(file, text.substr(part.begin, part.end - part.begin), part.begin, after_unknown,
                  out, spans);
}

void encode_unigram_steps(const TokenizerFile& file, double lowest, std::string_view text,
                          Budget& budget, Ids& out, Spans* spans) {
    const auto rate = [&](size_t, size_t, uint32_t id, double& score) {
        score = file.exact_score(id);
        return true;
    };
    const double unknown = lowest - double(kUnknownPenalty);
    const std::vector<Segment> parts = best_segments(file, text, budget, unknown, true, rate);
    for (size_t i = 0; i < parts.size(); ++i) {
        Span span{parts[i].begin, parts[i].end};
        while (parts[i].unknown && i + 1 < parts.size() && parts[i + 1].unknown)
            span.end = parts[++i].end;
        const std::string_view part = text.substr(span.begin, span.end - span.begin);
        const auto add = [&](uint32_t id) {
            out.push_back(id);
            if (spans != nullptr) spans->push_back(span);
        };
        const auto has_id = [&](char c) { return file.byte_id(uint8_t(c)) != kNoId; };
        const uint32_t id = file.find(part.data(), part.size());
        if (id != kNoId)
            add(id);
        else if (file.config.flags & kByteFallback &&
                 std::all_of(part.begin(), part.end(), has_id)) {
            for (const char c : part) add(file.byte_id(uint8_t(c)));
        } else {
            add(file.config.unknown_id);
        }
    }
}

void encode_wordpiece(const TokenizerFile& file, std::string_view word, Budget& budget, Ids& out,
                      Spans* spans) {
    const size_t before = out.size();
    size_t chars = 0;
    for (size_t i = 0; i < word.size(); i += unicode::length(word, i)) ++chars;
    bool covered = chars <= file.config.max_chars_per_word;
    std::string text;
    for (size_t start = 0; covered && start < word.size();) {
        covered = false;
        text.assign(start > 0 ? file.section(Section::kPrefix) : std::string_view());
        const size_t prefix = text.size();
        size_t stop = std::min(word.size(), start + file.config.max_token_bytes);
        while (stop < word.size() && stop > start && unicode::continues(word[stop])) --stop;
        while (stop > start) {
            budget.spend(2 + (stop - start) / 8);
            text.resize(prefix);
            text.append(word.substr(start, stop - start));
            const uint32_t id = file.find(text.data(), text.size());
            if (id != kNoId) {
                out.push_back(id);
                if (spans != nullptr) spans->push_back({start, stop});
                start = stop;
                covered = true;
                break;
            }
            const char* const end = word.data() + stop;
            stop = size_t(unicode::previous(end, word.data()) - word.data());
        }
    }
    if (covered) return;
    if (spans != nullptr) spans->resize(spans->size() - (out.size() - before));
    out.resize(before);
    if (file.config.unknown_id == kNoId) return;
    out.push_back(file.config.unknown_id);
    if (spans != nullptr) spans->push_back({0, word.size()});
}

}  // namespace bitnet
