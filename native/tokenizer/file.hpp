// The compiled tokenizer: one file of flat tables that is mapped and used as it is.
//
//   header (64 bytes) | section table | sections, each on an 8-byte boundary
//
// Little-endian. The checksum covers everything behind the header and finds accidents, not malice:
// every index, id and text in the tables is checked when a file is opened.
#pragma once

#include <cstring>

#include "tokenizer/budget.hpp"
#include "tokenizer/added.hpp"

namespace bitnet {

constexpr uint32_t kTokenizerVersion = 7;
constexpr uint32_t kNoId = 0xFFFFFFFF;

enum class Section : uint32_t {
    kMeta,          // facts as JSON, see meta_of in compiled.py
    kConfig,        // Config
    kOffsets,       // where the spelling of each id begins in kBytes, and the end of the last one
    kBytes,         // the spellings of all tokens
    kFlags,         // TokenFlag of each id
    kSlots,         // hash table from spellings to ids: 11 bits of the hash, 21 of the id plus 1
    kMergeSlots,    // hash table from pairs of ids to ranks: 2 * 21 bits, 22 of the rank plus 1
    kMergeResults,  // id of the token that each merge makes, by rank
    kScores,        // of each id: doubles if ConfigFlag kSteps is set, else floats
    kByteIds,       // id of the token of each byte, or kNoId
    kAdded,         // see read_added
    kSteps,         // see read_steps
    kCharsmap,      // see CharsMap
    kPrefix,        // begins tokens inside a word
    kSuffix,        // ends tokens at the end of a word
    kTrieNodes,     // Trie of the pieces of a Unigram model
    kTrieEdges,
    kCount
};
constexpr size_t kSections = size_t(Section::kCount);

struct FileHeader {
    char magic[8];
    uint32_t version;
    uint32_t sections;
    uint64_t size;
    uint64_t checksum;
    unsigned char key[32];  // SHA-256 of the fingerprint of the tokenizer's specification
};
static_assert(sizeof(FileHeader) == 64, "the header is part of the format");

enum class ModelKind : uint32_t { kBpe, kSpm, kUnigram, kWordPiece, kWordLevel };

struct Config {
    uint32_t model;
    uint32_t flags;
    uint32_t unknown_id;
    uint32_t max_chars_per_word;
    // The builder fills in the rest.
    uint32_t max_token_bytes;    // of the tokens that the model itself can produce
    uint32_t word_ends[8];       // a bit for each byte that no token has before a U+2581
    uint32_t strangers[128][4];  // a bit for each pair of ASCII characters that no token has inside

    // True if no token contains text[at - 1] followed by text[at], or by the U+2581 that begins
    // there. Answers between two ASCII characters and before U+2581, not in runs of it; else false.
    bool may_cut(std::string_view text, size_t at) const {
        const auto before = uint8_t(text[at - 1]), behind = uint8_t(text[at]);
        if (before < 128 && behind < 128)
            return (strangers[before][behind / 32] >> behind % 32 & 1) != 0;
        if (behind != 0xE2 || text.compare(at, 3, "\xE2\x96\x81") != 0) return false;
        return (word_ends[before / 32] >> before % 32 & 1) != 0;
    }
};
static_assert(sizeof(Config) == 2100, "the configuration is part of the format");

enum ConfigFlag : uint32_t {
    kByteLevel = 1,
    kByteFallback = 2,
    kIgnoreMerges = 4,
    kAddSpacePrefix = 8,
    kRemoveExtraWhitespaces = 16,
    // A Unigram model after steps, as the tokenizers library runs it: scores are doubles.
    kSteps = 32,
    kFuseUnknown = 64,
    kWordsApart = 128  // parts are merged one by one, see Config::may_cut; filled in by the builder
};

enum TokenFlag : uint8_t {
    kSpecial = 1,       // skipped by skip_special
    kVerbatim = 2,      // a control or added token, not a piece: its text is its spelling
    kByteToken = 4,     // <0xNN>
    kInModel = 8,       // the model itself can produce it
    kUserDefined = 16,  // SentencePiece: never split
    kUnused = 32,       // SentencePiece: an intermediate that is split again
    kWhole = 64         // merging its spelling gives this token alone; filled in by the builder
};

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581

// Most that fit into the entries of kSlots and kMergeSlots.
constexpr uint32_t kMaxTokens = (1u << 21) - 2;
constexpr uint32_t kMaxMerges = (1u << 22) - 2;

// The hashes of spellings and of pairs of ids: part of the format, as they order the hash tables.
inline uint64_t hash_bytes(const char* p, size_t n) {
    uint64_t h = 0x9E3779B97F4A7C15ull ^ n;
    const auto mix = [&](uint64_t word) {
        h = (h ^ word) * 0xD6E8FEB86659FD93ull;
        h ^= h >> 32;
    };
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word;
        std::memcpy(&word, p, 8);
        mix(word);
    }
    // The last bytes, with zeros behind them. A memcpy of a size that varies would be a call.
    if (n >= 4) {
        uint32_t first, last;
        std::memcpy(&first, p, 4);
        std::memcpy(&last, p + n - 4, 4);
        mix(first | uint64_t{last} << 8 * (n - 4));
    } else if (n > 0) {
        const auto byte = [p](size_t at) { return uint64_t{uint8_t(p[at])} << 8 * at; };
        mix(byte(0) | byte(n / 2) | byte(n - 1));
    }
    return h;
}

inline uint64_t hash_pair(uint64_t left, uint64_t right) {
    const uint64_t h = (left << 21 | right) * 0x9E3779B97F4A7C15ull;
    return h ^ h >> 29;
}

