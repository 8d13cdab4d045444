
#include "tokenizer/models.hpp"
#include "tokenizer/unicode.hpp"

namespace bitnet {
namespace {

// Long pieces are remembered up to this size together, with their ids.
constexpr size_t kLongBytes = 1 << 20;

bool has_all_bytes(const TokenizerFile& file) {
    if (!(file.config.flags & kByteLevel)) return false;
    for (int byte = 0; byte < 256; ++byte) {
        if (file.byte_id(uint8_t(byte)) == kNoId) return false;
    }
    return true;
}

}  // namespace

Bpe::Bpe(const TokenizerFile& file) : file_(file), spells_bytes_(has_all_bytes(file)) {}

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

// Many pieces together, so that what one needs comes from memory while others are looked at.
void Bpe::resolve_missed() {
    resolved_.clear();
    // To find a token three tables are read, one after the other.
    uint64_t hashes[kMissed];
    uint32_t likely[kMissed];
    const auto each = [this](auto&& step) {
        for (size_t i = 0; i < n_missed_; ++i) step(i);
    };
    each(
        [&](size_t i) { file_.expect(hashes[i] = hash_bytes(missed_[i].begin, missed_[i].size)); });
    each([&](size_t i) { likely[i] = file_.expect_offset(hashes[i]); });
    each([&](size_t i) { file_.expect_token(likely[i]); });
    each([&](size_t i) {
        Missed& piece = missed_[i];
        if (is_known(piece)) return;
        if (const uint32_t whole = find_whole(piece.text(), hashes[i]); whole != kNoId)
            settle(piece, &whole, 1);
        else
            merge(piece);
    });
    merge_lanes();
}

// Whether its ids are remembered: it is long, or was met a moment ago.
bool Bpe::is_known(Missed& piece) {
    uint32_t ids[16];
    const uint32_t* found = ids;
    piece.count = 0;
    if (piece.size <= Words::Key::kBytes) {
        const uint32_t* word = words_.find({piece.begin, piece.size, piece.limit});
        if (word == nullptr) return false;
        piece.count = Words::copy(word, ids);
    }
    if (piece.count == 0 && piece.size <= Phrases::Key::kBytes) {
        const uint32_t* phrase = phrases_.find({piece.begin, piece.size, piece.limit});
        if (phrase == nullptr) return false;
        piece.count = Phrases::copy(phrase, ids);
    }
    if (piece.size > Phrases::Key::kBytes) {
        const auto known =
            piece.size <= kLongBytes / 16 ? long_.find(std::string(piece.text())) : long_.end();
        if (known == long_.end()) return false;
        found = known->second.data();
        piece.count = known->second.size();
    }
    piece.first = resolved_.size();
    resolved_.insert(resolved_.end(), found, found + piece.count);
    return piece.count != 0;
}

template <typename Cache>
bool Bpe::remember(Cache& cache, const Missed& piece, const uint32_t* ids) {
    return piece.size <= Cache::Key::kBytes &&
           cache.put({piece.begin, piece.size, piece.limit}, ids, piece.count);
}

// The ids of a piece were found.
void Bpe::settle(Missed& piece, const uint32_t* ids, size_t count) {
    piece.first = resolved_.size();
    piece.count = count;
    resolved_.insert(resolved_.end(), ids, ids + count);
    if (remember(words_, piece, ids) || remember(phrases_, piece, ids)) return;
    if (piece.size <= Phrases::Key::kBytes || piece.size > kLongBytes / 16) return;
    // Tables, runs, scripts without spaces.
    long_bytes_ += piece.size + count * sizeof(uint32_t);
    if (long_bytes_ > kLongBytes) {
        long_.clear();
        long_bytes_ = piece.size;
    }
    long_.emplace(piece.text(), Ids(ids, ids + count));
}

// The token that a piece is without merging, or kNoId.
uint32_t Bpe::find_whole(std::string_view piece, uint64_t hash) const {
    const uint32_t whole = file_.find(piece.data(), piece.size(), hash);
    return whole != kNoId && (file_.config.flags & kIgnoreMerges || file_.flags(whole) & kWhole)
               ? whole
               : kNoId;
}

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

// Rank of joining the tokens of two bytes.
uint32_t Bpe::rank_of_bytes(unsigned char left, unsigned char right) {
    constexpr size_t kPairs = size_t{1} << 16;
    if (!byte_ranks_)
        byte_ranks_.reset(static_cast<uint32_t*>(std::calloc(kPairs, sizeof(uint32_t))));
    if (!byte_ranks_) return file_.rank(file_.byte_id(left), file_.byte_id(right));
    uint32_t& known = byte_ranks_[size_t{left} << 8 | right];
    if (known == 0)
        known = file_.rank(file_.byte_id(left), file_.byte_id(right)) + 2;  // kNoId becomes 1
    return known - 2;
}

// Merges a piece now, or with others when merge_lanes is called.
void Bpe::merge(Missed& piece) {
    ids_.clear();
    start(piece.text());
    if (ids_.size() < 2) return settle(piece, ids_.data(), ids_.size());
    if (ids_.size() > kFew) {
        merge_many();
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

// In turns, so that what one looks up comes from memory while the others are merged.
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
            if (i != --n_lanes_) std::memcpy(&lane, &lanes_[n_lanes_], sizeof lane);
        }
    }
}

// Finds which of the ids of a lane is joined with the one behind it.
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

void Bpe::join(Lane& lane) {
    const uint8_t at = lane.best, gone = lane.behind[at], before = lane.before[at],
                  behind = lane.behind[gone];
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
    start(piece, &units);
    if (ids_.empty()) return;
    merge_many();
    size_t next = 0;
    for (int32_t i = 0; i >= 0; i = symbols_[size_t(i)].next) {
        const Symbol& symbol = symbols_[size_t(i)];
        out.push_back(symbol.id);
        spans.push_back({units[next].begin, units[next + symbol.units - 1].end});
        next += symbol.units;
    }
}

// The token of a character as the model spells it there, or kNoId.
uint32_t Bpe::find_unit(std::string_view piece, size_t at, size_t size) {
    const std::string_view prefix = file_.section(Section::kPrefix),
                           suffix = file_.section(Section::kSuffix);
    const bool begins = at == 0 || prefix.empty(),
               ends = at + size < piece.size() || suffix.empty();
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
            const uint32_t id = file_.byte_id(uint8_t(piece[i]));
            if (id != kNoId)
                add(id, i, i + 1);
            else if (unknown != kNoId)
                add(unknown, i, i + 1);
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
        for (size_t k = 0; bytes && k < n; ++k)
            bytes = file_.byte_id(uint8_t(piece[i + k])) != kNoId;
        if (bytes) {
            for (size_t k = 0; k < n; ++k)
                add(file_.byte_id(uint8_t(piece[i + k])), i + k, i + k + 1);
        } else if (unknown != kNoId) {
            if (!(flags & kFuseUnknown)) flush();
            if (!waiting) unknown_at.begin = i;
            unknown_at.end = i + n;
            waiting = true;
        }
    }
    flush();
}

void Bpe::merge_many() {
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
