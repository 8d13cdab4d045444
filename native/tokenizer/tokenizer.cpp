#include "tokenizer/tokenizer.hpp"

#include <system_error>

#include "tokenizer/unicode.hpp"

namespace bitnet {
namespace {

constexpr size_t kIdleWorkers = 4;                 // workers that are kept for later calls
constexpr size_t kPiecesBytes = size_t{64} << 10;  // bytes of text that a relay sends at once

template <typename Wanted>
AddedMatcher matcher(const std::vector<AddedToken>& tokens, Wanted wanted) {
    std::vector<AddedToken> chosen;
    std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(chosen), wanted);
    return AddedMatcher(std::move(chosen));
}

// Moves the spans from first on, which are in a part of a text that begins at `by`, to their places
// in that text, or in the text that origin says it was made from.
void locate(Spans* spans, size_t first, size_t by, const Origin& origin = {}) {
    for (size_t i = first; spans != nullptr && i < spans->size(); ++i)
        (*spans)[i] = source_of(origin, {(*spans)[i].begin + by, (*spans)[i].end + by});
}

}  // namespace

void Relay::add_piece(std::string_view piece, uint32_t kind) {
    if (piece.size() >= Pieces::kIsUncut) throw OverBudget("a piece of 1 GiB or more");
    pieces_.text.append(piece);
    pieces_.items.push_back(uint32_t(piece.size()) | kind);
    if (pieces_.text.size() >= kPiecesBytes) flush();
}

void Relay::add_id(uint32_t id) { pieces_.items.push_back(Pieces::kIsId | id); }

void Relay::flush() {
    pieces_.budget = budget;
    send(std::exchange(pieces_, {}));
}

TokenizerEngine::TokenizerEngine(const char* data, size_t size)
    : file_(data, size), charsmap_(file_.section(Section::kCharsmap)) {
    for (TokenizerStep& step : read_steps(file_.section(Section::kSteps))) {
        auto& list = step.kind < StepKind::kSplitRegex ? normalizer_ : pre_;
        list.push_back(std::move(step));
    }
    const std::vector<AddedToken> added =
        read_added(file_.section(Section::kAdded), file_.n_tokens);
    const auto is = [](uint32_t flag) {
        return [flag](const AddedToken& t) { return (t.flags & flag) != 0; };
    };
    const auto normalized = is(AddedToken::kNormalized), special = is(AddedToken::kSpecial);
    raw_ = matcher(added, [&](const AddedToken& t) { return !normalized(t); });
    // If special tokens are not parsed, SentencePiece finds other tokens in their texts.
    if (is_sentencepiece()) {
        raw_ordinary_ =
            matcher(added, [&](const AddedToken& t) { return !normalized(t) && !special(t); });
    }
    normalized_ = matcher(added, normalized);
    if (model() == ModelKind::kSpm) untouched_ = matcher(added, normalized);
    if (model() == ModelKind::kUnigram) {
        lowest_score_ = lowest_score(file_);
        std::vector<AddedToken> user;
        for (uint32_t id = 0; id < file_.n_tokens; ++id) {
            if (!(file_.flags(id) & kUserDefined)) continue;
            if (!unicode::is_utf8(file_.token(id)) ||
                file_.token(id).size() > limits::kAddedTokenBytes)
                throw std::invalid_argument(
                    "compiled tokenizer: a user-defined piece is not UTF-8, or is too long");
            user.push_back({id, 0, std::string(file_.token(id))});
        }
        untouched_ = AddedMatcher(std::move(user));
    }
    const auto spells = [](const TokenizerStep& step) { return step.kind == StepKind::kSpell; };
    if (Normalizer(normalizer_, charsmap_).inserts() &&
        std::any_of(pre_.begin(), pre_.end(), spells))
        throw std::invalid_argument(
            "a pre-tokenizer that spells bytes, behind a normalizer whose expression matches the "
            "empty text, is not supported");
    // A worker compiles the patterns: one that cannot be run throws here, not in encode().
    idle_.push_back(std::make_unique<Worker>(*this));
}

