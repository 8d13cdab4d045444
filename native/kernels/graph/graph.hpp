// A model's forward pass, compiled: kernels/instructions.py says what each instruction means.
//
// Instructions that treat every token by itself are collected in a stage, which runs all of them
// for one row before the next: that keeps the row in the cache, and the threads need not wait for
// each other. Products and attention are stages of their own. The stage of rows before a product
// ends with the rounding of the product's input.
#pragma once

#include <functional>
#include <limits>
#include <mutex>

#include "ops/linear.hpp"
#include "system/thread_pool.hpp"
#include "ops/ops.hpp"

namespace bitnet {

struct FloatArray {
    const float* data = nullptr;
    int64_t size = 0;
};

// The part of a pass that belongs to one sequence.
struct Segment {
    int64_t count = 0, start = 0;  // tokens, position of the first one
    int64_t outputs = 0;           // how many of its last rows are results
    int64_t context = 0;  // its rope frequencies: a number that Graph::add_context returned
    // Pages of each table, as in AttentionArgs, with room for start + count positions; null for a
    // page of which no query sees a position.
    std::vector<std::vector<int16_t*>> pages;
    float* state = nullptr;  // states of all layers with a state of fixed size
    int64_t state_size = 0;
    // Position at which the second text begins.
    int64_t second = std::numeric_limits<int64_t>::max();
    FloatArray hidden;  // what Take instructions read, (count, width)
};

// The fields of an instruction by their names in kernels/instructions.py. Registers and rotations
// are given by number, and weights themselves in place of their names. A field without a value has
// no items.
class Operands {
public:
    virtual ~Operands() = default;
    virtual std::vector<int64_t> integers(const char* field) const = 0;
    virtual double number(const char* field) const = 0;
    virtual std::string text(const char* field) const = 0;
    // An array without a value has no data.
    virtual std::vector<FloatArray> arrays(const char* field) const = 0;
    // The matrices of each name: one, or one for each expert.
    virtual std::vector<std::vector<Matrix>> matrices(const char* field) const = 0;

    int64_t integer(const char* field) const {
        const std::vector<int64_t> all = integers(field);
        require(all.size() == 1, "an operand is missing");
        return all[0];
    }
    float real(const char* field) const { return float(number(field)); }
};

// *count*, a width or a number of heads or layers. Throws if it is not above 0, or so large that a
// product of counts might overflow.
inline int64_t checked(int64_t count) {
    require(count > 0 && count <= 1 << 24,
            "a width or a number of heads or layers is out of range");
    return count;
}

// Programs are checked as they are built: std::invalid_argument for operands that do not fit
// together.
class Graph {
public:
    // Adds a register of *width* floats per row and returns its number. Registers of one place
    // share memory: only one of them is in use at a time.
    int add_register(int64_t width, int64_t place);
    int64_t width(int r) const { return registers_[size_t(r)].width; }

    // A table of pages with the keys and values of layers that have the same heads and window.
    struct Table {
        int64_t layers, kv_heads, head_dim, window;
        KvType type = KvType::f16;
        // Number of int16 that one layer has in a page.
        int64_t layer_words() const { return 2 * kv_heads * head_words(head_dim, type); }
    };
    int64_t add_table(const Table& table);

    // Frequencies of a rotation, in radians per position, and its factor on cosines and sines.
    struct Frequencies {
        std::vector<double> of_pair;
        double scale;
    };
    // Adds a context, which has frequencies for each rotation, and returns its number.
    int64_t add_context(std::vector<Frequencies> rotations);
    int add_rotation(int64_t pairs, bool half);  // before all instructions
    void set_state(int64_t size);                // floats of the state of a sequence

    // The next instruction of the program. Weights must outlive the graph.
    void add(std::string_view instruction, const Operands& operands);

    // Writes the output rows of register *result*, those of all segments one after the other, to
    // *out*, which has *size* floats.
    void run(const int64_t* tokens, int64_t count, const std::vector<Segment>& segments,
             int64_t result, float* out, int64_t size);

private:
    struct Pass;
    using PassFunction = std::function<void(Pass&)>;
    using RowFunction = std::function<void(Pass&, int64_t row)>;
    struct Stage {
        std::vector<RowFunction> rows;     // each row runs all of them before the next row; or
        PassFunction whole;                // one function runs for all rows
        std::vector<PassFunction> before;  // run once per pass: counters, room for activations
        int64_t multiple = 1;              // rows are given to threads in multiples of it
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
    // The memory of a pass. One pass runs at a time.
    struct Pass {
        std::mutex running;
        std::unique_ptr<float[]> memory;  // of registers, place by place
        // Rows that *memory* can hold, rows of this pass, and rows of it that are still computed.
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
    struct Register {
        int64_t width;
        size_t place;
    };

