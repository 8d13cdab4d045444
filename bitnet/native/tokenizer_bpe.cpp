#include <algorithm>

#include "tokenizer_models.hpp"
#include "unicode.hpp"

namespace bitnet {
namespace {

// Below this length scanning for the lowest rank beats keeping a heap.
constexpr size_t kFew = 48;
constexpr size_t kCacheEntries = 1 << 14;

}  // namespace

void Bpe::encode(std::string_view piece, Ids& out) {
    if (piece.empty()) return;
    Cached* entry = nullptr;
    if (piece.size() <= sizeof Cached::text) {
        if (cache_.empty()) cache_.resize(kCacheEntries);
        entry = &cache_[hash_bytes(piece.data(), piece.size()) >> 40 & (kCacheEntries - 1)];
        if (std::string_view(entry->text, entry->size) == piece) {
            out.insert(out.end(), entry->ids, entry->ids + entry->count);
            return;
        }
    }
    ids_.clear();
    uint32_t whole = kNoId;
    if (file_.config.flags & kIgnoreMerges) whole = file_.find(piece.data(), piece.size());
    if (whole != kNoId) {
        ids_.push_back(whole);
    } else {
        merge(piece);
    }
    out.insert(out.end(), ids_.begin(), ids_.end());
    if (entry != nullptr && ids_.size() <= std::size(entry->ids)) {
        std::copy(piece.begin(), piece.end(), entry->text);
        std::copy(ids_.begin(), ids_.end(), entry->ids);
        entry->size = static_cast<uint8_t>(piece.size());
        entry->count = static_cast<uint8_t>(ids_.size());
    }
}

void Bpe::merge(std::string_view piece) {
    start(piece);
    if (ids_.size() < 2) return;
    if (ids_.size() <= kFew) {
        merge_few();
    } else {
        merge_many();
    }
}

// The tokens of single bytes or characters.
void Bpe::start(std::string_view piece) {
    const uint32_t flags = file_.config.flags, unknown = file_.config.unknown_id;
    if (flags & kByteLevel) {
        for (const char c : piece) {
            const uint32_t id = file_.byte_id(static_cast<unsigned char>(c));
            if (id != kNoId) ids_.push_back(id);
            else if (unknown != kNoId) ids_.push_back(unknown);
        }
        return;
    }
    bool after_unknown = false;
    for (size_t i = 0, n = 0; i < piece.size(); i += n) {
        n = unicode::length(piece[i]);
        const uint32_t id = file_.find(piece.data() + i, n);
        if (id != kNoId) {
            ids_.push_back(id);
            after_unknown = false;
            continue;
        }
        bool bytes = (flags & kByteFallback) != 0;
        for (size_t k = 0; bytes && k < n; ++k) {
            bytes = file_.byte_id(static_cast<unsigned char>(piece[i + k])) != kNoId;
        }
        if (bytes) {
            for (size_t k = 0; k < n; ++k) {
                ids_.push_back(file_.byte_id(static_cast<unsigned char>(piece[i + k])));
            }
            after_unknown = false;
        } else if (unknown != kNoId) {
            if (!after_unknown || !(flags & kFuseUnknown)) ids_.push_back(unknown);
            after_unknown = true;
        }
    }
}

void Bpe::merge_few() {
    const size_t n = ids_.size();
    ranks_.assign(n, kNoId);
    results_.resize(n);
    for (size_t i = 0; i + 1 < n; ++i) ranks_[i] = file_.merge(ids_[i], ids_[i + 1], &results_[i]);
    size_t count = n;
    while (count > 1) {
        const auto best = std::min_element(ranks_.begin(), ranks_.begin() + static_cast<long>(count) - 1);
        if (*best == kNoId) break;
        const size_t i = static_cast<size_t>(best - ranks_.begin());
        ids_[i] = results_[i];
        const auto erase = [&](std::vector<uint32_t>& values, size_t at) {
            std::copy(values.begin() + static_cast<long>(at) + 1,
                      values.begin() + static_cast<long>(count), values.begin() + static_cast<long>(at));
        };
        erase(ids_, i + 1);
        erase(ranks_, i + 1);
        erase(results_, i + 1);
        --count;
        ranks_[i] = i + 1 < count ? file_.merge(ids_[i], ids_[i + 1], &results_[i]) : kNoId;
        if (i > 0) ranks_[i - 1] = file_.merge(ids_[i - 1], ids_[i], &results_[i - 1]);
    }
    ids_.resize(count);
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
        const uint32_t rank = file_.merge(at(left).id, at(at(left).next).id, &result);
        if (rank == kNoId) return;
        heap_.push_back({rank, left, result});
        std::push_heap(heap_.begin(), heap_.end(), worse);
    };
    for (int32_t i = 0; i < n; ++i) at(i) = {ids_[static_cast<size_t>(i)], i - 1, i + 1 < n ? i + 1 : -1};
    for (int32_t i = 0; i + 1 < n; ++i) consider(i);
    while (!heap_.empty()) {
        std::pop_heap(heap_.begin(), heap_.end(), worse);
        const Candidate top = heap_.back();
        heap_.pop_back();
        Symbol& left = at(top.left);
        if (left.id == kNoId || left.next < 0) continue;  // merged away
        uint32_t result = kNoId;
        if (file_.merge(left.id, at(left.next).id, &result) != top.rank) continue;  // out of date
        Symbol& right = at(left.next);
        left.id = top.result;
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
