#include "ops/counters.hpp"

#include <atomic>
#include <cstring>

#include "isa/dispatch.hpp"

namespace bitnet {
namespace {

#define BITNET_NAME(name) #name,
constexpr const char* kLevelNames[] = {"scalar", BITNET_LEVELS(BITNET_NAME)};
#undef BITNET_NAME
constexpr int kLevels = int(sizeof kLevelNames / sizeof *kLevelNames), kOps = int(Op::kCount);
constexpr const char* kOpNames[kOps] = {"linear", "linear", "embed", "rms_norm", "rope",
                                        "gate",   "attention", "softcap"};

std::atomic<uint64_t> calls[kLevels][kOps][kTypes];

bool has_type(int op) { return op <= int(Op::embed); }

// Whether the self-test put the scalar kernel in the place of this one.
bool replaced(Op op, Type type, const Kernels& now) {
    const Kernels& scalar = scalar_kernels();
    switch (op) {
        case Op::decode: return now.decode[int(type)] == scalar.decode[int(type)];
        case Op::prefill: return now.prefill[int(type)] == scalar.prefill[int(type)];
        case Op::embed: return now.dequantize == scalar.dequantize;
        case Op::rms_norm: return now.rms_norm == scalar.rms_norm;
        case Op::rope: return now.rope == scalar.rope;
        case Op::gate: return now.gate == scalar.gate;
        case Op::attention: return now.attend == scalar.attend;
        case Op::softcap: return now.softcap == scalar.softcap;
        default: return false;
    }
}

}  // namespace

void count_call(Op op, Type type) {
    const Kernels& now = detail::active();
    int level = 0;
    if (!replaced(op, type, now))
        while (level < kLevels - 1 && std::strcmp(kLevelNames[level], now.name) != 0) ++level;
    calls[level][int(op)][has_type(int(op)) ? int(type) : 0].fetch_add(1, std::memory_order_relaxed);
}

std::map<std::string, uint64_t> counters() {
    std::map<std::string, uint64_t> found;
    for (int level = 0; level < kLevels; ++level)
        for (int op = 0; op < kOps; ++op)
            for (int type = 0; type < kTypes; ++type) {
                const uint64_t n = calls[level][op][type].load(std::memory_order_relaxed);
                if (n == 0) continue;
                std::string name = kOpNames[op];
                if (has_type(op)) name += std::string("/") + kEncodings[type].name;
                name += std::string("/") + kLevelNames[level];
                if (op == int(Op::decode)) name += "/decode";
                if (op == int(Op::prefill)) name += "/prefill";
                found[name] = n;
            }
    return found;
}

}  // namespace bitnet
