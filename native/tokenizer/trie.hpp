// A trie over bytes in two flat tables, as it also lies in a compiled file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace bitnet {

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
        : Trie(tables.nodes.data(), tables.nodes.size(), tables.edges.data(), tables.edges.size()) {}

    // Every index in the tables lies inside of them, and every value below n_values.
    bool is_sound(uint32_t n_values) const;

    bool empty() const { return n_nodes_ == 0; }
    // The node behind a byte, or 0: the root is behind none.
    uint32_t start(char byte) const { return starts_[static_cast<unsigned char>(byte)]; }
    uint32_t follow(uint32_t node, char byte) const;
    uint32_t value(uint32_t node) const { return nodes_[node].value; }

private:
    const TrieNode* nodes_ = nullptr;
    const TrieEdge* edges_ = nullptr;
    size_t n_nodes_ = 0, n_edges_ = 0;
    uint32_t starts_[256] = {};
};

}  // namespace bitnet
