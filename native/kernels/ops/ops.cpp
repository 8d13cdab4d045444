// Operations that read rows of any encoding, and products with matrices that are stored row by row.
#include "ops/ops.hpp"

#if defined(__linux__)
#include <unistd.h>
#endif

#include "ops/elementary.hpp"
#include "system/thread_pool.hpp"
#include "ternary/layout.hpp"

namespace bitnet {
using detail::active;

int64_t row_bytes(Type type, int64_t cols) {
    const Encoding& size = encoding(type);
    if (cols % size.weights) return 0;
    return is_grouped(type) ? group_row_bytes(type, cols) : cols / size.weights * size.bytes;
}

int64_t weight_bytes(Type type, int64_t rows, int64_t cols) {
    if (is_tiled(type) || is_ternary(type)) rows = (rows + kTileRows - 1) / kTileRows * kTileRows;
    return rows * row_bytes(type, cols);
}

void decode_row(Type type, const uint8_t* weight, int64_t rows, int64_t cols, int64_t r,
                float scale, float* out) {
    if (is_ternary(type))
        unpack_ternary_row(type, weight, rows, cols, r, scale, out);
    else if (is_grouped(type))
        unpack_group_row(type, weight, cols, r, out);
    else
        active().dequantize(type, weight, r, cols, out);
}

void embed(Type type, const uint8_t* weight, int64_t rows, int64_t cols, float scale,
           const int64_t* ids, int64_t count, float* out) {
    count_call(Op::embed, type);
    for (int64_t i = 0; i < count; ++i)
        decode_row(type, weight, rows, cols, ids[i], scale, out + i * cols);
}

Gate gate_of(std::string_view name) {
    constexpr std::string_view kNames[] = {"silu",    "gelu_tanh",    "relu_squared", "relu",
                                           "sigmoid", "silu_clamped", "swiglu_oai",   "identity",
                                           "gelu",    "gelu_quick",   "softplus",     "tanh"};
    return Gate(place_of(kNames, name, "unknown gate"));
}

void turns(const double* angles, int64_t n, double scale, float* cos, float* sin) {
    for (int64_t i = 0; i < n; ++i) {
        double sine, cosine;
        sine_and_cosine(angles[i], sine, cosine);
        cos[i] = float(cosine * scale);
        sin[i] = float(sine * scale);
    }
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

// ---- matrices whose rows lie one after the other, as in a file: packing as tiles, and products

namespace {

// The products of *count* rows (at most 16) with all tokens of *a*, y (tokens, count).
void one_tile(const LinearArgs& a, const uint8_t* const* rows, int64_t count, float* y) {
    thread_local std::vector<uint8_t> room;
    const uint8_t* all[kTileRows];  // the last row in place of missing ones
    for (int64_t r = 0; r < kTileRows; ++r) all[r] = rows[std::min(r, count - 1)];
    room.resize(size_t(kTileRows * row_bytes(tiled(a.type), a.cols) + 64));
    uint8_t* tile = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
    detail::active().gather(a.type, all, a.cols, tile);
    LinearArgs tile_args = a;
    tile_args.type = tiled(a.type);
    tile_args.weight = tile;
    tile_args.row_bytes = row_bytes(tile_args.type, a.cols);
    tile_args.rows = count;
    tile_args.y = y;
    const Kernels& kernels = detail::active();
    const LinearKernel kernel =
        (a.tokens <= kDecodeTokens ? kernels.decode : kernels.prefill)[int(tile_args.type)];
    kernel(tile_args, 0, count, thread_scratch(scratch_bytes(a.cols)));
}

// Reads *count* bytes at *offset* of *file*; false if it could not.
bool read_file(int file, int64_t offset, int64_t count, uint8_t* out) {
#if defined(__linux__)
    return file >= 0 && pread(file, out, size_t(count), off_t(offset)) == ssize_t(count);
#else
    (void)file, (void)offset, (void)count, (void)out;
    return false;
#endif
}

}  // namespace

void pack_rows(Type type, const uint8_t* weight, int64_t rows, int64_t cols, uint8_t* out) {
    if (is_grouped_row(type)) return pack_groups(type, weight, rows, cols, out);
    const int64_t bytes = row_bytes(type, cols),
                  tile_bytes = kTileRows * row_bytes(tiled(type), cols);
    const std::vector<uint8_t> zeros(rows % kTileRows ? size_t(bytes) : 0);
    Split((rows + kTileRows - 1) / kTileRows, 1, rows * cols < kSerialWork)
        .run([&](int64_t t0, int64_t t1) {
            for (int64_t t = t0; t < t1; ++t) {
                const uint8_t* tile_rows[kTileRows];
                for (int64_t i = 0; i < kTileRows; ++i) {
                    const int64_t r = kTileRows * t + i;
                    tile_rows[i] = r < rows ? weight + r * bytes : zeros.data();
                }
                detail::active().gather(type, tile_rows, cols, out + t * tile_bytes);
            }
        });
}

void linear_in_rows(const LinearArgs& a, int64_t r0, int64_t r1, uint8_t*) {
    std::vector<float> y(size_t(a.tokens * kTileRows));
    for (int64_t r = r0; r < r1; r += kTileRows) {
        const int64_t count = std::min<int64_t>(kTileRows, r1 - r);
        const uint8_t* rows[kTileRows];
        for (int64_t i = 0; i < count; ++i) rows[i] = a.weight + (r + i) * a.row_bytes;
        one_tile(a, rows, count, y.data());
        for (int64_t t = 0; t < a.tokens; ++t)
            std::copy_n(&y[size_t(t * count)], count, a.y + t * a.rows + r);
    }
}

void linear_rows(const ExactHead& m, const float* x, const int64_t* ids, int64_t count, float* y) {
    LinearArgs a;
    a.type = m.type;
    a.row_bytes = row_bytes(m.type, m.cols);
    a.cols = m.cols;
    a.tokens = 1;
    a.x = x;
    parallel_for((count + kTileRows - 1) / kTileRows, [&](int64_t tile) {
        const int64_t first = tile * kTileRows, n = std::min<int64_t>(kTileRows, count - first);
        const uint8_t* rows[kTileRows];
        thread_local std::vector<uint8_t> room;
        if (m.file >= 0) room.resize(size_t(kTileRows * a.row_bytes));
        for (int64_t i = 0; i < n; ++i) {
            const int64_t begin = ids[first + i] * a.row_bytes;
            uint8_t* copy = m.file >= 0 ? &room[size_t(i * a.row_bytes)] : nullptr;
            rows[i] = read_file(m.file, m.file_offset + begin, a.row_bytes, copy)
                          ? copy
                          : m.weight + begin;
        }
        one_tile(a, rows, n, y + first);
    });
}

}  // namespace bitnet
