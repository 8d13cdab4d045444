#include "tokenizer/added.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "tokenizer/budget.hpp"
#include "tokenizer/unicode.hpp"

namespace bitnet {
namespace {

[[noreturn]] void refuse_added(const char* what) {
    throw std::invalid_argument(std::string("compiled tokenizer: ") + what);
}

}  // namespace

std::vector<AddedToken> read_added(std::string_view bytes, uint32_t n_tokens) {
    std::vector<AddedToken> tokens;
    while (!bytes.empty()) {
        uint32_t fields[3];  // id, flags, size of the text
        if (bytes.size() < sizeof fields) refuse_added("added tokens end early");
        std::memcpy(fields, bytes.data(), sizeof fields);
        bytes.remove_prefix(sizeof fields);
        if (fields[2] > bytes.size()) refuse_added("added tokens end early");
        const std::string_view text = bytes.substr(0, fields[2]);
        if (text.size() > limits::kAddedTokenBytes) refuse_added("an added token is too long");
        if (!unicode::is_utf8(text)) refuse_added("an added token is not UTF-8");
        if (fields[0] >= n_tokens) refuse_added("an added token has an id outside of the vocabulary");
        tokens.push_back({fields[0], fields[1], std::string(text)});
        bytes.remove_prefix(fields[2]);
    }
    return tokens;
}

AddedMatcher::AddedMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    std::vector<std::pair<std::string_view, uint32_t>> entries;
    for (uint32_t i = 0; i < tokens_.size(); ++i) entries.emplace_back(tokens_[i].text, i);
    tables_ = build_trie(std::move(entries));
    trie_ = Trie(tables_);
    for (int byte = 0; byte < 256; ++byte) {
        if (trie_.start(static_cast<char>(byte)) != 0) only_start_ = only_start_ == -1 ? byte : -2;
    }
}

const AddedToken* AddedMatcher::longest(std::string_view text, size_t at) const {
    const AddedToken* found = nullptr;
    for (uint32_t node = trie_.start(text[at]); node != 0; node = trie_.follow(node, text[at])) {
        if (trie_.value(node) != Trie::kNone) found = &tokens_[trie_.value(node)];
        if (++at == text.size()) break;
    }
    return found;
}

size_t AddedMatcher::first_candidate(std::string_view text, size_t at) const {
    if (tokens_.empty()) return text.size();
    if (only_start_ >= 0) {
        const void* found = at < text.size() ? std::memchr(text.data() + at, only_start_, text.size() - at) : nullptr;
        return found == nullptr ? text.size() : static_cast<size_t>(static_cast<const char*>(found) - text.data());
    }
    while (at < text.size() && trie_.start(text[at]) == 0) ++at;
    return at;
}

bool AddedMatcher::widen(std::string_view text, const AddedToken& token, Spaces& spaces, size_t* begin, size_t* end) {
    const char* const first = text.data();
    const char* const last = first + text.size();
    if (token.flags & AddedToken::kSingleWord) {
        const char* before = first + *begin;
        const char* after = first + *end;
        if (before != first) {
            before = unicode::previous(before, first);
            if (unicode::is_added_word(unicode::next(before, last))) return false;
        }
        if (after != last && unicode::is_added_word(unicode::next(after, last))) return false;
    }
    if (token.flags & AddedToken::kLeft) {
        const char* p = first + *begin;
        while (p != first + spaces.left_end) {
            const char* const start = unicode::previous(p, first);
            const char* ahead = start;
            if (!unicode::is_space(unicode::next(ahead, last))) break;
            p = start;
        }
        auto start = static_cast<size_t>(p - first);
        if (start == spaces.left_end) start = spaces.left_begin;
        spaces.left_begin = start;
        spaces.left_end = *begin;
        *begin = start;
    }
    if (token.flags & AddedToken::kRight) {
        const char* p = first + std::max(*end, spaces.right_end);
        while (p != last) {
            const char* ahead = p;
            if (!unicode::is_space(unicode::next(ahead, last))) break;
            p = ahead;
        }
        *end = spaces.right_end = static_cast<size_t>(p - first);
    }
    return true;
}

}  // namespace bitnet
