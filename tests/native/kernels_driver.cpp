// Runs every kernel of every instruction set on buffers of exactly the right size and compares the
// results with those of the scalar kernels. The target kernels_driver is built with sanitizers
// (cmake -DBITNET_SANITIZE=address,undefined) or for another processor. Exit code 0: nothing was
// found.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "amx_traps.hpp"
#include "isa/kernels.hpp"
#include "system/thread_pool.hpp"
#include "graph/graph.hpp"
#include "ops/ops.hpp"
#include "head/exact_head.hpp"
#include "ternary/layout.hpp"

namespace {

using bitnet::Type;

// Heap arrays, so that the address sanitizer sees the first byte outside.
template <class T>
struct Buffer {
    std::unique_ptr<T[]> items;
    explicit Buffer(int64_t n) : items(new T[size_t(n)]()) {}
    T* get() const { return items.get(); }
};

// Numbers from -1 to 1, the same in every run.
Buffer<float> wave(int64_t n) {
    Buffer<float> out(n);
    for (int64_t i = 0; i < n; ++i)
        out.get()[i] = float(int32_t(uint32_t(i + 1) * 2654435761u)) * 0x1p-31f;
    return out;
}

// What the scalar kernels computed, in order; every other pass is compared with it.
class Results {
public:
    // Record the next *n* floats, or compare them: bit by bit if *exact*, else by squared error.
    void add(const float* values, int64_t n, bool exact, const char* what) {
        for (int64_t i = 0; i < n; ++i) {
            uint32_t bits;
            std::memcpy(&bits, values + i, sizeof(bits));
            digest_ = (digest_ ^ bits) * 0x100000001b3;  // FNV-1a, a word at a time
        }
        if (recording_) {
            kept_.emplace_back(values, values + n);
            return;
        }
        const std::vector<float>& expected = kept_.at(at_++);
        double error = 0.0, norm = 0.0;
        bool same = int64_t(expected.size()) == n;
        for (int64_t i = 0; same && i < n; ++i) {
            const double left = double(values[i]) - double(expected[size_t(i)]);
            if (exact && std::memcmp(values + i, &expected[size_t(i)], sizeof(float)) != 0)
                same = false;
            error += left * left;
            norm += double(expected[size_t(i)]) * double(expected[size_t(i)]);
        }
        if (same && error <= 1e-9 * norm) return;
        std::fprintf(stderr, "%s: %s, result %zu differs from that of the scalar kernels\n",
                     bitnet::level().c_str(), what, at_ - 1);
        std::exit(1);
    }
    // A copy that compares, from the first result on.
    Results comparing() const {
        Results out = *this;
        out.recording_ = false;
        out.at_ = 0;
        out.digest_ = kNothing;
        return out;
    }
    // Digest of all bits that were added.
    uint64_t digest() const { return digest_; }
    bool complete() const { return recording_ || at_ == kept_.size(); }

private:
    static constexpr uint64_t kNothing = 0xcbf29ce484222325;
    std::vector<std::vector<float>> kept_;
    uint64_t digest_ = kNothing;
    size_t at_ = 0;
    bool recording_ = true;
};

// Turns arbitrary bytes into valid weights: ternary codes, and scales and floats below 2, whose
// highest bit of the exponent (0x40 of their last byte) is zero.
void tame(Type type, uint8_t* bytes, int64_t rows, int64_t cols) {
    const int64_t size = bitnet::encoding(type).bytes, all = bitnet::weight_bytes(type, rows, cols);
    if (bitnet::is_ternary(type)) {
        const int64_t codes = bitnet::ternary_code_bytes(type, rows, cols);
        for (int64_t i = 0; i < codes; ++i)
            if (type == Type::TernaryDense)  // digits are worth 1, 3, 9, 28 and 84
                bytes[i] = uint8_t(bytes[i] % 9 * 28 + bytes[i] / 9 % 27);
            else  // code 3 becomes 1
                bytes[i] &= uint8_t(~((bytes[i] & (bytes[i] >> 1) & 0x55) << 1));
        for (int64_t i = codes + 3; i < all; i += 4) bytes[i] &= 0xbf;
        return;
    }
    for (int64_t at = 0; at < all; at += size) {
        const bool last = type == Type::Q6_K || type == Type::PTQ1_0;
        if (type == Type::MXFP4)
            bytes[at] &= 0x7f;
        else
            bytes[at + (type == Type::F32 ? 3 : last ? size - 1 : 1)] &= 0xbf;
        if (bitnet::encoding(type).minimum) bytes[at + 3] &= 0xbf;
    }
}

void multiply(Results& results, Type type, uint8_t* weight, int64_t rows, int64_t cols,
              int64_t inputs, int64_t tokens) {
    Buffer<float> x = wave(tokens * inputs), y(tokens * rows), row(cols);
    bitnet::LinearJob job;
    job.matrix.type = type;
    job.matrix.data = weight;
    job.matrix.scale = 0.5f;
    job.matrix.rows = rows;
    job.matrix.cols = cols;
    job.matrix.inputs = inputs;
    job.y = y.get();
    bitnet::linear(job, x.get(), tokens);
    const int64_t last = rows - 1;
    bitnet::embed(type, weight, rows, cols, 0.5f, &last, 1, row.get());
    results.add(y.get(), tokens * rows, !bitnet::is_float(type), bitnet::encoding(type).name);
    results.add(row.get(), cols, true, "embed");
}

void run_linear(Results& results, Type type, int64_t rows, int64_t cols, int64_t tokens) {
    const int64_t bytes = bitnet::weight_bytes(type, rows, cols);
    Buffer<uint8_t> weight(bytes);
    for (int64_t i = 0; i < bytes; ++i) weight.get()[i] = uint8_t(i * 73 + 19);
    tame(type, weight.get(), rows, cols);
    multiply(results, type, weight.get(), rows, cols, cols, tokens);
    if (!bitnet::can_tile(type)) return;
    const Type tiled = bitnet::tiled(type);
    const int64_t wide = bitnet::tiled_cols(type, cols);
    Buffer<uint8_t> tiles(bitnet::weight_bytes(tiled, rows, wide));
    bitnet::pack_rows(type, weight.get(), rows, cols, tiles.get());
    multiply(results, tiled, tiles.get(), rows, wide, cols, tokens);
}

void run_ternary_packing(Results& results, Type type, int64_t rows, int64_t cols) {
    const int64_t step = bitnet::ternary_step(type), padded = (cols + step - 1) / step * step;
    for (int i = 0; i < int(bitnet::TernarySource::kCount); ++i) {
        const auto source = bitnet::TernarySource(i);
        const int64_t bytes = bitnet::ternary_source_bytes(source, rows, cols);
        if (bytes == 0) continue;
        Buffer<uint8_t> weight(bytes), out(bitnet::ternary_code_bytes(type, rows, padded));
        for (int64_t j = 0; j < bytes; ++j) weight.get()[j] = uint8_t(j * 73 + 19);
        bitnet::pack_ternary(source, weight.get(), rows, cols, type, padded, out.get());
        tame(type, out.get(), rows, padded);
        multiply(results, type, out.get(), rows, padded, padded, 3);
    }
}

void run_arena() {
    std::shared_ptr<uint8_t> first = bitnet::allocate_weights(100),
                             second = bitnet::allocate_weights(40 << 20);
    first.get()[99] = second.get()[(40 << 20) - 1] = 1;
    first.reset();
    bitnet::allocate_weights(64).get()[63] = 1;
}

// Pages of a cache, each a heap array of its own.
struct Pages {
    std::vector<Buffer<int16_t>> memory;
    std::vector<int16_t*> at;
    Pages(int64_t positions, int64_t words) {
        for (int64_t p = 0; p < positions; p += bitnet::kKeyBlock) {
            memory.emplace_back(words);
            at.push_back(memory.back().get());
            // Places that hold nothing may hold anything: here sums that leave int32, and steps
            // that are NaN.
            for (int64_t i = 0; i < words; ++i) at.back()[i] = i % 2 ? 0x7fc0 : -32768;
        }
    }

