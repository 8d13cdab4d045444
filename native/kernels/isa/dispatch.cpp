// The kernels in use, which are those of the best instruction set unless set_level or the self-test
// (self_test.cpp) chooses a slower one; and counters of their calls.
#include <atomic>

#include "isa/kernels.hpp"
#include "ops/ops.hpp"

namespace bitnet {
using detail::active;

namespace detail {
Kernels& active() {
    static Kernels chosen = *offered().back();
    return chosen;
}

const std::vector<const Kernels*>& offered() {
    static const std::vector<const Kernels*> tables = [] {
        std::vector<const Kernels*> levels = {&scalar_kernels()};
        [[maybe_unused]] const CpuFeatures& has = cpu_features();
#if defined(BITNET_AVX2)
        if (has.avx2) levels.push_back(&avx2_kernels());
#endif
#if defined(BITNET_AVX_VNNI)
        if (has.avx_vnni) levels.push_back(&avx_vnni_kernels());
#endif
#if defined(BITNET_AVX512_VNNI)
        if (has.avx512_vnni) levels.push_back(&avx512_vnni_kernels());
#endif
#if defined(BITNET_AMX)
        if (has.amx) levels.push_back(&amx_kernels());
#endif
#if defined(BITNET_ARM)
        if (has.neon_dotprod) levels.push_back(&neon_dotprod_kernels());
#endif
#if defined(BITNET_I8MM)
        if (has.neon_i8mm) levels.push_back(&neon_i8mm_kernels());
#endif
        return levels;
    }();
    return tables;
}
}  // namespace detail

std::vector<std::string> levels() {
    std::vector<std::string> names;
    for (const Kernels* kernels : detail::offered()) names.emplace_back(kernels->name);
    return names;
}

std::string level() { return active().name; }

bool set_level(const std::string& name) {
    for (const Kernels* kernels : detail::offered())
        if (name == kernels->name) {
            active() = *kernels;
            return true;
        }
    return false;
}

bool has_kernel(Type type) {
    const Kernels &chosen = active(), &scalar = scalar_kernels();
    return chosen.decode[int(type)] != scalar.decode[int(type)] &&
           chosen.prefill[int(type)] != scalar.prefill[int(type)];
}

bool dense_pays() { return active().dense_pays; }

namespace {

constexpr int kLevels = 5;  // at most: scalar, avx2, avx_vnni, avx512_vnni, amx
constexpr int kOps = int(Op::kCount);
#define BITNET_NAME(op) #op,
// In the order of Op. Decode and prefill are both "linear"; counters() appends their own names.
constexpr const char* kOpNames[kOps] = {"linear", "linear", "embed", "attention",
                                        BITNET_ROW_OPS(BITNET_NAME)};
#undef BITNET_NAME

// Operations without a type count under type 0.
std::atomic<uint64_t> calls[kLevels][kOps][kTypes];

bool has_type(int op) { return op <= int(Op::embed); }

}  // namespace

void count_call(Op op, Type type) {
    size_t level = 0;  // found by the address of its name: active() is a copy of its table
    while (detail::offered()[level]->name != active().name) ++level;
    calls[level][int(op)][has_type(int(op)) ? int(type) : 0].fetch_add(1,
                                                                       std::memory_order_relaxed);
}

std::map<std::string, uint64_t> counters() {
    std::map<std::string, uint64_t> counts;
    for (size_t level = 0; level < detail::offered().size(); ++level)
        for (int op = 0; op < kOps; ++op)
            for (int type = 0; type < kTypes; ++type) {
                const uint64_t count = calls[level][op][type].load(std::memory_order_relaxed);
                if (count == 0) continue;
                std::string name = kOpNames[op];
                if (has_type(op)) name += std::string("/") + kEncodings[type].name;
                name += std::string("/") + detail::offered()[level]->name;
                if (op == int(Op::decode)) name += "/decode";
                if (op == int(Op::prefill)) name += "/prefill";
                counts[name] = count;
            }
    return counts;
}

}  // namespace bitnet