// Starts to load a cache line.
inline void prefetch(const void* line) {
#if defined(__GNUC__)
    __builtin_prefetch(line);
#else
    static_cast<void>(line);
#endif
}

// The checksum in FileHeader, of the bytes behind the header.
uint64_t checksum(const char* data, size_t size);

// A file that was checked as a whole: views into memory that the caller keeps alive.
class TokenizerFile {
public:
    TokenizerFile() = default;
    // Throws std::invalid_argument that says what is wrong with the file.
    TokenizerFile(const char* data, size_t size);

    std::string_view section(Section id) const { return sections_[size_t(id)]; }
    template <typename T>
    const T* table(Section id, size_t* count) const {
        *count = section(id).size() / sizeof(T);
        return reinterpret_cast<const T*>(section(id).data());
    }

    Config config{};
    uint32_t n_tokens = 0;

    std::string_view token(uint32_t id) const {
        if (id >= n_tokens) return {};
        return bytes_.substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
    }
    uint8_t flags(uint32_t id) const { return id < n_tokens ? flags_[id] : 0; }
    float score(uint32_t id) const {
        return id < n_scores_ && scores_ != nullptr ? scores_[id] : 0.0f;
    }
    double exact_score(uint32_t id) const {
        return id < n_scores_ && exact_ != nullptr ? exact_[id] : 0.0;
    }
    uint32_t byte_id(unsigned char byte) const { return byte_ids_[byte]; }

    // Id of the token with this spelling that the model itself can produce, or kNoId.
    uint32_t find(const char* p, size_t n) const { return find(p, n, hash_bytes(p, n)); }
    uint32_t find(const char* p, size_t n, uint64_t h) const {
        if (n > config.max_token_bytes || n_slots_ == 0) return kNoId;
        const auto tag = uint32_t(h >> 53);
        size_t i = h & (n_slots_ - 1);
        for (size_t tried = 0; tried < limits::kProbe; ++tried, i = (i + 1) & (n_slots_ - 1)) {
            const uint32_t slot = slots_[i];
            if (slot == 0) return kNoId;
            if (slot >> 21 != tag) continue;
            const uint32_t id = (slot & 0x1FFFFF) - 1;
            if (token(id) == std::string_view(p, n)) return id;
        }
        return kNoId;
    }

    // Rank of the merge of two ids, or kNoId.
    uint32_t rank(uint32_t left, uint32_t right) const {
        if (n_merge_slots_ == 0) return kNoId;
        const uint64_t pair = uint64_t(left) << 21 | right;
        size_t i = hash_pair(left, right) & (n_merge_slots_ - 1);
        for (size_t tried = 0; tried < limits::kProbe;
             ++tried, i = (i + 1) & (n_merge_slots_ - 1)) {
            const uint64_t slot = merge_slots_[i];
            if (slot == 0) return kNoId;
            if (slot >> 22 != pair) continue;
            return uint32_t(slot & 0x3FFFFF) - 1;
        }
        return kNoId;
    }
    // Id of the token that the merge of this rank makes.
    uint32_t merged(uint32_t rank) const { return merge_results_[rank]; }

    // Prefetch what find(), rank() and merged() will read. For find() of a text with this hash that
    // takes three steps: the slot, the offset of the id in that slot (the id is returned), the
    // spelling.
    void expect(uint64_t h) const {
        if (n_slots_ != 0) prefetch(&slots_[h & (n_slots_ - 1)]);
    }
    uint32_t expect_offset(uint64_t h) const {
        const uint32_t id = n_slots_ != 0 ? (slots_[h & (n_slots_ - 1)] & 0x1FFFFF) - 1 : kNoId;
        if (id < n_tokens) prefetch(&offsets_[id]);
        return id;
    }
    void expect_token(uint32_t id) const {
        if (id < n_tokens) prefetch(bytes_.data() + offsets_[id]);
    }
    void expect(uint32_t left, uint32_t right) const {
        if (n_merge_slots_ != 0)
            prefetch(&merge_slots_[hash_pair(left, right) & (n_merge_slots_ - 1)]);
    }
    void expect_merged(uint32_t rank) const {
        if (rank < n_merges_) prefetch(&merge_results_[rank]);
    }

    // Of a Unigram model: the ids of its pieces by their spellings.
    const Trie& pieces() const { return pieces_; }

private:
    void check_sizes() const;
    void check_ids() const;
    void check_texts() const;

    std::string_view sections_[kSections];
    std::string_view bytes_;
    const uint32_t* offsets_ = nullptr;
    const uint8_t* flags_ = nullptr;
    const uint32_t* slots_ = nullptr;
    const uint64_t* merge_slots_ = nullptr;
    const uint32_t* merge_results_ = nullptr;
    const float* scores_ = nullptr;
    const double* exact_ = nullptr;
    const uint32_t* byte_ids_ = nullptr;
    Trie pieces_;
    size_t n_slots_ = 0, n_merge_slots_ = 0, n_merges_ = 0, n_scores_ = 0, n_offsets_ = 0,
           n_byte_ids_ = 0;
};

// Parts from which a compiled file is built: plain little-endian arrays. The key is that of
// FileHeader, merges are pairs of ids in order of rank, all others are sections of their names.
struct TokenizerParts {
    std::string_view key, meta, config, offsets, bytes, flags, merges, scores, byte_ids, added,
        steps, charsmap, prefix, suffix;
};

// Throws std::invalid_argument when the parts do not fit together or exceed a limit.
std::string build_tokenizer(const TokenizerParts& parts);

}  // namespace bitnet
