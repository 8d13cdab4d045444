// Which kernels are used: the best instruction set, minus those that fail their self-test.
#include <cmath>
#include <mutex>

#include "cpu.hpp"
#include "ops.hpp"
#include "ternary_layout.hpp"
#include "thread_pool.hpp"

namespace bitnet {
namespace {

constexpr double kSelfTestNmse = 1e-9;  // float sums in another order: about 1e-13

std::vector<const Kernels*> available() {
    std::vector<const Kernels*> found = {&scalar_kernels()};
#if defined(BITNET_X86)
    if (cpu_features().avx2) found.push_back(&avx2_kernels());
    if (cpu_features().avx512_vnni) found.push_back(&avx512_kernels());
#elif defined(BITNET_ARM)
    if (cpu_features().neon_dotprod) found.push_back(&neon_kernels());
#endif
    return found;
}

Kernels& table() {
    static Kernels chosen = *available().back();
    return chosen;
}

// The same numbers on every machine.
struct Random {
    uint32_t state = 0x9e3779b9;
    uint32_t next() {
        state ^= state << 13;
        state ^= state >> 17;
        return state ^= state << 5;
    }
    float unit() { return float(next() >> 8) * 0x1p-23f - 1.0f; }
};

// Random bytes are valid codes almost everywhere; scales must be ordinary numbers.
std::vector<uint8_t> random_weights(Type type, int64_t rows, int64_t cols, Random& random) {
    const BlockSize size = kBlocks[int(type)];
    std::vector<uint8_t> bytes(size_t(weight_bytes(type, rows, cols)));
    for (uint8_t& b : bytes) b = uint8_t(random.next() >> 11);
    const auto put_half = [&](size_t at) {
        const uint16_t h = float_to_half(0.01f + 0.005f * random.unit());
        std::memcpy(&bytes[at], &h, 2);
    };
    for (size_t at = 0; at < bytes.size(); at += size_t(size.bytes)) {
        switch (type) {
            case Type::F32: {
                const float f = random.unit();
                std::memcpy(&bytes[at], &f, 4);
                break;
            }
            case Type::F16: put_half(at); break;
            case Type::BF16: bytes[at + 1] = uint8_t(0x3c | (bytes[at + 1] & 0x80)); break;
            case Type::Ternary:
            case Type::TernaryBlocks:
            case Type::TernaryDense: break;
            case Type::Q6_K: put_half(at + 208); break;
            default:
                put_half(at);
                if (type != Type::Q8_0 && type != Type::Q4_0 && type != Type::Q5_0) put_half(at + 2);
        }
    }
    if (is_ternary(type)) {
        const auto codes = size_t(ternary_code_bytes(type, rows, cols));
        for (size_t i = 0; i < codes; ++i)  // code 3 and low digits of 27 mean nothing
            if (type == Type::TernaryDense) bytes[i] = uint8_t(bytes[i] % 9 * 28 + bytes[i] / 9 % 27);
            else bytes[i] &= uint8_t(~((bytes[i] & (bytes[i] >> 1) & 0x55) << 1));
        for (size_t i = codes; i < bytes.size(); i += 4) {
            const float scale = random.unit();
            std::memcpy(&bytes[i], &scale, 4);
        }
    }
    return bytes;
}

bool close(const std::vector<float>& got, const std::vector<float>& expected, bool exact) {
    double error = 0.0, norm = 0.0;
    for (size_t i = 0; i < got.size(); ++i) {
        if (exact && got[i] != expected[i]) return false;
        error += (double(got[i]) - expected[i]) * (double(got[i]) - expected[i]);
        norm += double(expected[i]) * expected[i];
    }
    return error <= kSelfTestNmse * norm;
}

// Matrix of *type*: random rows, packed where the type has interleaved ones.
std::vector<uint8_t> random_matrix(Type type, int64_t rows, int64_t cols, Random& random) {
    if (!is_tiled(type)) return random_weights(type, rows, cols, random);
    const Type source = Type(int(type) - int(tiled(Type::F32)));
    const std::vector<uint8_t> weights = random_weights(source, rows, cols, random);
    std::vector<uint8_t> out(size_t((rows + kTileRows - 1) / kTileRows * kTileRows * row_bytes(type, cols)));
    pack_rows(source, weights.data(), rows, cols, out.data());
    return out;
}

bool linear_agrees(Type type, LinearKernel kernel, int64_t tokens) {
    constexpr int64_t kRows = 19;
    const int64_t cols = kBlocks[int(type)].weights <= 32 ? 480 : 512, stride = block_inputs(cols);
    Random random;
    const std::vector<uint8_t> weight = random_matrix(type, kRows, cols, random);
    std::vector<float> x(size_t(tokens * cols)), step(x.size());
    std::vector<int8_t> q(x.size());
    std::vector<int32_t> sums(x.size());
    std::vector<BlockInput> inputs(size_t(tokens * stride));
    for (float& f : x) f = random.unit();
    const Kernels& scalar = scalar_kernels();
    for (int64_t t = 0; t < tokens; ++t) {
        const float* row = &x[size_t(t * cols)];
        if (is_ternary(type)) scalar.quantize_ternary(row, cols, &q[size_t(t * cols)], &step[size_t(t)], &sums[size_t(t)]);
        else if (!is_float(type)) scalar.quantize_block(row, cols, &inputs[size_t(t * stride)]);
    }
    LinearArgs a;
    a.weight = weight.data(), a.type = type, a.row_bytes = row_bytes(type, cols);
    a.rows = kRows, a.cols = cols, a.tokens = tokens, a.scale = 0.7f;
    a.x = x.data(), a.inputs = inputs.data(), a.q = q.data(), a.step = step.data(), a.sums = sums.data();
    std::vector<float> got(size_t(tokens * kRows)), expected(got.size());
    uint8_t* scratch = thread_scratch(scratch_bytes(cols));
    a.y = expected.data();
    scalar.decode[int(type)](a, 0, kRows, scratch);
    a.y = got.data();
    kernel(a, 0, kRows, scratch);
    return close(got, expected, !is_float(type));
}

bool row_ops_agree(const Kernels& k) {
    constexpr int64_t kCols = 333;
    Random random;
    std::vector<float> x(kCols), w(kCols), got(kCols), expected(kCols);
    for (float& f : x) f = random.unit();
    for (float& f : w) f = random.unit();
    const Kernels& s = scalar_kernels();
    s.rms_norm(x.data(), w.data(), kCols, 1e-5f, expected.data());
    k.rms_norm(x.data(), w.data(), kCols, 1e-5f, got.data());
    if (!close(got, expected, false)) return false;
    for (const Gate kind : {Gate::silu, Gate::gelu_tanh, Gate::relu2, Gate::relu}) {
        s.gate(kind, x.data(), w.data(), kCols, expected.data());
        k.gate(kind, x.data(), w.data(), kCols, got.data());
        if (!close(got, expected, false)) return false;
    }
    s.softcap(x.data(), kCols, 0.5f, expected.data());
    k.softcap(x.data(), kCols, 0.5f, got.data());
    return close(got, expected, false);
}

bool norm_and_rope_agree(const Kernels& k) {
    constexpr int64_t kCols = 84;
    Random random;
    std::vector<float> x(kCols), w(kCols), got(kCols), expected(kCols);
    for (float& f : x) f = random.unit();
    for (float& f : w) f = random.unit();
    const Kernels& s = scalar_kernels();
    s.layer_norm(x.data(), w.data(), w.data(), kCols, 1e-5f, expected.data());
    k.layer_norm(x.data(), w.data(), w.data(), kCols, 1e-5f, got.data());
    if (!close(got, expected, false)) return false;
    for (const bool half : {true, false}) {
        RopeArgs a;
        a.x = x.data(), a.cos = w.data(), a.sin = w.data() + 20, a.half = half;
        a.heads = 2, a.head_dim = kCols / 2, a.rotated = 40;
        a.out = expected.data();
        s.rope(a, 0, 1);
        a.out = got.data();
        k.rope(a, 0, 1);
        if (!close(got, expected, false)) return false;
    }
    return true;
}

// Rounded activations are part of the ternary result, so they must be the same bits.
bool rounding_agrees(const Kernels& k) {
    constexpr int64_t kCols = 416;
    Random random;
    std::vector<float> x(kCols);
    std::vector<BlockInput> blocks[2] = {std::vector<BlockInput>(kCols / 32), std::vector<BlockInput>(kCols / 32)};
    std::vector<int8_t> q[2] = {std::vector<int8_t>(kCols), std::vector<int8_t>(kCols)};
    float step[2];
    int32_t sum[2];
    for (float& f : x) f = random.unit();
    const Kernels* both[2] = {&scalar_kernels(), &k};
    for (int i = 0; i < 2; ++i) {
        both[i]->quantize_block(x.data(), kCols, blocks[i].data());
        both[i]->quantize_ternary(x.data(), kCols, q[i].data(), &step[i], &sum[i]);
    }
    return std::memcmp(blocks[0].data(), blocks[1].data(), kCols / 32 * sizeof(BlockInput)) == 0 && q[0] == q[1] &&
           step[0] == step[1] && sum[0] == sum[1];
}

bool attention_agrees(const Kernels& k) {
    AttentionArgs a;
    a.tokens = 3, a.heads = 4, a.kv_heads = 2, a.head_dim = 40, a.start = 70, a.window = 68, a.scale = 0.2f;
    const int64_t rows = a.tokens * a.heads / a.kv_heads, positions = a.start + a.tokens;
    const size_t page = size_t(2 * a.kv_heads * a.head_dim * kKeyBlock);
    Random random;
    std::vector<float> q(size_t(a.tokens * a.heads * a.head_dim)), kv(size_t(a.kv_heads * a.head_dim));
    for (float& f : q) f = random.unit();
    std::vector<uint16_t> pages[2] = {std::vector<uint16_t>(2 * page), std::vector<uint16_t>(2 * page)};
    const Kernels* both[2] = {&scalar_kernels(), &k};
    for (int64_t p = 0; p < positions; ++p) {
        for (float& f : kv) f = random.unit();
        for (int i = 0; i < 2; ++i)
            both[i]->store_position(kv.data(), kv.data(), a.kv_heads, a.head_dim, p % kKeyBlock,
                                    &pages[i][size_t(p / kKeyBlock) * page]);
    }
    if (pages[0] != pages[1]) return false;
    const uint16_t* at[2] = {pages[0].data(), pages[0].data() + page};
    a.q = q.data(), a.pages = at;
    const auto floats = size_t(PartialAttention::floats(rows, a.head_dim));
    std::vector<float> got(floats), expected(floats);
    for (int64_t head = 0; head < a.kv_heads; ++head) {
        scalar_kernels().attend(a, head, 0, a.tokens, 0, expected.data());
        k.attend(a, head, 0, a.tokens, 0, got.data());
        if (!close(got, expected, false)) return false;
    }
    return true;
}

}  // namespace

namespace detail {
const Kernels& active() { return table(); }
}  // namespace detail

std::vector<std::string> levels() {
    std::vector<std::string> names;
    for (const Kernels* kernels : available()) names.emplace_back(kernels->name);
    return names;
}

std::string level() { return table().name; }

bool set_level(const std::string& name) {
    for (const Kernels* kernels : available())
        if (name == kernels->name) {
            table() = *kernels;
            return true;
        }
    return false;
}

bool has_kernel(Type type) {
    const Kernels &chosen = table(), &scalar = scalar_kernels();
    return chosen.decode[int(type)] != scalar.decode[int(type)] && chosen.prefill[int(type)] != scalar.prefill[int(type)];
}

void plant_wrong_kernel(Type type) {
    table().decode[int(type)] = table().prefill[int(type)] = [](const LinearArgs& a, int64_t r0, int64_t r1, uint8_t*) {
        for (int64_t t = 0; t < a.tokens; ++t)
            for (int64_t r = r0; r < r1; ++r) a.y[t * a.rows + r] = 1.0f;
    };
}

std::vector<std::string> self_test() {
    Kernels& chosen = table();
    const Kernels& scalar = scalar_kernels();
    std::vector<std::string> replaced;
    for (int i = 0; i < kTypes; ++i) {
        if (can_tile(Type(i))) continue;  // in rows: scalar
        if (!linear_agrees(Type(i), chosen.decode[i], 7) || !linear_agrees(Type(i), chosen.decode[i], 1)) {
            chosen.decode[i] = scalar.decode[i];
            replaced.push_back(std::string("linear ") + kTypeNames[i] + " decode");
        }
        if (!linear_agrees(Type(i), chosen.prefill[i], 17)) {
            chosen.prefill[i] = scalar.prefill[i];
            replaced.push_back(std::string("linear ") + kTypeNames[i] + " prefill");
        }
    }
    if (!row_ops_agree(chosen)) {
        chosen.rms_norm = scalar.rms_norm;
        chosen.gate = scalar.gate;
        chosen.softcap = scalar.softcap;
        replaced.emplace_back("rms_norm, gate and softcap");
    }
    if (!norm_and_rope_agree(chosen)) {
        chosen.layer_norm = scalar.layer_norm;
        chosen.rope = scalar.rope;
        replaced.emplace_back("layer_norm and rope");
    }
    if (!rounding_agrees(chosen)) {
        chosen.quantize_block = scalar.quantize_block;
        chosen.quantize_ternary = scalar.quantize_ternary;
        replaced.emplace_back("rounding of activations");
    }
    if (!attention_agrees(chosen)) {
        chosen.attend = scalar.attend;
        chosen.store_position = scalar.store_position;
        replaced.emplace_back("attention");
    }
    return replaced;
}

}  // namespace bitnet
