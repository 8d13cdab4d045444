// Memory for repacked weights: neighbours in large mappings, which get huge pages where there are any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace bitnet {

// *size* bytes, 64-aligned, zero or never touched; the mapping goes when its last piece does.
// Null when there is no memory.
std::shared_ptr<uint8_t> allocate_weights(size_t size);

}  // namespace bitnet
