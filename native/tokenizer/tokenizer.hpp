// A compiled tokenizer that runs: text to ids.
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
    static constexpr uint32_t kIsId = uint32_t{1} << 31, kIsStretch = uint32_t{1} << 30;
    std::string text;
    std::vector<uint32_t> items;
    Budget budget;
};

// Collects pieces, and passes them on by and by.
class Relay {
public:
    virtual ~Relay() = default;
    void add_piece(std::string_view piece, uint32_t kind = 0);
    void add_id(uint32_t id);
    void flush();
    Budget budget;  // of the text; shared by its parts

private:
    virtual void send(Pieces pieces) = 0;
    Pieces pieces_;
};

class TokenizerEngine {
    struct Worker;

public:
    // Several texts that one thread encodes with one worker, whose caches it keeps.
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
        // The ids of pieces; parse_special was said when they were made.
        void encode(const Pieces& pieces, bool parse_special, Ids& out);

    private:
        TokenizerEngine& engine_;
        std::unique_ptr<Worker> worker_;
    };

    // The memory must outlive the engine. Throws std::invalid_argument when it is not right.
    TokenizerEngine(const char* data, size_t size);

    // Safe to call from several threads. Throws OverBudget, and std::invalid_argument for a fault
    // of the tokenizer that only this text shows. Spans, in bytes of text, are filled in when asked
    // for.
    void encode(std::string_view text, bool parse_special, Ids& out, Spans* spans = nullptr);
    // The pieces of text that the model would encode, and the ids between them, given to relay.
    void cut(std::string_view text, bool parse_special, Relay& relay);

    const TokenizerFile& file() const { return file_; }

private:
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
    // Where in the whole text a stretch lies, and whether special tokens are looked for in it.
    struct Place {
        bool at_start, parse_special;
    };
    void encode_text(Worker& worker, std::string_view text, bool parse_special, Ids& out,
                     Spans* spans);
    void encode_stretch(Worker& worker, std::string_view text, Place place, Ids& out, Spans* spans);
    void encode_pieces(Worker& worker, std::string_view text, const Normalized& whole, size_t begin,
                       bool at_start, Ids& out, Spans* spans);
    void encode_uniform(Worker& worker, std::string_view text, Ids& out);
    void add_parts(Worker& worker, std::string_view text, const char* limit, Ids& out);
    void relay_stretches(Worker& worker, std::string_view text);
    void add_piece(Worker& worker, const char* begin, const char* end, const char* limit, Ids& out);
    void add_id(Worker& worker, uint32_t id, Span where, Ids& out, Spans* spans);
    void encode_model(Worker& worker, std::string_view piece, Ids& out, Spans* spans);
    // Whether a text can be merged part by part, see Config::parts.
    bool has_parts() const { return (file_.config.flags & kWordsApart) != 0; }
    bool scans(const Worker& worker) const {
        return model() == ModelKind::kBpe && worker.pre.scans();
    }
    // Whether pieces go straight to the tables of words.
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
    AddedMatcher raw_, raw_ordinary_, normalized_, untouched_;
    double lowest_score_ = 0.0;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Worker>> idle_;
};

// ---- many texts, and long ones piece by piece, encoded by several threads

// One thread adds texts and takes their ids in order. A long text is normalized by that thread, and
// parts of it that do not depend on each other are pre-tokenized, where that can be said of them,
// and encoded by helpers meanwhile.
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

    // The text must stay where it is.
    void add(std::string_view text);
    // No more texts follow.
    void end();

    // Whether there are ids to take, and whether the next ones are encoded.
    bool pending() const { return taken_ < tasks_.size(); }
    bool is_ready();
    // Encodes some more here, or waits until the next ids are there.
    void help();
    // The next ids, of a text or a part of one. Throws the error that encoding them met.
    Encoded take();

private:
    struct Task {
        std::vector<std::string_view> texts;  // short ones, or
        Pieces pieces;                        // a part of a long one
        std::vector<Encoded> found;           // one for each text
        bool is_done = false;
    };

    void send(Pieces pieces) override;
    void push(Task task);
    bool encode_next(TokenizerEngine::Turn& turn, bool wait);

    TokenizerEngine& engine_;
    const bool parse_special_;
    const size_t threads_;
    TokenizerEngine::Turn turn_;
    Task group_;  // of short texts
    size_t group_bytes_ = 0;
    bool is_last_ = false;    // whether the pieces that come end a text
    std::deque<Task> tasks_;  // a task stays where it is
    size_t next_ = 0;         // to encode
    size_t taken_ = 0, found_taken_ = 0;
    bool ended_ = false;
    std::mutex mutex_;  // of tasks_, next_, is_done and ended_
    std::condition_variable changed_;
    std::vector<std::thread> helpers_;
};

}  // namespace bitnet
