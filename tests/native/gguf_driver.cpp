// Runs the GGUF walk over files, every prefix of them and many damaged copies; built with
// sanitizers by `inv sanitize`. Buffers are allocated to the byte, so any read outside is caught.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "gguf/index.hpp"

namespace {

using bitnet::gguf::Fault;

void check(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::abort();
}

void walk(const std::vector<uint8_t>& input, size_t have, uint64_t total) {
    const std::unique_ptr<uint8_t[]> data(new uint8_t[have]);
    if (have) std::memcpy(data.get(), input.data(), have);
    bitnet::gguf::Index index;
    const auto problem = bitnet::gguf::walk(data.get(), have, total, index);
    if (problem.fault != Fault::none) {
        check(problem.at <= have, "a problem lies inside the buffer");
        check(problem.name_at + problem.name_size <= have, "a name lies inside the buffer");
        check(problem.fault != Fault::more || have < total, "more is asked for only of a prefix");
        return;
    }
    check(index.end <= have, "the header lies inside the buffer");
    for (const auto& key : index.keys) {
        check(key.name_at + key.name_size <= key.at && key.at <= key.end, "a key is in order");
        check(key.end <= index.end, "a value lies inside the header");
        if (key.type != bitnet::gguf::kArray || key.item_type != bitnet::gguf::kString) continue;
        std::vector<uint64_t> starts(key.length + 1);
        check(bitnet::gguf::string_starts(data.get() + key.at, key.end - key.at, key.length,
                                          starts.data()),
              "strings that were walked once can be walked again");
        check(starts.back() == key.end - key.at, "the last string ends where the array ends");
    }
}

uint64_t next(uint64_t& state) {  // xorshift64
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

void damage(std::vector<uint8_t> input, uint64_t& state) {
    static constexpr uint64_t kEdges[] = {
        0, 1, 8, 9, 13, 255, 65536, 1ull << 31, 0xffffffff, 1ull << 61, 1ull << 63, ~0ull};
    for (uint64_t i = next(state) % 4; i > 0 && input.size() > 8; --i) {
        const uint64_t edge = kEdges[next(state) % std::size(kEdges)];
        const size_t at = next(state) % (input.size() - 8);
        std::memcpy(input.data() + at, &edge, size_t(1) << (next(state) % 4));
    }
    const size_t have = input.empty() ? 0 : next(state) % (input.size() + 1);
    walk(input, input.size(), input.size());
    walk(input, have, have);
    walk(input, have, input.size());
    walk(input, have, ~0ull >> 1);
}

}  // namespace

int main(int argc, char** argv) {
    uint64_t state = 0x9e3779b97f4a7c15;
    for (int i = 1; i < argc; ++i) {
        std::ifstream file(argv[i], std::ios::binary);
        const std::vector<uint8_t> input{std::istreambuf_iterator<char>(file), {}};
        for (size_t have = 0; have <= input.size(); have += 1 + have / 2048) {
            walk(input, have, have);
            walk(input, have, input.size());
        }
        const int copies = input.size() < 65536 ? 20000 : 5;
        for (int copy = 0; copy < copies; ++copy) damage(input, state);
    }
    std::printf("%d files, no complaint\n", argc - 1);
}
