#include "tokenizer/many.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

namespace bitnet {
namespace {

constexpr size_t kGroupBytes = size_t{64} << 10;
constexpr size_t kPartBytes = 64;  // of text take about as long as to begin a part

}  // namespace

ManyParts::ManyParts(TokenizerEngine& engine, std::vector<Part> parts, bool parse_special,
                     size_t threads)
    : engine_(engine), parts_(std::move(parts)), parse_special_(parse_special),
      found_(parts_.size()), group_of_(parts_.size()) {
    size_t bytes = 0;
    for (size_t part = 0; part < parts_.size(); ++part) {
        group_of_[part] = ends_.size();
        bytes += parts_[part].text.size() + kPartBytes;
        if (bytes < kGroupBytes && part + 1 < parts_.size()) continue;
        ends_.push_back(part + 1);
        bytes = 0;
    }
    groups_done_.resize(ends_.size());
    const size_t helpers = std::min(threads, ends_.size());
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
    next_ = ends_.size();
    for (std::thread& helper : helpers_) helper.join();
}

bool ManyParts::help() {
    const size_t group = next_.fetch_add(1);
    if (group >= ends_.size()) return false;
    TokenizerEngine::Turn turn(engine_);
    for (size_t part = group == 0 ? 0 : ends_[group - 1]; part < ends_[group]; ++part) {
        Encoded& found = found_[part];
        try {
            turn.encode(parts_[part].text, parse_special_, found.ids, parts_[part].goes_on);
        } catch (...) {
            found.error = std::current_exception();
        }
    }
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        groups_done_[group] = 1;
    }
    changed_.notify_all();
    return true;
}

bool ManyParts::is_done(size_t part) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return groups_done_[group_of_[part]] != 0;
}

void ManyParts::wait(size_t part) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return groups_done_[group_of_[part]] != 0; });
}

ManyParts::Encoded ManyParts::take(size_t part) {
    Encoded found = std::move(found_[part]);
    if (found.error) std::rethrow_exception(found.error);
    return found;
}

}  // namespace bitnet