std::unique_ptr<TokenizerEngine::Worker> TokenizerEngine::borrow() {
    {
        // Never waits: in a forked child, a thread that does not exist there may hold the lock.
        const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
        if (lock.owns_lock() && !idle_.empty()) {
            auto worker = std::move(idle_.back());
            idle_.pop_back();
            return worker;
        }
    }
    return std::make_unique<Worker>(*this);
}

void TokenizerEngine::give_back(std::unique_ptr<Worker> worker) {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (lock.owns_lock() && idle_.size() < kIdleWorkers) idle_.push_back(std::move(worker));
}

void TokenizerEngine::encode(std::string_view text, bool parse_special, Ids& out, Spans* spans) {
    if (spans == nullptr) return Turn(*this).encode(text, parse_special, out);
    auto worker = borrow();
    encode_text(*worker, text, parse_special, out, spans);
    give_back(std::move(worker));
}

void TokenizerEngine::cut(std::string_view text, bool parse_special, Relay& relay) {
    auto worker = borrow();
    worker->relay = &relay;
    Ids none;
    encode_text(*worker, text, parse_special, none, nullptr);
    worker->relay = nullptr;
    worker->budget.give_back();
    give_back(std::move(worker));
}

void TokenizerEngine::Turn::encode(std::string_view text, bool parse_special, Ids& out) {
    // A worker that threw is not used again.
    auto worker = worker_ ? std::move(worker_) : engine_.borrow();
    engine_.encode_text(*worker, text, parse_special, out, nullptr);
    worker_ = std::move(worker);
}

void TokenizerEngine::Turn::encode(const Pieces& pieces, bool, Ids& out) {
    auto worker = worker_ ? std::move(worker_) : engine_.borrow();
    worker->budget = pieces.budget;
    const char* at = pieces.text.data();
    const char* const end = at + pieces.text.size();
    for (const uint32_t item : pieces.items) {
        if (item & Pieces::kIsId) {
            worker->bpe.flush(out);
            out.push_back(item & ~Pieces::kIsId);
            continue;
        }
        const uint32_t size = item & ~Pieces::kIsUncut;
        if (item & Pieces::kIsUncut)
            engine_.encode_uniform(*worker, {at, size}, out);
        else
            engine_.add_piece(*worker, at, at + size, end, out);
        at += size;
    }
    worker->bpe.flush(out);
    worker->budget.give_back();
    worker_ = std::move(worker);
}

// Encodes the next piece of a text that is readable up to readable_end. A BPE may append its ids to
// out only in a later flush.
void TokenizerEngine::add_piece(Worker& worker, const char* begin, const char* end,
                                const char* readable_end, Ids& out) {
    const std::string_view piece(begin, size_t(end - begin));
    if (worker.relay != nullptr)
        worker.relay->add_piece(piece);
    else if (model() == ModelKind::kBpe)
        worker.bpe.add(begin, end, readable_end, out);
    else if (model() == ModelKind::kSpm && has_parts())
        worker.spm.add(begin, end, readable_end, worker.budget, out);
    else
        encode_model(worker, piece, out, nullptr);
}

// Adds the id of an added token, which is at `where`.
void TokenizerEngine::add_id(Worker& worker, uint32_t id, Span where, Ids& out, Spans* spans) {
    if (worker.relay != nullptr) return worker.relay->add_id(id);
    out.push_back(id);
    if (spans != nullptr) spans->push_back(where);
}

