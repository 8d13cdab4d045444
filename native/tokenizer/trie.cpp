#include "tokenizer/trie.hpp"

#include <algorithm>

namespace bitnet {

// Breadth first over the sorted texts, so that the edges of a node lie together.
TrieTables build_trie(std::vector<std::pair<std::string_view, uint32_t>> entries) {
    std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    struct Span {
        size_t first, last, depth;
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
        out.nodes[node].first_edge = static_cast<uint32_t>(out.edges.size());
        while (i < span.last) {
            const size_t start = i;
            const char byte = entries[i].first[span.depth];
            while (i < span.last && entries[i].first[span.depth] == byte) ++i;
            out.edges.push_back({static_cast<unsigned char>(byte), static_cast<uint32_t>(out.nodes.size())});
            out.nodes.push_back({});
            spans.push_back({start, i, span.depth + 1});
        }
        out.nodes[node].last_edge = static_cast<uint32_t>(out.edges.size());
    }
    return out;
}

Trie::Trie(const TrieNode* nodes, size_t n_nodes, const TrieEdge* edges, size_t n_edges)
    : nodes_(nodes), edges_(edges), n_nodes_(n_nodes), n_edges_(n_edges) {
    if (n_nodes == 0 || nodes[0].first_edge > nodes[0].last_edge || nodes[0].last_edge > n_edges) {
        return;
    }
    for (size_t i = nodes[0].first_edge; i < nodes[0].last_edge; ++i) {
        starts_[edges[i].byte & 0xFF] = edges[i].node;
    }
}

bool Trie::is_sound(uint32_t n_values) const {
    const auto node_is = [&](const TrieNode& node) {
        return node.first_edge <= node.last_edge && node.last_edge <= n_edges_ &&
               (node.value == kNone || node.value < n_values);
    };
    const auto edge_is = [&](const TrieEdge& edge) {
        return edge.byte < 256 && edge.node > 0 && edge.node < n_nodes_;
    };
    return std::all_of(nodes_, nodes_ + n_nodes_, node_is) && std::all_of(edges_, edges_ + n_edges_, edge_is);
}

uint32_t Trie::follow(uint32_t node, char byte) const {
    const auto wanted = static_cast<unsigned char>(byte);
    const TrieEdge* const last = edges_ + nodes_[node].last_edge;
    const TrieEdge* const found = std::lower_bound(edges_ + nodes_[node].first_edge, last, wanted,
                         [](const TrieEdge& edge, unsigned char value) { return edge.byte < value; });
    return found != last && found->byte == wanted ? found->node : 0;
}

}  // namespace bitnet
