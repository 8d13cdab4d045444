// A model's forward pass, compiled: kernels/instructions.py says what each instruction means.
//
// Instructions that treat every token by itself are collected: a stage runs all of them for one row
// before the next, which keeps the row in the cache and needs no meeting of the threads. Products
// and attention are stages of their own, and the rows before a product end with the rounding of its
// input.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/counters.hpp"
#include "ops/experts.hpp"
#include "system/forks.hpp"
#include "ops/linear.hpp"

namespace bitnet {

// What one sequence runs.
struct Segment {
    int64_t count = 0, start = 0;  // tokens, position of the first one
    int64_t outputs = 0;           // how many of its last rows are results
    int64_t context = 0;           // number of its rope frequencies: Graph::add_context
    // Of each table; see AttentionArgs. Room for start + count positions, null where no query sees one.
    std::vector<std::vector<int16_t*>> pages;
    float* state = nullptr;  // of its layers with a state of fixed size
};

class Graph {
public:
    // Number of a register of *width*. Those of one place share its memory: one of them is in use at a time.
    int add_register(int64_t width, size_t place);
    int64_t width(int r) const { return registers_[size_t(r)].width; }

    // Number of a table of pages, with keys and values of heads of one shape that see as far.
    struct Table {
        int64_t kv_heads, head_dim, window;
        KvType type = KvType::f16;
        int64_t layer_words() const { return 2 * kv_heads * head_words(head_dim, type); }  // int16 of one layer in a page
    };
    size_t add_table(const Table& table);

    // Frequencies per position of each pair, and the factor on what is rotated, for every rotation.
    struct Frequencies {
        std::vector<double> of_pair;
        double scale;
    };
    int64_t add_context(std::vector<Frequencies> rotations);

    // The program, in order. Weights must outlive the graph.
    int add_rotation(int64_t pairs, bool half);  // before all others
    void embed(int out, const Matrix& table, float scale);
    // *weight*, of *size* numbers, in *parts*: each is that of every group as wide.
    void norm(int out, int x, const float* weight, int64_t size, int64_t parts, float eps);
    void center(int out, int x);  // out = x - mean(x)
    void linear(int x, const std::vector<int>& outs, const std::vector<Matrix>& matrices,
                const std::vector<const float*>& biases);
    // Each of *groups* equal parts of a row of *x* is cut into pieces for *outs*.
    void split(int x, const std::vector<int>& outs, int64_t groups);
    // The reverse: each of *groups* equal parts of a row of *out* is made of pieces of *parts*.
    void join(int out, const std::vector<int>& parts, int64_t groups);
    // Heads of a row of *x*, (rows, columns, D), as (columns, rows, D).
    void transpose(int out, int x, int64_t rows, int64_t columns);
    void rotate(int x, int rotation, int64_t head_dim);
    void temper(int x, double scale, int64_t length);  // x *= 1 + scale * log(1 + position / length)
    // Keys and values are the *place*-th of the pages of *table*; with k and v below 0, those that are stored there.
    // *sinks*: a score per head of one more key, whose value is 0; null: none.
    void attend(int out, int q, int k, int v, size_t table, int64_t place, float scale, float softcap, const float* sinks);
    // Layers whose state begins at *offset* in that of a segment; see `Kernels`. *bias* may be null.
    void convolve(int out, int x, const float* weight, const float* bias, int64_t width, bool silu, int64_t offset);
    struct Delta {
        int out, q, k, v, alpha, beta;
        const float *a, *dt;
        int64_t heads, key_heads, offset;
        bool grouped;
    };
    void delta(const Delta& its);
    struct Scan {
        int out, x, b, c, dt;
        const float *a, *bias, *skip;
        int64_t heads, groups, offset;
    };
    void scan(const Scan& its);
    void gate(int out, int gate, int up, Gate kind);
    // A mixture of experts; see ops/experts.hpp. *bias* may be null.
    void route(int experts, int weights, int logits, const float* bias, const Routing& its);
    void enumerate(int experts);  // 0, 1, 2, ...: the numbers of all experts
    // Products of *x*, or of as many parts of it as a token has *experts*, with their matrices.
    void expert_linear(int x, int experts, const std::vector<int>& outs, const std::vector<std::vector<Matrix>>& matrices,
                       const std::vector<const float*>& biases, bool apart);
    void combine(int out, int x, int weights);  // out = sum of weights[i] * part i of x, first to last
    // out = H(signs * x), or signs * H(x) where it is the *inverse*: Walsh and Hadamard's transform of each *block*
    // columns, in natural order, over the root of their number.
    void hadamard(int out, int x, const float* signs, int64_t block, bool inverse);
    void add(int x, int y);
    void scale(int x, const float* weight, int64_t count);  // x *= weight, one number or one for each column
    void select(const std::vector<int>& registers);  // the rows of the outputs, which are all rows from here on

    // The output rows of register *result*, those of all segments one after the other.
    void run(const int64_t* tokens, const std::vector<Segment>& segments, int result, float* out);

private:
    using RowFunction = std::function<void(int64_t row)>;
    struct Stage {
        std::vector<RowFunction> rows;  // each for every row; or
        std::function<void()> whole;
        std::vector<std::function<void()>> before;  // once per pass: counters, room for activations
        int64_t multiple = 1;  // of rows that one thread takes
    };
    struct Rotation {
        int64_t pairs;
        bool half;
    };
    struct Row {
        int64_t segment, position, token;
    };
    struct Turns {
        std::vector<float> cos, sin;  // (rows, pairs)
    };
    // What a pass works with. One runs at a time.
    struct Pass {
        std::mutex running;
        std::unique_ptr<float[]> memory;
        int64_t capacity = 0, room = 0, rows = 0;
        std::vector<Row> of_row;
        const std::vector<Segment>* segments = nullptr;
        std::vector<Turns> turns;  // one for each rotation
        Activations activations;
        std::vector<AttentionArgs> attention;
        std::vector<LinearJob> jobs;
        std::vector<ExpertJob> expert_jobs;
        ExpertRoom expert_room;
    };

    float* at(int r, int64_t row) {
        const Register& it = registers_[size_t(r)];
        return pass_->memory.get() + offsets_[it.place] * pass_->room + row * it.width;
    }
    const Segment& segment(const Row& row) const { return (*pass_->segments)[size_t(row.segment)]; }
    void add_row(RowFunction function, std::function<void()> before = nullptr);
    void add_whole(std::function<void()> function);
    void product(int x, const std::vector<int>& outs, const std::vector<Matrix>& matrices,
                 const std::vector<const float*>& biases);
    // Rows that a segment has where the program is: before or behind the selection.
    static int64_t rows_of(const Segment& segment, bool selected) { return selected ? segment.outputs : segment.count; }
    void start(const int64_t* tokens, const std::vector<Segment>& segments);
    void run_rows(const Stage& stage);

    struct Register {
        int64_t width;
        size_t place;
    };
    std::vector<Register> registers_;
    std::vector<int64_t> widths_, offsets_;  // of places
    int64_t total_width_ = 0;
    bool selected_ = false;  // what is added runs on the rows of the outputs
    std::vector<Table> tables_;
    std::vector<Stage> stages_;
    std::vector<Rotation> rotations_;
    std::vector<std::vector<Frequencies>> contexts_;

    PerProcess<Pass> passes_;
    Pass* pass_ = nullptr;  // the one that runs
};

}  // namespace bitnet