    // Keys and values of the first *positions*, in the pages of one layer.
    void fill(int64_t positions, bitnet::KvType type, int64_t kv_heads, int64_t head_dim) {
        const int64_t width = kv_heads * head_dim;
        Buffer<float> k = wave(positions * width + 7);
        for (int64_t p = 0; p < positions; ++p)
            bitnet::detail::active().store_position(k.get() + p * width, k.get() + p * width + 7,
                                                    type, kv_heads, head_dim, p % bitnet::kKeyBlock,
                                                    at[size_t(p / bitnet::kKeyBlock)]);
    }
};

constexpr bitnet::KvType kF16 = bitnet::KvType::f16;

void run_attention(Results& results, bitnet::KvType type, int64_t head_dim, int64_t tokens,
                   int64_t start, int64_t window) {
    bitnet::AttentionArgs a;
    a.tokens = tokens;
    a.heads = 6;
    a.kv_heads = 2;
    a.head_dim = head_dim;
    a.start = start;
    a.window = window;
    a.softcap = 30.0f;
    a.kv_type = type;
    Buffer<float> sinks = wave(a.heads);
    if (tokens % 2) a.sinks = sinks.get();
    Buffer<float> q = wave(tokens * a.heads * a.head_dim), out(tokens * a.heads * a.head_dim);
    Pages pages(start + tokens, 2 * a.kv_heads * bitnet::head_words(a.head_dim, type));
    pages.fill(start + tokens, type, a.kv_heads, a.head_dim);
    const std::vector<const int16_t*> at(pages.at.begin(), pages.at.end());
    Buffer<float> second(tokens * a.heads * a.head_dim);
    a.q = q.get();
    a.pages = at.data();
    a.out = out.get();
    bitnet::AttentionArgs b = a;
    b.out = second.get();
    bitnet::attention({a, b});
    for (const auto* got : {&out, &second})
        results.add(got->items.get(), tokens * a.heads * a.head_dim, true, "attention");
}

// Layers with a state: a convolution, the delta rule and Mamba-2's scan, in two parts.
void run_states(Results& results, int64_t tokens, int64_t dim) {
    constexpr int64_t kHeads = 4, kGroups = 2, kKeys = 12, kWidth = 3;
    const int64_t channels = kHeads * dim, keys = kGroups * kKeys;
    const bitnet::Kernels& kernels = bitnet::detail::active();
    Buffer<float> x = wave(tokens * channels), weight = wave(channels * kWidth),
                  b = wave(tokens * keys), head = wave(tokens * kHeads);
    Buffer<float> before = wave((kWidth - 1) * channels), state = wave(kHeads * kKeys * dim),
                  out(tokens * channels);
    const auto add = [&](const char* what) {
        results.add(out.get(), tokens * channels, true, what);
        results.add(before.get(), (kWidth - 1) * channels, true, what);
        results.add(state.get(), kHeads * kKeys * dim, true, what);
    };
    const int64_t cut = tokens / 2;
    for (const bool silu : {true, false}) {
        bitnet::ConvolveArgs c;
        c.weight = weight.get();
        c.bias = silu ? weight.get() : nullptr;
        c.state = before.get();
        c.silu = silu;
        c.channels = channels;
        c.width = kWidth;
        for (const auto& [first, count] :
             {std::pair(int64_t(0), cut), std::pair(cut, tokens - cut)}) {
            c.x = x.get() + first * channels;
            c.out = out.get() + first * channels;
            c.tokens = count;
            kernels.convolve(c, 0, channels);
        }
        add("convolve");
    }
    for (const auto& [first, count] : {std::pair(int64_t(0), cut), std::pair(cut, tokens - cut)}) {
        bitnet::DeltaArgs d;
        d.q = d.k = b.get() + first * keys;
        d.v = x.get() + first * channels;
        d.out = out.get() + first * channels;
        d.alpha = d.beta = head.get() + first * kHeads;
        d.a = d.dt = head.get();
        d.state = state.get();
        d.tokens = count;
        d.heads = kHeads;
        d.key_heads = kGroups;
        d.key_dim = kKeys;
        d.value_dim = dim;
        for (int64_t i = 0; i < kHeads; ++i) kernels.delta_rule(d, i);
    }
    add("delta_rule");
    for (const auto& [first, count] : {std::pair(int64_t(0), cut), std::pair(cut, tokens - cut)}) {
        bitnet::ScanArgs s;
        s.b = s.c = b.get() + first * keys;
        s.x = x.get() + first * channels;
        s.out = out.get() + first * channels;
        s.dt = head.get() + first * kHeads;
        s.a = s.bias = s.skip = head.get();
        s.state = state.get();
        s.tokens = count;
        s.heads = kHeads;
        s.groups = kGroups;
        s.state_size = kKeys;
        s.head_dim = dim;
        for (int64_t i = 0; i < kHeads; ++i) kernels.selective_scan(s, i);
    }
    add("selective_scan");
}

// The fields of an instruction, as the binding reads them from Python.
class Fields : public bitnet::Operands {
public:
    Fields& ints(const char* field, std::vector<int64_t> values) {
        integers_[field] = std::move(values);
        return *this;
    }
    Fields& real(const char* field, double value) {
        numbers_[field] = value;
        return *this;
    }
    Fields& floats(const char* field, std::vector<bitnet::FloatArray> values) {
        arrays_[field] = std::move(values);
        return *this;
    }
    Fields& weights(const char* field, const std::vector<bitnet::Matrix>& values) {
        for (const bitnet::Matrix& m : values) matrices_[field].push_back({m});
        return *this;
    }
    std::vector<int64_t> integers(const char* field) const override { return integers_.at(field); }
    double number(const char* field) const override { return numbers_.at(field); }
    std::string text(const char*) const override { return "silu"; }
    std::vector<bitnet::FloatArray> arrays(const char* field) const override {
        return arrays_.at(field);
    }
    std::vector<std::vector<bitnet::Matrix>> matrices(const char* field) const override {
        return matrices_.at(field);
    }

private:
    std::map<std::string, std::vector<int64_t>> integers_;
    std::map<std::string, double> numbers_;
    std::map<std::string, std::vector<bitnet::FloatArray>> arrays_;
    std::map<std::string, std::vector<std::vector<bitnet::Matrix>>> matrices_;
};

// A model of one dense layer, with other instructions of rows in it, over two sequences.
void run_graph(Results& results, int64_t tokens) {
    constexpr int64_t kDim = 52, kHeads = 3, kHead = 20, kQ = kHeads * kHead, kFfn = 36,
                      kVocabulary = 7;
    enum { x, h, qkv, q, k, v, mixed, gate, up, act };
    bitnet::Graph graph;
    int64_t place = 0;
    for (const int64_t width : {kDim, kDim, 3 * kQ, kQ, kQ, kQ, kQ, kFfn, kFfn, kFfn})
        graph.add_register(width, place++);
    const bitnet::Graph::Table seen{1, kHeads, kHead, 90};
    const int64_t keys_and_values = graph.add_table(seen);
    const auto matrix = [](Buffer<float>& weights, int64_t rows, int64_t cols) {
        bitnet::Matrix m;
        m.data = reinterpret_cast<const uint8_t*>(weights.get());
        m.rows = rows;
        m.cols = m.inputs = cols;
        return m;
    };
    Buffer<float> table = wave(kVocabulary * kDim), norm = wave(kDim), head_norm = wave(kHead),
                  bias = wave(3 * kQ);
    Buffer<float> in = wave(3 * kQ * kDim), out = wave(kDim * kQ), to_ffn = wave(kFfn * kDim),
                  from_ffn = wave(kDim * kFfn);
    const int rotation = graph.add_rotation(kHead / 4, true);
    const int64_t context = graph.add_context({{{1.0, 0.5, 0.25, 0.125, 0.1}, 1.0}});
    bitnet::Matrix scaled = matrix(in, 3 * kQ, kDim);
    scaled.factors = bias.get();
    scaled.n_factors = 3 * kQ;
    const auto fields = [](std::initializer_list<std::pair<const char*, int64_t>> values) {
        Fields all;
        for (const auto& [field, value] : values) all.ints(field, {value});
        return all;
    };
    const auto linear = [&](int64_t input, const std::vector<int64_t>& outs,
                            const std::vector<bitnet::Matrix>& weights,
                            const std::vector<bitnet::FloatArray>& biases) {
        graph.add("Linear", fields({{"x", input}})
                                .ints("outs", outs)
                                .weights("weights", weights)
                                .floats("biases", biases));
    };
    const auto norm_of = [&](int64_t to, int64_t from, Buffer<float>& weight, int64_t size,
                             int64_t parts) {
        graph.add(
            "Norm",
            fields({{"out", to}, {"x", from}, {"parts", parts}})
                .floats("weight", {{weight.get(), size}})
                .floats("bias", {{size == kDim ? weight.get() : nullptr, size == kDim ? size : 0}})
                .real("eps", 1e-5));
    };
    graph.add("Embed", fields({{"out", x}, {"rows", 0}})
                           .weights("table", {matrix(table, kVocabulary, kDim)})
                           .real("scale", 2.0));
    norm_of(h, x, norm, kDim, 2);
    linear(h, {qkv}, {scaled}, {{bias.get(), 3 * kQ}});
    graph.add("Split", fields({{"x", qkv}, {"groups", 1}}).ints("outs", {q, k, v}));
    graph.add("Center", fields({{"out", v}, {"x", v}, {"width", kHead}}));
    graph.add("Clamp", fields({{"out", v}, {"x", v}}).real("limit", 3.0));
    graph.add("Xielu", fields({{"out", v}, {"x", v}})
                           .real("above", 0.8)
                           .real("below", 0.7)
                           .real("beta", 0.5)
                           .real("eps", -1e-6));
    graph.add("Blend",
              fields({{"out", v}, {"x", v}, {"y", v}}).real("x_share", 0.75).real("y_share", 0.5));
    graph.add("Resize", fields({{"out", v}, {"x", v}, {"like", q}}).real("eps", 1e-5));
    graph.add("Cutoff", fields({{"out", v}, {"x", v}}).real("deviations", -1.0));
    graph.add("Transpose",
              fields({{"out", mixed}, {"x", v}, {"rows", 3}, {"columns", kQ / 3 / 4}}));
    graph.add("Transpose",
              fields({{"out", v}, {"x", mixed}, {"rows", kQ / 3 / 4}, {"columns", 3}}));
    norm_of(q, q, head_norm, kHead, 1);
    for (const int64_t turned : {q, k})
        graph.add(
            "Rotate",
            fields({{"out", turned}, {"x", turned}, {"rotation", rotation}, {"head_dim", kHead}}));
    graph.add("Attend", fields({{"out", mixed},
                                {"q", q},
                                {"k", k},
                                {"v", v},
                                {"table", keys_and_values},
                                {"place", 0},
                                {"causal", 1}})
                            .real("scale", 0.2)
                            .real("softcap", 30.0)
                            .floats("sinks", {{bias.get(), kHeads}})
                            .floats("slopes", {{bias.get() + kHeads, kHeads}})
                            .floats("distances", {{bias.get(), 5 * kHeads}}));
    graph.add("Select", Fields().ints("registers", {x, mixed}));
    linear(mixed, {h}, {matrix(out, kDim, kQ)}, {{}});
    graph.add("Add", fields({{"out", x}, {"x", x}, {"y", h}}));
    linear(x, {gate, up}, {matrix(to_ffn, kFfn, kDim), matrix(to_ffn, kFfn, kDim)}, {{}, {}});
    graph.add("Gate", fields({{"out", act}, {"gate", gate}, {"up", up}}));
    linear(act, {h}, {matrix(from_ffn, kDim, kFfn)}, {{}});
    graph.add("Add", fields({{"out", x}, {"x", x}, {"y", h}}));
    Pages first(300 + tokens, seen.layer_words()), second(tokens, seen.layer_words());
    first.fill(300, kF16, kHeads, kHead);
    first.at[0] = first.at[1] = first.at[2] =
        nullptr;  // the window of the first query begins behind them
    Buffer<int64_t> ids(2 * tokens);
    for (int64_t i = 0; i < 2 * tokens; ++i) ids.get()[i] = i % kVocabulary;
    for (const int64_t outputs : {int64_t(0), int64_t(1), tokens}) {
        Buffer<float> result((outputs + 1) * kDim);
        graph.run(
            ids.get(), 2 * tokens,
            {{tokens, 300, outputs, context, {first.at}}, {tokens, 0, 1, context, {second.at}}}, x,
            result.get(), (outputs + 1) * kDim);
        results.add(result.get(), (outputs + 1) * kDim, false, "graph");
    }
}

void run_rows(Results& results, int64_t rows, int64_t cols) {
    Buffer<float> x = wave(rows * cols), w = wave(cols), out(rows * cols);
    const auto add = [&](const char* what) { results.add(out.get(), rows * cols, false, what); };
    const bitnet::Kernels& kernels = bitnet::detail::active();
    for (int64_t r = 0; r < rows; ++r)
        kernels.rms_norm(x.get() + r * cols, w.get(), cols, 1e-5f, out.get() + r * cols);
    add("rms_norm");
    for (const bitnet::Gate kind :
         {bitnet::Gate::silu, bitnet::Gate::gelu_tanh, bitnet::Gate::relu2, bitnet::Gate::relu,
          bitnet::Gate::sigmoid, bitnet::Gate::silu_clamped, bitnet::Gate::swiglu_oai,
          bitnet::Gate::identity, bitnet::Gate::gelu, bitnet::Gate::gelu_quick}) {
        kernels.gate(kind, x.get(), x.get(), rows * cols, out.get());
        add("gate");
    }
    const int64_t rotated = cols / 4 * 2;
    Buffer<float> cos = wave(rows * rotated / 2);
    for (const bool half : {true, false}) {
        bitnet::RopeArgs a;
        a.x = x.get();
        a.cos = a.sin = cos.get();
        a.out = out.get();
        a.heads = 1;
        a.head_dim = cols;
        a.rotated = rotated;
        a.half = half;
        kernels.rope(a, 0, rows);
        add("rope");
    }
}

// A head and its five-bit copy: no exact logit may be above its bound.
void run_exact_head(Results& results, int64_t rows, int64_t cols) {
    const int64_t padded = bitnet::head_tiles(rows) * bitnet::kHeadRows;
    Buffer<float> weight = wave(rows * cols), x = wave(cols), factors(cols), logits(rows);
    Buffer<float> step(padded), residual(padded), norm(padded), approx(padded), upper(padded);
    Buffer<uint8_t> tiles(bitnet::head_tiles(rows) * bitnet::head_tile_bytes(cols));
    Buffer<uint8_t> sixth(padded * bitnet::head_sixth_bytes(cols));
    Buffer<int32_t> order(cols);
    for (int64_t i = 0; i < cols; ++i) {
        factors.get()[i] = i % 3 ? 1.0f : 2.0f;
        order.get()[i] = int32_t(cols - 1 - i);
    }
    bitnet::ExactHead m;
    m.type = Type::F32;
    m.weight = reinterpret_cast<const uint8_t*>(weight.get());
    m.rows = rows;
    m.cols = cols;
    m.order = order.get();
    m.factors = factors.get();
    m.tiles = tiles.get();
    m.sixth = sixth.get();
    m.step = step.get();
    m.residual = residual.get();
    m.norm = norm.get();
    std::vector<int64_t> ids;
    for (int64_t r = 0; r < rows; ++r) ids.push_back(r);
    bool proven = bitnet::build_copy(m, 0, bitnet::head_tiles(rows));
    bitnet::linear_rows(m, x.get(), ids.data(), rows, logits.get());
    for (const bool six : {false, true}) {
        proven = proven && bitnet::head_bounds(m, x.get(), six, approx.get(), upper.get());
        for (int64_t r = 0; r < rows; ++r) proven = proven && logits.get()[r] <= upper.get()[r];
        results.add(approx.get(), rows, false, "exact head, logits");
        results.add(upper.get(), rows, false, "exact head, bounds");
    }
    if (!proven) {
        std::fprintf(stderr, "%s: the exact head of %d rows is wrong\n", bitnet::level().c_str(),
                     int(rows));
        std::exit(1);
    }
}

void run_level(Results& results) {
    run_arena();
    for (int i = 0; i < bitnet::kTypes; ++i) {
        if (bitnet::is_tiled(Type(i))) continue;  // made from the others
        const int64_t block = bitnet::kEncodings[i].weights;
        for (const int64_t cols : {block, 3 * block, block == 1 ? 37 : 9 * block})
            for (const int64_t tokens : {1, 2, 7, 17, 33})
                for (const int64_t rows : {1, 5, 40})
                    run_linear(results, Type(i), rows, cols, tokens);
    }
    for (const int64_t rows : {4, 19, 80})
        for (const int64_t cols : {20, 64, 128, 768})
            for (const Type type : {Type::Ternary, Type::TernaryDense})
                run_ternary_packing(results, type, rows, cols);
    for (const int64_t window : {0, 1, 50}) {
        run_attention(results, kF16, 20, 1, 130, window);
        run_attention(results, kF16, 37, 70, 3, window);
    }
    run_attention(results, kF16, 64, 1, 700, 0);
    for (const int64_t tokens : {1, 3, 70}) run_graph(results, tokens);
    for (const int64_t dim : {32, 75}) run_states(results, 5, dim);
    run_rows(results, 1, 5);
    run_rows(results, 33, 579);
    run_exact_head(results, 37, 100);
    run_exact_head(results, 16, 64);
    run_exact_head(results, 20, 700);
}

// Every size of a batch: passes, pairs and remains of tiles of tokens.
void run_batches(Results& results) {
    for (int i = 0; i < bitnet::kTypes; ++i) {
        if (bitnet::is_tiled(Type(i)) || bitnet::is_float(Type(i))) continue;
        const int64_t block = bitnet::kEncodings[i].weights, cols = block < 256 ? 5 * block : block;
        for (int64_t tokens = 1; tokens <= 70; ++tokens)
            run_linear(results, Type(i), 35, cols, tokens);
    }
    run_linear(results, Type::Q4_1, 18, 96 * 32,
               200);  // more than the second-level cache holds: several passes
    run_linear(results, Type::Ternary, 18, 6928, 200);
    for (const bitnet::KvType type : {kF16, bitnet::KvType::q8}) {
        for (const int64_t head_dim : {20, 37, 64, 80, 128, 256})
            run_attention(results, type, head_dim, 39, 60, 0);
        for (int64_t tokens = 1; tokens <= 24; ++tokens)
            run_attention(results, type, 80, tokens, 250, tokens % 2 * 70);
    }
}

// Two models at once that share the threads, whose number changes meanwhile: each pass is right.
void run_two_models() {
    Results expected;
    for (const int64_t tokens : {1, 3, 70}) run_graph(expected, tokens);
    std::atomic<int> left{2};
    const auto passes = [&] {
        for (int i = 0; i < 20; ++i) {
            Results results = expected.comparing();
            for (const int64_t tokens : {1, 3, 70}) run_graph(results, tokens);
            if (!results.complete()) std::abort();
        }
        --left;
    };
    std::thread first(passes), second(passes);
    for (int threads = 1; left.load() > 0; threads = threads % 4 + 1) {
        bitnet::set_threads(threads);
        bitnet::wake_threads();
        run_arena();
    }
    first.join();
    second.join();
}

// A spin that lost its core is not repeated at once.
void check_patience() {
    using namespace std::chrono_literals;
    bitnet::Patience patience;
    for (int i = 0; i < 3; ++i) {
        if (patience.turns() != bitnet::Patience::kTurns) std::abort();
        patience.spun(50us);
    }
    patience.spun(3ms);
    for (int i = 0; i < bitnet::Patience::kWaitsAsleep; ++i)
        if (patience.turns() != 0) std::abort();
    if (patience.turns() != bitnet::Patience::kTurns) std::abort();
}

// Every float16, and numbers between two of them: ties to even, infinity beyond 65504.
void check_halves() {
    const auto require = [](float f, int expected) {
        if (bitnet::float_to_half(f) != expected) std::abort();
        if (bitnet::float_to_half(-f) != (expected | 0x8000)) std::abort();
    };
    for (int half = 0; half < 0x7c00; ++half) {
        const float value = bitnet::half_to_float(uint16_t(half));
        const float next = half == 0x7bff ? 65536.0f : bitnet::half_to_float(uint16_t(half + 1));
        const float middle = value + (next - value) / 2;
        require(value, half);
        require(std::nextafter(middle, value), half);
        require(middle, half + half % 2);
        require(std::nextafter(middle, next), half + 1);
    }
    require(1e9f, 0x7c00);
    require(INFINITY, 0x7c00);
    if ((bitnet::float_to_half(NAN) & 0x7fff) <= 0x7c00) std::abort();
}

#if defined(BITNET_X86)
// Detection of instruction sets on a processor that lacks one feature at a time.
void check_detection() {
    static bitnet::CpuRegisters basic, extended, second;
    static uint64_t state;
    static bool granted;
    static int asked;
    const bitnet::CpuQueries ask = {
        [](uint32_t leaf, uint32_t subleaf) {
            if (leaf == 0) return bitnet::CpuRegisters{7};
            return leaf == 1 ? basic : subleaf == 0 ? extended : second;
        },
        [] { return state; },
        [] {
            ++asked;
            return granted;
        },
    };
    const auto all = [] {
        // Leaf 1: FMA, OSXSAVE, F16C. Leaf 7: AVX2, AVX-512 F, DQ, BW and VL; VBMI and VNNI;
        // AMX-TILE and AMX-INT8. Leaf 7.1: AVX-VNNI. XCR0: states of SSE, AVX, AVX-512 and tiles.
        basic = {0, 0, 1u << 12 | 1u << 27 | 1u << 29, 0};
        extended = {1, 1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, 1u << 1 | 1u << 11,
                    1u << 24 | 1u << 25};
        second = {1u << 4};
        state = 0x600e6;
        granted = true;
        asked = 0;
    };
    const auto expect = [&](const char* what, bool avx2, bool vnni, [[maybe_unused]] bool tiles,
                            [[maybe_unused]] bool asks) {
        const bitnet::CpuFeatures found = bitnet::detect_features(ask);
        bool right = found.avx2 == avx2 && found.avx512_vnni == vnni;
#if defined(BITNET_AMX)
        right = right && found.amx == tiles && (asked == 1) == asks;
#endif
        if (right) return all();
        std::fprintf(stderr, "wrong instruction sets are found with %s\n", what);
        std::exit(1);
    };
    all();
    expect("everything", true, true, true, true);
    basic.c &= ~(1u << 27);
    expect("no saved state", false, false, false, false);
    state = 0x6;
    expect("state of AVX alone", true, false, false, false);
    extended.b &= ~(1u << 5);
    expect("no AVX2", false, false, false, false);
    extended.c &= ~(1u << 11);
    expect("no VNNI", true, false, false, false);
    extended.c &= ~(1u << 1);
    expect("no VBMI", true, true, false, false);
    for (const int bit : {24, 25}) {
        extended.d &= ~(1u << bit);
        expect("no AMX-TILE or AMX-INT8", true, true, false, false);
    }
    for (const uint64_t one : {0x20000u, 0x40000u}) {
        state &= ~one;
        expect("tiles that are not saved", true, true, false, false);
    }
    granted = false;
    expect("tiles that are not granted", true, true, false, true);
}
#endif

#if defined(BITNET_AMX)
// Emulate tiles, unless the processor has them or lacks AVX-512 VBMI; true if they are emulated.
bool trap_tiles() {
    bitnet::CpuFeatures& features = bitnet::cpu_features();
    if (features.amx || !features.avx512_vbmi) return false;
    amx_traps::install();
    features.amx = true;
    return true;
}

// A level whose tiles compute wrongly is not used: the next slower level computes every product.
void check_broken_tiles(const Results& expected) {
    bitnet::set_level("amx");
    amx_traps::broken = true;
    const std::vector<std::string> replaced = bitnet::self_test();
    for (int i = int(Type::Q8_0_R16); i <= int(Type::TernaryDense); ++i) {
        if (Type(i) == Type::TernaryBlocks || bitnet::is_grouped(Type(i))) continue;
        const std::string name = std::string("linear ") + bitnet::kEncodings[i].name;
        if (std::find(replaced.begin(), replaced.end(), name) != replaced.end() &&
            bitnet::has_kernel(Type(i)))
            continue;
        std::fprintf(stderr, "the self-test leaves %s to broken tiles, or to the scalar kernels\n",
                     name.c_str());
        std::exit(1);
    }
    if (bitnet::level() != "avx512_vnni") std::abort();
    const int64_t before = amx_traps::products;
    Results results = expected.comparing();
    run_batches(results);
    if (amx_traps::products == before) return void(amx_traps::broken = false);
    std::fprintf(stderr, "broken tiles are used\n");
    std::exit(1);
}
#endif

// A level with a kernel that is wrong is not used, and the kernel is named.
void check_wrong_kernels(const std::string& level, const std::string& slower) {
    using bitnet::Kernels, bitnet::ExactHead, bitnet::HeadInput, bitnet::scalar_kernels;
    const auto check = [&](const std::string& found, auto plant) {
        bitnet::set_level(level);
        plant(bitnet::detail::active());
        const std::vector<std::string> wrong = bitnet::self_test();
        if (!wrong.empty() && wrong.front() == found && bitnet::level() == slower) return;
        std::fprintf(stderr, "%s: the self-test does not find that %s is wrong\n", level.c_str(),
                     found.c_str());
        std::exit(1);
    };
    for (int i = 0; i < bitnet::kTypes; ++i) {
        if (bitnet::can_tile(Type(i))) continue;
        const bitnet::LinearKernel ones = [](const bitnet::LinearArgs& a, int64_t r0, int64_t r1,
                                             uint8_t*) {
            for (int64_t t = 0; t < a.tokens; ++t)
                std::fill(a.y + t * a.rows + r0, a.y + t * a.rows + r1, 1.0f);
        };
        const std::string name = std::string("linear ") + bitnet::kEncodings[i].name;
        check(name, [&](Kernels& k) { k.decode[i] = ones; });
        check(name, [&](Kernels& k) { k.prefill[i] = ones; });
    }
    check("dequantize", [](Kernels& k) {
        k.dequantize = [](Type type, const uint8_t* weight, int64_t row, int64_t cols, float* out) {
            scalar_kernels().dequantize(type, weight, row, cols, out);
            out[cols - 1] += 1.0f;
        };
    });
    check("gather", [](Kernels& k) {
        k.gather = [](Type type, const uint8_t* const* rows, int64_t cols, uint8_t* tile) {
            scalar_kernels().gather(type, rows, cols, tile);
            tile[5] ^= 1;
        };
    });
    check("exact head", [](Kernels& k) {
        k.exact_head.tile = [](const uint8_t* tile, int64_t blocks, const HeadInput& x,
                               const float* step, const float* residual, const float* norm,
                               float* approx, float* upper) {
            scalar_kernels().exact_head.tile(tile, blocks, x, step, residual, norm, approx, upper);
            upper[3] = approx[3];
        };
    });
    check("exact head", [](Kernels& k) {
        k.exact_head.sixth = [](const uint8_t* row, int64_t cols, const HeadInput& x, float* sum,
                                float* error) {
            scalar_kernels().exact_head.sixth(row, cols, x, sum, error);
            *error *= 0.5f;
        };
    });
    check("exact head", [](Kernels& k) {
        k.exact_head.pack = [](const ExactHead& m, int64_t tile, float* rows) {
            const bool fits = scalar_kernels().exact_head.pack(m, tile, rows);
            m.residual[tile * bitnet::kHeadRows + 1] = 0.0f;
            return fits;
        };
    });
    check("packing of ternary weights", [](Kernels& k) {
        k.pack_two_bits = [](bitnet::TernarySource source, const uint8_t* const* rows, int64_t cols,
                             uint8_t* out) {
            const bool bad = scalar_kernels().pack_two_bits(source, rows, cols, out);
            out[4 * cols - 1] ^= 1;
            return bad;
        };
    });
    check("packing of ternary weights", [](Kernels& k) {
        k.make_dense = [](const uint8_t* tile, int64_t cols, uint8_t* out) {
            scalar_kernels().make_dense(tile, cols, out);
            out[0] += 1;
        };
    });
    check("attention", [](Kernels& k) {
        k.attend = [](const bitnet::AttentionArgs& a, int64_t head, int64_t t0, int64_t t1,
                      int64_t first, int64_t last, float* partial, float* scratch) {
            scalar_kernels().attend(a, head, t0, t1, first, last, partial, scratch);
            partial[1] += 1.0f;
        };
    });
}

// Digests of all results of a level, which do not depend on compiler, library and optimisation. A
// change that is meant to change results writes the new digests here.
constexpr struct {
    const char* level;
    uint64_t digest;
} kDigests[] = {
    {"scalar", 0x5b5cad614b319f42},    {"avx2", 0xc192cd0b7b661bb7},
    {"avx_vnni", 0xc192cd0b7b661bb7},  {"avx512_vnni", 0xc192cd0b7b661bb7},
    {"amx", 0xc192cd0b7b661bb7},       {"neon_dotprod", 0xf2ebc3ef5d2bbdbb},
    {"neon_i8mm", 0xf2ebc3ef5d2bbdbb},
};

bool is_recorded(uint64_t found) {
    for (const auto& known : kDigests)
        if (bitnet::level() == known.level && found == known.digest) return true;
    std::fprintf(stderr,
                 "%s: the bits of the results are not the recorded ones: digest 0x%016llx\n",
                 bitnet::level().c_str(), static_cast<unsigned long long>(found));
    return false;
}

// Compares a level with the scalar kernels, from one caller or two at once; false if its digest is
// not the recorded one.
bool compare_level(const Results& expected, bool two) {
    std::atomic<bool> recorded{true};
    const auto run = [&] {
        Results results = expected.comparing();
        run_level(results);
        if (!results.complete()) std::abort();
        if (!is_recorded(results.digest())) recorded = false;
    };
    std::thread other;
    if (two) other = std::thread(run);
    run();
    if (two) other.join();
    return recorded;
}

}  // namespace

