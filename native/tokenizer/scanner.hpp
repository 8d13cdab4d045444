// The expressions of the pre-tokenizers that most models share, matched without an engine.
//
// GPT-2's, LLaMA-3's (also Qwen's, cl100k's) and o200k's expressions are lists of alternatives that
// differ in a few places. Each covers every text, so one match begins where the last one ended.
#pragma once

#include <cstdint>
#include <string_view>

namespace bitnet {

class Scanner {
public:
    Scanner() = default;  // knows no expression
    // Reads the alternatives; known() is false when one is not among those below.
    explicit Scanner(std::string_view pattern);
    bool known() const { return kind_ != Kind::kNone; }

    // The end of the match that begins at p, before end; nullptr where only the engine can tell
    // (an apostrophe before a letter outside of ASCII, some of which are small letters in disguise).
    const char* next(const char* p, const char* end) const;

private:
    enum class Kind : uint8_t { kNone, kGpt2, kWords, kCasedWords };
    enum class Contractions : uint8_t { kNone, kAsWritten, kAnyCase };

    const char* gpt2(const char* p, const char* end) const;
    const char* word(const char* p, uint8_t first, const char* second, const char* end) const;
    const char* cased_word(const char* p, uint8_t first, const char* second, const char* end,
                           bool* certain) const;
    const char* capitals_and_small(const char* p, const char* end) const;
    const char* space(const char* p, const char* end) const;

    const uint8_t* classes_ = nullptr;  // of characters, by code point
    Kind kind_ = Kind::kNone;
    Contractions contractions_ = Contractions::kNone;
    uint8_t letters_ = 0;         // classes that words are made of
    int max_digits_ = 0;          // of a number; 0 for any
    bool breaks_follow_ = false;  // line breaks behind punctuation belong to it
    bool slashes_ = false;        // so do slashes
    bool breaks_end_ = false;     // white space ends at its last line break
};

}  // namespace bitnet
