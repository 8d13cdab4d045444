// The four ways to cut a piece of text into tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer_added.hpp"
#include "tokenizer_file.hpp"

namespace bitnet {

using Ids = std::vector<uint32_t>;

// Merges by rank, lowest and leftmost first.
class Bpe {
public:
    explicit Bpe(const TokenizerFile& file) : file_(file) {}
    void encode(std::string_view piece, Ids& out);

private:
    struct Symbol {
        uint32_t id;
        int32_t previous, next;
    };
    struct Candidate {
        uint32_t rank;
        int32_t left;
        uint32_t result;
    };
    struct Cached {
        char text[22];
        uint8_t size = 0, count = 0;
        uint32_t ids[8];
    };
    void merge(std::string_view piece);
    void start(std::string_view piece);
    void merge_few();
    void merge_many();

    const TokenizerFile& file_;
    Ids ids_;
    std::vector<uint32_t> ranks_, results_;
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
    std::vector<Cached> cache_;
};

// SentencePiece BPE: merges by score of the result, highest and leftmost first.
void encode_spm(const TokenizerFile& file, std::string_view text, Ids& out);

// SentencePiece Unigram: the segmentation with the best sum of scores.
// `lowest` is the lowest score of a normal piece; what has no piece costs more.
float lowest_score(const TokenizerFile& file);
void encode_unigram(const TokenizerFile& file, float lowest, std::string_view text, Ids& out);

// Longest token first; a word that cannot be covered is unknown as a whole.
void encode_wordpiece(const TokenizerFile& file, std::string_view word, Ids& out);

// SentencePiece's normalization: character map, spaces, U+2581. The map leaves some tokens alone.
std::string normalize_sentencepiece(const TokenizerFile& file, const AddedMatcher& untouched,
                                    std::string_view text);

}  // namespace bitnet
