#include "tokenizer/regex.hpp"

#include "tokenizer/unicode.hpp"

namespace bitnet {
namespace {

using Node = RegexNode;
using Inst = Regex::Inst;
using Op = Regex::Op;

// After this many steps of one attempt, it is worth remembering the states that failed.
constexpr uint64_t kPatience = 32;

// True if a part of a pattern may match the empty text.
bool can_be_empty(const Node& node) {
    switch (node.kind) {
        case Node::kChar:
        case Node::kSet:
            return false;
        case Node::kConcat:
            return std::all_of(node.children.begin(), node.children.end(), can_be_empty);
        case Node::kAlternate:
            return std::any_of(node.children.begin(), node.children.end(), can_be_empty);
        case Node::kRepeat:
            return node.min == 0 || can_be_empty(node.children[0]);
        case Node::kEnclosed:
            return node.op != Op::kAtomic || can_be_empty(node.children[0]);
        default:
            return true;
    }
}

// Translates a tree to the instructions that Regex::run follows.
class Compiler {
public:
    Compiler(std::vector<Inst>& program, std::vector<CharSet>& sets, std::vector<FirstSet>& guards)
        : program_(program), sets_(sets), guards_(guards) {}

    void emit(const Node& node) {
        if (program_.size() > limits::kPatternProgram)
            throw std::invalid_argument("regular expression: too long when compiled");
        switch (node.kind) {
            case Node::kEmpty:
                return;
            case Node::kChar:
                add(Op::kChar, node.value);
                return;
            case Node::kSet:
                add(Op::kSet, node.value);
                return;
            case Node::kConcat:
                for (const Node& child : node.children) emit(child);
                return;
            case Node::kAlternate:
                alternate(node);
                return;
            case Node::kRepeat:
                repeat(node);
                return;
            case Node::kEnclosed:
                enclosed(node.op, node.children[0]);
                return;
            case Node::kAssert:
                add(node.op);
                return;
        }
    }

    // Index of the instruction that is added.
    uint32_t add(Op op, uint32_t a = 0, uint32_t b = 0) {
        program_.push_back(Inst{op, a, b});
        return uint32_t(program_.size() - 1);
    }

    // The characters that a match of the node can start with.
    FirstSet first(const Node& node) const {
        FirstSet result;
        switch (node.kind) {
            case Node::kChar:
                if (node.value < 128)
                    result.ascii.add(node.value);
                else
                    result.other = true;
                return result;
            case Node::kSet:
                result.ascii = sets_[node.value].ascii;
                result.other = true;  // perhaps: FirstSet does not tell them apart
                return result;
            case Node::kConcat:
                result.nullable = true;
                for (const Node& child : node.children) {
                    join(result, first(child));
                    if (!can_be_empty(child)) {
                        result.nullable = false;
                        return result;
                    }
                }
                return result;
            case Node::kAlternate:
                for (const Node& child : node.children) {
                    const FirstSet one = first(child);
                    join(result, one);
                    result.nullable = result.nullable || one.nullable;
                }
                return result;
            case Node::kRepeat:
                result = first(node.children[0]);
                result.nullable = result.nullable || node.min == 0;
                return result;
            case Node::kEnclosed:
                if (node.op == Op::kAtomic) return first(node.children[0]);
                [[fallthrough]];
            default:
                result.nullable = true;
                return result;
        }
    }

    uint32_t n_loops = 0;

private:
    static void join(FirstSet& into, const FirstSet& from) {
        into.ascii.add(from.ascii);
        into.other = into.other || from.other;
    }

    uint32_t here() const { return uint32_t(program_.size()); }

    void alternate(const Node& node) {
        std::vector<uint32_t> jumps;
        for (size_t i = 0; i + 1 < node.children.size(); ++i) {
            const uint32_t split = add(Op::kSplit);
            guards_.push_back(first(node.children[i]));
            program_[split].guard = int(guards_.size() - 1);
            program_[split].a = here();
            emit(node.children[i]);
            jumps.push_back(add(Op::kJump));
            program_[split].b = here();
        }
        emit(node.children.back());
        for (const uint32_t jump : jumps) program_[jump].a = here();
    }

