// BPE: merges pairs of tokens by rank, lowest and leftmost first (models.hpp).
//
// Pieces whose ids are not in the cache of words wait in missed_ and are resolved many together:
// the tables are larger than the processor's caches, so what one piece needs is prefetched while
// others are merged. Short ones are merged in lanes_, one step of each in turn; long ones with a
// heap.
#include "tokenizer/models.hpp"
#include "tokenizer/unicode.hpp"

namespace bitnet {
namespace {

constexpr size_t kLongBytes = 1 << 20;  // of all long pieces in the cache, with their ids
constexpr size_t kLongestPiece = kLongBytes / 16;  // bytes; longer ones are not cached

bool has_all_bytes(const TokenizerFile& file) {
    if (!(file.config.flags & kByteLevel)) return false;
    for (int byte = 0; byte < 256; ++byte) {
        if (file.byte_id(uint8_t(byte)) == kNoId) return false;
    }
    return true;
}

}  // namespace

Bpe::Bpe(const TokenizerFile& file) : file_(file), spells_bytes_(has_all_bytes(file)) {}

// Appends the ids of all pieces to *out*: the staged ones, and among them those of each missed
// piece at its place.
void Bpe::flush(Ids& out) {
    if (n_missed_ != 0) resolve_missed();
    size_t done = 0;
    for (size_t i = 0; i < n_missed_; ++i) {
        const Missed& piece = missed_[i];
        out.insert(out.end(), staged_ + done, staged_ + piece.at);
        const auto first = resolved_.begin() + ptrdiff_t(piece.first);
        out.insert(out.end(), first, first + ptrdiff_t(piece.count));
        done = piece.at;
    }
    out.insert(out.end(), staged_ + done, staged_ + n_staged_);
    n_staged_ = n_missed_ = 0;
}

// Fills resolved_ with the ids of all missed pieces.
void Bpe::resolve_missed() {
    resolved_.clear();
    // To find a token three tables are read, one after the other: each is prefetched for all
    // pieces.
    uint64_t hashes[kMissed];
    uint32_t likely_ids[kMissed];
    const auto each = [this](auto&& step) {
        for (size_t i = 0; i < n_missed_; ++i) step(i);
    };
    each([&](size_t i) {
        hashes[i] = hash_bytes(missed_[i].begin, missed_[i].size);
        file_.expect(hashes[i]);
    });
    each([&](size_t i) { likely_ids[i] = file_.expect_offset(hashes[i]); });
    each([&](size_t i) { file_.expect_token(likely_ids[i]); });
    each([&](size_t i) {
        Missed& piece = missed_[i];
        if (recall(piece)) return;
        if (const uint32_t whole = find_whole(piece.text(), hashes[i]); whole != kNoId)
            settle(piece, &whole, 1);
        else
            merge(piece);
    });
    merge_lanes();
}

// Resolves *piece* from the caches; false if none has it. add() did not find it in words_, but an
// earlier piece of this batch may have put it there. A piece with too many ids for words_ is there
// without ids, and phrases_ may have them.
bool Bpe::recall(Missed& piece) {
    uint32_t copied[Phrases::kMost];
    const uint32_t* ids = copied;
    piece.count = 0;
    if (piece.size <= Words::Key::kBytes) {
        const uint32_t* word = words_.find({piece.begin, piece.size, piece.readable_end});
        if (word == nullptr) return false;
        piece.count = Words::copy(word, copied);
    }
    if (piece.count == 0 && piece.size <= Phrases::Key::kBytes) {
        const uint32_t* phrase = phrases_.find({piece.begin, piece.size, piece.readable_end});
        if (phrase == nullptr) return false;
        piece.count = Phrases::copy(phrase, copied);
    }
    if (piece.size > Phrases::Key::kBytes) {
        if (piece.size > kLongestPiece) return false;
        const auto entry = long_.find(std::string(piece.text()));
        if (entry == long_.end()) return false;
        ids = entry->second.data();
        piece.count = entry->second.size();
    }
    piece.first = resolved_.size();
    resolved_.insert(resolved_.end(), ids, ids + piece.count);
    return piece.count != 0;
}

// False if the piece is too long for *cache*, or has too many ids or none.
template <typename Cache>
bool Bpe::remember(Cache& cache, const Missed& piece, const uint32_t* ids) {
    return piece.size <= Cache::Key::kBytes &&
           cache.put({piece.begin, piece.size, piece.readable_end}, ids, piece.count);
}

// Appends the *ids* of a piece to resolved_, and caches them.
void Bpe::settle(Missed& piece, const uint32_t* ids, size_t count) {
    piece.first = resolved_.size();
    piece.count = count;
    resolved_.insert(resolved_.end(), ids, ids + count);
    if (remember(words_, piece, ids) || remember(phrases_, piece, ids)) return;
    if (piece.size <= Phrases::Key::kBytes || piece.size > kLongestPiece) return;
    // Long pieces are lines of tables, runs of one character, and text without spaces.
    const size_t bytes = piece.size + count * sizeof(uint32_t);
    if (long_bytes_ + bytes > kLongBytes) {
        long_.clear();
        long_bytes_ = 0;
    }
    long_bytes_ += bytes;
    long_.emplace(piece.text(), Ids(ids, ids + count));
}

// The token of a whole piece; kNoId if there is none, or if merging the piece may give other ids.
uint32_t Bpe::find_whole(std::string_view piece, uint64_t hash) const {
    const uint32_t id = file_.find(piece.data(), piece.size(), hash);
    if (id == kNoId) return kNoId;
    const bool counts = file_.config.flags & kIgnoreMerges || file_.flags(id) & kWhole;
    return counts ? id : kNoId;
}

// Merges the spellings of all tokens, kMissed of them at a time.
void Bpe::mark_whole(std::string& flags) {
    uint32_t ids[kMissed];
    const auto mark = [&] {
        merge_lanes();
        for (size_t i = 0; i < n_missed_; ++i) {
            const bool whole = missed_[i].count == 1 && resolved_[missed_[i].first] == ids[i];
            if (whole) flags[ids[i]] = char(flags[ids[i]] | kWhole);
        }
        resolved_.clear();
        n_missed_ = 0;
    };
    for (uint32_t id = 0; id < file_.n_tokens; ++id) {
        const std::string_view text = file_.token(id);
        if (!(file_.flags(id) & kInModel)) continue;
        ids[n_missed_] = id;
        Missed& piece = missed_[n_missed_++];
        piece = {text.data(), text.size(), text.data() + text.size(), 0, 0, 0};
        merge(piece);
        if (n_missed_ == kMissed) mark();
    }
    mark();
}

// Rank of joining the tokens of two bytes, from a table that is filled in as pairs occur. Its
// entries are ranks plus 2: kNoId becomes 1, and 0 is a pair that has not been looked up.
uint32_t Bpe::rank_of_bytes(unsigned char left, unsigned char right) {
    constexpr size_t kPairs = size_t{1} << 16;
    if (!byte_ranks_)
        byte_ranks_.reset(static_cast<uint32_t*>(std::calloc(kPairs, sizeof(uint32_t))));
    if (!byte_ranks_) return file_.rank(file_.byte_id(left), file_.byte_id(right));
    uint32_t& entry = byte_ranks_[size_t{left} << 8 | right];
    if (entry == 0) entry = file_.rank(file_.byte_id(left), file_.byte_id(right)) + 2;
    return entry - 2;
}

// Merges a long piece at once. A short one gets a lane, and is merged with others by merge_lanes.
void Bpe::merge(Missed& piece) {
    ids_.clear();
    split_units(piece.text());
    if (ids_.size() < 2) return settle(piece, ids_.data(), ids_.size());
    if (ids_.size() > kFew) {
        merge_by_heap();
        return settle(piece, ids_.data(), ids_.size());
    }
    if (n_lanes_ == kLanes) merge_lanes();
    Lane& lane = lanes_[n_lanes_++];
    const size_t n = ids_.size();
    lane.piece = &piece;
    lane.end = uint8_t(n + 1);
    lane.changed = false;
    for (size_t i = 1; i <= n; ++i) {
        lane.ids[i] = ids_[i - 1];
        lane.before[i] = uint8_t(i - 1);
        lane.behind[i] = uint8_t(i + 1);
    }
    lane.ranks[n] = kNoId;
    const auto byte = [&](size_t i) { return uint8_t(piece.begin[i]); };
    for (size_t i = 1; i < n; ++i)
        lane.ranks[i] =
            spells_bytes_ ? rank_of_bytes(byte(i - 1), byte(i)) : file_.rank(ids_[i - 1], ids_[i]);
}

// Merges the pieces of all lanes, a step of each in turn, so that what one looks up comes from
// memory while the others are merged.
void Bpe::merge_lanes() {
    uint32_t ids[kFew];
    while (n_lanes_ > 0) {
        for (size_t i = 0; i < n_lanes_; ++i) choose(lanes_[i]);
        for (size_t i = n_lanes_; i-- > 0;) {
            Lane& lane = lanes_[i];
            if (lane.ranks[lane.best] != kNoId) {
                join(lane);
                continue;
            }
            size_t count = 0;
            for (uint8_t at = 1; at != lane.end; at = lane.behind[at]) ids[count++] = lane.ids[at];
            settle(*lane.piece, ids, count);
            // The last lane takes the place of this one.
            if (i != --n_lanes_) std::memcpy(&lane, &lanes_[n_lanes_], sizeof lane);
        }
    }
}

// Sets lane.best, the pair of ids that is joined next, and prefetches its result.
void Bpe::choose(Lane& lane) {
    if (lane.changed) {
        const uint8_t at = lane.best, before = lane.before[at], behind = lane.behind[at];
        if (before != 0) lane.ranks[before] = file_.rank(lane.ids[before], lane.ids[at]);
        lane.ranks[at] = behind != lane.end ? file_.rank(lane.ids[at], lane.ids[behind]) : kNoId;
    }
    unsigned best = 1;
    uint32_t lowest = lane.ranks[1];
    for (unsigned i = 2; i < lane.end; ++i) {
        const uint32_t rank = lane.ranks[i];
        best = rank < lowest ? i : best;
        lowest = std::min(rank, lowest);
    }
    lane.best = uint8_t(best);
    file_.expect_merged(lowest);
}

// Joins the pair at lane.best, and prefetches the ranks of the pairs on both sides of it.
void Bpe::join(Lane& lane) {
    const uint8_t at = lane.best, gone = lane.behind[at];
    const uint8_t before = lane.before[at], behind = lane.behind[gone];
    lane.ids[at] = file_.merged(lane.ranks[at]);
    lane.ranks[gone] = kNoId;
    lane.behind[at] = behind;
    lane.before[behind] = at;
    lane.changed = true;
    if (before != 0) file_.expect(lane.ids[before], lane.ids[at]);
    if (behind != lane.end) file_.expect(lane.ids[at], lane.ids[behind]);
}

void Bpe::trace(std::string_view piece, Ids& out, Spans& spans) {
    if (const uint32_t whole = find_whole(piece, hash_bytes(piece.data(), piece.size()));
        whole != kNoId) {
        out.push_back(whole);
        spans.push_back({0, piece.size()});
        return;
    }
    Spans units;
    ids_.clear();
    split_units(piece, &units);
    if (ids_.empty()) return;
    merge_by_heap();
    size_t next = 0;
    for (int32_t i = 0; i >= 0; i = symbols_[size_t(i)].next) {
        const Symbol& symbol = symbols_[size_t(i)];
        out.push_back(symbol.id);
        spans.push_back({units[next].begin, units[next + symbol.units - 1].end});
        next += symbol.units;
    }
}

// The token of the character of *size* bytes at piece[at], or kNoId. Models may spell characters
// with a prefix, all but the first of a piece, and the last one with a suffix.
uint32_t Bpe::find_unit(std::string_view piece, size_t at, size_t size) {
    const std::string_view prefix = file_.section(Section::kPrefix);
    const std::string_view suffix = file_.section(Section::kSuffix);
    const bool has_prefix = at != 0 && !prefix.empty();
    const bool has_suffix = at + size >= piece.size() && !suffix.empty();
    if (!has_prefix && !has_suffix) return file_.find(piece.data() + at, size);
    unit_.assign(has_prefix ? prefix : std::string_view()).append(piece, at, size);
    if (has_suffix) unit_.append(suffix);
    return file_.find(unit_.data(), unit_.size());
}

// Appends the tokens of the piece's bytes or characters to ids_, and the bytes that each stands for
// to *spans*, unless that is null.
void Bpe::split_units(std::string_view piece, Spans* spans) {
    // As in the tokenizers library, bytes without a token are not counted in spans.
    size_t at = 0;
    const auto add = [&](uint32_t id, size_t length) {
        ids_.push_back(id);
        if (spans != nullptr) spans->push_back({at, at + length});
        at += length;
    };
    const uint32_t flags = file_.config.flags, unknown = file_.config.unknown_id;
    if (flags & kByteLevel) {
        for (size_t i = 0; i < piece.size(); ++i) {
            const uint32_t id = file_.byte_id(uint8_t(piece[i]));
            if (id != kNoId)
                add(id, 1);
            else if (unknown != kNoId)
                add(unknown, 1);
        }
        return;
    }
    // As in the library, an unknown token is added only before the next character with a token:
    // characters between them that fall back to bytes come first, and are not counted in it.
    size_t waiting = 0;  // bytes of the unknown token, 0 if there is none
    const auto flush = [&] {
        if (waiting != 0) add(unknown, waiting);
        waiting = 0;
    };
    for (size_t i = 0, n = 0; i < piece.size(); i += n) {
        n = unicode::length(piece, i);
        const uint32_t id = find_unit(piece, i, n);
        if (id != kNoId) {
            flush();
            add(id, n);
            continue;
        }
        bool falls_back = (flags & kByteFallback) != 0;
        for (size_t k = 0; falls_back && k < n; ++k)
            falls_back = file_.byte_id(uint8_t(piece[i + k])) != kNoId;
        if (falls_back) {
            for (size_t k = 0; k < n; ++k) add(file_.byte_id(uint8_t(piece[i + k])), 1);
        } else if (unknown != kNoId) {
            if (!(flags & kFuseUnknown)) flush();
            waiting += n;
        }
    }
    flush();
}

// Merges ids_ in place, with a heap of candidates; symbols_ keeps the tokens as a linked list.
void Bpe::merge_by_heap() {
    const auto n = int32_t(ids_.size());
    symbols_.resize(ids_.size());
    heap_.clear();
    const auto worse = [](const Candidate& a, const Candidate& b) {
        return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
    };
    const auto at = [&](int32_t i) -> Symbol& { return symbols_[size_t(i)]; };
    const auto consider = [&](int32_t left) {
        const uint32_t halves[2] = {at(left).id, at(at(left).next).id};
        const uint32_t rank = file_.rank(halves[0], halves[1]);
        if (rank == kNoId) return;
        heap_.push_back({rank, left, {halves[0], halves[1]}});
        std::push_heap(heap_.begin(), heap_.end(), worse);
    };
    for (int32_t i = 0; i < n; ++i) at(i) = {ids_[size_t(i)], i - 1, i + 1 < n ? i + 1 : -1, 1};
    for (int32_t i = 0; i + 1 < n; ++i) consider(i);
    while (!heap_.empty()) {
        std::pop_heap(heap_.begin(), heap_.end(), worse);
        const Candidate top = heap_.back();
        heap_.pop_back();
        Symbol& left = at(top.left);
        if (left.id == kNoId || left.next < 0) continue;                              // merged away
        if (left.id != top.halves[0] || at(left.next).id != top.halves[1]) continue;  // out of date
        Symbol& right = at(left.next);
        left.id = file_.merged(top.rank);
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
