// Tokens that are cut out of a text before anything else runs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bitnet {

struct AddedToken {
    enum Flag : uint32_t { kSpecial = 1, kLeft = 2, kRight = 4, kSingleWord = 8, kNormalized = 16 };
    uint32_t id;
    uint32_t flags;
    std::string text;
};

// Throws std::invalid_argument when the bytes are no list of added tokens.
std::vector<AddedToken> read_added(std::string_view bytes);

// Leftmost, then longest match; white space around it and word borders as the token wants.
class AddedMatcher {
public:
    AddedMatcher() = default;
    explicit AddedMatcher(std::vector<AddedToken> tokens);
    // The index refers to the tokens' own texts.
    AddedMatcher(const AddedMatcher&) = delete;
    AddedMatcher& operator=(AddedMatcher&&) = default;
    AddedMatcher(AddedMatcher&&) = default;

    const AddedToken* longest(std::string_view text, size_t at) const;

    // Calls on_text(begin, end) and on_token(id) from left to right.
    template <typename OnText, typename OnToken>
    void split(std::string_view text, OnText on_text, OnToken on_token) const {
        size_t done = 0;
        for (size_t at = first_candidate(text, 0); at < text.size(); at = first_candidate(text, at)) {
            const AddedToken* token = longest(text, at);
            if (token == nullptr) {
                ++at;
                continue;
            }
            size_t begin = at, end = at + token->text.size();
            at = end;
            if (!widen(text, *token, &begin, &end)) continue;
            if (begin > done) on_text(done, begin);
            on_token(token->id);
            done = end > done ? end : done;
        }
        if (done < text.size()) on_text(done, text.size());
    }

private:
    // The first byte from at on that a token begins with, or the end of the text.
    size_t first_candidate(std::string_view text, size_t at) const;
    static bool widen(std::string_view text, const AddedToken& token, size_t* begin, size_t* end);

    std::vector<AddedToken> tokens_;
    std::unordered_map<std::string_view, size_t> index_;
    std::array<std::vector<size_t>, 256> lengths_;  // by first byte, longest first
    std::string starts_;                            // first bytes, each once
};

}  // namespace bitnet
