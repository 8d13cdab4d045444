// The ids of words met before: a set of two for each hash, the newer one first.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

// What is done for each word: a call takes longer than what most words need.
#if defined(__GNUC__)
#define BITNET_EACH_WORD [[gnu::always_inline]] inline
#else
#define BITNET_EACH_WORD inline
#endif

namespace bitnet {

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

// A word as kWords numbers: its bytes, zeros, and in the last byte their number.
template <size_t kWords>
struct WordKey {
    static constexpr size_t kBytes = 8 * kWords - 1;  // the longest word
    uint64_t words[kWords];

    WordKey() = default;
    // The size bytes at begin, of a text that is readable up to limit.
    WordKey(const char* begin, size_t size, const char* limit) {
        if (static_cast<size_t>(limit - begin) >= sizeof words) {
            load(begin, size);
            return;
        }
        char end[sizeof words] = {};
        std::memcpy(end, begin, size);
        load(end, size);
    }
    bool operator==(const WordKey& other) const {
        uint64_t difference = 0;
        for (size_t i = 0; i < kWords; ++i) difference |= words[i] ^ other.words[i];
        return difference == 0;
    }
    uint64_t hash() const {
        uint64_t h = 0;
        for (const uint64_t word : words) h = (h ^ h >> 32 ^ word) * 0x9E3779B97F4A7C15ull;
        return h;
    }

private:
    void load(const char* begin, size_t size) {
        const char* const kept = kMask.data() + sizeof words - size;
        for (size_t i = 0; i < kWords; ++i) {
            uint64_t word, mask;
            std::memcpy(&word, begin + 8 * i, sizeof word);
            std::memcpy(&mask, kept + 8 * i, sizeof mask);
            words[i] = word & mask;
        }
        words[kWords - 1] |= uint64_t{size} << 56;
    }
    // Bytes of ones, and as many of zeros behind them.
    static constexpr auto kMask = [] {
        std::array<char, 2 * sizeof words> mask{};
        for (size_t i = 0; i < sizeof words; ++i) mask[i] = -1;
        return mask;
    }();
};

// Words of up to 8 * kWords - 1 bytes with up to kIds ids, in 2^kBits sets.
template <size_t kWords, size_t kIds, unsigned kBits>
class WordCache {
public:
    using Key = WordKey<kWords>;
    static constexpr size_t kMost = kIds;

    // The ids of a word; nullptr when it is not there.
    BITNET_EACH_WORD const uint32_t* find(const Key& key) const {
        if (sets_ == nullptr) return nullptr;
        const Set& set = sets_[key.hash() >> (64 - kBits)];
        const bool second = !(set.keys[0] == key);  // no branch: it would be foretold wrongly too often
        return set.keys[second] == key ? set.ids[second] : nullptr;
    }
    // Writes what find gave, kIds numbers whatever their count is, which it gives back.
    static size_t copy(const uint32_t* found, uint32_t* out) {
        std::memcpy(out, found, kIds * sizeof(uint32_t));
        out[0] &= (1u << kShift) - 1;
        return found[0] >> kShift;
    }
    // False for none and for more than fit: then none are found.
    bool put(const Key& key, const uint32_t* ids, size_t count) {
        if (!allocate()) return false;
        if (count > kIds) count = 0;
        Set& set = sets_[key.hash() >> (64 - kBits)];
        if (!(set.keys[0] == key)) {
            set.keys[1] = set.keys[0];
            std::memcpy(set.ids[1], set.ids[0], sizeof set.ids[0]);
        }
        set.keys[0] = key;
        std::copy(ids, ids + count, set.ids[0]);
        set.ids[0][0] = count == 0 ? 0 : static_cast<uint32_t>(count) << kShift | ids[0];
        return count != 0;
    }

private:
    static constexpr unsigned kShift = 24;  // ids are below 2^21
    static constexpr size_t kLine = 64;
    struct Set {
        Key keys[2];
        uint32_t ids[2][kIds];
    };
    static_assert(kLine % sizeof(Set) == 0 || sizeof(Set) % kLine == 0, "a small set lies in one line");
    bool allocate() {
        if (sets_ != nullptr) return true;
        // Untouched sets cost no memory, so a short text does not pay for all of them.
        memory_.reset(std::calloc((size_t{1} << kBits) * sizeof(Set) + kLine, 1));
        const auto at = reinterpret_cast<uintptr_t>(memory_.get());
        if (at != 0) sets_ = reinterpret_cast<Set*>((at + kLine - 1) / kLine * kLine);
        return sets_ != nullptr;
    }
    std::unique_ptr<void, Free> memory_;
    Set* sets_ = nullptr;
};

}  // namespace bitnet
