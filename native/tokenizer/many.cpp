#include "tokenizer/tokenizer.hpp"

#include <system_error>

namespace bitnet {
namespace {

constexpr size_t kGroupBytes = size_t{64} << 10;
constexpr size_t kTextBytes = 64;  // of text take about as long as to begin a text
constexpr size_t kLongText = size_t{128} << 10;  // from here on a text is encoded in parts
constexpr size_t kAhead = 16;  // tasks that wait for each thread, at most

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
    failed.found.push_back(std::move(end));
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
    task.found.push_back({{}, is_last_, nullptr});
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
                while (encode_next(turn, true)) {}
            });
        } catch (const std::system_error&) {
            // No more threads are to be had: those that there are do all of it.
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
    if (task->texts.empty()) encode(task->found.front(), task->pieces);
    for (const std::string_view text : task->texts) encode(task->found.emplace_back(), text);
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
    std::vector<Encoded>& all = tasks_[taken_].found;
    Encoded found = std::move(all[found_taken_++]);
    if (found_taken_ == all.size()) {
        all = {};
        found_taken_ = 0;
        ++taken_;
    }
    if (found.error) std::rethrow_exception(found.error);
    return found;
}

}  // namespace bitnet
