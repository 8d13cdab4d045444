// Encodes texts with a compiled tokenizer.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "tokenizer/added.hpp"
#include "tokenizer/file.hpp"
#include "tokenizer/models.hpp"
#include "tokenizer/steps.hpp"

namespace bitnet {

// A part of a text in which nothing depends on the rest: its bytes, and in order the size of each
// piece, or of a stretch that is still to be cut into pieces, or an id.
struct Pieces {
    static constexpr uint32_t kIsId = uint32_t{1} << 31, kIsUncut = uint32_t{1} << 30;
    std::string text;
    std::vector<uint32_t> items;
    Budget budget;
};

// Collects pieces and ids of a text, and sends them on in parts of about 64 KiB.
class Relay {
public:
    virtual ~Relay() = default;
    void add_piece(std::string_view piece, uint32_t kind = 0);  // kind: 0 or Pieces::kIsUncut
    void add_id(uint32_t id);
    void flush();   // sends what is left
    Budget budget;  // of the text; shared by its parts

private:
    virtual void send(Pieces pieces) = 0;
    Pieces pieces_;
};

class TokenizerEngine {
    struct Worker;

public:
    // Encodes several texts on one thread with one worker, and so with what it has cached.
    class Turn {
    public:
        explicit Turn(TokenizerEngine& engine) : engine_(engine) {}
        ~Turn() {
            if (worker_) engine_.give_back(std::move(worker_));
        }
        Turn(const Turn&) = delete;
        Turn& operator=(const Turn&) = delete;
        // As the engine's encode().
        void encode(std::string_view text, bool parse_special, Ids& out);
        // Appends the ids of pieces. parse_special is ignored: it counted when they were cut.
        void encode(const Pieces& pieces, bool parse_special, Ids& out);

    private:
        TokenizerEngine& engine_;
        std::unique_ptr<Worker> worker_;
    };

    // The memory must outlive the engine. Throws std::invalid_argument if it is not a compiled
    // tokenizer that can be run.
    TokenizerEngine(const char* data, size_t size);

    // Appends the ids of text to out and, unless it is null, where each is in text (in bytes) to
    // *spans. Safe to call from several threads. Throws OverBudget, and std::invalid_argument for a
    // fault of the tokenizer that only this text shows.
    void encode(std::string_view text, bool parse_special, Ids& out, Spans* spans = nullptr);
    // Adds the pieces of text that the model would encode, and the ids between them, to relay.
    void cut(std::string_view text, bool parse_special, Relay& relay);

    const TokenizerFile& file() const { return file_; }

private:
    // What one thread needs to encode a text. Workers are kept for later calls, with their caches.
    struct Worker {
        explicit Worker(const TokenizerEngine& engine)
            : normalizer(engine.normalizer_, engine.charsmap_),
              pre(engine.pre_),
              bpe(engine.file_),
              spm(engine.file_),
              asks_for_first(pre.asks_for_first(normalizer.moves())) {}
        Normalizer normalizer;
        PreTokenizer pre;
        Bpe bpe;
        SpmParts spm;
        bool asks_for_first;
        Cut cut;
        Budget budget;
        Relay* relay = nullptr;  // takes pieces instead of the model
    };
    std::unique_ptr<Worker> borrow();
    void give_back(std::unique_ptr<Worker> worker);
    // Whether a stretch begins where the whole text does, and whether special tokens are parsed.
    struct Place {
        bool at_start, parse_special;
    };
    void encode_text(Worker& worker, std::string_view text, bool parse_special, Ids& out,
                     Spans* spans);
    void encode_stretch(Worker& worker, std::string_view text, Place place, Ids& out, Spans* spans);
    void encode_pieces(Worker& worker, std::string_view text, const Normalized& stretch,
                       size_t begin, bool at_start, Ids& out, Spans* spans);
    void encode_uniform(Worker& worker, std::string_view text, Ids& out);
    void add_parts(Worker& worker, std::string_view text, const char* readable_end, Ids& out);
    void relay_uncut(Worker& worker, std::string_view text);
    void add_piece(Worker& worker, const char* begin, const char* end, const char* readable_end,
                   Ids& out);
    void add_id(Worker& worker, uint32_t id, Span where, Ids& out, Spans* spans);
    void encode_model(Worker& worker, std::string_view piece, Ids& out, Spans* spans);
    // Whether a text can be merged part by part, see Config::may_cut.
    bool has_parts() const { return (file_.config.flags & kWordsApart) != 0; }
    // Whether the pieces are the matches of a scanner, see PreTokenizer::scans.
    bool scans(const Worker& worker) const {
        return model() == ModelKind::kBpe && worker.pre.scans();
    }
    // Whether Bpe::add takes the pieces: not if they are traced, and not if a relay takes them.
    bool takes_words(const Worker& worker, const Spans* spans) const {
        return model() == ModelKind::kBpe && spans == nullptr && worker.relay == nullptr;
    }
    ModelKind model() const { return ModelKind(file_.config.model); }
    bool is_sentencepiece() const {
        const bool either = model() == ModelKind::kSpm || model() == ModelKind::kUnigram;
        return either && (file_.config.flags & kSteps) == 0;
    }

