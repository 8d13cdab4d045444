#include "tokenizer/file.hpp"

#include <cctype>

#include "tokenizer/models.hpp"
#include "tokenizer/unicode.hpp"

namespace bitnet {
namespace {

constexpr char kMagic[8] = {'B', 'N', 'T', 'O', 'K', 'E', 'N', '\n'};

struct SectionEntry {
    uint64_t offset;
    uint64_t size;
};

[[noreturn]] void wrong(const char* what) {
    throw std::invalid_argument(std::string("compiled tokenizer: ") + what);
}

bool is_power_of_two(size_t n) { return n != 0 && (n & (n - 1)) == 0; }

// The bytes as numbers, or an error that says `what`.
template <typename T>
std::vector<T> copy_array(std::string_view bytes, const char* what) {
    if (bytes.size() % sizeof(T) != 0) wrong(what);
    std::vector<T> out(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
}

template <typename T>
std::string_view as_bytes(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Slots of a hash table: a power of two, of which at most two thirds are used.
size_t table_size(size_t entries) {
    size_t size = 16;
    while (size < entries + entries / 2) size *= 2;
    return size;
}

// The section kSlots.
std::vector<uint32_t> vocabulary_slots(const std::vector<uint32_t>& offsets,
                                       const TokenizerParts& parts) {
    const size_t n = offsets.size() - 1;
    std::vector<uint32_t> slots(table_size(n), 0);
    const auto spelling = [&](uint32_t id) {
        return parts.bytes.substr(offsets[id], offsets[id + 1] - offsets[id]);
    };
    for (uint32_t id = 0; id < n; ++id) {
        if ((uint8_t(parts.flags[id]) & kInModel) == 0) continue;
        const std::string_view text = spelling(id);
        const uint64_t h = hash_bytes(text.data(), text.size());
        const auto tag = uint32_t(h >> 53);
        size_t i = h & (slots.size() - 1);
        size_t tried = 1;
        while (slots[i] != 0 && spelling((slots[i] & 0x1FFFFF) - 1) != text) {
            i = (i + 1) & (slots.size() - 1);
            if (++tried > limits::kProbe) wrong("too many tokens that share a place in a table");
        }
        slots[i] = tag << 21 | (id + 1);  // of equal spellings the last one counts
    }
    return slots;
}

// True if a token is longer than the name of a byte, <0xNN>, and contains one: <0x41><0x42>, for
// example. With byte fallback, merging can then join characters that no token spells together.
bool joins_byte_names(std::string_view text) {
    if (text.size() <= 6) return false;
    for (size_t at = text.find("<0x"); at != std::string_view::npos;
         at = text.find("<0x", at + 1)) {
        if (at + 5 < text.size() && text[at + 5] == '>') return true;
    }
    return false;
}

// Fills in config.word_ends and config.strangers: the places at which a text may be cut into parts
// that are merged separately. If no token contains what is on both sides of a place, nothing is
// ever joined across it. Returns false if the parts may depend on each other nevertheless:
// - An unused token is split again in the way in which it was last made, perhaps in another part.
// - A token joins names of bytes, see joins_byte_names.
// - A byte or U+2581 has no token: unknown characters on both sides can become one token.
// - The model is byte-level: a token may contain some of the bytes of U+2581, not all.
bool find_parts(const std::vector<uint32_t>& offsets, const TokenizerParts& parts, Config& config) {
    const auto byte_ids = copy_array<uint32_t>(parts.byte_ids, "odd byte ids");
    const bool all_bytes = (config.flags & kByteFallback) != 0 && byte_ids.size() == 256 &&
                           std::find(byte_ids.begin(), byte_ids.end(), kNoId) == byte_ids.end();
    std::fill(std::begin(config.word_ends), std::end(config.word_ends), ~uint32_t{0});
    std::fill(&config.strangers[0][0], &config.strangers[0][0] + 128 * 4,
              all_bytes ? ~uint32_t{0} : 0);
    const auto ends_word = [&](char byte) -> uint32_t& {
        return config.word_ends[uint8_t(byte) / 32];
    };
    const auto bit = [](char byte) { return uint32_t{1} << uint8_t(byte) % 32; };
    // A U+2581 after a U+2581 does not begin a part, so runs of them stay in one.
    ends_word(kSpaceSymbol.back()) &= ~bit(kSpaceSymbol.back());
    bool has_symbol = false;
    for (size_t id = 0; id + 1 < offsets.size(); ++id) {
        const auto flags = uint8_t(parts.flags[id]);
        const std::string_view text =
            parts.bytes.substr(offsets[id], offsets[id + 1] - offsets[id]);
        if (flags & kUnused || joins_byte_names(text)) return false;
        if (!(flags & kInModel)) continue;
        has_symbol = has_symbol || text == kSpaceSymbol;
        for (size_t at = 1; at < text.size(); ++at) {
            const auto before = uint8_t(text[at - 1]);
            const auto behind = uint8_t(text[at]);
            if (before < 128 && behind < 128)
                config.strangers[before][behind / 32] &= ~bit(text[at]);
            if (text.compare(at, 3, kSpaceSymbol) == 0)
                ends_word(text[at - 1]) &= ~bit(text[at - 1]);
        }
    }
    return has_symbol && all_bytes && (config.flags & kByteLevel) == 0;
}

// The pieces of a Unigram model; empty for other models. From the last id to the first, as of equal
// spellings build_trie takes the first and vocabulary_slots the last.
TrieTables piece_trie(const Config& config, const std::vector<uint32_t>& offsets,
                      const TokenizerParts& parts) {
    if (config.model != uint32_t(ModelKind::kUnigram)) return {};
    if (config.max_token_bytes > limits::kUnigramPieceBytes) wrong("a piece is too long");
    std::vector<std::pair<std::string_view, uint32_t>> entries;
    for (auto id = uint32_t(offsets.size() - 1); id-- > 0;) {
        const auto flags = uint8_t(parts.flags[id]);
        if (!(flags & kInModel)) continue;
        entries.emplace_back(parts.bytes.substr(offsets[id], offsets[id + 1] - offsets[id]), id);
    }
    return build_trie(std::move(entries));
}

}  // namespace

uint64_t checksum(const char* data, size_t size) {
    uint64_t lanes[4] = {1, 2, 3, 4};
    size_t i = 0;
    for (; i + 32 <= size; i += 32) {
        uint64_t words[4];
        std::memcpy(words, data + i, 32);
        for (int lane = 0; lane < 4; ++lane) {
            lanes[lane] = (lanes[lane] ^ words[lane]) * 0x9FB21C651E98DF25ull;
            lanes[lane] ^= lanes[lane] >> 29;
        }
    }
    uint64_t h = hash_bytes(data + i, size - i);
    for (const uint64_t lane : lanes) h = (h ^ lane) * 0xD6E8FEB86659FD93ull ^ h >> 31;
    return h;
}

TokenizerFile::TokenizerFile(const char* data, size_t size) {
    FileHeader header;
    const size_t table_end = sizeof header + kSections * sizeof(SectionEntry);
    if (size < table_end) wrong("too short for its header");
    std::memcpy(&header, data, sizeof header);
    if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) wrong("not such a file");
    if (header.version != kTokenizerVersion || header.sections != kSections)
        wrong("written by another version");
    if (header.size != size) wrong("truncated or extended");
    for (size_t i = 0; i < kSections; ++i) {
        SectionEntry entry;
        std::memcpy(&entry, data + sizeof header + i * sizeof entry, sizeof entry);
        if (entry.offset % 8 != 0 || entry.offset < table_end || entry.offset > size ||
            entry.size > size - entry.offset) {
            wrong("a section lies outside of it");
        }
        sections_[i] = {data + entry.offset, size_t(entry.size)};
    }
    if (section(Section::kConfig).size() != sizeof config)
        wrong("its configuration has a wrong size");
    std::memcpy(&config, section(Section::kConfig).data(), sizeof config);
    size_t n_flags = 0, n_nodes = 0, n_edges = 0;
    offsets_ = table<uint32_t>(Section::kOffsets, &n_offsets_);
    flags_ = table<uint8_t>(Section::kFlags, &n_flags);
    slots_ = table<uint32_t>(Section::kSlots, &n_slots_);
    merge_slots_ = table<uint64_t>(Section::kMergeSlots, &n_merge_slots_);
    merge_results_ = table<uint32_t>(Section::kMergeResults, &n_merges_);
    // A Unigram model after steps runs as in the tokenizers library, whose scores are doubles.
    if (config.flags & kSteps)
        exact_ = table<double>(Section::kScores, &n_scores_);
    else
        scores_ = table<float>(Section::kScores, &n_scores_);
    byte_ids_ = table<uint32_t>(Section::kByteIds, &n_byte_ids_);
    bytes_ = section(Section::kBytes);
    const auto* nodes = table<TrieNode>(Section::kTrieNodes, &n_nodes);
    const auto* edges = table<TrieEdge>(Section::kTrieEdges, &n_edges);
    pieces_ = Trie(nodes, n_nodes, edges, n_edges);
    n_tokens = uint32_t(std::min<size_t>(n_flags, kNoId));
    if (header.checksum != checksum(data + sizeof header, size - sizeof header))
        wrong("damaged (its checksum differs)");
    check_sizes();
    check_ids();
    check_texts();
}

void TokenizerFile::check_sizes() const {
    const bool fits = n_offsets_ >= 1 && n_tokens == n_offsets_ - 1 && n_tokens <= kMaxTokens &&
                      n_byte_ids_ == 256 && is_power_of_two(n_slots_) && n_merges_ <= kMaxMerges &&
                      (n_merge_slots_ == 0 || is_power_of_two(n_merge_slots_)) &&
                      (n_scores_ == 0 || n_scores_ == n_tokens) &&
                      config.model <= uint32_t(ModelKind::kWordLevel);
    if (!fits) wrong("its tables have wrong sizes");
    if (config.max_token_bytes > limits::kTokenBytes) wrong("its longest token is too long");
    if (config.max_chars_per_word > limits::kWordChars) wrong("its longest word is too long");
    const bool unigram = config.model == uint32_t(ModelKind::kUnigram);
    if (unigram && config.max_token_bytes > limits::kUnigramPieceBytes)
        wrong("its longest piece is too long");
    if (unigram && pieces_.empty()) wrong("its pieces are missing");
    const bool scored = unigram || config.model == uint32_t(ModelKind::kSpm);
    if (scored && n_scores_ != n_tokens) wrong("its scores are missing");
}

void TokenizerFile::check_ids() const {
    const auto is_id = [this](uint32_t id) { return id == kNoId || id < n_tokens; };
    // Without early exits, compilers vectorize these loops.
    uint32_t wrong_slots = 0, wrong_results = 0;
    uint64_t wrong_merges = 0;
    for (size_t i = 0; i < n_slots_; ++i)
        wrong_slots |= (slots_[i] != 0) & ((slots_[i] & 0x1FFFFF) - 1 >= n_tokens);
    for (size_t i = 0; i < n_merge_slots_; ++i)
        wrong_merges |= (merge_slots_[i] != 0) & ((merge_slots_[i] & 0x3FFFFF) - 1 >= n_merges_);
    for (size_t i = 0; i < n_merges_; ++i) wrong_results |= merge_results_[i] >= n_tokens;
    const bool good = is_id(config.unknown_id) && std::all_of(byte_ids_, byte_ids_ + 256, is_id) &&
                      (wrong_slots | wrong_merges | wrong_results) == 0 &&
                      pieces_.is_sound(n_tokens);
    if (!good) wrong("a table points outside of the vocabulary");
    const bool falls_back = (config.flags & kByteFallback) != 0 && (config.flags & kSteps) == 0 &&
                            (config.model == uint32_t(ModelKind::kSpm) ||
                             config.model == uint32_t(ModelKind::kUnigram));
    if (falls_back && std::find(byte_ids_, byte_ids_ + 256, kNoId) != byte_ids_ + 256)
        wrong("byte fallback without all byte tokens");
}

void TokenizerFile::check_texts() const {
    if (!std::is_sorted(offsets_, offsets_ + n_offsets_) ||
        offsets_[n_offsets_ - 1] != bytes_.size())
        wrong("its tokens lie outside of their bytes");
    // All tokens are UTF-8 when their bytes as a whole are, and none begins inside a character.
    const bool whole = (config.flags & kByteLevel) == 0 && unicode::is_utf8(bytes_);
    const auto is_hex = [](char c) { return std::isxdigit(uint8_t(c)) != 0; };
    // True if the token is UTF-8 where decoding expects text, and has six bytes, with hex digits at
    // 3 and 4, where it expects a byte as <0xNN>.
    const auto is_text = [&](uint32_t id) {
        const std::string_view text = token(id);
        const bool bytes = (config.flags & kByteLevel) != 0 && !(flags(id) & kVerbatim);
        const bool cut = whole && !text.empty() && unicode::continues(text[0]);
        return (bytes || (whole ? !cut : unicode::is_utf8(text))) &&
               (!(flags(id) & kByteToken) ||
                (text.size() == 6 && is_hex(text[3]) && is_hex(text[4])));
    };
    for (uint32_t id = 0; id < n_tokens; ++id) {
        if (!is_text(id)) wrong("a token is not what it is said to be");
    }
    const auto is_score = [](double score) {
        return score >= -limits::kScore && score <= limits::kScore;  // not so for NaN
    };
    const bool good = exact_ != nullptr ? std::all_of(exact_, exact_ + n_scores_, is_score)
                                        : std::all_of(scores_, scores_ + n_scores_, is_score);
    if (!good) wrong("a score is NaN or too large");
    if (!unicode::is_utf8(section(Section::kPrefix)) ||
        !unicode::is_utf8(section(Section::kSuffix)) ||
        !unicode::is_utf8(section(Section::kMeta))) {
        wrong("a text is not UTF-8");
    }
}

std::string build_tokenizer(const TokenizerParts& parts) {
    const auto offsets = copy_array<uint32_t>(parts.offsets, "odd offsets");
    const auto merges = copy_array<uint32_t>(parts.merges, "odd merges");
    if (offsets.empty() || parts.flags.size() != offsets.size() - 1 || parts.key.size() != 32 ||
        parts.config.size() != sizeof(Config) || !std::is_sorted(offsets.begin(), offsets.end()) ||
        offsets.back() != parts.bytes.size()) {
        wrong("parts that do not fit together");
    }
    if (offsets.size() - 1 > kMaxTokens || merges.size() / 2 > kMaxMerges) wrong("too large");

    const auto slots = vocabulary_slots(offsets, parts);
    Config config;
    std::memcpy(&config, parts.config.data(), sizeof config);
    config.max_token_bytes = 0;
    for (size_t id = 0; id + 1 < offsets.size(); ++id) {
        if ((uint8_t(parts.flags[id]) & kInModel) == 0) continue;
        config.max_token_bytes = std::max(config.max_token_bytes, offsets[id + 1] - offsets[id]);
    }

    config.flags &= ~uint32_t{kWordsApart};
    const bool unigram = config.model == uint32_t(ModelKind::kUnigram);
    const bool affixed = config.model == uint32_t(ModelKind::kBpe) &&
                         !(parts.prefix.empty() && parts.suffix.empty());
    if (find_parts(offsets, parts, config) && !unigram && !affixed) config.flags |= kWordsApart;
    if (config.max_token_bytes > limits::kTokenBytes) wrong("a token is too long");
    const TrieTables pieces = piece_trie(config, offsets, parts);
    std::string flags(parts.flags);
    // A first file without merges serves to look up the results of merges, a second one without
    // kWhole to find the tokens that get this flag.
    std::vector<uint64_t> merge_slots;
    std::vector<uint32_t> results(merges.size() / 2, 0);
    const auto assemble = [&] {
        const std::string_view sections[kSections] = {
            parts.meta,
            {reinterpret_cast<const char*>(&config), sizeof config},
            parts.offsets,
            parts.bytes,
            flags,
            as_bytes(slots),
            as_bytes(merge_slots),
            as_bytes(results),
            parts.scores,
            parts.byte_ids,
            parts.added,
            parts.steps,
            parts.charsmap,
            parts.prefix,
            parts.suffix,
            as_bytes(pieces.nodes),
            as_bytes(pieces.edges)};
        FileHeader header{};
        std::string out(sizeof header + kSections * sizeof(SectionEntry), '\0');
        for (size_t i = 0; i < kSections; ++i) {
            out.resize((out.size() + 7) / 8 * 8, '\0');
            const SectionEntry entry{out.size(), sections[i].size()};
            std::memcpy(&out[sizeof header + i * sizeof entry], &entry, sizeof entry);
            out.append(sections[i]);
        }
        std::memcpy(header.magic, kMagic, sizeof kMagic);
        header.version = kTokenizerVersion;
        header.sections = kSections;
        header.size = out.size();
        header.checksum = checksum(out.data() + sizeof header, out.size() - sizeof header);
        std::memcpy(header.key, parts.key.data(), sizeof header.key);
        std::memcpy(&out[0], &header, sizeof header);
        return out;
    };
    if (merges.empty()) return assemble();

    const std::string lookup = assemble();
    const TokenizerFile without_merges(lookup.data(), lookup.size());
    merge_slots.assign(table_size(results.size()), 0);
    std::string joined;
    for (size_t rank = 0; rank < results.size(); ++rank) {
        const uint32_t left = merges[2 * rank], right = merges[2 * rank + 1];
        if (left >= without_merges.n_tokens || right >= without_merges.n_tokens)
            wrong("a merge of an unknown token");
        if (without_merges.token(right).size() < parts.prefix.size())
            wrong("a merge of a token without the prefix");
        joined.assign(without_merges.token(left))
            .append(without_merges.token(right).substr(parts.prefix.size()));
        results[rank] = without_merges.find(joined.data(), joined.size());
        if (results[rank] == kNoId) wrong("a merge makes a text that is not a token");
        const uint64_t pair = uint64_t(left) << 21 | right;
        size_t i = hash_pair(left, right) & (merge_slots.size() - 1);
        size_t tried = 1;
        while (merge_slots[i] != 0 && merge_slots[i] >> 22 != pair) {
            i = (i + 1) & (merge_slots.size() - 1);
            if (++tried > limits::kProbe) wrong("too many merges that share a place in a table");
        }
        merge_slots[i] = pair << 22 | (rank + 1);
    }
    if (!(config.flags & kIgnoreMerges)) {
        const std::string merged = assemble();
        const TokenizerFile unmarked(merged.data(), merged.size());
        std::make_unique<Bpe>(unmarked)->mark_whole(flags);
    }
    return assemble();
}

}  // namespace bitnet
