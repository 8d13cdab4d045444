#include "tokenizer_added.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "unicode.hpp"

namespace bitnet {

std::vector<AddedToken> read_added(std::string_view bytes) {
    std::vector<AddedToken> tokens;
    while (!bytes.empty()) {
        uint32_t fields[3];  // id, flags, size of the text
        if (bytes.size() < sizeof fields) break;
        std::memcpy(fields, bytes.data(), sizeof fields);
        bytes.remove_prefix(sizeof fields);
        if (fields[2] > bytes.size()) break;
        tokens.push_back({fields[0], fields[1], std::string(bytes.substr(0, fields[2]))});
        bytes.remove_prefix(fields[2]);
    }
    if (!bytes.empty()) throw std::invalid_argument("compiled tokenizer: added tokens end early");
    return tokens;
}

AddedMatcher::AddedMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    index_.reserve(tokens_.size());
    for (size_t i = 0; i < tokens_.size(); ++i) {
        const std::string& text = tokens_[i].text;
        if (text.empty() || !index_.emplace(text, i).second) continue;
        std::vector<size_t>& lengths = lengths_[static_cast<unsigned char>(text[0])];
        if (lengths.empty()) starts_ += text[0];
        if (std::find(lengths.begin(), lengths.end(), text.size()) == lengths.end()) {
            lengths.push_back(text.size());
        }
    }
    for (auto& lengths : lengths_) std::sort(lengths.rbegin(), lengths.rend());
}

const AddedToken* AddedMatcher::longest(std::string_view text, size_t at) const {
    for (const size_t length : lengths_[static_cast<unsigned char>(text[at])]) {
        if (length > text.size() - at) continue;
        const auto found = index_.find(text.substr(at, length));
        if (found != index_.end()) return &tokens_[found->second];
    }
    return nullptr;
}

size_t AddedMatcher::first_candidate(std::string_view text, size_t at) const {
    if (starts_.empty() || at >= text.size()) return text.size();
    if (starts_.size() == 1) return std::min(text.find(starts_[0], at), text.size());
    while (at < text.size() && lengths_[static_cast<unsigned char>(text[at])].empty()) ++at;
    return at;
}

bool AddedMatcher::widen(std::string_view text, const AddedToken& token, size_t* begin,
                         size_t* end) {
    const char* const first = text.data();
    const char* const last = first + text.size();
    if (token.flags & AddedToken::kSingleWord) {
        const char* before = first + *begin;
        const char* after = first + *end;
        if (before != first) {
            before = unicode::previous(before);
            if (unicode::is_added_word(unicode::next(before))) return false;
        }
        if (after != last && unicode::is_added_word(unicode::next(after))) return false;
    }
    while (token.flags & AddedToken::kLeft && *begin > 0) {
        const char* p = unicode::previous(first + *begin);
        const auto start = static_cast<size_t>(p - first);
        if (!unicode::is_space(unicode::next(p))) break;
        *begin = start;
    }
    while (token.flags & AddedToken::kRight && *end < text.size()) {
        const char* p = first + *end;
        if (!unicode::is_space(unicode::next(p))) break;
        *end = static_cast<size_t>(p - first);
    }
    return true;
}

}  // namespace bitnet
