#pragma once

#include <cstdint>

namespace bitnet {

struct ContentHash {
    uint64_t low = 0, high = 0;
};

// 128 bits that tell contents apart, on all threads; not meant to resist somebody who wants two
// contents to have the same. Any change within one 64-bit word changes it.
ContentHash content_hash(const uint8_t* data, int64_t size);

}  // namespace bitnet
