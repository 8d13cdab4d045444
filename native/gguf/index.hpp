// The structure of a GGUF header: where every key, value and tensor entry lies, fully bounds-checked.
//
// formats/gguf_index.py is the same walk in Python and the specification of this one: both give the
// same index and the same fault for every input.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bitnet::gguf {

constexpr uint64_t kMaxEntries = 65536;      // keys, and tensors: no model comes near
constexpr uint64_t kMaxNameBytes = 65535;    // the format's own limit for keys
constexpr uint32_t kMaxDims = 4;
constexpr uint32_t kString = 8, kArray = 9, kTypes = 13;

enum class Fault : uint32_t {
    none = 0,
    more = 1,          // the prefix ends here, the file does not
    truncated = 2,     // the file ends here
    key_count = 3,
    tensor_count = 4,
    name_length = 5,
    value_type = 6,
    nested_array = 7,
    dimensions = 8,
    zero_dimension = 9,
    overflow = 10,
};

enum class Section : uint32_t { header = 0, key = 1, tensor = 2 };

struct Problem {
    Fault fault = Fault::none;
    Section section = Section::header;
    uint64_t index = 0;   // of the key or tensor
    uint64_t at = 0;      // file offset
    uint64_t amount = 0;  // bytes needed there, or the value that is wrong
    uint64_t name_at = 0, name_size = 0;  // of the key or tensor, size 0 while unknown
};

struct Key {
    uint64_t name_at, name_size;
    uint32_t type;
    uint64_t at, end;       // of the value; of the elements for an array
    uint32_t item_type = 0;  // arrays only
    uint64_t length = 0;
};

struct Tensor {
    uint64_t name_at, name_size;
    uint32_t n_dims;
    uint64_t dims[kMaxDims];  // fastest first, as in the file
    uint32_t type;
    uint64_t offset;
};

struct Index {
    std::vector<Key> keys;
    std::vector<Tensor> tensors;
    uint64_t end = 0;
};

// Walks `have` bytes at `data`, the start of a file of `total` bytes; magic and version are checked
// by the caller. `index` is complete when the fault is `none`.
Problem walk(const uint8_t* data, uint64_t have, uint64_t total, Index& index);

// Start of each of `count` strings in `size` bytes at `data`, and the end of the last: count + 1
// values. False when the strings do not fit.
bool string_starts(const uint8_t* data, uint64_t size, uint64_t count, uint64_t* out);

}  // namespace bitnet::gguf
