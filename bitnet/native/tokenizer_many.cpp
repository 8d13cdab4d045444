#include "tokenizer_many.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

namespace bitnet {

ManyParts::ManyParts(TokenizerEngine& engine, std::vector<Part> parts, bool parse_special,
                     size_t threads)
    : engine_(engine), parts_(std::move(parts)), parse_special_(parse_special),
      found_(parts_.size()), done_(parts_.size(), 0) {
    const size_t helpers = std::min(threads, parts_.size());
    helpers_.reserve(helpers);
    try {
        for (size_t i = 1; i < helpers; ++i) {
            helpers_.emplace_back([this] {
                while (help()) {}
            });
        }
    } catch (const std::system_error&) {
        // No more threads are to be had: those that there are do all of it.
    }
}

ManyParts::~ManyParts() {
    next_ = parts_.size();
    for (std::thread& helper : helpers_) helper.join();
}

bool ManyParts::help() {
    const size_t part = next_.fetch_add(1);
    if (part >= parts_.size()) return false;
    Encoded found;
    try {
        found.exact = engine_.encode(parts_[part].text, parse_special_, found.ids, parts_[part].goes_on);
    } catch (...) {
        found.error = std::current_exception();
    }
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        found_[part] = std::move(found);
        done_[part] = 1;
    }
    changed_.notify_all();
    return true;
}

bool ManyParts::is_done(size_t part) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_[part] != 0;
}

void ManyParts::wait(size_t part) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return done_[part] != 0; });
}

ManyParts::Encoded ManyParts::take(size_t part) {
    Encoded found;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        found = std::move(found_[part]);
    }
    if (found.error) std::rethrow_exception(found.error);
    return found;
}

}  // namespace bitnet
