// SentencePiece: its normalizer and its two models (normalizer.cc, bpe_model.cc, unigram_model.cc).
#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_map>

#include "tokenizer_models.hpp"
#include "unicode.hpp"

namespace bitnet {
namespace {

constexpr char kSpaceSymbol[] = "\xE2\x96\x81";  // U+2581
constexpr float kUnknownPenalty = 10.0f;

// The precompiled character map: a double-array trie and the strings its values point to.
class CharsMap {
public:
    explicit CharsMap(std::string_view blob) {
        uint32_t size = 0;
        if (blob.size() < sizeof size) return;
        std::memcpy(&size, blob.data(), sizeof size);
        blob.remove_prefix(sizeof size);
        if (size > blob.size() || size % 4 != 0) return;
        units_.resize(size / 4);
        std::memcpy(units_.data(), blob.data(), size);
        strings_ = blob.substr(size);
    }

    // Replaces the longest known prefix of text; gives the bytes consumed.
    size_t replace(std::string_view text, std::string& out) const {
        size_t best = 0;
        uint32_t value = 0;
        if (!units_.empty()) {
            size_t at = offset(units_[0]);
            for (size_t i = 0; i < text.size(); ++i) {
                const auto byte = static_cast<unsigned char>(text[i]);
                at ^= byte;
                if (at >= units_.size() || (units_[at] & ((1u << 31) | 0xFF)) != byte) break;
                const uint32_t unit = units_[at];
                at ^= offset(unit);
                if (at >= units_.size()) break;
                if (unit >> 8 & 1) {
                    best = i + 1;
                    value = units_[at] & 0x7FFFFFFF;
                }
            }
        }
        if (best == 0 || value >= strings_.size()) {
            best = std::min(unicode::length(text[0]), text.size());
            out.append(text.substr(0, best));
            return best;
        }
        const size_t stop = std::min(strings_.find('\0', value), strings_.size());
        out.append(strings_.substr(value, stop - value));
        return best;
    }

private:
    static size_t offset(uint32_t unit) {
        return static_cast<size_t>(unit >> 10) << ((unit & (1u << 9)) >> 6);
    }
    std::vector<uint32_t> units_;
    std::string_view strings_;
};

void add_piece(const TokenizerFile& file, std::string_view piece, bool& after_unknown, Ids& out) {
    const uint32_t id = file.find(piece.data(), piece.size());
    if (id != kNoId) {
        out.push_back(id);
        after_unknown = false;
    } else if (file.config.flags & kByteFallback) {
        for (const char c : piece) out.push_back(file.byte_id(static_cast<unsigned char>(c)));
    } else if (file.config.unknown_id != kNoId) {
        if (!after_unknown) out.push_back(file.config.unknown_id);
        after_unknown = true;
    }
}

}  // namespace

std::string normalize_sentencepiece(const TokenizerFile& file, const AddedMatcher& untouched,
                                    std::string_view text) {
    const uint32_t flags = file.config.flags;
    std::string replaced;
    const std::string_view blob = file.section(Section::kCharsmap);
    replaced.reserve(text.size() + text.size() / 8);
    const bool trim = (flags & kRemoveExtraWhitespaces) != 0;
    bool after_space = true;
    std::string chunk;
    const auto add = [&](std::string_view part) {
        while (trim && after_space && !part.empty() && part[0] == ' ') part.remove_prefix(1);
        if (part.empty()) return;
        replaced.append(part);
        after_space = part.back() == ' ';
    };
    if (blob.empty()) {
        for (size_t i = 0, n = 0; i < text.size(); i += n) {
            n = trim ? unicode::length(text[i]) : text.size();
            add(text.substr(i, n));
        }
    } else {
        const CharsMap map(blob);
        for (size_t i = 0; i < text.size();) {
            const AddedToken* kept = untouched.longest(text, i);
            if (kept != nullptr) {
                add(kept->text);
                i += kept->text.size();
                continue;
            }
            chunk.clear();
            i += map.replace(text.substr(i), chunk);
            add(chunk);
        }
    }
    if (text.empty()) return {};  // a text that vanishes still gets its prefix
    std::string out;
    out.reserve(replaced.size() + replaced.size() / 2 + 3);
    if (flags & kAddSpacePrefix) out += kSpaceSymbol;
    for (const char c : replaced) {
        if (c == ' ') out += kSpaceSymbol;
        else out += c;
    }
    while (trim && out.size() >= 3 && out.compare(out.size() - 3, 3, kSpaceSymbol) == 0) {
        out.resize(out.size() - 3);
    }
    return out;
}

void encode_spm(const TokenizerFile& file, std::string_view text, Ids& out) {
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
        n = unicode::length(text[i]);
        const auto at = static_cast<int64_t>(symbols.size());
        symbols.push_back({i, n, at - 1, i + n < text.size() ? at + 1 : -1});
    }
    std::priority_queue<Candidate> agenda;
    std::unordered_map<std::string_view, size_t> unused;  // size of the left half
    const auto consider = [&](int64_t left, int64_t right) {
        if (left < 0 || right < 0) return;
        const Symbol& a = symbols[static_cast<size_t>(left)];
        const size_t size = a.size + symbols[static_cast<size_t>(right)].size;
        const uint32_t id = file.find(text.data() + a.begin, size);
        if (id == kNoId) return;
        agenda.push({file.score(id), left, right, size});
        if (file.flags(id) & kUnused) unused.emplace(text.substr(a.begin, size), a.size);
    };
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        consider(static_cast<int64_t>(i), static_cast<int64_t>(i) + 1);
    }
    while (!agenda.empty()) {
        const Candidate top = agenda.top();
        agenda.pop();
        Symbol& left = symbols[static_cast<size_t>(top.left)];
        Symbol& right = symbols[static_cast<size_t>(top.right)];
        if (left.size == 0 || right.size == 0 || left.size + right.size != top.size) continue;
        left.size = top.size;
        right.size = 0;
        left.next = right.next;
        if (right.next >= 0) symbols[static_cast<size_t>(right.next)].previous = top.left;
        consider(left.previous, top.left);
        consider(top.left, left.next);
    }
    bool after_unknown = false;
    std::vector<std::string_view> stack;
    for (const Symbol& symbol : symbols) {
        if (symbol.size == 0) continue;
        stack.push_back(text.substr(symbol.begin, symbol.size));
        while (!stack.empty()) {  // intermediates that are no tokens are taken apart again
            const std::string_view piece = stack.back();
            stack.pop_back();
            const auto found = unused.find(piece);
            if (found == unused.end()) {
                add_piece(file, piece, after_unknown, out);
            } else {
                stack.push_back(piece.substr(found->second));
                stack.push_back(piece.substr(0, found->second));
            }
        }
    }
}

