// Which kernels are used: the best instruction set, minus those that fail their self-test (self_test.cpp); and how
// often each ran.
#include <atomic>

#include "isa/cpu.hpp"
#include "ops/counters.hpp"
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
        std::vector<const Kernels*> found = {&scalar_kernels()};
#define BITNET_ADD(name) \
    if (cpu_features().name) found.push_back(&name##_kernels());
        BITNET_LEVELS(BITNET_ADD)
#undef BITNET_ADD
        return found;
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
    return chosen.decode[int(type)] != scalar.decode[int(type)] && chosen.prefill[int(type)] != scalar.prefill[int(type)];
}

bool dense_pays() { return active().dense_pays; }

bool plant_wrong_kernel(const std::string& what) {
    Kernels& k = active();
    const LinearKernel ones = [](const LinearArgs& a, int64_t r0, int64_t r1, uint8_t*) {
        for (int64_t t = 0; t < a.tokens; ++t)
            for (int64_t r = r0; r < r1; ++r) a.y[t * a.rows + r] = 1.0f;
    };
    for (int i = 0; i < kTypes; ++i) {
        const std::string name = std::string("linear ") + kEncodings[i].name;
        if (what == name || what == name + " decode") k.decode[i] = ones;
        if (what == name || what == name + " prefill") k.prefill[i] = ones;
        if (what.rfind(name + " ", 0) == 0 || what == name) return true;
    }
    if (what == "dequantize")
        k.dequantize = [](Type type, const uint8_t* weight, int64_t row, int64_t cols, float* out) {
            scalar_kernels().dequantize(type, weight, row, cols, out);
            out[cols - 1] += 1.0f;
        };
    else if (what == "gather")
        k.gather = [](Type type, const uint8_t* const* rows, int64_t cols, uint8_t* tile) {
            scalar_kernels().gather(type, rows, cols, tile);
            tile[5] ^= 1;
        };
    else if (what == "head tile")
        k.exact_head.tile = [](const uint8_t* tile, int64_t blocks, const HeadInput& x, const float* step, const float* residual,
                           const float* norm, float* approx, float* upper) {
            scalar_kernels().exact_head.tile(tile, blocks, x, step, residual, norm, approx, upper);
            upper[3] = approx[3];
        };
    else if (what == "head sixth")
        k.exact_head.sixth = [](const uint8_t* row, int64_t cols, const HeadInput& x, float* sum, float* error) {
            scalar_kernels().exact_head.sixth(row, cols, x, sum, error);
            *error *= 0.5f;
        };
    else if (what == "head pack")
        k.exact_head.pack = [](const ExactHead& m, int64_t tile, float* rows) {
            const bool fits = scalar_kernels().exact_head.pack(m, tile, rows);
            m.residual[tile * kHeadRows + 1] = 0.0f;
            return fits;
        };
    else if (what == "pack")
        k.pack_two_bits = [](TernarySource source, const uint8_t* const* rows, int64_t cols, uint8_t* out) {
            const bool bad = scalar_kernels().pack_two_bits(source, rows, cols, out);
            out[4 * cols - 1] ^= 1;
            return bad;
        };
    else if (what == "make dense")
        k.make_dense = [](const uint8_t* tile, int64_t cols, uint8_t* out) {
            scalar_kernels().make_dense(tile, cols, out);
            out[0] += 1;
        };
    else return false;
    return true;
}

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