    void enclosed(Op op, const Node& body) {
        const uint32_t start = add(op);
        emit(body);
        add(Op::kMatch);
        program_[start].a = here();
    }

    void repeat(const Node& node) {
        const Node& body = node.children[0];
        if (body.kind == Node::kSet && node.mode != Node::kLazy) {
            const bool possessive = node.mode == Node::kPossessive;
            const uint32_t loop = add(possessive ? Op::kPossessive : Op::kLoop, body.value);
            program_[loop].min = node.min;
            program_[loop].max = node.max;
            program_[loop].b = n_loops++;
            return;
        }
        if (node.mode == Node::kPossessive) {
            Node atomic{Node::kEnclosed, 0, Op::kAtomic};
            atomic.children.push_back(node);
            atomic.children[0].mode = Node::kGreedy;
            emit(atomic);
            return;
        }
        if (can_be_empty(body))
            throw std::invalid_argument(
                "regular expression: repeating what can be empty is not supported");
        for (uint32_t i = 0; i < node.min; ++i) emit(body);
        const bool lazy = node.mode == Node::kLazy;
        std::vector<uint32_t> exits;
        const auto optional = [&] {
            const uint32_t split = add(Op::kSplit);
            exits.push_back(split);
            emit(body);
            return split;
        };
        if (node.max == kUnbounded) {
            const uint32_t split = optional();
            add(Op::kJump, split);
        } else {
            for (uint32_t i = node.min; i < node.max; ++i) optional();
        }
        for (const uint32_t split : exits) {
            program_[split].a = lazy ? here() : split + 1;
            program_[split].b = lazy ? split + 1 : here();
        }
    }

