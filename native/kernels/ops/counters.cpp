#include "ops/counters.hpp"

#include <atomic>

#include "isa/dispatch.hpp"

namespace bitnet {
namespace {

#define BITNET_ONE(name) +1
constexpr int kLevels = 1 BITNET_LEVELS(BITNET_ONE), kOps = int(Op::kCount);
#undef BITNET_ONE
#define BITNET_NAME(op) #op,
constexpr const char* kOpNames[kOps] = {"linear", "linear", "embed", "attention", BITNET_ROW_OPS(BITNET_NAME)};
#undef BITNET_NAME

std::atomic<uint64_t> calls[kLevels][kOps][kTypes];

bool has_type(int op) { return op <= int(Op::embed); }

// Whether both have the same kernel.
bool same(Op op, Type type, const Kernels& a, const Kernels& b) {
    switch (op) {
        case Op::decode: return a.decode[int(type)] == b.decode[int(type)];
        case Op::prefill: return a.prefill[int(type)] == b.prefill[int(type)];
        case Op::embed: return a.dequantize == b.dequantize;
        case Op::attention: return a.attend == b.attend;
#define BITNET_SAME(op) \
    case Op::op: return a.op == b.op;
            BITNET_ROW_OPS(BITNET_SAME)
#undef BITNET_SAME
        default: return true;
    }
}

// The place in offered() of the level in use, or of that whose kernel the self-test put in its place.
int level_of(Op op, Type type) {
    const Kernels& now = detail::active();
    const std::vector<const Kernels*>& tables = detail::offered();
    if (same(op, type, now, *tables[0])) return 0;
    int level = int(tables.size()) - 1;
    while (level > 0 && tables[size_t(level)]->name != now.name) --level;
    const int in_use = level;
    while (level > 0 && !same(op, type, now, *tables[size_t(level)])) --level;
    return level > 0 ? level : in_use;
}

}  // namespace

void count_call(Op op, Type type) {
    const int level = level_of(op, type);
    calls[level][int(op)][has_type(int(op)) ? int(type) : 0].fetch_add(1, std::memory_order_relaxed);
}

std::map<std::string, uint64_t> counters() {
    std::map<std::string, uint64_t> found;
    for (int level = 0; level < int(detail::offered().size()); ++level)
        for (int op = 0; op < kOps; ++op)
            for (int type = 0; type < kTypes; ++type) {
                const uint64_t n = calls[level][op][type].load(std::memory_order_relaxed);
                if (n == 0) continue;
                std::string name = kOpNames[op];
                if (has_type(op)) name += std::string("/") + kEncodings[type].name;
                name += std::string("/") + detail::offered()[size_t(level)]->name;
                if (op == int(Op::decode)) name += "/decode";
                if (op == int(Op::prefill)) name += "/prefill";
                found[name] = n;
            }
    return found;
}

}  // namespace bitnet
