// Many texts, or the parts of a long one, encoded by several threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "tokenizer/tokenizer.hpp"

namespace bitnet {

// Helpers take parts in order until none is left, short ones by the dozen; so may the thread that
// made this.
class ManyParts {
public:
    struct Part {
        std::string_view text;
        bool goes_on;  // the rest of the text of the part before
    };
    struct Encoded {
        Ids ids;
        std::exception_ptr error;
    };

    ManyParts(TokenizerEngine& engine, std::vector<Part> parts, bool parse_special, size_t threads);
    ~ManyParts();
    ManyParts(const ManyParts&) = delete;
    ManyParts& operator=(const ManyParts&) = delete;

    size_t size() const { return parts_.size(); }
    bool goes_on(size_t part) const { return parts_[part].goes_on; }
    // Encodes some more parts here; false when none is left.
    bool help();
    // Whether a part is encoded; the second waits for it.
    bool is_done(size_t part);
    void wait(size_t part);
    // What was found, once; what went wrong is thrown.
    Encoded take(size_t part);

private:
    TokenizerEngine& engine_;
    const std::vector<Part> parts_;
    const bool parse_special_;
    std::vector<Encoded> found_;
    std::vector<size_t> ends_;        // behind the last part of each group, which one thread takes
    std::vector<char> groups_done_;
    std::vector<size_t> group_of_;    // by part
    std::atomic<size_t> next_{0};     // group
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::thread> helpers_;
};

}  // namespace bitnet
