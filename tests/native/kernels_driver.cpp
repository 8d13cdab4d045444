// Runs every kernel of every instruction set on buffers of exactly the right size, to be built with
// sanitizers: cmake -DBITNET_SANITIZE=address,undefined, target kernels_driver. Exit code 0: nothing was found.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <thread>

#include "arena.hpp"
#include "graph.hpp"
#include "ops.hpp"
#include "ternary_layout.hpp"
#include "thread_pool.hpp"

namespace {

using bitnet::Type;

// Heap arrays, so that the address sanitizer sees the first byte outside.
template <class T>
struct Buffer {
    std::unique_ptr<T[]> items;
    explicit Buffer(int64_t n) : items(new T[size_t(n)]()) {}
    T* get() { return items.get(); }
};

Buffer<float> wave(int64_t n) {
    Buffer<float> out(n);
    for (int64_t i = 0; i < n; ++i) out.get()[i] = std::sin(float(i) * 0.37f);
    return out;
}

void multiply(Type type, uint8_t* weight, int64_t rows, int64_t cols, int64_t tokens) {
    Buffer<float> x = wave(tokens * cols), y(tokens * rows), row(cols);
    bitnet::LinearJob job;
    job.matrix.type = type, job.matrix.data = weight, job.matrix.scale = 0.5f;
    job.matrix.rows = rows, job.matrix.cols = job.matrix.inputs = cols;
    job.y = y.get();
    bitnet::linear(job, x.get(), tokens);
    const int64_t last = rows - 1;
    bitnet::embed(type, weight, rows, cols, 0.5f, &last, 1, row.get());
}

void run_linear(Type type, int64_t rows, int64_t cols, int64_t tokens) {
    const int64_t bytes = bitnet::weight_bytes(type, rows, cols);
    Buffer<uint8_t> weight(bytes);
    for (int64_t i = 0; i < bytes; ++i) weight.get()[i] = uint8_t(i * 73 + 19);
    multiply(type, weight.get(), rows, cols, tokens);
    if (!bitnet::can_tile(type)) return;
    const Type tiled = bitnet::tiled(type);
    Buffer<uint8_t> tiles((rows + 15) / 16 * 16 * bitnet::row_bytes(tiled, cols));
    bitnet::pack_rows(type, weight.get(), rows, cols, tiles.get());
    multiply(tiled, tiles.get(), rows, cols, tokens);
}

void run_ternary_packing(int64_t rows, int64_t cols) {
    for (int i = 0; i < int(bitnet::TernarySource::kCount); ++i) {
        const auto source = bitnet::TernarySource(i);
        const int64_t bytes = bitnet::ternary_source_bytes(source, rows, cols), padded = (cols + 15) / 16 * 16;
        if (bytes == 0) continue;
        Buffer<uint8_t> weight(bytes), out(bitnet::ternary_code_bytes(rows, padded));
        for (int64_t j = 0; j < bytes; ++j) weight.get()[j] = uint8_t(j * 73 + 19);
        bitnet::pack_ternary(source, weight.get(), rows, cols, padded, out.get());
        multiply(Type::Ternary, out.get(), rows, padded, 3);
    }
}

void run_arena() {
    std::shared_ptr<uint8_t> first = bitnet::allocate_weights(100), second = bitnet::allocate_weights(40 << 20);
    first.get()[99] = second.get()[(40 << 20) - 1] = 1;
    first.reset();
    bitnet::allocate_weights(64).get()[63] = 1;
}

// Pages of a cache, each a heap array of its own.
struct Pages {
    std::vector<Buffer<uint16_t>> memory;
    std::vector<uint16_t*> at;
    Pages(int64_t positions, int64_t halves) {
        for (int64_t p = 0; p < positions; p += bitnet::kKeyBlock) {
            memory.emplace_back(halves);
            at.push_back(memory.back().get());
        }
    }
};

void run_attention(int64_t tokens, int64_t start, int64_t window) {
    bitnet::AttentionArgs a;
    a.tokens = tokens, a.heads = 6, a.kv_heads = 2, a.head_dim = 20, a.start = start, a.window = window;
    a.softcap = 30.0f;
    Buffer<float> q = wave(tokens * a.heads * a.head_dim), out(tokens * a.heads * a.head_dim);
    Pages pages(start + tokens, 2 * a.kv_heads * a.head_dim * bitnet::kKeyBlock);
    const std::vector<const uint16_t*> at(pages.at.begin(), pages.at.end());
    Buffer<float> second(tokens * a.heads * a.head_dim);
    a.q = q.get(), a.pages = at.data(), a.out = out.get();
    bitnet::AttentionArgs b = a;
    b.out = second.get();
    bitnet::attention({a, b});
}

// A model of one layer with every kind of instruction, over two sequences.
void run_graph(int64_t tokens) {
    constexpr int64_t kDim = 52, kHeads = 3, kHead = 20, kQ = kHeads * kHead, kFfn = 36, kVocabulary = 7;
    enum { x, h, qkv, q, k, v, mixed, gate, up, act };
    bitnet::Graph graph({kDim, kDim, 3 * kQ, kQ, kQ, kQ, kQ, kFfn, kFfn, kFfn}, 1, kHeads, kHead, 1e-5f);
    const auto matrix = [](Buffer<float>& weights, int64_t rows, int64_t cols) {
        bitnet::Matrix m;
        m.data = reinterpret_cast<const uint8_t*>(weights.get());
        m.rows = rows, m.cols = m.inputs = cols;
        return m;
    };
    Buffer<float> table = wave(kVocabulary * kDim), norm = wave(kDim), head_norm = wave(kHead), bias = wave(3 * kQ);
    Buffer<float> in = wave(3 * kQ * kDim), out = wave(kDim * kQ), to_ffn = wave(kFfn * kDim), from_ffn = wave(kDim * kFfn);
    const int rotation = graph.add_rotation(kHead / 4, true);
    const int64_t context = graph.add_context({{{1.0, 0.5, 0.25, 0.125, 0.1}, 1.0}});
    bitnet::Matrix scaled = matrix(in, 3 * kQ, kDim);
    scaled.factors = bias.get(), scaled.n_factors = 3 * kQ;
    graph.embed(x, matrix(table, kVocabulary, kDim), 2.0f);
    graph.norm(h, x, norm.get(), kDim);
    graph.linear(h, {qkv}, {scaled}, {bias.get()});
    graph.split(qkv, {q, k, v});
    graph.norm(q, q, head_norm.get(), kHead);
    graph.rotate(q, rotation);
    graph.rotate(k, rotation);
    graph.attend(mixed, q, k, v, 0, 0.2f, 90, 30.0f);
    graph.select({x, mixed});
    graph.linear(mixed, {h}, {matrix(out, kDim, kQ)}, {nullptr});
    graph.add(x, h);
    graph.linear(x, {gate, up}, {matrix(to_ffn, kFfn, kDim), matrix(to_ffn, kFfn, kDim)}, {nullptr, nullptr});
    graph.gate(act, gate, up, bitnet::Gate::silu);
    graph.linear(act, {h}, {matrix(from_ffn, kDim, kFfn)}, {nullptr});
    graph.add(x, h);
    Pages first(300 + tokens, graph.page_halves()), second(tokens, graph.page_halves());
    for (uint16_t* page : first.at) std::fill(page, page + graph.page_halves(), uint16_t(0x3800));
    Buffer<int64_t> ids(2 * tokens);
    for (int64_t i = 0; i < 2 * tokens; ++i) ids.get()[i] = i % kVocabulary;
    for (const int64_t wanted : {int64_t(0), int64_t(1), tokens}) {
        Buffer<float> result((wanted + 1) * kDim);
        graph.run(ids.get(), {{tokens, 300, wanted, context, first.at}, {tokens, 0, 1, context, second.at}}, x, result.get());
    }
}

void run_rows(int64_t rows, int64_t cols) {
    Buffer<float> x = wave(rows * cols), w = wave(cols), out(rows * cols);
    bitnet::rms_norm(x.get(), w.get(), rows, cols, 1e-5f, out.get());
    bitnet::layer_norm(x.get(), w.get(), w.get(), rows, cols, 1e-5f, out.get());
    bitnet::layer_norm(x.get(), w.get(), nullptr, rows, cols, 1e-5f, out.get());
    for (const bitnet::Gate kind : {bitnet::Gate::silu, bitnet::Gate::gelu_tanh, bitnet::Gate::relu2})
        bitnet::gate(kind, x.get(), x.get(), rows * cols, out.get());
    const int64_t rotated = cols / 4 * 2;
    Buffer<float> cos = wave(rows * rotated / 2);
    for (const bool half : {true, false}) {
        bitnet::RopeArgs a;
        a.x = x.get(), a.cos = a.sin = cos.get(), a.out = out.get();
        a.heads = 1, a.head_dim = cols, a.rotated = rotated, a.half = half;
        bitnet::rope(a, rows);
    }
}

void run_level() {
    run_arena();
    for (int i = 0; i < bitnet::kTypes; ++i) {
        if (bitnet::is_tiled(Type(i))) continue;  // made from the others
        const int64_t block = bitnet::kBlocks[i].weights;
        for (const int64_t cols : {block, 3 * block, block == 1 ? 37 : 9 * block})
            for (const int64_t tokens : {1, 2, 7, 17, 33})
                for (const int64_t rows : {1, 5, 40}) run_linear(Type(i), rows, cols, tokens);
    }
    for (const int64_t rows : {4, 19, 80})
        for (const int64_t cols : {20, 64, 128, 768}) run_ternary_packing(rows, cols);
    for (const int64_t window : {0, 1, 50}) {
        run_attention(1, 130, window);
        run_attention(70, 3, window);
    }
    run_attention(1, 700, 0);
    for (const int64_t tokens : {1, 3, 70}) run_graph(tokens);
    run_rows(1, 5);
    run_rows(33, 579);
}

}  // namespace

int main() {
    for (const std::string& level : bitnet::levels()) {
        bitnet::set_level(level);
        if (!bitnet::self_test().empty()) return 1;
        for (const int threads : {1, 3}) {
            bitnet::set_threads(threads);
            run_level();
        }
        std::thread other(run_level);  // two callers at once
        run_level();
        other.join();
        std::printf("%s\n", level.c_str());
    }
    return 0;
}
