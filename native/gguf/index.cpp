#include "gguf/index.hpp"

#include <cstring>

namespace bitnet::gguf {
namespace {

constexpr uint64_t kHeaderBytes = 24;
constexpr uint64_t kMinKeyBytes = 8 + 4 + 1, kMinTensorBytes = 8 + 4 + 4 + 8;
constexpr uint64_t kSizes[kTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

template <typename T>
T load(const uint8_t* p) {  // GGUF is little-endian, and so is every machine this is built for
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

class Walker {
  public:
    Walker(const uint8_t* data, uint64_t have, uint64_t total, Index& index)
        : data_(data), have_(have), total_(total), index_(index) {}

    Problem run() {
        if (!need(kHeaderBytes)) return problem_;
        const uint64_t n_tensors = load<uint64_t>(data_ + 8);
        const uint64_t n_keys = load<uint64_t>(data_ + 16);
        if (n_tensors > kMaxEntries) return fail(Fault::tensor_count, 8, n_tensors);
        if (n_keys > kMaxEntries) return fail(Fault::key_count, 16, n_keys);
        at_ = kHeaderBytes;
        const uint64_t least = n_keys * kMinKeyBytes + n_tensors * kMinTensorBytes;
        if (!need(least)) return problem_;
        index_.keys.reserve(n_keys);
        problem_.section = Section::key;
        for (uint64_t i = 0; i < n_keys; ++i) {
            problem_.index = i;
            if (!key()) return problem_;
        }
        index_.tensors.reserve(n_tensors);
        problem_.section = Section::tensor;
        for (uint64_t i = 0; i < n_tensors; ++i) {
            problem_.index = i;
            if (!tensor()) return problem_;
        }
        index_.end = at_;
        return {};
    }

  private:
    // at_ <= have_ <= total_ holds throughout, so the subtractions cannot wrap.
    bool need(uint64_t n) {
        if (n > total_ - at_) return fail(Fault::truncated, at_, n), false;
        if (n > have_ - at_) return fail(Fault::more, at_, n), false;
        return true;
    }

    const Problem& fail(Fault fault, uint64_t at, uint64_t amount) {
        problem_.fault = fault;
        problem_.at = at;
        problem_.amount = amount;
        return problem_;
    }

    template <typename T>
    T take() {
        const T value = load<T>(data_ + at_);
        at_ += sizeof(T);
        return value;
    }

    bool name(uint64_t& name_at, uint64_t& name_size) {
        problem_.name_at = problem_.name_size = 0;
        if (!need(8)) return false;
        name_size = take<uint64_t>();
        if (name_size > kMaxNameBytes) return fail(Fault::name_length, at_ - 8, name_size), false;
        if (!need(name_size)) return false;
        name_at = at_;
        at_ += name_size;
        problem_.name_at = name_at;
        problem_.name_size = name_size;
        return true;
    }

    bool key() {
        Key entry{};
        if (!name(entry.name_at, entry.name_size) || !need(4)) return false;
        entry.type = take<uint32_t>();
        if (entry.type >= kTypes) return fail(Fault::value_type, at_ - 4, entry.type), false;
        if (entry.type == kArray && !array_head(entry)) return false;
        entry.at = at_;
        const bool fits = entry.type == kArray    ? array_items(entry)
                          : entry.type == kString ? string()
                                                  : skip(kSizes[entry.type]);
        entry.end = at_;
        if (fits) index_.keys.push_back(entry);
        return fits;
    }

    bool skip(uint64_t n) {
        if (!need(n)) return false;
        at_ += n;
        return true;
    }

    bool string() { return need(8) && skip(take<uint64_t>()); }

    bool array_head(Key& entry) {
        if (!need(12)) return false;
        entry.item_type = take<uint32_t>();
        entry.length = take<uint64_t>();
        if (entry.item_type == kArray) return fail(Fault::nested_array, at_ - 12, 0), false;
        if (entry.item_type >= kTypes)
            return fail(Fault::value_type, at_ - 12, entry.item_type), false;
        return true;
    }

    bool array_items(const Key& entry) {
        const bool strings = entry.item_type == kString;
        const uint64_t least = strings ? 8 : kSizes[entry.item_type];
        if (entry.length > UINT64_MAX / least) return fail(Fault::truncated, at_, UINT64_MAX), false;
        if (!strings) return skip(entry.length * least);
        for (uint64_t left = entry.length; left > 0; --left) {
            if (!need(left * 8) || !string()) return false;
        }
        return true;
    }

    bool tensor() {
        Tensor entry{};
        if (!name(entry.name_at, entry.name_size) || !need(4)) return false;
        entry.n_dims = take<uint32_t>();
        if (entry.n_dims > kMaxDims) return fail(Fault::dimensions, at_ - 4, entry.n_dims), false;
        if (!need(8 * uint64_t(entry.n_dims) + 12)) return false;
        uint64_t n = 1;
        for (uint32_t i = 0; i < entry.n_dims; ++i) {
            const uint64_t dim = entry.dims[i] = take<uint64_t>();
            if (dim == 0) return fail(Fault::zero_dimension, at_ - 8, i), false;
            if (dim > uint64_t(INT64_MAX) / n) return fail(Fault::overflow, at_ - 8, dim), false;
            n *= dim;
        }
        entry.type = take<uint32_t>();
        entry.offset = take<uint64_t>();
        index_.tensors.push_back(entry);
        return true;
    }

    const uint8_t* data_;
    uint64_t have_, total_, at_ = 0;
    Index& index_;
    Problem problem_;
};

}  // namespace

Problem walk(const uint8_t* data, uint64_t have, uint64_t total, Index& index) {
    return Walker(data, have, total, index).run();
}

bool string_starts(const uint8_t* data, uint64_t size, uint64_t count, uint64_t* out) {
    uint64_t at = 0;
    for (uint64_t i = 0; i < count; ++i) {
        out[i] = at;
        if (size - at < 8) return false;
        const uint64_t length = load<uint64_t>(data + at);
        if (length > size - at - 8) return false;
        at += 8 + length;
    }
    out[count] = at;
    return true;
}

}  // namespace bitnet::gguf
