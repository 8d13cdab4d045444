// Runs every kernel of every instruction set on buffers of exactly the right size, to be built with
// sanitizers: cmake -DBITNET_SANITIZE=address,undefined, target kernels_driver. Exit code 0: nothing was found.
#include <cmath>
#include <cstdio>
#include <memory>
#include <thread>

#include "arena.hpp"
#include "ops.hpp"
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
    bitnet::linear(type, weight, rows, cols, 0.5f, x.get(), tokens, y.get());
    const int64_t last = rows - 1;
    bitnet::embed(type, weight, cols, 0.5f, &last, 1, row.get());
}

void run_linear(Type type, int64_t rows, int64_t cols, int64_t tokens) {
    const int64_t bytes = rows * bitnet::row_bytes(type, cols);
    Buffer<uint8_t> weight(bytes);
    for (int64_t i = 0; i < bytes; ++i) weight.get()[i] = uint8_t(i * 73 + 19);
    multiply(type, weight.get(), rows, cols, tokens);
    if (type == Type::I2_S || type == Type::TQ2_0) bitnet::codes_are_valid(type, weight.get(), rows, cols);
    if (!bitnet::can_tile(type)) return;
    const Type tiled = bitnet::tiled(type);
    Buffer<uint8_t> tiles((rows + 15) / 16 * 16 * bitnet::row_bytes(tiled, cols));
    bitnet::pack_rows(type, weight.get(), rows, cols, tiles.get());
    multiply(tiled, tiles.get(), rows, cols, tokens);
}

void run_arena() {
    std::shared_ptr<uint8_t> first = bitnet::allocate_weights(100), second = bitnet::allocate_weights(40 << 20);
    first.get()[99] = second.get()[(40 << 20) - 1] = 1;
    first.reset();
    bitnet::allocate_weights(64).get()[63] = 1;
}

void run_attention(int64_t tokens, int64_t start, int64_t window) {
    bitnet::AttentionArgs a;
    a.tokens = tokens, a.heads = 6, a.kv_heads = 2, a.head_dim = 20, a.start = start, a.window = window;
    a.head_stride = a.head_dim, a.position_stride = a.kv_heads * a.head_dim, a.softcap = 30.0f;
    Buffer<float> q = wave(tokens * a.heads * a.head_dim), out(tokens * a.heads * a.head_dim);
    Buffer<float> values = wave((start + tokens) * a.position_stride);
    Buffer<uint16_t> cache((start + tokens) * a.position_stride);
    bitnet::to_half(values.get(), (start + tokens) * a.position_stride, cache.get());
    a.q = q.get(), a.k = a.v = cache.get(), a.out = out.get();
    bitnet::attention(a);
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
    for (const int64_t window : {0, 1, 50}) {
        run_attention(1, 130, window);
        run_attention(70, 3, window);
    }
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
