// Tokens that are cut out of a text before anything else runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bitnet {

// ---- a trie over bytes in two flat tables, as it also lies in a compiled file

struct TrieNode {
    uint32_t first_edge = 0, last_edge = 0;
    uint32_t value = 0xFFFFFFFF;
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

// Of equal texts the first one counts; empty ones are left out. Not for texts of any length: the
// tables hold a node per byte.
TrieTables build_trie(std::vector<std::pair<std::string_view, uint32_t>> entries);

class Trie {
public:
    static constexpr uint32_t kNone = 0xFFFFFFFF;

    Trie() = default;
    Trie(const TrieNode* nodes, size_t n_nodes, const TrieEdge* edges, size_t n_edges);
    explicit Trie(const TrieTables& tables)
        : Trie(tables.nodes.data(), tables.nodes.size(), tables.edges.data(), tables.edges.size()) {
    }

    // Every index in the tables lies inside of them, and every value below n_values.
    bool is_sound(uint32_t n_values) const;

    bool empty() const { return n_nodes_ == 0; }
    // The node behind a byte, or 0: the root is behind none.
    uint32_t start(char byte) const { return starts_[uint8_t(byte)]; }
    uint32_t follow(uint32_t node, char byte) const;
    uint32_t value(uint32_t node) const { return nodes_[node].value; }

private:
    const TrieNode* nodes_ = nullptr;
    const TrieEdge* edges_ = nullptr;
    size_t n_nodes_ = 0, n_edges_ = 0;
    uint32_t starts_[256] = {};
};

// ---- the tokens

struct AddedToken {
    enum Flag : uint32_t { kSpecial = 1, kLeft = 2, kRight = 4, kSingleWord = 8, kNormalized = 16 };
    uint32_t id;
    uint32_t flags;
    std::string text;
};

// Throws std::invalid_argument when the bytes are not a list of added tokens of such a vocabulary.
std::vector<AddedToken> read_added(std::string_view bytes, uint32_t n_tokens);

// Leftmost, then longest match; white space around it and word borders as the token wants.
class AddedMatcher {
public:
    AddedMatcher() : AddedMatcher(std::vector<AddedToken>{}) {}
    explicit AddedMatcher(std::vector<AddedToken> tokens);
    AddedMatcher(const AddedMatcher&) = delete;
    AddedMatcher& operator=(AddedMatcher&&) = default;
    AddedMatcher(AddedMatcher&&) = default;

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
    // Runs of spaces that were walked already, so that each is walked once.
    struct Spaces {
        size_t left_begin = 0, left_end = 0;  // as far to the left as it goes
        size_t right_end = 0;                 // as far to the right
    };
    static bool widen(std::string_view text, const AddedToken& token, Spaces& spaces, size_t* begin,
                      size_t* end);

    std::vector<AddedToken> tokens_;
    TrieTables tables_;
    int only_start_ = -1;  // the byte that all of them begin with; negative for none or several
    Trie trie_;            // over the tables, which a move leaves where they are
};

}  // namespace bitnet
