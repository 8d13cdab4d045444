#include "regex.hpp"

#include <algorithm>
#include <stdexcept>

#include "unicode.hpp"

namespace bitnet {
namespace {

using Node = RegexNode;
using Inst = Regex::Inst;
using Op = Regex::Op;

constexpr size_t kMaxProgram = 20000;

bool can_be_empty(const Node& node) {
    switch (node.kind) {
        case Node::kChar: case Node::kSet: return false;
        case Node::kConcat:
            return std::all_of(node.children.begin(), node.children.end(), can_be_empty);
        case Node::kAlternate:
            return std::any_of(node.children.begin(), node.children.end(), can_be_empty);
        case Node::kRepeat: return node.min == 0 || can_be_empty(node.children[0]);
        case Node::kAtomic: return can_be_empty(node.children[0]);
        default: return true;
    }
}

class Compiler {
public:
    Compiler(std::vector<Inst>& program, std::vector<CharSet>& sets, std::vector<FirstSet>& guards)
        : program_(program), sets_(sets), guards_(guards) {}

    void emit(const Node& node) {
        if (program_.size() > kMaxProgram) {
            throw std::invalid_argument("regular expression: too long when compiled");
        }
        switch (node.kind) {
            case Node::kEmpty: return;
            case Node::kChar: add(Op::kChar, node.value); return;
            case Node::kSet: add(Op::kSet, node.value); return;
            case Node::kConcat:
                for (const Node& child : node.children) emit(child);
                return;
            case Node::kAlternate: alternate(node); return;
            case Node::kRepeat: repeat(node); return;
            case Node::kLook: enclosed(Op::kLook, node.children[0]); return;
            case Node::kNotLook: enclosed(Op::kNotLook, node.children[0]); return;
            case Node::kAtomic: enclosed(Op::kAtomic, node.children[0]); return;
            case Node::kLineStart: add(Op::kLineStart); return;
            case Node::kLineEnd: add(Op::kLineEnd); return;
            case Node::kTextStart: add(Op::kTextStart); return;
            case Node::kTextEnd: add(Op::kTextEnd); return;
        }
    }

    uint32_t add(Op op, uint32_t a = 0, uint32_t b = 0) {
        program_.push_back(Inst{op, a, b});
        return static_cast<uint32_t>(program_.size() - 1);
    }