void TokenizerEngine::encode_text(Worker& worker, std::string_view text, bool parse_special,
                                  Ids& out, Spans* spans) {
    worker.budget = worker.relay != nullptr ? worker.relay->budget : Budget(text.size());
    if (takes_words(worker, spans)) out.reserve(out.size() + text.size() / 4);
    (parse_special || !is_sentencepiece() ? raw_ : raw_ordinary_)
        .split(
            text, parse_special,
            [&](size_t begin, size_t end) {
                const size_t first = spans != nullptr ? spans->size() : 0;
                encode_stretch(worker, text.substr(begin, end - begin), {begin == 0, parse_special},
                               out, spans);
                locate(spans, first, begin);
            },
            [&](uint32_t id, size_t begin, size_t end) {
                add_id(worker, id, {begin, end}, out, spans);
            });
}

// Encodes a stretch between tokens found in raw text. The spans are in bytes of the stretch.
void TokenizerEngine::encode_stretch(Worker& worker, std::string_view text, Place place, Ids& out,
                                     Spans* spans) {
    Normalized stretch;
    stretch.traced = spans != nullptr || worker.asks_for_first;
    std::string_view normalized = text;
    const size_t known = spans != nullptr ? spans->size() : 0;
    if (is_sentencepiece()) {
        stretch.text = normalize_sentencepiece(file_, charsmap_, untouched_, text,
                                               spans != nullptr ? &stretch.origin : nullptr);
        normalized = stretch.text;
    } else if (!worker.normalizer.empty()) {
        stretch.text.assign(text);
        worker.normalizer.run(stretch, worker.budget);
        normalized = stretch.text;
    }
    if (model() == ModelKind::kUnigram && is_sentencepiece()) {
        encode_model(worker, normalized, out, spans);
        return locate(spans, known, 0, stretch.origin);
    }
    normalized_.split(
        normalized, place.parse_special,
        [&](size_t begin, size_t end) {
            encode_pieces(worker, normalized.substr(begin, end - begin), stretch, begin,
                          place.at_start, out, spans);
        },
        [&](uint32_t id, size_t begin, size_t end) {
            add_id(worker, id, source_of(stretch.origin, {begin, end}), out, spans);
        });
}

// Encodes a part between tokens found in normalized text, in which it begins at `begin`. The spans
// are in bytes of the stretch.
void TokenizerEngine::encode_pieces(Worker& worker, std::string_view text,
                                    const Normalized& stretch, size_t begin, bool at_start,
                                    Ids& out, Spans* spans) {
    const bool is_one_piece = worker.pre.empty() || worker.pre.leaves_whole(text);
    if (spans == nullptr && (is_one_piece ? has_parts() : scans(worker)))
        return worker.relay != nullptr ? relay_uncut(worker, text)
                                       : encode_uniform(worker, text, out);
    if (is_one_piece) {
        const size_t first = spans != nullptr ? spans->size() : 0;
        encode_model(worker, text, out, spans);
        return locate(spans, first, begin, stretch.origin);
    }
    Cut& cut = worker.cut;
    cut.text = text;
    cut.pieces.assign(1, {0, text.size()});
    cut.traced = stretch.traced;
    // The first piece of a part may be at the start of the text. With origins, Cut looks up where
    // each piece is in the stretch, and takes only the one from 0 for the first; without them, the
    // part itself must begin the stretch.
    cut.at_start = at_start && (begin == 0 || !stretch.origin.empty());
    cut.origin.clear();
    if (!stretch.origin.empty()) {
        cut.origin.assign(stretch.origin.begin() + ptrdiff_t(begin),
                          stretch.origin.begin() + ptrdiff_t(begin + text.size()));
    }
    // cut.origin leads to the stretch if that has origins, else only to the part.
    const size_t by = stretch.origin.empty() ? begin : 0;
    worker.pre.run(cut, worker.budget);
    if (model() == ModelKind::kBpe && spans == nullptr && has_parts()) {
        const char* const readable_end = cut.text.data() + cut.text.size();
        for (const Cut::Piece& piece : cut.pieces) {
            const std::string_view words = cut.text.substr(piece.begin, piece.end - piece.begin);
            if (worker.relay != nullptr)
                relay_uncut(worker, words);
            else
                add_parts(worker, words, readable_end, out);
        }
        worker.bpe.flush(out);
        return;
    }
    if (takes_words(worker, spans)) {
        const char* const begin_of = cut.text.data();
        for (const Cut::Piece& piece : cut.pieces)
            worker.bpe.add(begin_of + piece.begin, begin_of + piece.end, begin_of + cut.text.size(),
                           out);
        worker.bpe.flush(out);
        return;
    }
    for (const Cut::Piece& piece : cut.pieces) {
        const size_t first = spans != nullptr ? spans->size() : 0;
        encode_model(worker, cut.text.substr(piece.begin, piece.end - piece.begin), out, spans);
        locate(spans, first, piece.begin, cut.origin);
        locate(spans, first, by);
    }
}

