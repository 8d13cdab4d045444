#include "tokenizer/added.hpp"

#include <cstring>

#include "tokenizer/budget.hpp"
#include "tokenizer/unicode.hpp"

namespace bitnet {
namespace {

[[noreturn]] void refuse_added(const char* what) {
    throw std::invalid_argument(std::string("compiled tokenizer: ") + what);
}

}  // namespace

std::vector<AddedToken> read_added(std::string_view bytes, uint32_t n_tokens) {
    std::vector<AddedToken> tokens;
    while (!bytes.empty()) {
        uint32_t fields[3];  // id, flags, size of the text
        if (bytes.size() < sizeof fields) refuse_added("added tokens end early");
        std::memcpy(fields, bytes.data(), sizeof fields);
        bytes.remove_prefix(sizeof fields);
        if (fields[2] > bytes.size()) refuse_added("added tokens end early");
        const std::string_view text = bytes.substr(0, fields[2]);
        if (text.size() > limits::kAddedTokenBytes) refuse_added("an added token is too long");
        if (!unicode::is_utf8(text)) refuse_added("an added token is not UTF-8");
        if (fields[0] >= n_tokens)
            refuse_added("an added token has an id outside of the vocabulary");
        tokens.push_back({fields[0], fields[1], std::string(text)});
        bytes.remove_prefix(fields[2]);
    }
    return tokens;
}

AddedMatcher::AddedMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    std::vector<std::pair<std::string_view, uint32_t>> entries;
    for (uint32_t i = 0; i < tokens_.size(); ++i) entries.emplace_back(tokens_[i].text, i);
    tables_ = build_trie(std::move(entries));
    trie_ = Trie(tables_);
    for (int byte = 0; byte < 256; ++byte) {
        if (trie_.start(char(byte)) != 0) only_start_ = only_start_ == -1 ? byte : -2;
    }
}

const AddedToken* AddedMatcher::longest(std::string_view text, size_t at) const {
    const AddedToken* longest_so_far = nullptr;
    for (uint32_t node = trie_.start(text[at]); node != 0; node = trie_.follow(node, text[at])) {
        if (trie_.value(node) != Trie::kNone) longest_so_far = &tokens_[trie_.value(node)];
        if (++at == text.size()) break;
    }
    return longest_so_far;
}

size_t AddedMatcher::first_candidate(std::string_view text, size_t at) const {
    if (tokens_.empty()) return text.size();
    if (only_start_ >= 0) {
        const void* found = at < text.size()
                                ? std::memchr(text.data() + at, only_start_, text.size() - at)
                                : nullptr;
        return found == nullptr ? text.size()
                                : size_t(static_cast<const char*>(found) - text.data());
    }
    while (at < text.size() && trie_.start(text[at]) == 0) ++at;
    return at;
}

bool AddedMatcher::widen(std::string_view text, const AddedToken& token, Spaces& spaces,
                         size_t* begin, size_t* end) {
    const char* const first = text.data();
    const char* const last = first + text.size();
    if (token.flags & AddedToken::kSingleWord) {
        const char* before = first + *begin;
        const char* after = first + *end;
        if (before != first) {
            before = unicode::previous(before, first);
            if (unicode::is_rust_word(unicode::next(before, last))) return false;
        }
        if (after != last && unicode::is_rust_word(unicode::next(after, last))) return false;
    }
    if (token.flags & AddedToken::kLeft) {
        const char* p = first + *begin;
        // Stops where an earlier walk began: its run is known. At first, that is the text's
        // beginning.
        while (p != first + spaces.left_end) {
            const char* const start = unicode::previous(p, first);
            const char* ahead = start;
            if (!unicode::is_space(unicode::next(ahead, last))) break;
            p = start;
        }
        auto start = size_t(p - first);
        if (start == spaces.left_end) start = spaces.left_begin;
        spaces.left_begin = start;
        spaces.left_end = *begin;
        *begin = start;
    }
    if (token.flags & AddedToken::kRight) {
        const char* p = first + std::max(*end, spaces.right_end);
        while (p != last) {
            const char* ahead = p;
            if (!unicode::is_space(unicode::next(ahead, last))) break;
            p = ahead;
        }
        *end = spaces.right_end = size_t(p - first);
    }
    return true;
}

// Breadth first over the sorted texts, so that the edges of a node lie together.
TrieTables build_trie(std::vector<std::pair<std::string_view, uint32_t>> entries) {
    std::stable_sort(entries.begin(), entries.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    struct Span {
        size_t first, last, depth;  // texts, of which the first depth bytes are equal
    };
    TrieTables out;
    out.nodes.push_back({});
    std::vector<Span> spans{{0, entries.size(), 0}};
    for (size_t node = 0; node < spans.size(); ++node) {
        const Span span = spans[node];
        size_t i = span.first;
        const auto ends = [&] { return i < span.last && entries[i].first.size() == span.depth; };
        if (ends() && node > 0) out.nodes[node].value = entries[i].second;
        while (ends()) ++i;
        out.nodes[node].first_edge = uint32_t(out.edges.size());
        while (i < span.last) {
            const size_t start = i;
            const char byte = entries[i].first[span.depth];
            while (i < span.last && entries[i].first[span.depth] == byte) ++i;
            out.edges.push_back({uint8_t(byte), uint32_t(out.nodes.size())});
            out.nodes.push_back({});
            spans.push_back({start, i, span.depth + 1});
        }
        out.nodes[node].last_edge = uint32_t(out.edges.size());
    }
    return out;
}

Trie::Trie(const TrieNode* nodes, size_t n_nodes, const TrieEdge* edges, size_t n_edges)
    : nodes_(nodes), edges_(edges), n_nodes_(n_nodes), n_edges_(n_edges) {
    if (n_nodes == 0 || nodes[0].first_edge > nodes[0].last_edge || nodes[0].last_edge > n_edges)
        return;
    for (size_t i = nodes[0].first_edge; i < nodes[0].last_edge; ++i)
        starts_[edges[i].byte & 0xFF] = edges[i].node;
}

bool Trie::is_sound(uint32_t n_values) const {
    const auto node_is = [&](const TrieNode& node) {
        return node.first_edge <= node.last_edge && node.last_edge <= n_edges_ &&
               (node.value == kNone || node.value < n_values);
    };
    const auto edge_is = [&](const TrieEdge& edge) {
        return edge.byte < 256 && edge.node > 0 && edge.node < n_nodes_;
    };
    return std::all_of(nodes_, nodes_ + n_nodes_, node_is) &&
           std::all_of(edges_, edges_ + n_edges_, edge_is);
}

uint32_t Trie::follow(uint32_t node, char byte) const {
    const auto wanted = uint8_t(byte);
    const TrieEdge* const last = edges_ + nodes_[node].last_edge;
    const TrieEdge* const found = std::lower_bound(
        edges_ + nodes_[node].first_edge, last, wanted,
        [](const TrieEdge& edge, unsigned char value) { return edge.byte < value; });
    return found != last && found->byte == wanted ? found->node : 0;
}

}  // namespace bitnet