    std::vector<Inst>& program_;
    std::vector<CharSet>& sets_;
    std::vector<FirstSet>& guards_;
};

}  // namespace

Regex::Regex(const std::string& pattern) {
    const RegexNode root = parse_regex(pattern, sets_);
    nullable_ = can_be_empty(root);
    Compiler compiler(program_, sets_, guards_);
    compiler.emit(root);
    compiler.add(Op::kMatch);
    first_ = compiler.first(root);
    loops_.resize(compiler.n_loops);
}

void StateMemo::reset(size_t most) {
    most_ = most;
    if (count_ == 0) return;
    slots_ = {};
    count_ = 0;
}

size_t StateMemo::slot(uint64_t key) const {
    size_t i = (key * 0x9E3779B97F4A7C15ull) >> 20 & (slots_.size() - 1);
    while (slots_[i] != 0 && slots_[i] >> 2 != key) i = (i + 1) & (slots_.size() - 1);
    return i;
}

StateMemo::Verdict StateMemo::look_up(uint64_t key) const {
    return slots_.empty() ? kUnknown : Verdict(slots_[slot(key)] & 3);
}

void StateMemo::note(uint64_t key, Verdict verdict) {
    if (count_ >= most_) return;
    if (2 * count_ >= slots_.size()) grow();
    uint64_t& entry = slots_[slot(key)];
    if (entry == 0) ++count_;
    entry = key << 2 | verdict;
}

void StateMemo::grow() {
    std::vector<uint64_t> old(slots_.empty() ? 256 : 2 * slots_.size(), 0);
    old.swap(slots_);
    for (const uint64_t entry : old) {
        if (entry != 0) slots_[slot(entry >> 2)] = entry;
    }
}

void Regex::set_text(const char* begin, const char* end) {
    // Positions are numbers of 32 bits.
    if (size_t(end - begin) > UINT32_MAX) throw OverBudget("a text of 4 GiB or more for a pattern");
    begin_ = begin;
    end_ = end;
    size_ = uint32_t(end - begin);
    loops_.assign(loops_.size(), Loop{});
    memo_.reset(limits::kBaseSteps + 4 * size_t{size_});
}

bool Regex::find(const char* from, Budget& budget, const char** match_begin,
                 const char** match_end) {
    budget_ = &budget;
    for (const char* p = from; p != end_ || nullable_;) {
        const char* const start = p;
        if (p != end_) unicode::next(p, end_);
        if (!nullable_ && !first_.admits(start, end_)) continue;
        stack_.clear();
        trail_.clear();
        spent_ = 0;
        uint32_t stop = 0;
        if (run(Op::kMatch, 0, uint32_t(start - begin_), &stop)) {
            *match_begin = start;
            *match_end = begin_ + stop;
            return true;
        }
        if (start == end_) break;
    }
    return false;
}

bool RegexMatches::next(const char** match_begin, const char** match_end) {
    while (p_ != nullptr && regex_.find(p_, budget_, match_begin, match_end)) {
        // An empty match where the last one ended does not count: the search goes on one character
        // later.
        if (*match_begin == *match_end && last_ == *match_end) {
            if (p_ == end_) break;
            unicode::next(p_, end_);
            continue;
        }
        p_ = last_ = *match_end;
        return true;
    }
    p_ = nullptr;
    return false;
}

uint32_t Regex::next(uint32_t* pos) const {
    const char* p = begin_ + *pos;
    const uint32_t code = unicode::next(p, end_);
    *pos = uint32_t(p - begin_);
    return code;
}

bool Regex::is_word_border(uint32_t pos) const {
    const char* const at = begin_ + pos;
    const char *before = at == begin_ ? at : unicode::previous(at, begin_), *behind = at;
    const bool left = at != begin_ && unicode::is_word(unicode::next(before, end_));
    const bool right = at != end_ && unicode::is_word(unicode::next(behind, end_));
    return left != right;
}

void Regex::push(uint32_t pc, uint32_t pos, uint32_t low) {
    if (stack_.size() > limits::kBaseSteps + 8 * size_t{size_})
        throw OverBudget("more than " + std::to_string(stack_.size()) + " ways left to try");
    stack_.push_back({pc, pos, low, uint32_t(trail_.size())});
}

// Verdict on the search from this state, if it is known. Otherwise the state is added to the trail.
StateMemo::Verdict Regex::enter_state(uint32_t pc, uint32_t pos) {
    if (spent_ < kPatience && memo_.empty()) return StateMemo::kUnknown;
    const uint64_t key = StateMemo::key(pc, pos);
    const StateMemo::Verdict verdict = memo_.look_up(key);
    if (verdict == StateMemo::kUnknown && trail_.size() < limits::kBaseSteps + 8 * size_t{size_})
        trail_.push_back(key);
    budget_->spend(4);
    return verdict;
}

// Notes the verdict on the states from this place of the trail on, and takes them from the trail.
void Regex::settle(size_t trail, StateMemo::Verdict verdict) {
    if (verdict != StateMemo::kUnknown) {
        for (size_t i = trail; i < trail_.size(); ++i) memo_.note(trail_[i], verdict);
    }
    trail_.resize(trail);
}

// Takes as many characters as the loop can, and leaves a frame to give them back. False if there
// are too few, or if an earlier start has shown that the rest fails at every end.
bool Regex::enter_loop(const Inst& inst, uint32_t pc, uint32_t* pos) {
    Loop& loop = loops_[inst.b];
    const CharSet& set = sets_[inst.a];
    const uint32_t start = *pos;
    uint32_t at = start, low = start, count = 0;
    uint64_t work = 0;
    // In a run that was taken before, only the end of the minimum is looked for.
    const bool known = inst.max == kUnbounded && at >= loop.run_begin && at < loop.run_end;
    const uint32_t most = known ? inst.min : inst.max;
    while (count < most && at != size_) {
        uint32_t ahead = at;
        const uint32_t code = next(&ahead);
        work += set.cost_of(code);
        if (!set.contains(code)) break;
        at = ahead;
        if (++count == inst.min) low = at;
    }
    spent_ += work;
    budget_->spend(work);
    if (known) {
        at = loop.run_end;
    } else if (inst.max == kUnbounded) {
        loop.run_begin = start;
        loop.run_end = at;
    }
    *pos = at;
    if (count < inst.min) return false;
    if (inst.op == Op::kPossessive) return true;
    if (loop.failed_low != kPlain && low > loop.failed_low && at <= loop.failed_high) return false;
    if (at > low) push(pc + 1, at, low);
    return true;
}

// Backtracks to the last way left to try; false when no frame is left above base.
bool Regex::back(size_t base, uint32_t* pc, uint32_t* pos) {
    while (stack_.size() > base) {
        Frame& frame = stack_.back();
        settle(frame.trail, StateMemo::kFails);
        *pc = frame.pc;
        if (frame.low == kPlain) {
            *pos = frame.pos;
            stack_.pop_back();
            return true;
        }
        // The loop gives back one character: the rest does not match at high, the one after low.
        Loop& loop = loops_[program_[frame.pc - 1].b];
        const uint32_t high = frame.pos;
        const char* const before = unicode::previous(begin_ + high, begin_ + frame.low);
        const auto low = uint32_t(before - begin_);
        // Unless high is the neighbour of what failed before, a new interval begins.
        if (loop.failed_low != high) loop.failed_high = high;
        loop.failed_low = low;
        *pos = frame.pos = low;
        if (low == frame.low) {
            stack_.pop_back();
            return true;
        }
        budget_->spend(1);
        if (enter_state(frame.pc - 1, low) != StateMemo::kFails) return true;
    }
    return false;
}

// Attempts a match from pc, which begins a body of this kind; kMatch stands for the whole pattern.
// True if it matches; then *stop is its end, except in a look, which may leave it as it was.
bool Regex::run(Op kind, uint32_t pc, uint32_t pos, uint32_t* stop) {
    const size_t base = stack_.size(), trail = trail_.size();
    const bool looks = kind == Op::kLook || kind == Op::kNotLook;
    while (true) {
        const Inst& inst = program_[pc];
        budget_->spend(1);
        ++spent_;
        bool good = true;
        switch (inst.op) {
            case Op::kChar:
                good = pos != size_ && next(&pos) == inst.a;
                break;
            case Op::kSet: {
                if (pos == size_) {
                    good = false;
                    break;
                }
                const uint32_t code = next(&pos);
                budget_->spend(sets_[inst.a].cost_of(code));
                good = sets_[inst.a].contains(code);
                break;
            }
            case Op::kLoop:
            case Op::kPossessive:
                good = enter_loop(inst, pc, &pos);
                break;
            case Op::kSplit: {
                if (inst.guard >= 0 && !guards_[size_t(inst.guard)].admits(begin_ + pos, end_)) {
                    pc = inst.b;
                    continue;
                }
                const StateMemo::Verdict verdict = enter_state(pc, pos);
                if (verdict == StateMemo::kFails) {
                    good = false;
                    break;
                }
                if (verdict == StateMemo::kSucceeds) {
                    settle(trail, StateMemo::kSucceeds);
                    stack_.resize(base);
                    return true;
                }
                push(inst.b, pos, kPlain);
                pc = inst.a;
                continue;
            }
            case Op::kJump:
                pc = inst.a;
                continue;
            case Op::kLook:
            case Op::kNotLook:
            case Op::kAtomic: {
                uint32_t inner = pos;
                good = run(inst.op, pc + 1, pos, &inner) == (inst.op != Op::kNotLook);
                if (inst.op == Op::kAtomic) pos = inner;
                if (good) {
                    pc = inst.a;
                    continue;
                }
                break;
            }
            case Op::kLineStart:
                good = pos == 0 || (pos != size_ && begin_[pos - 1] == '\n');
                break;
            case Op::kLineEnd:
                good = pos == size_ || begin_[pos] == '\n';
                break;
            case Op::kTextStart:
                good = pos == 0;
                break;
            case Op::kTextEnd:
                good = pos == size_;
                break;
            case Op::kWordBorder:
                good = is_word_border(pos);
                break;
            case Op::kInsideWord:
                good = !is_word_border(pos);
                break;
            case Op::kMatch:
                settle(trail, looks ? StateMemo::kSucceeds : StateMemo::kUnknown);
                stack_.resize(base);
                *stop = pos;
                return true;
        }
        if (good) {
            ++pc;
        } else if (!back(base, &pc, &pos)) {
            settle(trail, StateMemo::kFails);
            return false;
        }
    }
}

}  // namespace bitnet
