#include "content_hash.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "blocks.hpp"
#include "thread_pool.hpp"

namespace bitnet {
namespace {

constexpr int64_t kPiece = int64_t(1) << 20;
constexpr int kLanes = 8;
// Odd, with bits all over: the fractions of the golden ratio and of the square root of three.
constexpr uint64_t kFirst = 0x9e3779b97f4a7c15, kSecond = 0xbb67ae8584caa73b;

constexpr uint64_t turned(uint64_t x, int by) { return x << by | x >> (64 - by); }

// Without the turn, two changes of the highest bit (signs of floats) would cancel.
inline void absorb(const uint8_t* p, uint64_t* lanes) {
    for (int i = 0; i < kLanes; ++i) lanes[i] = turned((lanes[i] ^ read<uint64_t>(p + 8 * i)) * kFirst, 29);
}

// Every step is one to one.
uint64_t mixed(uint64_t x, uint64_t by) {
    x = (x ^ x >> 32) * by;
    x = (x ^ x >> 29) * by;
    return x ^ x >> 32;
}

ContentHash hash_piece(const uint8_t* data, int64_t size) {
    uint64_t lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = kSecond * uint64_t(i + 1);
    int64_t at = 0;
    for (; at + 8 * kLanes <= size; at += 8 * kLanes) absorb(data + at, lanes);
    uint8_t rest[8 * kLanes] = {};
    std::copy(data + at, data + size, rest);
    absorb(rest, lanes);
    ContentHash out{uint64_t(size), ~uint64_t(size)};
    for (const uint64_t lane : lanes) {
        out.low = mixed(out.low ^ lane, kFirst);
        out.high = mixed(out.high + lane, kSecond);
    }
    return out;
}

}  // namespace

ContentHash content_hash(const uint8_t* data, int64_t size) {
    const int64_t pieces = (size + kPiece - 1) / kPiece;
    std::vector<ContentHash> found(static_cast<size_t>(pieces));
    parallel_for(pieces, [&](int64_t i) {
        found[size_t(i)] = hash_piece(data + i * kPiece, std::min(kPiece, size - i * kPiece));
    });
    return hash_piece(reinterpret_cast<const uint8_t*>(found.data()), pieces * int64_t(sizeof(ContentHash)));
}

}  // namespace bitnet
