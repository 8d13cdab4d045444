#include "tokenizer_file.hpp"

#include <algorithm>
#include <stdexcept>

#include "tokenizer_models.hpp"

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

size_t table_size(size_t entries) {
    size_t size = 16;
    while (size < entries + entries / 2) size *= 2;
    return size;
}

std::vector<uint32_t> vocabulary_slots(const std::vector<uint32_t>& offsets,
                                       const TokenizerParts& parts) {
    const size_t n = offsets.size() - 1;
    std::vector<uint32_t> slots(table_size(n), 0);
    const auto spelling = [&](uint32_t id) {
        return parts.bytes.substr(offsets[id], offsets[id + 1] - offsets[id]);
    };
    for (uint32_t id = 0; id < n; ++id) {
        if ((static_cast<uint8_t>(parts.flags[id]) & kInModel) == 0) continue;
        const std::string_view text = spelling(id);
        const uint64_t h = hash_bytes(text.data(), text.size());
        const auto tag = static_cast<uint32_t>(h >> 53);
        size_t i = h & (slots.size() - 1);
        while (slots[i] != 0 && spelling((slots[i] & 0x1FFFFF) - 1) != text) {
            i = (i + 1) & (slots.size() - 1);
        }
        slots[i] = tag << 21 | (id + 1);  // of equal spellings the last one counts
    }
    return slots;
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
    if (header.version != kTokenizerVersion || header.sections != kSections) {
        wrong("written by another version");
    }
    if (header.size != size) wrong("truncated or extended");
    if (header.checksum != checksum(data + sizeof header, size - sizeof header)) {
        wrong("damaged (its checksum differs)");
    }
    for (size_t i = 0; i < kSections; ++i) {
        SectionEntry entry;
        std::memcpy(&entry, data + sizeof header + i * sizeof entry, sizeof entry);
        if (entry.offset % 8 != 0 || entry.offset < table_end || entry.offset > size ||
            entry.size > size - entry.offset) {
            wrong("a section lies outside of it");
        }
        sections_[i] = {data + entry.offset, static_cast<size_t>(entry.size)};
    }
    if (section(Section::kConfig).size() != sizeof config) wrong("its configuration has a wrong size");
    std::memcpy(&config, section(Section::kConfig).data(), sizeof config);
    size_t n_offsets = 0, n_flags = 0, n_bytes = 0;
    offsets_ = table<uint32_t>(Section::kOffsets, &n_offsets);
    flags_ = table<uint8_t>(Section::kFlags, &n_flags);
    slots_ = table<uint32_t>(Section::kSlots, &n_slots_);
    merge_slots_ = table<uint64_t>(Section::kMergeSlots, &n_merge_slots_);
    merge_results_ = table<uint32_t>(Section::kMergeResults, &n_merges_);
    scores_ = table<float>(Section::kScores, &n_scores_);
    byte_ids_ = table<uint32_t>(Section::kByteIds, &n_bytes);
    bytes_ = section(Section::kBytes);
    const bool fits = n_offsets >= 1 && n_flags == n_offsets - 1 && n_flags <= kMaxTokens &&
                      n_bytes == 256 && is_power_of_two(n_slots_) &&
                      (n_merge_slots_ == 0 || is_power_of_two(n_merge_slots_)) &&
                      config.model <= static_cast<uint32_t>(ModelKind::kWordPiece);
    if (!fits) wrong("its tables have wrong sizes");
    n_tokens = static_cast<uint32_t>(n_flags);
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
        config.max_token_bytes = std::max(config.max_token_bytes, offsets[id + 1] - offsets[id]);
    }

    std::string flags(parts.flags);
    // Only to look up what the merges make; the real file follows.
    std::vector<uint64_t> merge_slots;
    std::vector<uint32_t> results(merges.size() / 2, kNoId);
    const auto assemble = [&] {
        const std::string_view sections[kSections] = {
            parts.meta, {reinterpret_cast<const char*>(&config), sizeof config}, parts.offsets,
            parts.bytes, flags, as_bytes(slots), as_bytes(merge_slots), as_bytes(results),
            parts.scores, parts.byte_ids, parts.added, parts.steps, parts.charsmap, parts.prefix};
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
    const TokenizerFile file(lookup.data(), lookup.size());
    merge_slots.assign(table_size(results.size()), 0);
    std::string joined;
    for (size_t rank = 0; rank < results.size(); ++rank) {
        const uint32_t left = merges[2 * rank], right = merges[2 * rank + 1];
        if (left >= file.n_tokens || right >= file.n_tokens) wrong("a merge of an unknown token");
        joined.assign(file.token(left)).append(file.token(right));
        results[rank] = file.find(joined.data(), joined.size());
        if (results[rank] == kNoId) wrong("a merge makes a text that is no token");
        const uint64_t pair = static_cast<uint64_t>(left) << 21 | right;
        size_t i = hash_pair(left, right) & (merge_slots.size() - 1);
        while (merge_slots[i] != 0 && merge_slots[i] >> 22 != pair) {
            i = (i + 1) & (merge_slots.size() - 1);
        }
        merge_slots[i] = pair << 22 | (rank + 1);
    }
    if (!(config.flags & kIgnoreMerges)) {
        const std::string merged = assemble();
        const TokenizerFile known(merged.data(), merged.size());
        Bpe bpe(known);
        for (uint32_t id = 0; id < known.n_tokens; ++id) {
            const bool whole = (known.flags(id) & kInModel) && bpe.merges_whole(id);
            if (whole) flags[id] = static_cast<char>(flags[id] | kWhole);
        }
    }
    return assemble();
}

}  // namespace bitnet
