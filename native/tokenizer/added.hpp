// Added tokens: found in a text, raw or normalized, and cut out of it before the model runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bitnet {

// ---- a trie over bytes in two flat tables; a compiled file may hold such tables, too

struct TrieNode {
    uint32_t first_edge = 0, last_edge = 0;  // its edges: [first_edge, last_edge)
    uint32_t value = 0xFFFFFFFF;             // of the text that ends here, or Trie::kNone
};
struct TrieEdge {
    uint32_t byte;
    uint32_t node;
};
static_assert(sizeof(TrieNode) == 12 && sizeof(TrieEdge) == 8, "both are part of the file format");

struct TrieTables {
    std::vector<TrieNode> nodes;
    std::vector<TrieEdge> edges;
};

// The trie of texts with their values. Of equal texts the first one counts; empty ones are left
// out. The caller bounds the lengths of the texts: there is a node for each byte.
TrieTables build_trie(std::vector<std::pair<std::string_view, uint32_t>> entries);

class Trie {
public:
    static constexpr uint32_t kNone = 0xFFFFFFFF;

    Trie() = default;
    Trie(const TrieNode* nodes, size_t n_nodes, const TrieEdge* edges, size_t n_edges);
    explicit Trie(const TrieTables& tables)
        : Trie(tables.nodes.data(), tables.nodes.size(), tables.edges.data(), tables.edges.size()) {
    }

    // True if every index in the tables lies inside of them, and every value is below n_values.
    bool is_sound(uint32_t n_values) const;

    bool empty() const { return n_nodes_ == 0; }
    // The child of the root by a byte; 0, which is the root, if there is none.
    uint32_t start(char byte) const { return starts_[uint8_t(byte)]; }
    // The same for a child of any node.
    uint32_t follow(uint32_t node, char byte) const;
    uint32_t value(uint32_t node) const { return nodes_[node].value; }

private:
    const TrieNode* nodes_ = nullptr;
    const TrieEdge* edges_ = nullptr;
    size_t n_nodes_ = 0, n_edges_ = 0;
    uint32_t starts_[256] = {};  // children of the root
};

// ---- the tokens

struct AddedToken {
    // In the order of ADDED_FLAGS in spec.py.
    enum Flag : uint32_t { kSpecial = 1, kLeft = 2, kRight = 4, kSingleWord = 8, kNormalized = 16 };
    uint32_t id;
    uint32_t flags;
    std::string text;
};

// The added tokens in the section kAdded of a file. Throws std::invalid_argument when it is
// damaged, or an id is not below n_tokens.
std::vector<AddedToken> read_added(std::string_view bytes, uint32_t n_tokens);

// Finds added tokens in a text, from left to right, of those at one place the longest. A match
// includes white space around it and needs word borders as the flags of its token say.
class AddedMatcher {
public:
    AddedMatcher() : AddedMatcher(std::vector<AddedToken>{}) {}
    explicit AddedMatcher(std::vector<AddedToken> tokens);
    AddedMatcher(const AddedMatcher&) = delete;
    AddedMatcher& operator=(AddedMatcher&&) = default;
    AddedMatcher(AddedMatcher&&) = default;

    // The longest token that begins at text[at], or nullptr.
    const AddedToken* longest(std::string_view text, size_t at) const;

    // Calls on_text(begin, end) and on_token(id, begin, end) from left to right. Unless special
    // tokens are requested, their matches stay text, and nothing else is found in them.
    template <typename OnText, typename OnToken>
    void split(std::string_view text, bool special, OnText on_text, OnToken on_token) const {
        size_t done = 0;
        Spaces spaces;
        for (size_t at = first_candidate(text, 0); at < text.size();
             at = first_candidate(text, at)) {
            const AddedToken* token = longest(text, at);
            if (token == nullptr) {
                ++at;
                continue;
            }
            size_t begin = at, end = at + token->text.size();
            at = end;
            if (!special && token->flags & AddedToken::kSpecial) continue;
            if (!widen(text, *token, spaces, &begin, &end)) continue;
            if (token->flags & AddedToken::kLeft && begin < done) begin = done;
            if (begin > done) on_text(done, begin);
            if (begin < end) on_token(token->id, begin, end);  // else it lies in the spaces before
            done = end;
        }
        if (done < text.size()) on_text(done, text.size());
    }

private:
    // The first byte from at on that a token begins with, or the end of the text.
    size_t first_candidate(std::string_view text, size_t at) const;
    // Runs of spaces that were walked already, so that each is walked once: only tokens that are
    // themselves spaces meet such a run again.
    struct Spaces {
        size_t left_begin = 0, left_end = 0;  // a run before left_end, walked to its beginning
        size_t right_end = 0;                 // end of a run that was walked to the right
    };
    // Extends a match by the white space that its token includes; false if a word border is
    // missing.
    static bool widen(std::string_view text, const AddedToken& token, Spaces& spaces, size_t* begin,
                      size_t* end);

    std::vector<AddedToken> tokens_;
    TrieTables tables_;
    int only_start_ = -1;  // the byte that all of them begin with; negative for none or several
    Trie trie_;            // views of tables_, whose memory stays where it is in a move
};

}  // namespace bitnet