    // A member for each kind of instruction, which adds it to the stages.
    using Builder = void(const Operands& operands);
    Builder embed, lookup, take, norm, center, linear, split, join, transpose, rotate, temper,
        attend, convolve, delta_rule, selective_scan, gate, route, enumerate, expert_linear,
        combine, hadamard, add_to, scale, select, clamp, xielu, blend, match_magnitude, cutoff;

    int checked_register(int64_t r) const;
    int reg(const Operands& operands, const char* field) const {
        return checked_register(operands.integer(field));
    }
    std::vector<int> regs(const Operands& operands, const char* field) const;
    // The registers in the field *parts*, checked to divide the one in the field *whole*.
    std::vector<int> groups(const Operands& operands, const char* parts, const char* whole) const;
    std::vector<const float*> biases(const Operands& operands,
                                     const std::vector<int64_t>& sizes) const;
    // Offset of *size* floats in the state of a sequence: if *first*, those at the beginning of the
    // part that the instruction's layer has there, else those at the end.
    int64_t state_offset(const Operands& operands, int64_t size, bool first) const;
    float* at(const Pass& pass, int r, int64_t row) const {
        const Register& own = registers_[size_t(r)];
        return pass.memory.get() + offsets_[own.place] * pass.room + row * own.width;
    }
    static const Segment& segment(const Pass& pass, const Row& row) {
        return (*pass.segments)[size_t(row.segment)];
    }
    // Calls use(segment, first row, number of rows) for each segment that has rows at this point of
    // the program: all of its rows, or, if *selected*, those of its outputs.
    template <class Use>
    static void each_segment(const Pass& pass, bool selected, Use use) {
        int64_t row = 0;
        for (const Segment& segment : *pass.segments) {
            const int64_t rows = selected ? segment.outputs : segment.count;
            if (rows > 0) use(segment, row, rows);
            row += rows;
        }
    }
    // Adds *function* to the stage of rows that is open, or to one that it begins; *before* runs
    // once per pass, before the rows of that stage.
    void add_row(RowFunction function, PassFunction before = nullptr);
    // Adds a stage that runs *function* once for all rows.
    void add_whole(PassFunction function);
    // Adds products of *x* with matrices that can share its rounding.
    void product(int x, const std::vector<int>& outs, const std::vector<Matrix>& matrices,
                 const std::vector<const float*>& biases);
    // Adds products of *x* with the matrices of *experts*, the chosen ones of each token. If
    // *apart*, each of these has an input of its own: the row of a token has them one by one.
    void products(int x, int experts, const std::vector<int>& outs,
                  const std::vector<std::vector<Matrix>>& matrices,
                  const std::vector<const float*>& biases, bool apart);
    void gate_groups(int out, int g, int up, Gate kind);
    // Adds a stage in which *kernel* runs each head of each sequence, position by position. Its
    // arguments are *same*, with the state at *offset* of the sequence's states, and with the
    // pointers to rows that fill(pass, args, row) sets, from *row* on.
    template <class Args, class Fill>
    void add_recurrence(Op op, const Args& same, int64_t offset,
                        void (*Kernels::*kernel)(const Args&, int64_t), Fill fill);
    void check(const std::vector<Segment>& segments) const;
    // Makes room in *pass* for the rows of all segments.
    void start(Pass& pass, const int64_t* tokens, const std::vector<Segment>& segments) const;
    void run_rows(Pass& pass, const Stage& stage) const;

    std::vector<Register> registers_;
    std::vector<int64_t> widths_, offsets_;  // of places
    // vocabulary_: number of tokens with a row in every table of an Embed instruction that has no
    // short table (its operand `rows` is 0); 0: there is none.
    // taken_: width of the rows that all Take instructions read together.
    int64_t total_width_ = 0, state_size_ = 0, vocabulary_ = 0, taken_ = 0;
    // Positions that have a row in every table of positions.
    int64_t positions_ = std::numeric_limits<int64_t>::max();
    bool selected_ = false;  // whether instructions that are added run on the rows of outputs alone
    std::vector<Table> tables_;
    std::vector<Stage> stages_;
    std::vector<Rotation> rotations_;
    std::vector<std::vector<Frequencies>> contexts_;
    // Number of experts, by the register of the chosen ones.
    std::map<int, int64_t> experts_behind_;
    // Instructions point to the floats of these, which stay in place when the outer vectors grow.
    std::vector<std::vector<float>> ones_;    // weights of norms without any
    std::vector<std::vector<float>> joined_;  // kernels of convolutions that are several tensors

    PerProcess<Pass> passes_;
};

}  // namespace bitnet
