// Models: how a piece of text becomes tokens.
#pragma once

#include <cstdlib>
#include <unordered_map>

#include "tokenizer/added.hpp"
#include "tokenizer/file.hpp"
#include "tokenizer/steps.hpp"

// For functions that run once for each word: a call takes longer than most words themselves.
#if defined(__GNUC__)
#define BITNET_EACH_WORD [[gnu::always_inline]] inline
#else
#define BITNET_EACH_WORD inline
#endif

namespace bitnet {

// ---- the ids of earlier words: a two-way set-associative cache, the newer word of a set first

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

// A word as kWords numbers: its bytes, zeros, and in the last byte their number.
template <size_t kWords>
struct WordKey {
    static constexpr size_t kBytes = 8 * kWords - 1;  // the longest word
    uint64_t words[kWords];

    WordKey() = default;
    // The size bytes at begin, of a text that is readable up to readable_end.
    WordKey(const char* begin, size_t size, const char* readable_end) {
        if (size_t(readable_end - begin) >= sizeof words) {
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
    // Bytes of all ones, and as many zeros behind them: a window of it keeps the first bytes.
    static constexpr auto kMask = [] {
        std::array<char, 2 * sizeof words> mask{};
        for (size_t i = 0; i < mask.size() / 2; ++i) mask[i] = -1;
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
        // Not a branch: it would be mispredicted too often.
        const bool second = !(set.keys[0] == key);
        return set.keys[second] == key ? set.ids[second] : nullptr;
    }
    // Copies the ids of a word that find() returned and returns their count. It always writes kIds
    // numbers, which is faster than as many as there are.
    static size_t copy(const uint32_t* found, uint32_t* out) {
        std::memcpy(out, found, kIds * sizeof(uint32_t));
        out[0] &= (1u << kShift) - 1;
        return found[0] >> kShift;
    }
    // Stores the ids of a word. False if there are none, or more than fit: then find() returns the
    // word with a count of 0. Also false when memory is short: then find() returns nullptr.
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
        set.ids[0][0] = count == 0 ? 0 : uint32_t(count) << kShift | ids[0];
        return count != 0;
    }

private:
    static constexpr unsigned kShift = 24;  // ids are below 2^21
    static constexpr size_t kLine = 64;
    struct Set {
        Key keys[2];
        uint32_t ids[2][kIds];
    };
    static_assert(kLine % sizeof(Set) == 0 || sizeof(Set) % kLine == 0,
                  "a small set lies in one line");
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

// ---- the models

using Ids = std::vector<uint32_t>;
using Spans = std::vector<Span>;  // of ids: the bytes of the text each stands for

constexpr const char* kNoUnknown =
    "a text with characters that have no token, and no unknown token";

// Merges by rank, lowest and leftmost first.
class Bpe {
public:
    explicit Bpe(const TokenizerFile& file);
    // Takes in the piece [begin, end) of a text that is readable up to readable_end, and stays so
    // until flush(). Its ids, and those of pieces before, are appended to out now or by flush().
    BITNET_EACH_WORD void add(const char* begin, const char* end, const char* readable_end,
                              Ids& out) {
        const auto size = size_t(end - begin);
        if (size <= Words::Key::kBytes) {
            if (const uint32_t* found = words_.find({begin, size, readable_end});
                found != nullptr) {
                const size_t count = Words::copy(found, staged_ + n_staged_);
                n_staged_ += count;
                if (count != 0) return n_staged_ < kStaged ? void() : flush(out);
            }
        }
        missed_[n_missed_++] = {begin, size, readable_end, n_staged_, 0, 0};
        if (n_missed_ == kMissed) flush(out);
    }
    void flush(Ids& out);
    // Appends the ids of one piece, and for each the bytes of the piece that it stands for.
    void trace(std::string_view piece, Ids& out, Spans& spans);
    // Sets kWhole in flags, by id, for each token whose spelling merges to that token alone.
    void mark_whole(std::string& flags);

private:
    using Words = WordCache<2, 4, 15>;
    using Phrases = WordCache<8, 16, 11>;
    // Numbers of ids, of pieces that are resolved together, and of pieces that are merged together.
    static constexpr size_t kStaged = 1024, kMissed = 64, kLanes = 16;
    // Up to this number of ids, scanning for the lowest rank is faster than keeping a heap.
    static constexpr size_t kFew = 48;

    struct Symbol {
        uint32_t id;
        int32_t previous, next;
        uint32_t units;  // ids it was joined from
    };
    struct Candidate {
        uint32_t rank;
        int32_t left;
        uint32_t halves[2];  // ids that were there when it was found
    };
    // A piece that was not in the cache, with its place among the staged ids (at), and that of its
    // ids among the resolved ones (first, count).
    struct Missed {
        const char* begin;
        size_t size;
        const char* readable_end;
        size_t at, first, count;
        std::string_view text() const { return {begin, size}; }
    };
    // A piece that is being merged, as a linked list: ids are numbered from 1, ranks[i] is that of
    // joining id i with the one behind it. The numbers 0 and end stand for no neighbour.
    struct Lane {
        Missed* piece;
        uint8_t end, best;
        bool changed;  // whether the ranks at and before best are out of date
        uint8_t before[kFew + 2], behind[kFew + 2];
        uint32_t ids[kFew + 2], ranks[kFew + 2];
    };
    template <typename Cache>
    bool remember(Cache& cache, const Missed& piece, const uint32_t* ids);
    void resolve_missed();
    bool recall(Missed& piece);
    uint32_t find_whole(std::string_view piece, uint64_t hash) const;
    void merge(Missed& piece);
    void merge_lanes();
    void choose(Lane& lane);
    void join(Lane& lane);
    void settle(Missed& piece, const uint32_t* ids, size_t count);
    void split_units(std::string_view piece, Spans* spans = nullptr);
    uint32_t find_unit(std::string_view piece, size_t at, size_t size);
    uint32_t rank_of_bytes(unsigned char left, unsigned char right);
    void merge_by_heap();

    const TokenizerFile& file_;
    const bool spells_bytes_;  // every byte has a token
    Ids ids_, resolved_;
    std::string unit_;
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
    // Ids of pieces up to 15 bytes, and up to 63: those with more ids than fit are in the next one.
    Words words_;
    Phrases phrases_;
    std::unordered_map<std::string, Ids> long_;  // of pieces that fit into neither of them
    size_t long_bytes_ = 0;
    // Of pairs of bytes: the rank of joining them plus 2, or 0 if it was not looked up.
    std::unique_ptr<uint32_t[], Free> byte_ranks_;
    size_t n_staged_ = 0, n_missed_ = 0, n_lanes_ = 0;
    uint32_t staged_[kStaged + 16];  // with room for all that Words::copy() writes
    Missed missed_[kMissed];
    Lane lanes_[kLanes];
};

// SentencePiece BPE: merges by score of the result, highest and leftmost first. Here and below,
// spans may be null.
void encode_spm(const TokenizerFile& file, std::string_view text, Budget& budget, Ids& out,
                Spans* spans = nullptr);

// The same for parts of a text that do not depend on each other: the ids of short ones are kept.
class SpmParts {
public:
    explicit SpmParts(const TokenizerFile& file) : file_(file) {}
    // The part [begin, end) of a text that is readable up to readable_end.
    void add(const char* begin, const char* end, const char* readable_end, Budget& budget,
             Ids& out);

private:
    template <typename Cache>
    void add_kept(Cache& cache, std::string_view part, const char* readable_end, Budget& budget,
                  Ids& out);

    const TokenizerFile& file_;
    WordCache<2, 4, 15> words_;
    WordCache<8, 16, 11> phrases_;
};

// The lowest score of a normal piece of a Unigram model; a character without a piece scores less.
double lowest_score(const TokenizerFile& file);
// SentencePiece Unigram: the segmentation with the best sum of scores. `lowest` is lowest_score().
void encode_unigram(const TokenizerFile& file, double lowest, std::string_view text, Budget& budget,
                    Ids& out, Spans* spans = nullptr);
// The same as the tokenizers library does it: sums are doubles, and unknown neighbours are one
// token.
void encode_unigram_steps(const TokenizerFile& file, double lowest, std::string_view text,
                          Budget& budget, Ids& out, Spans* spans = nullptr);

// Longest token first; a word that cannot be covered is unknown as a whole.
void encode_wordpiece(const TokenizerFile& file, std::string_view word, Budget& budget, Ids& out,
                      Spans* spans = nullptr);

// SentencePiece's precompiled character map: a double-array trie (darts-clone) and the texts its
// values point to. Every entry is checked when it is read, so what it makes of UTF-8 is UTF-8.
class CharsMap {
public:
    CharsMap() = default;
    explicit CharsMap(std::string_view blob);  // throws std::invalid_argument
    bool empty() const { return units_.empty(); }
    // Appends what replaces the longest known text at text[at], and returns the bytes it consumed.
    // Throws std::invalid_argument for an entry that no real map has.
    size_t replace(std::string_view text, size_t at, std::string& out) const;
    // Sets `made` to what replaces the shortest known text that `text` begins with; false if none.
    bool shortest(std::string_view text, std::string_view* made) const;

private:
    // Calls each(size, value) for each known text that `text` begins with, from the shortest on,
    // until it returns false.
    template <class Each>
    void walk(std::string_view text, Each each) const;
    std::string_view replacement(size_t value) const {
        return strings_.substr(value, strings_.find('\0', value) - value);
    }
    std::vector<uint32_t> units_;
    std::string_view strings_;
};

// SentencePiece's normalization: character map, spaces, U+2581. The map does not change the tokens
// that `untouched` finds. Unless it is null, *origin gets the origin of each byte.
std::string normalize_sentencepiece(const TokenizerFile& file, const CharsMap& map,
                                    const AddedMatcher& untouched, std::string_view text,
                                    Origin* origin = nullptr);

}  // namespace bitnet
