#include "ops.hpp"

#include <algorithm>
#include <atomic>

#include "counters.hpp"
#include "thread_pool.hpp"

namespace bitnet {
namespace detail {
const Kernels& active();  // dispatch.cpp
}
using detail::active;

namespace {

constexpr int64_t kSerialWork = 16384;  // elements below which waking a thread costs more than it saves

// Ranges of a fixed multiple of rows, several per thread so that a slow core does not hold the rest.
struct Split {
    int64_t n, step, chunks;
    Split(int64_t size, int64_t multiple, bool small) : n(size) {
        const int64_t parts = small ? 1 : int64_t(threads()) * (threads() > 1 ? 8 : 1);
        const int64_t units = (n + multiple - 1) / multiple;
        step = std::max<int64_t>(1, (units + parts - 1) / parts) * multiple;
        chunks = (n + step - 1) / step;
    }
    template <class F>
    void run(F&& body) const {
        parallel_for(chunks, [&](int64_t c) { body(c * step, std::min(n, (c + 1) * step)); });
    }
};

// Activations of one call; the memory stays with the calling thread.
struct Activations {
    std::vector<BlockInput> inputs;
    std::vector<int8_t> q;
    std::vector<float> step;
    std::vector<int32_t> sums;
};

void quantize(LinearArgs& a, Activations& out) {
    const int64_t t = a.tokens;
    const Split split(t, 1, t * a.cols < kSerialWork);
    if (is_ternary(a.type)) {
        out.q.resize(size_t(t * a.cols));
        out.step.resize(size_t(t));
        out.sums.resize(size_t(t));
        split.run([&](int64_t t0, int64_t t1) {
            for (int64_t i = t0; i < t1; ++i)
                active().quantize_ternary(a.x + i * a.cols, a.cols, &out.q[size_t(i * a.cols)],
                                          &out.step[size_t(i)], &out.sums[size_t(i)]);
        });
    } else {
        const int64_t stride = block_inputs(a.cols);
        out.inputs.resize(size_t(t * stride));
        split.run([&](int64_t t0, int64_t t1) {
            for (int64_t i = t0; i < t1; ++i)
                active().quantize_block(a.x + i * a.cols, a.cols, &out.inputs[size_t(i * stride)]);
        });
    }
    a.inputs = out.inputs.data();
    a.q = out.q.data();
    a.step = out.step.data();
    a.sums = out.sums.data();
}

}  // namespace

int64_t row_bytes(Type type, int64_t cols) {
    const BlockSize size = kBlocks[int(type)];
    return cols % size.weights ? 0 : cols / size.weights * size.bytes;
}

void linear(Type type, const uint8_t* weight, int64_t rows, int64_t cols, float scale, const float* x,
            int64_t tokens, float* y) {
    LinearArgs a;
    a.weight = weight;
    a.type = type;
    a.row_bytes = row_bytes(type, cols);
    a.rows = rows;
    a.cols = cols;
    a.tokens = tokens;
    a.scale = scale;
    a.x = x;
    a.y = y;
    thread_local Activations activations;
    if (!is_float(type)) quantize(a, activations);
    const bool decode = tokens <= kDecodeTokens;
    count_call(decode ? Op::decode : Op::prefill, type);
    const LinearKernel kernel = (decode ? active().decode : active().prefill)[int(type)];
    const Split split(rows, tile_rows(type), rows * cols * tokens < kSerialWork);
    split.run([&](int64_t r0, int64_t r1) { kernel(a, r0, r1, thread_scratch(scratch_bytes(cols))); });
}

bool codes_are_valid(Type type, const uint8_t* weight, int64_t rows, int64_t cols) {
    const int64_t bytes = type == Type::I2_S ? 32 : 64, stride = kBlocks[int(type)].bytes;
    const int64_t blocks = rows * row_bytes(type, cols) / stride;
    std::atomic<bool> valid{true};
    Split(blocks, 1024, false).run([&](int64_t b0, int64_t b1) {
        uint64_t threes = 0;  // both bits of a field
        for (int64_t b = b0; b < b1; ++b)
            for (int64_t i = 0; i < bytes; i += 8) {
                const auto word = read<uint64_t>(weight + b * stride + i);
                threes |= word & (word >> 1);
            }
        if (threes & 0x5555555555555555u) valid = false;
    });
    return valid;
}

void embed(Type type, const uint8_t* weight, int64_t cols, float scale, const int64_t* ids, int64_t count,
           float* out) {
    count_call(Op::embed, type);
    for (int64_t i = 0; i < count; ++i)
        active().dequantize(type, weight, ids[i], cols, scale, out + i * cols);
}

void rms_norm(const float* x, const float* weight, int64_t rows, int64_t cols, float eps, float* out) {
    count_call(Op::rms_norm);
    Split(rows, 1, rows * cols < kSerialWork).run([&](int64_t r0, int64_t r1) {
        for (int64_t r = r0; r < r1; ++r) active().rms_norm(x + r * cols, weight, cols, eps, out + r * cols);
    });
}

void layer_norm(const float* x, const float* weight, const float* bias, int64_t rows, int64_t cols, float eps,
                float* out) {
    count_call(Op::layer_norm);
    Split(rows, 1, rows * cols < kSerialWork).run([&](int64_t r0, int64_t r1) {
        for (int64_t r = r0; r < r1; ++r)
            active().layer_norm(x + r * cols, weight, bias, cols, eps, out + r * cols);
    });
}

void rope(const RopeArgs& args, int64_t tokens) {
    count_call(Op::rope);
    Split(tokens, 1, tokens * args.heads * args.head_dim < kSerialWork).run([&](int64_t t0, int64_t t1) {
        active().rope(args, t0, t1);
    });
}

void gate(Gate kind, const float* g, const float* up, int64_t n, float* out) {
    count_call(Op::gate);
    Split(n, 1024, n < kSerialWork).run([&](int64_t i0, int64_t i1) {
        active().gate(kind, g + i0, up + i0, i1 - i0, out + i0);
    });
}

void attention(const AttentionArgs& a) {
    const int64_t blocks = (a.tokens + kQueryBlock - 1) / kQueryBlock, units = blocks * a.kv_heads;
    const int64_t work = a.tokens * a.heads * a.head_dim * (a.start + a.tokens);
    count_call(Op::attention);
    // Last blocks first: with a causal mask they are the longest.
    Split(units, 1, work < kSerialWork).run([&](int64_t u0, int64_t u1) {
        auto* scratch = reinterpret_cast<float*>(thread_scratch(attention_scratch_floats(a) * sizeof(float)));
        for (int64_t u = u0; u < u1; ++u) {
            const int64_t block = blocks - 1 - u / a.kv_heads;
            active().attention(a, u % a.kv_heads, block * kQueryBlock,
                               std::min(a.tokens, (block + 1) * kQueryBlock), scratch);
        }
    });
}

uint64_t sum_bytes(const uint8_t* bytes, int64_t n) {
    std::atomic<uint64_t> total{0};
    Split(n / 64, 1024, n < kSerialWork).run([&](int64_t c0, int64_t c1) {
        uint64_t lane[8] = {};
        for (int64_t c = c0; c < c1; ++c)
            for (int i = 0; i < 8; ++i) lane[i] += read<uint64_t>(bytes + 64 * c + 8 * i);
        uint64_t sum = 0;
        for (const uint64_t value : lane) sum += value;
        total += sum;
    });
    return total;
}

void to_half(const float* x, int64_t n, uint16_t* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = float_to_half(x[i]);
}

}  // namespace bitnet
