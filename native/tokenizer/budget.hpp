// How much work one text may cost: hostile patterns and vocabularies end in an error, not in a
// stall.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace bitnet {

// Bounds on what files may ask for. bitnet/tokenizer/limits.py has the same for the libraries;
// a test compares the two, and SECURITY.md with them.
namespace limits {
constexpr size_t kPatternBytes = 16384;      // of one regular expression
constexpr int kPatternDepth = 32;            // groups, quantifiers and classes inside each other
constexpr size_t kPatternProgram = 20000;    // instructions of a compiled one
constexpr uint32_t kPatternRepeat = 1000;    // the n of {n}
constexpr uint64_t kBaseSteps = 20000;       // of matching one text, and
constexpr uint64_t kStepsPerByte = 150;      // for each of its bytes
constexpr size_t kSteps = 64;                // normalizers and pre-tokenizers
constexpr size_t kTokenBytes = 4096;         // of one token that the model makes
constexpr size_t kAddedTokenBytes = 512;     // of one token that is cut out of the text
constexpr size_t kUnigramPieceBytes = 2048;  // 512 characters, the most that sentencepiece trains
constexpr uint32_t kWordChars = 256;         // of one WordPiece word
constexpr size_t kCharsmapKeyBytes = 128;    // of what one entry of a character map replaces
constexpr size_t kGrowth = 64;               // bytes out of the normalizers for each byte in
constexpr size_t kGrowthBase = 65536;        // bytes that are allowed besides
constexpr float kScore = 1e30f;              // largest absolute score
constexpr size_t kProbe = 1024;              // slots that one look-up in a table may read
}  // namespace limits

// A text that costs more than its bound.
class OverBudget : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

class Budget {
public:
    Budget() = default;
    explicit Budget(size_t text_size)
        : left_(limits::kBaseSteps + limits::kStepsPerByte * text_size), total_(left_) {}

    // Throws OverBudget when fewer steps are left.
    void spend(uint64_t steps) {
        if (steps > left_) draw(steps);
        left_ -= steps;
    }
    // Makes copies draw their steps from one pool, on any threads, so that together they cost what
    // one text may. A copy that needs no more returns what it has left.
    void share() { shared_ = std::make_shared<std::atomic<uint64_t>>(std::exchange(left_, 0)); }
    void give_back() {
        if (shared_) shared_->fetch_add(std::exchange(left_, 0), std::memory_order_relaxed);
    }

private:
    static constexpr uint64_t kDraw = 4096;  // steps that are drawn from the pool ahead
    // Takes steps from the pool, if there is one; throws OverBudget if that is not enough.
    void draw(uint64_t steps) {
        uint64_t known = shared_ ? shared_->load(std::memory_order_relaxed) : 0;
        while (shared_ &&
               !shared_->compare_exchange_weak(known, known - std::min(known, steps + kDraw),
                                               std::memory_order_relaxed)) {
        }
        left_ += std::min(known, steps + kDraw);
        if (steps <= left_) return;
        throw OverBudget("more than " + std::to_string(total_) + " steps for " +
                         std::to_string((total_ - limits::kBaseSteps) / limits::kStepsPerByte) +
                         " bytes of text");
    }
    uint64_t left_ = limits::kBaseSteps, total_ = limits::kBaseSteps;
    std::shared_ptr<std::atomic<uint64_t>> shared_;  // steps left in the pool; null before share()
};

}  // namespace bitnet