// Arguments are instruction sets that this processor must have; with "models" alone only two models
// at once are run, for the thread sanitizer.
int main(int argc, char** argv) {
    const bool models = argc == 2 && std::strcmp(argv[1], "models") == 0;
#if defined(BITNET_AMX)
    const bool trapped = !models && trap_tiles();
#endif
    check_patience();
    check_halves();
    run_two_models();
    if (models) return 0;
#if defined(BITNET_X86)
    check_detection();
#endif
    const std::vector<std::string> levels = bitnet::levels();
    for (int i = 1; i < argc; ++i)
        if (std::find(levels.begin(), levels.end(), argv[i]) == levels.end()) {
            std::fprintf(stderr, "no kernels for %s on this processor\n", argv[i]);
            return 1;
        }
    Results expected, batches;
    bitnet::set_level("scalar");
    bitnet::set_threads(1);
    run_level(expected);
    run_batches(batches);
    bool recorded = true;
    for (const std::string& level : levels) {
        bitnet::set_level(level);
        for (const std::string& kernel : bitnet::self_test()) {
            std::fprintf(stderr, "%s: the self-test rejects %s\n", level.c_str(), kernel.c_str());
            return 1;
        }
        for (const int threads : {1, 3}) {
            bitnet::set_threads(threads);
            recorded &= compare_level(expected, false);
        }
        recorded &= compare_level(expected, true);
        Results sizes = batches.comparing();
        run_batches(sizes);
        std::printf("%s\n", level.c_str());
    }
    for (size_t i = 1; i < levels.size(); ++i)
        // Products of amx are broken below.
        if (levels[i] != "amx") check_wrong_kernels(levels[i], levels[i - 1]);
#if defined(BITNET_AMX)
    if (trapped) check_broken_tiles(batches);
    if (trapped && (amx_traps::products == 0 || amx_traps::configured != 0)) {
        std::fprintf(stderr, "tiles were not used, or not released\n");
        return 1;
    }
#endif
    return recorded ? 0 : 1;
}