    FirstSet first(const Node& node) const {
        FirstSet result;
        switch (node.kind) {
            case Node::kChar:
                if (node.value < 128) result.ascii[node.value >> 6] |= uint64_t{1} << (node.value & 63);
                else result.other = true;
                return result;
            case Node::kSet:
                result.ascii[0] = sets_[node.value].ascii[0];
                result.ascii[1] = sets_[node.value].ascii[1];
                result.other = true;
                return result;
            case Node::kConcat:
                result.nullable = true;
                for (const Node& child : node.children) {
                    join(result, first(child));
                    if (!can_be_empty(child)) return result.nullable = false, result;
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
            case Node::kAtomic: return first(node.children[0]);
            default:
                result.nullable = true;
                return result;
        }
    }

    uint32_t n_loops = 0;

private:
    static void join(FirstSet& into, const FirstSet& from) {
        into.ascii[0] |= from.ascii[0];
        into.ascii[1] |= from.ascii[1];
        into.other = into.other || from.other;
    }

    uint32_t here() const { return static_cast<uint32_t>(program_.size()); }

    void alternate(const Node& node) {
        std::vector<uint32_t> jumps;
        for (size_t i = 0; i + 1 < node.children.size(); ++i) {
            const uint32_t split = add(Op::kSplit);
            guards_.push_back(first(node.children[i]));
            program_[split].guard = static_cast<int>(guards_.size() - 1);
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
            Node atomic{Node::kAtomic};
            atomic.children.push_back(node);
            atomic.children[0].mode = Node::kGreedy;
            emit(atomic);
            return;
        }
        if (can_be_empty(body)) {
            throw std::invalid_argument("regular expression: repeating what can be empty is not supported");
        }
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
    if (can_be_empty(root)) {
        throw std::invalid_argument("regular expression: matching the empty text is not supported");
    }
    Compiler compiler(program_, sets_, guards_);
    compiler.emit(root);
    compiler.add(Op::kMatch);
    first_ = compiler.first(root);
    loops_.resize(compiler.n_loops);
}

bool Regex::find(const char* begin, const char* from, const char* end, const char** match_begin,
                 const char** match_end) {
    if (from == begin || begin != begin_ || end != end_) loops_.assign(loops_.size(), Loop{});
    begin_ = begin;
    end_ = end;
    for (const char* pos = from; pos < end; pos += unicode::length(*pos)) {
        if (first_.admits(pos, end) && run(0, pos, match_end)) {
            *match_begin = pos;
            return true;
        }
    }
    return false;
}

// The rest of the pattern does not match at high, the character after low.
void Regex::note_failure(Loop& loop, const char* low, const char* high) {
    if (loop.failed_low == high) {
        loop.failed_low = low;
    } else {
        loop.failed_low = low;
        loop.failed_high = high;
    }
}

bool Regex::run(uint32_t pc, const char* pos, const char** stop) {
    const size_t base = stack_.size();
    while (true) {
        const Inst& inst = program_[pc];
        bool good = true;
        switch (inst.op) {
            case Op::kChar:
                good = pos != end_ && unicode::next(pos) == inst.a;
                break;
            case Op::kSet:
                good = pos != end_ && sets_[inst.a].contains(unicode::next(pos));
                break;
            case Op::kLoop: case Op::kPossessive: {
                Loop& loop = loops_[inst.b];
                const CharSet& set = sets_[inst.a];
                const char* const start = pos;
                const char* low = pos;
                uint32_t count = 0;
                const bool known = inst.max == kUnbounded && pos >= loop.run_begin &&
                                   pos < loop.run_end;
                while (count < (known ? inst.min : inst.max) && pos != end_) {
                    const char* ahead = pos;
                    if (!set.contains(unicode::next(ahead))) break;
                    pos = ahead;
                    if (++count == inst.min) low = pos;
                }
                good = count >= inst.min;
                if (known) {
                    pos = loop.run_end;
                } else if (inst.max == kUnbounded) {
                    loop.run_begin = start;
                    loop.run_end = pos;
                }
                if (good && inst.op == Op::kLoop) {
                    good = !(low > loop.failed_low && pos <= loop.failed_high);
                    if (good && pos > low) stack_.push_back({pc + 1, pos, low});
                }
                break;
            }
            case Op::kSplit:
                if (inst.guard >= 0 && !guards_[static_cast<size_t>(inst.guard)].admits(pos, end_)) {
                    pc = inst.b;
                } else {
                    stack_.push_back({inst.b, pos, nullptr});
                    pc = inst.a;
                }
                continue;
            case Op::kJump: pc = inst.a; continue;
            case Op::kLook: case Op::kNotLook: case Op::kAtomic: {
                const char* inner = pos;
                good = run(pc + 1, pos, &inner) == (inst.op != Op::kNotLook);
                if (inst.op == Op::kAtomic) pos = inner;
                if (good) {
                    pc = inst.a;
                    continue;
                }
                break;
            }
            case Op::kLineStart:
                good = pos == begin_ || (pos != end_ && pos[-1] == '\n');
                break;
            case Op::kLineEnd: good = pos == end_ || *pos == '\n'; break;
            case Op::kTextStart: good = pos == begin_; break;
            case Op::kTextEnd: good = pos == end_; break;
            case Op::kMatch:
                stack_.resize(base);
                *stop = pos;
                return true;
        }
        if (good) {
            ++pc;
            continue;
        }
        if (stack_.size() == base) return false;
        Frame& frame = stack_.back();
        pc = frame.pc;
        if (frame.low == nullptr) {
            pos = frame.pos;
            stack_.pop_back();
        } else {  // the loop gives back one character
            pos = unicode::previous(frame.pos);
            note_failure(loops_[program_[pc - 1].b], pos, frame.pos);
            frame.pos = pos;
            if (pos == frame.low) stack_.pop_back();
        }
    }
}

}  // namespace bitnet