    TokenizerFile file_;
    CharsMap charsmap_;
    std::vector<TokenizerStep> normalizer_, pre_;
    // Added tokens by the text in which they are found; raw_ordinary_ are those of raw_ that are
    // not special, for SentencePiece, and untouched_ those that its character map does not change.
    AddedMatcher raw_, raw_ordinary_, normalized_, untouched_;
    double lowest_score_ = 0.0;
    std::mutex mutex_;  // of idle_
    std::vector<std::unique_ptr<Worker>> idle_;
};

// ---- many texts, and long ones piece by piece, encoded by several threads

// One thread adds texts and takes their ids in order. That thread normalizes a long text and cuts
// it into pieces, or, where pre-tokenizer or model allow it, only into stretches that do not depend
// on each other. Helpers meanwhile encode these, in parts, and cut the stretches into pieces.
class ManyTexts : Relay {
public:
    struct Encoded {
        Ids ids;
        bool ends_text = true;
        std::exception_ptr error;
    };

    ManyTexts(TokenizerEngine& engine, bool parse_special, size_t threads);
    ~ManyTexts() override;
    ManyTexts(const ManyTexts&) = delete;
    ManyTexts& operator=(const ManyTexts&) = delete;

    // The text must stay where it is until its ids have been taken.
    void add(std::string_view text);
    // No more texts follow.
    void end();

    // Whether ids are left to take, and whether the next ones are encoded already.
    bool pending() const { return taken_ < tasks_.size(); }
    bool is_ready();
    // Encodes a task on this thread; if helpers have taken all, waits for the next ids.
    void help();
    // The next ids, of a text or a part of one. Throws the exception that encoding them has thrown.
    Encoded take();

private:
    struct Task {
        std::vector<std::string_view> texts;  // short texts; if none,
        Pieces pieces;                        // a part of a long text
        std::vector<Encoded> results;         // one for each text, or one for the part
        bool is_done = false;
    };

    void send(Pieces pieces) override;
    void push(Task task);
    // Encodes the next task; if `wait`, waits for one. False if there is none.
    bool encode_next(TokenizerEngine::Turn& turn, bool wait);

    TokenizerEngine& engine_;
    const bool parse_special_;
    const size_t threads_;
    TokenizerEngine::Turn turn_;
    Task group_;  // short texts that are not a task yet
    size_t group_bytes_ = 0;
    bool is_last_ = false;    // whether the pieces sent next end a text
    std::deque<Task> tasks_;  // references to tasks stay valid when others are added
    size_t next_ = 0;         // index of the next task to encode
    // Tasks whose results have all been taken, and results taken from the task after them.
    size_t taken_ = 0, results_taken_ = 0;
    bool ended_ = false;
    std::mutex mutex_;  // of tasks_, next_, is_done and ended_
    std::condition_variable changed_;
    std::vector<std::thread> helpers_;
};

}  // namespace bitnet
