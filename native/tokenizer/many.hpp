// Many texts, and long ones piece by piece, encoded by several threads.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "tokenizer/tokenizer.hpp"

namespace bitnet {

// One thread adds texts and takes their ids in order. A long text is normalized by that thread, and parts of
// it that do not depend on each other are pre-tokenized, where that can be said of them, and encoded by
// helpers meanwhile.
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

    // Whether ids are left that were not taken, and whether the next ones are there.
    bool pending() const { return taken_ < tasks_.size(); }
    bool is_ready();
    // Encodes some more here, or waits until the next ids are there.
    void help();
    // The next ids, of a text or a part of one; what went wrong is thrown.
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
    bool is_last_ = false;        // whether the pieces that come end a text
    std::deque<Task> tasks_;      // a task stays where it is
    size_t next_ = 0;             // to encode
    size_t taken_ = 0, found_taken_ = 0;
    bool ended_ = false;
    std::mutex mutex_;  // of tasks_, next_, is_done and ended_
    std::condition_variable changed_;
    std::vector<std::thread> helpers_;
};

}  // namespace bitnet
