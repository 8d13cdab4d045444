// A compiled tokenizer that runs: text to ids.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer_added.hpp"
#include "tokenizer_file.hpp"
#include "tokenizer_models.hpp"
#include "tokenizer_steps.hpp"

namespace bitnet {

class TokenizerEngine {
    struct Worker;

public:
    // What one thread encodes in a row: its tables and caches are looked for once.
    class Turn {
    public:
        explicit Turn(TokenizerEngine& engine) : engine_(engine) {}
        ~Turn() {
            if (worker_) engine_.give_back(std::move(worker_));
        }
        Turn(const Turn&) = delete;
        Turn& operator=(const Turn&) = delete;
        // As the engine's.
        bool encode(std::string_view text, bool parse_special, Ids& out, bool goes_on);

    private:
        TokenizerEngine& engine_;
        std::unique_ptr<Worker> worker_;
    };

    // The memory must outlive the engine. Throws std::invalid_argument when it is not right.
    TokenizerEngine(const char* data, size_t size);

    // Safe to call from several threads. Throws OverBudget, and std::invalid_argument for a fault of
    // the character map that only this text shows. False, and nothing in out: the text needs a normalization
    // that only complete Unicode tables can do. goes_on: the text is the rest of one that was cut
    // where a cut changes no ids, so nothing is put before it.
    bool encode(std::string_view text, bool parse_special, Ids& out, bool goes_on = false);
    // The same for a stretch between added tokens whose normalization is done. Spans, in bytes of
    // text, are filled in when asked for.
    void encode_normalized(std::string_view text, bool at_start, bool parse_special, Ids& out,
                           Spans* spans = nullptr);

    const TokenizerFile& file() const { return file_; }

private:
    struct Worker {
        explicit Worker(const TokenizerEngine& engine) : pre(engine.pre_), bpe(engine.file_) {}
        PreTokenizer pre;
        Bpe bpe;
        Cut cut;
        Budget budget;
    };
    std::unique_ptr<Worker> borrow();
    void give_back(std::unique_ptr<Worker> worker);
    // Where in the whole text a stretch lies, and whether special tokens are looked for in it.
    struct Place {
        bool at_start, goes_on, parse_special;
    };
    bool encode_text(Worker& worker, std::string_view text, bool parse_special, Ids& out, bool goes_on);
    void encode_stretch(Worker& worker, std::string_view text, Place place, Ids& out, Spans* spans);
    void encode_pieces(Worker& worker, std::string_view text, bool at_start, Ids& out, Spans* spans);
    void encode_parts(Worker& worker, std::string_view text, Ids& out);
    void encode_model(Worker& worker, std::string_view piece, Ids& out, Spans* spans);
    ModelKind model() const { return static_cast<ModelKind>(file_.config.model); }
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

}  // namespace bitnet