float lowest_score(const TokenizerFile& file) {
    constexpr float kMax = std::numeric_limits<float>::max();
    float lowest = kMax;
    for (uint32_t id = 0; id < file.n_tokens; ++id) {
        const uint8_t flags = file.flags(id);
        if (!(flags & kInModel) || flags & (kUserDefined | kUnused)) continue;
        lowest = std::min(lowest, file.score(id));
    }
    return lowest == kMax ? 0.0f : lowest;
}

void encode_unigram(const TokenizerFile& file, float lowest, std::string_view text, Ids& out) {
    struct Node {
        float score = 0.0f;
        int64_t start = -1;
    };
    const float unknown = lowest - kUnknownPenalty;
    std::vector<Node> nodes(text.size() + 1);
    // Sums are rounded before they are compared, so that equal paths stay equal.
    const auto offer = [&](size_t start, size_t stop, double score) {
        const auto candidate = static_cast<float>(score + static_cast<double>(nodes[start].score));
        Node& node = nodes[stop];
        if (node.start < 0 || candidate > node.score) {
            node = {candidate, static_cast<int64_t>(start)};
        }
    };
    for (size_t start = 0; start < text.size();) {
        const size_t width = unicode::length(text[start]);
        const size_t limit = std::min(text.size(), start + file.config.max_token_bytes);
        bool has_single = false;
        for (size_t stop = start; stop < limit;) {
            stop += unicode::length(text[stop]);
            if (stop > limit) break;
            const uint32_t id = file.find(text.data() + start, stop - start);
            if (id == kNoId || file.flags(id) & kUnused) continue;
            const size_t size = stop - start;
            const bool user = (file.flags(id) & kUserDefined) != 0;
            // A user-defined piece gets a bonus that beats any other way (library 0.2.3).
            offer(start, stop,
                  user ? 0.1 * static_cast<double>(size - 1)
                       : static_cast<double>(file.score(id)));
            has_single = has_single || size == width;
        }
        if (!has_single) offer(start, start + width, static_cast<double>(unknown));
        start += width;
    }
    std::vector<std::string_view> pieces;
    for (size_t stop = text.size(); stop > 0;) {
        const auto start = static_cast<size_t>(nodes[stop].start);
        pieces.push_back(text.substr(start, stop - start));
        stop = start;
    }
    bool after_unknown = false;
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
        add_piece(file, *piece, after_unknown, out);
    }
}

void encode_wordpiece(const TokenizerFile& file, std::string_view word, Ids& out) {
    const size_t before = out.size();
    size_t chars = 0;
    for (size_t i = 0; i < word.size(); i += unicode::length(word[i])) ++chars;
    bool covered = chars <= file.config.max_chars_per_word;
    std::string text;
    for (size_t start = 0; covered && start < word.size();) {
        covered = false;
        for (size_t stop = word.size(); stop > start;
             stop = static_cast<size_t>(unicode::previous(word.data() + stop) - word.data())) {
            text.assign(start > 0 ? file.section(Section::kPrefix) : std::string_view());
            text.append(word.substr(start, stop - start));
            const uint32_t id = file.find(text.data(), text.size());
            if (id == kNoId) continue;
            out.push_back(id);
            start = stop;
            covered = true;
            break;
        }
    }
    if (covered) return;
    out.resize(before);
    if (file.config.unknown_id != kNoId) out.push_back(file.config.unknown_id);
}

}  // namespace bitnet
