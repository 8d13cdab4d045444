// Registers, tables and stages of a graph, the checks of a pass, and how it runs.
#include "graph/graph.hpp"

#include <numeric>

#include "system/thread_pool.hpp"

namespace bitnet {

int Graph::add_register(int64_t width, int64_t place) {
    require(place >= 0 && place <= int64_t(widths_.size()),
            "places in memory are numbered in order");
    registers_.push_back({checked(width), size_t(place)});
    if (int64_t(widths_.size()) <= place) widths_.resize(size_t(place) + 1);
    widths_[size_t(place)] = std::max(widths_[size_t(place)], width);
    offsets_.assign(widths_.size(), 0);
    std::partial_sum(widths_.begin(), widths_.end() - 1, offsets_.begin() + 1);
    total_width_ = offsets_.back() + widths_.back();
    return int(registers_.size()) - 1;
}

int Graph::checked_register(int64_t r) const {
    require(r >= 0 && r < int64_t(registers_.size()), "no such register");
    return int(r);
}

int64_t Graph::add_table(const Table& table) {
    require(table.window >= 0, "a window is a number of positions, or 0");
    for (const int64_t count : {table.layers, table.kv_heads, table.head_dim}) checked(count);
    tables_.push_back(table);
    return int64_t(tables_.size()) - 1;
}

int64_t Graph::add_context(std::vector<Frequencies> rotations) {
    const std::lock_guard<std::mutex> lock(passes_.get().running);
    require(rotations.size() == rotations_.size(), "frequencies for another number of rotations");
    for (size_t i = 0; i < rotations.size(); ++i)
        require(int64_t(rotations[i].of_pair.size()) == rotations_[i].pairs,
                "frequencies for another number of pairs");
    contexts_.push_back(std::move(rotations));
    return int64_t(contexts_.size()) - 1;
}

void Graph::set_state(int64_t size) {
    require(size >= 0 && size <= int64_t(1) << 40, "a state of an impossible size");
    state_size_ = size;
}

void Graph::add(std::string_view instruction, const Operands& operands) {
    static const std::map<std::string_view, Builder Graph::*> builders = {
        {"Embed", &Graph::embed},
        {"Lookup", &Graph::lookup},
        {"Take", &Graph::take},
        {"Norm", &Graph::norm},
        {"Center", &Graph::center},
        {"Clamp", &Graph::clamp},
        {"Xielu", &Graph::xielu},
        {"Linear", &Graph::linear},
        {"Split", &Graph::split},
        {"Join", &Graph::join},
        {"Transpose", &Graph::transpose},
        {"Rotate", &Graph::rotate},
        {"Temper", &Graph::temper},
        {"Attend", &Graph::attend},
        {"Convolve", &Graph::convolve},
        {"DeltaRule", &Graph::delta_rule},
        {"SelectiveScan", &Graph::selective_scan},
        {"Gate", &Graph::gate},
        {"Route", &Graph::route},
        {"Enumerate", &Graph::enumerate},
        {"ExpertLinear", &Graph::expert_linear},
        {"Combine", &Graph::combine},
        {"Blend", &Graph::blend},
        {"MatchMagnitude", &Graph::match_magnitude},
        {"Cutoff", &Graph::cutoff},
        {"Hadamard", &Graph::hadamard},
        {"Add", &Graph::add_to},
        {"Scale", &Graph::scale},
        {"Select", &Graph::select}};
    const auto found = builders.find(instruction);
    require(found != builders.end(), "no such instruction");
    (this->*found->second)(operands);
}

std::vector<int> Graph::regs(const Operands& operands, const char* field) const {
    std::vector<int> all;
    for (const int64_t r : operands.integers(field)) all.push_back(checked_register(r));
    return all;
}

// The registers in the field *parts*, whose columns together are those of the register in the field
// *whole*, in each of equal groups.
std::vector<int> Graph::groups(const Operands& operands, const char* parts,
                               const char* whole) const {
    const std::vector<int> all = regs(operands, parts);
    const int64_t count = operands.integer("groups");
    int64_t sum = 0;
    for (const int r : all) {
        sum += width(r);
        require(count > 0 && width(r) % count == 0 && r != reg(operands, whole),
                "the parts are not whole groups");
    }
    require(sum == width(reg(operands, whole)), "the parts have another width than the whole");
    return all;
}

// The biases of an instruction, null for none, which must have these *sizes*.
std::vector<const float*> Graph::biases(const Operands& operands,
                                        const std::vector<int64_t>& sizes) const {
    const std::vector<FloatArray> arrays = operands.arrays("biases");
    require(!sizes.empty() && arrays.size() == sizes.size(), "lists differ in length");
    std::vector<const float*> all;
    for (size_t i = 0; i < sizes.size(); ++i) {
        require(!arrays[i].data || arrays[i].size == sizes[i], "the bias has another width");
        all.push_back(arrays[i].data);
    }
    return all;
}

// Offset, in the state of a sequence, of the *size* floats of an instruction, which are the first
// or the last ones of its layer.
int64_t Graph::state_offset(const Operands& operands, int64_t size, bool first) const {
    const int64_t start = operands.integer("start"), stop = operands.integer("stop");
    require(!selected_, "an instruction with a state follows Select");
    require(start >= 0 && start <= stop && stop <= state_size_ && size <= stop - start,
            "the state ends before");
    return first ? start : stop - size;
}

void Graph::add_row(RowFunction function, PassFunction before) {
    if (stages_.empty() || stages_.back().whole) stages_.emplace_back();
    stages_.back().rows.push_back(std::move(function));
    if (before) stages_.back().before.push_back(std::move(before));
}

void Graph::add_whole(PassFunction function) {
    stages_.emplace_back();
    stages_.back().whole = std::move(function);
}

// Cosines and sines of every row are computed once per pass. Callers add rotations first, so that
// they come before the instructions.
int Graph::add_rotation(int64_t pairs, bool half) {
    const size_t i = rotations_.size();
    rotations_.push_back({checked(pairs), half});
    add_row([this, i, pairs](Pass& pass, int64_t row) {
        Turns& to = pass.turns[i];
        const Row& input = pass.of_row[size_t(row)];
        const Frequencies& f = contexts_[size_t(segment(pass, input).context)][i];
        auto* angles = reinterpret_cast<double*>(thread_scratch(size_t(pairs) * sizeof(double)));
        for (int64_t p = 0; p < pairs; ++p)
            angles[p] = double(input.position) * f.of_pair[size_t(p)];
        turns(angles, pairs, f.scale, &to.cos[size_t(row * pairs)], &to.sin[size_t(row * pairs)]);
    });
    return int(i);
}

void Graph::check(const std::vector<Segment>& segments) const {
    for (const Segment& s : segments) {
        require(s.count > 0 && s.start >= 0 && s.outputs >= 0 && s.outputs <= s.count,
                "a segment has no tokens, a negative position or more outputs than tokens");
        require(s.start <= positions_ - s.count,
                "a position is behind the last that the model has");
        require(s.context >= 0 && s.context < int64_t(contexts_.size()), "no such context");
        require(s.pages.size() == tables_.size(), "pages of another number of tables");
        require(s.state_size == state_size_, "a state of another size");
        require(s.hidden.size == s.count * taken_, "the program takes rows of another width");
        for (size_t i = 0; i < tables_.size(); ++i) {
            const std::vector<int16_t*>& pages = s.pages[i];
            require(int64_t(pages.size()) * kKeyBlock - s.count >= s.start,
                    "the pages have no room for the tokens");
            AttentionArgs a;
            a.start = s.start;
            a.window = tables_[i].window;
            for (size_t page = 0; page < pages.size(); ++page)
                require(pages[page] || int64_t(page) < a.first_key(0) / kKeyBlock,
                        "a page is missing");
        }
    }
}

void Graph::start(Pass& pass, const int64_t* tokens, const std::vector<Segment>& segments) const {
    pass.segments = &segments;
    pass.of_row.clear();
    for (size_t s = 0; s < segments.size(); ++s)
        for (int64_t i = 0; i < segments[s].count; ++i)
            pass.of_row.push_back({int64_t(s), segments[s].start + i, *tokens++});
    pass.rows = pass.room = int64_t(pass.of_row.size());
    if (pass.capacity < pass.room) {
        pass.memory.reset(new float[size_t(pass.room * total_width_)]);
        pass.capacity = pass.room;
    }
    pass.turns.resize(rotations_.size());
    for (size_t i = 0; i < rotations_.size(); ++i) {
        pass.turns[i].cos.resize(size_t(pass.rows * rotations_[i].pairs));
        pass.turns[i].sin.resize(size_t(pass.rows * rotations_[i].pairs));
    }
}

void Graph::run_rows(Pass& pass, const Stage& stage) const {
    for (const PassFunction& once : stage.before) once(pass);
    const int64_t rows = pass.rows;
    Split(rows, stage.multiple, rows * total_width_ < kSerialWork).run([&](int64_t r0, int64_t r1) {
        for (int64_t row = r0; row < r1; ++row)
            for (const RowFunction& function : stage.rows) function(pass, row);
    });
}

void Graph::run(const int64_t* tokens, int64_t count, const std::vector<Segment>& segments,
                int64_t result, float* out, int64_t size) {
    Pass& pass = passes_.get();
    const std::lock_guard<std::mutex> lock(pass.running);
    check(segments);
    int64_t rows = 0, outputs = 0;
    for (const Segment& segment : segments) {
        rows += segment.count;
        outputs += segment.outputs;
    }
    require(count == rows, "the number of tokens is not that of the segments");
    // A program that takes rows and looks nothing up does not read the tokens.
    const bool reads_tokens = taken_ == 0 || vocabulary_ > 0;
    for (int64_t i = 0; i < count && reads_tokens; ++i)
        require(tokens[i] >= 0 && tokens[i] < vocabulary_, "a token is outside of the vocabulary");
    require(selected_ || outputs == count,
            "nothing selects the rows of the outputs, so all rows must be outputs");
    require(size == outputs * width(checked_register(result)),
            "out does not have the size of the output rows");
    wake_threads();
    start(pass, tokens, segments);
    for (const Stage& stage : stages_) {
        if (pass.rows == 0) return;
        if (stage.whole)
            stage.whole(pass);
        else
            run_rows(pass, stage);
    }
    std::copy(at(pass, int(result), 0), at(pass, int(result), pass.rows), out);
}

}  // namespace bitnet
