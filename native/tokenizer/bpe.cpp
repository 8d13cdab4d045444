#include <algorithm>
#include <cstring>

#include "tokenizer/models.hpp"
#include "tokenizer/unicode.hpp"

namespace bitnet {
namespace {

// Below this length scanning for the lowest rank beats keeping a heap.
constexpr size_t kFew = 48;
// Long pieces are remembered up to this size together, with their ids.
constexpr size_t kLongBytes = 1 << 20;
// The first size bytes, up to 8, of what word holds.
inline uint64_t first_bytes(uint64_t word, size_t size) {
    return size >= 8 ? word : size == 0 ? 0 : word & ~uint64_t{0} >> (64 - 8 * size);
}

// The first size bytes of [begin, limit), with zeros behind them.
template <size_t kWords>
inline void load(const char* begin, size_t size, const char* limit, uint64_t (&text)[kWords]) {
    if (static_cast<size_t>(limit - begin) < sizeof text) {
        std::memset(text, 0, sizeof text);
        std::memcpy(text, begin, size);
        return;
    }
    std::memcpy(text, begin, sizeof text);
    for (size_t word = 0; word < kWords; ++word) {
        text[word] = first_bytes(text[word], size > 8 * word ? size - 8 * word : 0);
    }
}

template <size_t kWords>
inline uint64_t hash_words(const uint64_t (&text)[kWords], size_t size) {
    uint64_t h = size;
    for (const uint64_t word : text) {
        h = (h ^ word) * 0x9E3779B97F4A7C15ull;
        h ^= h >> 32;
    }
    return h * 0xD6E8FEB86659FD93ull;
}

}  // namespace

template <size_t kWords, size_t kIds, size_t kSets>
auto PieceCache<kWords, kIds, kSets>::set(const char* begin, size_t size, const char* limit, Key& key)
    -> Set* {
    // Untouched entries cost no memory, so a short text does not pay for all of them.
    if (!sets_) sets_.reset(static_cast<Set*>(std::calloc(kSets, sizeof(Set))));
    load(begin, size, limit, key);
    Set* found = sets_ ? &sets_[hash_words(key, size) >> 32 & (kSets - 1)] : nullptr;
#if defined(__GNUC__)
    __builtin_prefetch(found);
    if (sizeof(Set) > 64) __builtin_prefetch(&found->entries[1]);
#endif
    return found;
}

template <size_t kWords, size_t kIds, size_t kSets>
bool PieceCache<kWords, kIds, kSets>::get(const Set& set, const Key& key, size_t size, Ids& out) {
    for (const Entry& entry : set.entries) {
        uint64_t other = entry.size ^ size;
        for (size_t word = 0; word < kWords; ++word) other |= entry.text[word] ^ key[word];
        if (other != 0) continue;
        for (size_t i = 0; i < entry.count; ++i) out.push_back(entry.ids[i]);
        return true;
    }
    return false;
}

template <size_t kWords, size_t kIds, size_t kSets>
void PieceCache<kWords, kIds, kSets>::put(Set& set, const Key& key, size_t size, const Ids& ids) {
    if (ids.size() > kIds) return;
    set.entries[1] = set.entries[0];
    Entry& entry = set.entries[0];
    std::memcpy(entry.text, key, sizeof(Key));
    std::copy(ids.begin(), ids.end(), entry.ids);
    entry.size = static_cast<uint8_t>(size);
    entry.count = static_cast<uint8_t>(ids.size());
}

// Pieces are taken in the order of the text, some at a time: while one is looked at, the cache lines
// of those behind it are on their way.
void Bpe::add(const char* begin, const char* end, const char* limit, Ids& out) {
    if (begin == end) return;
    Pending& one = pending_[n_pending_++];
    one.begin = begin;
    one.size = static_cast<size_t>(end - begin);
    one.few = nullptr;
    one.more = nullptr;
    if (one.size <= sizeof one.short_key) one.few = few_.set(begin, one.size, limit, one.short_key);
    else if (one.size <= sizeof one.long_key) one.more = more_.set(begin, one.size, limit, one.long_key);
    if (n_pending_ == std::size(pending_)) flush(out);
}

void Bpe::flush(Ids& out) {
    for (size_t i = 0; i < n_pending_; ++i) {
        Pending& one = pending_[i];
        if (one.few != nullptr && Few::get(*one.few, one.short_key, one.size, out)) continue;
        if (one.more != nullptr && More::get(*one.more, one.long_key, one.size, out)) continue;
        if (one.few == nullptr && one.more == nullptr) resolve_long({one.begin, one.size});
        else resolve({one.begin, one.size});
        out.insert(out.end(), ids_.begin(), ids_.end());
        if (one.few != nullptr) Few::put(*one.few, one.short_key, one.size, ids_);
        if (one.more != nullptr) More::put(*one.more, one.long_key, one.size, ids_);
    }
    n_pending_ = 0;
}

// As resolve, for pieces that take long to merge: tables, runs, scripts without spaces.
void Bpe::resolve_long(std::string_view piece) {
    if (piece.size() > kLongBytes / 16) return resolve(piece);
    std::string key(piece);
    if (const auto known = long_.find(key); known != long_.end()) {
        ids_ = known->second;
        return;
    }
    resolve(piece);
    long_bytes_ += piece.size() + ids_.size() * sizeof(uint32_t);
    if (long_bytes_ > kLongBytes) {
        long_.clear();
        long_bytes_ = piece.size();
    }
    long_.emplace(std::move(key), ids_);
}

// Fills ids_ with those of the piece.
void Bpe::resolve(std::string_view piece) {
    ids_.clear();
    const uint32_t whole = file_.find(piece.data(), piece.size());
    if (whole != kNoId && (file_.config.flags & kIgnoreMerges || file_.flags(whole) & kWhole)) {
        ids_.push_back(whole);
    } else {
        merge(piece);
    }
}

bool Bpe::merges_whole(uint32_t id) {
    ids_.clear();
    merge(file_.token(id));
    return ids_.size() == 1 && ids_[0] == id;
}

void Bpe::merge(std::string_view piece) {
    start(piece);
    if (ids_.size() < 2) return;
    if (joins_.empty()) joins_.resize(kJoins);
    if (ids_.size() <= kFew) {
        merge_few();
    } else {
        merge_many();
    }
}

void Bpe::trace(std::string_view piece, Ids& out, Spans& spans) {
    const uint32_t whole = file_.find(piece.data(), piece.size());
    if (whole != kNoId && (file_.config.flags & kIgnoreMerges || file_.flags(whole) & kWhole)) {
        out.push_back(whole);
        spans.push_back({0, piece.size()});
        return;
    }
    Spans units;
    ids_.clear();
    start(piece, &units);
    if (ids_.empty()) return;
    if (joins_.empty()) joins_.resize(kJoins);
    merge_many();
    size_t next = 0;
    for (int32_t i = 0; i >= 0; i = symbols_[static_cast<size_t>(i)].next) {
        const Symbol& symbol = symbols_[static_cast<size_t>(i)];
        out.push_back(symbol.id);
        spans.push_back({units[next].begin, units[next + symbol.units - 1].end});
        next += symbol.units;
    }
}

// The token of a character as the model spells it there, or kNoId.
uint32_t Bpe::find_unit(std::string_view piece, size_t at, size_t size) {
    const std::string_view prefix = file_.section(Section::kPrefix), suffix = file_.section(Section::kSuffix);
    const bool begins = at == 0 || prefix.empty(), ends = at + size < piece.size() || suffix.empty();
    if (begins && ends) return file_.find(piece.data() + at, size);
    unit_.assign(begins ? std::string_view() : prefix).append(piece, at, size);
    if (!ends) unit_.append(suffix);
    return file_.find(unit_.data(), unit_.size());
}

// The tokens of single bytes or characters.
void Bpe::start(std::string_view piece, Spans* spans) {
    // As in the library, what has no token takes no place either.
    size_t at = 0;
    const auto add = [&](uint32_t id, size_t begin, size_t end) {
        ids_.push_back(id);
        if (spans != nullptr) spans->push_back({at, at + end - begin});
        at += end - begin;
    };
    const uint32_t flags = file_.config.flags, unknown = file_.config.unknown_id;
    if (flags & kByteLevel) {
        for (size_t i = 0; i < piece.size(); ++i) {
            const uint32_t id = file_.byte_id(static_cast<unsigned char>(piece[i]));
            if (id != kNoId) add(id, i, i + 1);
            else if (unknown != kNoId) add(unknown, i, i + 1);
        }
        return;
    }
    // As in the library, an unknown waits for the next known character: bytes overtake it.
    bool waiting = false;
    Span unknown_at{};
    const auto flush = [&] {
        if (waiting) add(unknown, unknown_at.begin, unknown_at.end);
        waiting = false;
    };
    for (size_t i = 0, n = 0; i < piece.size(); i += n) {
        n = unicode::length(piece, i);
        const uint32_t id = find_unit(piece, i, n);
        if (id != kNoId) {
            flush();
            add(id, i, i + n);
            continue;
        }
        bool bytes = (flags & kByteFallback) != 0;
        for (size_t k = 0; bytes && k < n; ++k) {
            bytes = file_.byte_id(static_cast<unsigned char>(piece[i + k])) != kNoId;
        }
        if (bytes) {
            for (size_t k = 0; k < n; ++k) {
                add(file_.byte_id(static_cast<unsigned char>(piece[i + k])), i + k, i + k + 1);
            }
        } else if (unknown != kNoId) {
            if (!(flags & kFuseUnknown)) flush();
            if (!waiting) unknown_at.begin = i;
            unknown_at.end = i + n;
            waiting = true;
        }
    }
    flush();
}

uint32_t Bpe::join(uint32_t left, uint32_t right, uint32_t* result) {
    const uint64_t pair = (uint64_t{left} << 32 | right) + 1;
    Join& known = joins_[hash_pair(left, right) >> 20 & (kJoins - 1)];
    if (known.pair != pair) {
        known.result = 0;
        known.rank = file_.merge(left, right, &known.result);
        known.pair = pair;
    }
    *result = known.result;
    return known.rank;
}

void Bpe::merge_few() {
    // Rank and result of joining each id with the next one, the rank in the high half.
    uint64_t joins[kFew];
    constexpr uint64_t kNone = ~uint64_t{0};
    uint32_t* const ids = ids_.data();
    size_t last = ids_.size() - 1;
    const auto join = [&](size_t i) {
        uint32_t result = 0;
        const uint64_t rank = this->join(ids[i], ids[i + 1], &result);
        return rank == kNoId ? kNone : rank << 32 | result;
    };
    for (size_t i = 0; i < last; ++i) joins[i] = join(i);
    while (last > 0) {
        size_t best = 0;
        for (size_t i = 1; i < last; ++i) {
            if (joins[i] >> 32 < joins[best] >> 32) best = i;
        }
        if (joins[best] == kNone) break;
        ids[best] = static_cast<uint32_t>(joins[best]);
        std::copy(ids + best + 2, ids + last + 1, ids + best + 1);
        --last;
        if (best < last) {
            std::copy(joins + best + 2, joins + last + 1, joins + best + 1);
            joins[best] = join(best);
        }
        if (best > 0) joins[best - 1] = join(best - 1);
    }
    ids_.resize(last + 1);
}

void Bpe::merge_many() {
    const auto n = static_cast<int32_t>(ids_.size());
    symbols_.resize(ids_.size());
    heap_.clear();
    const auto worse = [](const Candidate& a, const Candidate& b) {
        return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
    };
    const auto at = [&](int32_t i) -> Symbol& { return symbols_[static_cast<size_t>(i)]; };
    const auto consider = [&](int32_t left) {
        uint32_t result = kNoId;
        const uint32_t halves[2] = {at(left).id, at(at(left).next).id};
        const uint32_t rank = join(halves[0], halves[1], &result);
        if (rank == kNoId) return;
        heap_.push_back({rank, left, result, {halves[0], halves[1]}});
        std::push_heap(heap_.begin(), heap_.end(), worse);
    };
    for (int32_t i = 0; i < n; ++i) {
        at(i) = {ids_[static_cast<size_t>(i)], i - 1, i + 1 < n ? i + 1 : -1, 1};
    }
    for (int32_t i = 0; i + 1 < n; ++i) consider(i);
    while (!heap_.empty()) {
        std::pop_heap(heap_.begin(), heap_.end(), worse);
        const Candidate top = heap_.back();
        heap_.pop_back();
        Symbol& left = at(top.left);
        if (left.id == kNoId || left.next < 0) continue;  // merged away
        if (left.id != top.halves[0] || at(left.next).id != top.halves[1]) continue;  // out of date
        Symbol& right = at(left.next);
        left.id = top.result;
        left.units += right.units;
        right.id = kNoId;
        left.next = right.next;
        if (left.next >= 0) {
            at(left.next).previous = top.left;
            consider(top.left);
        }
        if (left.previous >= 0) consider(left.previous);
    }
    ids_.clear();
    for (int32_t i = 0; i >= 0; i = at(i).next) ids_.push_back(at(i).id);
}

}  // namespace bitnet