// Encodes the parts of a text that is readable up to readable_end, see Config::may_cut.
void TokenizerEngine::add_parts(Worker& worker, std::string_view text, const char* readable_end,
                                Ids& out) {
    for (size_t at = 0, stop = 0; at < text.size(); at = stop) {
        stop = at + 1;
        while (stop < text.size() && !file_.config.may_cut(text, stop)) ++stop;
        add_piece(worker, text.data() + at, text.data() + stop, readable_end, out);
    }
}

// Encodes a text of which each piece depends only on where the one before ends: the pieces are the
// matches of a scanner, or parts of a text that is one piece for the model, see has_parts().
void TokenizerEngine::encode_uniform(Worker& worker, std::string_view text, Ids& out) {
    const char* const end = text.data() + text.size();
    if (scans(worker)) {
        const char* word = text.data();
        worker.pre.begin_scan(word, end);
        while (word != end) {
            const char* const next = worker.pre.scan(word, end, worker.budget);
            worker.bpe.add(word, next, end, out);
            word = next;
        }
    } else {
        add_parts(worker, text, end, out);
    }
    worker.bpe.flush(out);
}

// Sends such a text to the relay, in stretches that do not depend on each other.
void TokenizerEngine::relay_uncut(Worker& worker, std::string_view text) {
    const bool scanned = scans(worker);
    for (size_t at = 0, stop = 0; at < text.size(); at = stop) {
        stop = std::min(text.size(), at + kPiecesBytes);
        while (stop < text.size() &&
               !(scanned ? Scanner::may_cut(text, stop) : file_.config.may_cut(text, stop)))
            ++stop;
        worker.relay->add_piece(text.substr(at, stop - at), Pieces::kIsUncut);
    }
}

// Encodes one piece with the model. Its spans are in bytes of the piece.
void TokenizerEngine::encode_model(Worker& worker, std::string_view piece, Ids& out, Spans* spans) {
    if (worker.relay != nullptr) return worker.relay->add_piece(piece);
    switch (model()) {
        case ModelKind::kBpe:
            if (spans != nullptr) {
                worker.bpe.trace(piece, out, *spans);
                break;
            }
            worker.bpe.add(piece.data(), piece.data() + piece.size(), piece.data() + piece.size(),
                           out);
            worker.bpe.flush(out);
            break;
        case ModelKind::kSpm:
            encode_spm(file_, piece, worker.budget, out, spans);
            break;
        case ModelKind::kUnigram:
            (is_sentencepiece() ? encode_unigram : encode_unigram_steps)(
                file_, lowest_score_, piece, worker.budget, out, spans);
            break;
        case ModelKind::kWordLevel: {
            const uint32_t id = file_.find(piece.data(), piece.size());
            if (id == kNoId && file_.config.unknown_id == kNoId)
                throw std::invalid_argument(kNoUnknown);
            out.push_back(id != kNoId ? id : file_.config.unknown_id);
            if (spans != nullptr) spans->push_back({0, piece.size()});
            break;
        }
        case ModelKind::kWordPiece:
            encode_wordpiece(file_, piece, worker.budget, out, spans);
            break;
    }
}

// ---- many texts, and long ones piece by piece

