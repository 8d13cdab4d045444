// The four ways to cut a piece of text into tokens.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/added.hpp"
#include "tokenizer/file.hpp"
#include "tokenizer/steps.hpp"

namespace bitnet {

using Ids = std::vector<uint32_t>;
using Spans = std::vector<Span>;  // of ids: the bytes of the text each stands for

constexpr const char* kNoUnknown = "a text with characters that have no token, and no unknown token";

// Ids of pieces of text met before: of up to 8 * kWords bytes and kIds ids, two to a set.
template <size_t kWords, size_t kIds, size_t kSets>
class PieceCache {
public:
    using Key = uint64_t[kWords];
    struct Entry {
        Key text;
        uint32_t ids[kIds];
        uint8_t size, count;
    };
    struct Set {
        Entry entries[2];
    };
    // The set and the key of the piece of size bytes at begin; nullptr when there is no memory.
    Set* set(const char* begin, size_t size, const char* limit, Key& key);
    static bool get(const Set& set, const Key& key, size_t size, Ids& out);
    static void put(Set& set, const Key& key, size_t size, const Ids& ids);

private:
    struct Free {
        void operator()(Set* sets) const { std::free(sets); }
    };
    std::unique_ptr<Set[], Free> sets_;
};

// Merges by rank, lowest and leftmost first.
class Bpe {
public:
    explicit Bpe(const TokenizerFile& file) : file_(file) {}
    // Takes in the piece [begin, end) of a text that is readable up to limit. Ids come out by and
    // by, in order, and all of them with flush().
    void add(const char* begin, const char* end, const char* limit, Ids& out);
    void flush(Ids& out);
    // The same for one piece alone, with the bytes that each id stands for.
    void trace(std::string_view piece, Ids& out, Spans& spans);
    // Whether merging the spelling of a token gives that token alone.
    bool merges_whole(uint32_t id);

private:
    struct Symbol {
        uint32_t id;
        int32_t previous, next;
        uint32_t units;  // ids it was joined from
    };
    struct Candidate {
        uint32_t rank;
        int32_t left;
        uint32_t result;
        uint32_t halves[2];  // ids that were there when it was found
    };
    // What TokenizerFile::merge said of a pair, kept where it takes no time to find.
    struct Join {
        uint64_t pair;  // plus one; 0 for none
        uint32_t rank, result;
    };
    static constexpr size_t kJoins = 1 << 13;
    using Few = PieceCache<2, 3, 1 << 15>;
    using More = PieceCache<8, 15, 1 << 11>;
    struct Pending {
        const char* begin;
        size_t size;
        Few::Set* few;    // where its ids may be, when it is short
        More::Set* more;  // when it is longer
        union {
            Few::Key short_key;
            More::Key long_key;
        };
    };
    void resolve(std::string_view piece);
    void resolve_long(std::string_view piece);
    void merge(std::string_view piece);
    void start(std::string_view piece, Spans* spans = nullptr);
    uint32_t find_unit(std::string_view piece, size_t at, size_t size);
    uint32_t join(uint32_t left, uint32_t right, uint32_t* result);
    void merge_few();
    void merge_many();

    const TokenizerFile& file_;
    Ids ids_;
    std::string unit_;
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
    std::vector<Join> joins_;
    Few few_;
    More more_;
    std::unordered_map<std::string, Ids> long_;  // of pieces that fit into neither
    size_t long_bytes_ = 0;
    Pending pending_[16];
    size_t n_pending_ = 0;
};

// SentencePiece BPE: merges by score of the result, highest and leftmost first.
// Of all of these, spans may be null.
void encode_spm(const TokenizerFile& file, std::string_view text, Budget& budget, Ids& out,
                Spans* spans = nullptr);

// SentencePiece Unigram: the segmentation with the best sum of scores.
// `lowest` is the lowest score of a normal piece; what has no piece costs more.
double lowest_score(const TokenizerFile& file);
void encode_unigram(const TokenizerFile& file, double lowest, std::string_view text, Budget& budget,
                    Ids& out, Spans* spans = nullptr);
// The same as the tokenizers library does it: sums are doubles, and what is unknown is one token.
void encode_unigram_steps(const TokenizerFile& file, double lowest, std::string_view text, Budget& budget,
                          Ids& out, Spans* spans = nullptr);

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
    // Appends what the longest known text at text[at] is replaced by; gives the bytes consumed.
    // Throws std::invalid_argument for an entry that no real map has.
    size_t replace(std::string_view text, size_t at, std::string& out) const;
    // What the shortest known text that `text` begins with is replaced by; false for none.
    bool shortest(std::string_view text, std::string_view* replacement) const;

private:
    std::vector<uint32_t> units_;
    std::string_view strings_;
};

// SentencePiece's normalization: character map, spaces, U+2581. The map leaves some tokens alone.
// Origin may be null.
std::string normalize_sentencepiece(const TokenizerFile& file, const CharsMap& map,
                                    const AddedMatcher& untouched, std::string_view text,
                                    Origin* origin = nullptr);

}  // namespace bitnet