namespace {

constexpr size_t kGroupBytes = size_t{64} << 10;  // of short texts that make one task
constexpr size_t kTextBytes = 64;                 // of text, which take as long as starting a text
constexpr size_t kLongText = size_t{128} << 10;   // from here on a text is encoded in parts
constexpr size_t kAhead = 16;                     // tasks that may wait for each thread

}  // namespace

ManyTexts::ManyTexts(TokenizerEngine& engine, bool parse_special, size_t threads)
    : engine_(engine), parse_special_(parse_special), threads_(threads), turn_(engine) {}

ManyTexts::~ManyTexts() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        ended_ = true;
        next_ = tasks_.size();
    }
    changed_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
}

void ManyTexts::add(std::string_view text) {
    if (threads_ < 2 || text.size() < kLongText) {
        group_.texts.push_back(text);
        group_bytes_ += text.size() + kTextBytes;
        if (group_bytes_ >= kGroupBytes) push(std::exchange(group_, {}));
        return;
    }
    if (!group_.texts.empty()) push(std::exchange(group_, {}));
    budget = Budget(text.size());
    budget.share();
    Encoded end;
    is_last_ = false;
    try {
        engine_.cut(text, parse_special_, *this);
    } catch (...) {
        end.error = std::current_exception();
    }
    is_last_ = true;
    if (end.error == nullptr) return flush();
    Task failed;
    failed.results.push_back(std::move(end));
    push(std::move(failed));
}

void ManyTexts::end() {
    if (!group_.texts.empty()) push(std::exchange(group_, {}));
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        ended_ = true;
    }
    changed_.notify_all();
}

void ManyTexts::send(Pieces pieces) {
    Task task;
    task.pieces = std::move(pieces);
    task.results.push_back({{}, is_last_, nullptr});
    push(std::move(task));
}

void ManyTexts::push(Task task) {
    group_bytes_ = 0;
    size_t waiting = 0;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        tasks_.push_back(std::move(task));
        waiting = tasks_.size() - next_;
    }
    changed_.notify_all();
    if (waiting > 1 && helpers_.size() + 1 < threads_) {
        try {
            helpers_.emplace_back([this] {
                TokenizerEngine::Turn turn(engine_);
                while (encode_next(turn, true)) {
                }
            });
        } catch (const std::system_error&) {
            // No more threads can be started: the existing ones do all the work.
        }
    }
    if (waiting > kAhead * threads_) encode_next(turn_, false);
}

bool ManyTexts::encode_next(TokenizerEngine::Turn& turn, bool wait) {
    Task* task = nullptr;
    {
        std::unique_lock<std::mutex> lock(mutex_);
        if (wait) changed_.wait(lock, [&] { return next_ < tasks_.size() || ended_; });
        if (next_ == tasks_.size()) return false;
        task = &tasks_[next_++];
    }
    const auto encode = [&](Encoded& found, const auto& text) {
        try {
            if (!found.error) turn.encode(text, parse_special_, found.ids);
        } catch (...) {
            found.error = std::current_exception();
        }
    };
    if (task->texts.empty()) encode(task->results.front(), task->pieces);
    for (const std::string_view text : task->texts) encode(task->results.emplace_back(), text);
    task->pieces = {};
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        task->is_done = true;
    }
    changed_.notify_all();
    return true;
}

bool ManyTexts::is_ready() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return taken_ < tasks_.size() && tasks_[taken_].is_done;
}

void ManyTexts::help() {
    if (encode_next(turn_, false)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return tasks_[taken_].is_done; });
}

ManyTexts::Encoded ManyTexts::take() {
    std::vector<Encoded>& all = tasks_[taken_].results;
    Encoded found = std::move(all[results_taken_++]);
    if (results_taken_ == all.size()) {
        all = {};
        results_taken_ = 0;
        ++taken_;
    }
    if (found.error) std::rethrow_exception(found.error);
    return found;
}

}  // namespace bitnet
