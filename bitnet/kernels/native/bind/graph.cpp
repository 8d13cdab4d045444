// Python's view of Graph: built from packing.Matrix and float arrays, which it keeps alive.
#include "bind/graph.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <optional>

#include "bind/arrays.hpp"
#include "graph/graph.hpp"
#include "ops/ops.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace bitnet {
namespace {

using Floats = Array<const float>;
using Doubles = Array<const double, nb::ndim<1>>;
using Bytes = Array<const uint8_t>;
using Ids = Array<const int64_t, nb::ndim<1>>;
using Addresses = Array<const uint64_t, nb::ndim<1>>;

class BoundGraph {
public:
    // *layers*: in the pages of each table.
    BoundGraph(std::vector<int64_t> widths, std::vector<int64_t> layers, int64_t kv_heads, int64_t head_dim, float eps)
        : widths_(checked(widths)), layers_(checked(layers)), kv_heads_(checked(kv_heads)), head_dim_(checked(head_dim)),
          windows_(layers_.size(), -1), graph_(std::move(widths), kv_heads, head_dim, eps) {}

    int64_t add_context(const std::vector<std::pair<Doubles, double>>& rotations) {
        require(rotations.size() == pairs_.size(), "frequencies for another number of rotations");
        std::vector<Graph::Frequencies> found;
        for (const auto& [frequencies, scale] : rotations) {
            require(int64_t(frequencies.size()) == pairs_[found.size()], "frequencies for another number of pairs");
            found.push_back({{frequencies.data(), frequencies.data() + frequencies.size()}, scale});
        }
        ++contexts_;
        return graph_.add_context(std::move(found));
    }

    int add_rotation(int64_t pairs, bool half) {
        require(pairs > 0 && 2 * pairs <= head_dim_, "more rotated elements than a head has");
        pairs_.push_back(pairs);
        return graph_.add_rotation(pairs, half);
    }

    void embed(int out, nb::object table, float scale) {
        const Matrix m = matrix(table, out, -1);
        vocabulary_ = m.rows;
        graph_.embed(out, m, scale);
    }

    void norm(int out, int x, const Floats& weight) {
        const auto group = int64_t(weight.size());
        require(group > 0 && width(x) % group == 0 && width(x) == width(out), "the norm has another width");
        graph_.norm(out, x, keep(weight), group);
    }

    void linear(int x, const std::vector<int>& outs, nb::list matrices, const std::vector<std::optional<Floats>>& biases) {
        require(!outs.empty() && outs.size() == matrices.size() && outs.size() == biases.size(), "lists differ in length");
        std::vector<Matrix> all;
        std::vector<const float*> bias;
        for (size_t i = 0; i < outs.size(); ++i) {
            all.push_back(matrix(matrices[i], x, outs[i]));
            require(!biases[i] || int64_t(biases[i]->size()) == width(outs[i]), "the bias has another width");
            bias.push_back(biases[i] ? keep(*biases[i]) : nullptr);
        }
        graph_.linear(x, outs, all, bias);
    }

    void split(int x, const std::vector<int>& outs) {
        int64_t sum = 0;
        for (const int out : outs) sum += width(out);
        require(sum == width(x), "the parts have another width than the whole");
        graph_.split(x, outs);
    }

    void rotate(int x, int rotation) {
        require(rotation >= 0 && rotation < int(pairs_.size()) && width(x) % head_dim_ == 0, "no such rotation");
        graph_.rotate(x, rotation);
    }

    void temper(int x, double scale, int64_t length) {
        require(std::isfinite(scale) && length > 0, "a temperature of no sense");
        width(x);
        graph_.temper(x, scale, length);
    }

    void attend(int out, int q, int k, int v, int64_t table, int64_t place, float scale, int64_t window,
                float softcap) {
        require(table >= 0 && table < int64_t(layers_.size()), "no such table");
        require(place >= 0 && place < layers_[size_t(table)], "no such layer");
        require(window >= 0, "a window is a number of positions, or 0");
        int64_t& known = windows_[size_t(table)];
        require(known == -1 || known == window, "layers of a table have one window");
        require(width(k) == kv_heads_ * head_dim_ && width(v) == width(k), "keys and values are those of other heads");
        require(width(q) % width(k) == 0 && width(out) == width(q), "queries or results are those of other heads");
        require(std::isfinite(scale) && std::isfinite(softcap) && softcap >= 0.0f, "scale or softcap is out of range");
        known = window;
        graph_.attend(out, q, k, v, size_t(table), place, scale, window, softcap);
    }

    void gate(int out, int g, int up, int kind) {
        require(width(out) == width(g) && width(out) == width(up) && out != g && out != up, "widths differ");
        require(kind >= 0 && kind <= int(Gate::relu), "unknown gate");
        graph_.gate(out, g, up, Gate(kind));
    }

    void add(int x, int y) {
        require(width(x) == width(y), "widths differ");
        graph_.add(x, y);
    }

    void select(const std::vector<int>& registers) {
        for (const int r : registers) width(r);
        graph_.select(registers);
    }

    // *segments*: (tokens, position of the first, wanted rows, context, addresses of pages by table) each.
    void run(const Ids& tokens, nb::list segments, int result, Array<float> out) {
        std::vector<Segment> all;
        int64_t count = 0, wanted = 0;
        for (nb::handle item : segments) {
            const auto it = nb::cast<nb::tuple>(item);
            Segment s;
            s.count = nb::cast<int64_t>(it[0]), s.start = nb::cast<int64_t>(it[1]);
            s.wanted = nb::cast<int64_t>(it[2]), s.context = nb::cast<int64_t>(it[3]);
            const auto tables = nb::cast<nb::tuple>(it[4]);
            require(s.count > 0 && s.start >= 0 && s.wanted >= 0 && s.wanted <= s.count, "a segment of no sense");
            require(s.context >= 0 && s.context < contexts_, "no such context");
            require(tables.size() == windows_.size(), "pages of another number of tables");
            for (size_t i = 0; i < windows_.size(); ++i) s.pages.push_back(addresses(tables[i], s, windows_[i]));
            count += s.count, wanted += s.wanted;
            all.push_back(std::move(s));
        }
        require(int64_t(tokens.size()) == count, "another number of tokens than the segments have");
        for (size_t i = 0; i < tokens.size(); ++i)
            require(tokens.data()[i] >= 0 && tokens.data()[i] < vocabulary_, "a token is outside of the vocabulary");
        require(int64_t(out.size()) == wanted * width(result), "out has another size than the wanted rows");
        const Computing computing;
        graph_.run(tokens.data(), all, result, out.data());
    }

private:
    // Widths and counts whose products stay far from the end of an int64_t.
    static int64_t checked(int64_t count) {
        require(count > 0 && count <= kLargest, "a width or a number of heads or layers is out of range");
        return count;
    }
    static const std::vector<int64_t>& checked(const std::vector<int64_t>& widths) {
        for (const int64_t width : widths) checked(width);
        return widths;
    }

    int64_t width(int r) const {
        require(r >= 0 && r < int(widths_.size()), "no such register");
        return widths_[size_t(r)];
    }

    static std::vector<uint16_t*> addresses(nb::handle table, const Segment& s, int64_t window) {
        const auto pages = nb::cast<Addresses>(table);
        require(int64_t(pages.size()) * kKeyBlock >= s.start + s.count, "the pages have no room for the tokens");
        AttentionArgs a;
        a.start = s.start, a.window = window;
        std::vector<uint16_t*> found;
        for (size_t i = 0; i < pages.size(); ++i) {
            require(pages.data()[i] != 0 || int64_t(i) < a.first_key(0) / kKeyBlock, "a page is missing");
            found.push_back(reinterpret_cast<uint16_t*>(uintptr_t(pages.data()[i])));
        }
        return found;
    }

    template <class A>
    const float* keep(const A& array) {
        kept_.push_back(nb::cast(array));
        return array.data();
    }

    // A packing.Matrix; *out* -1: an embedding, whose inputs go to register *x*.
    Matrix matrix(nb::handle source, int x, int out) {
        Matrix m;
        const auto bytes = nb::cast<Bytes>(source.attr("data"));
        const int kind = nb::cast<int>(source.attr("kind"));
        require(kind >= 0 && kind < kTypes, "unknown weight type");
        m.type = Type(kind), m.data = bytes.data();
        m.rows = nb::cast<int64_t>(source.attr("rows")), m.cols = nb::cast<int64_t>(source.attr("columns"));
        m.inputs = nb::cast<int64_t>(source.attr("inputs")), m.scale = nb::cast<float>(source.attr("scale"));
        require(m.rows > 0 && m.cols > 0 && row_bytes(m.type, m.cols) > 0, "cols is not a whole number of blocks");
        require(m.rows <= INT64_MAX / (8 * m.cols), "the matrix is too large");
        require(int64_t(bytes.size()) >= weight_bytes(m.type, m.rows, m.cols), "weight has too few bytes");
        require(m.inputs == width(x) && m.inputs <= m.cols && (out < 0 || m.rows == width(out)),
                "the matrix has another shape than its registers");
        require(m.inputs == m.cols || !is_float(m.type), "a float matrix is never padded");
        if (const nb::object factors = source.attr("factors"); !factors.is_none()) {
            const auto values = nb::cast<Floats>(factors);
            require(values.size() == 1 || int64_t(values.size()) == m.rows, "factors must be one, or one per row");
            m.factors = values.data(), m.n_factors = int64_t(values.size());
        }
        kept_.push_back(nb::borrow(source));
        return m;
    }

    static constexpr int64_t kLargest = 1 << 24;
    const std::vector<int64_t> widths_, layers_;
    const int64_t kv_heads_, head_dim_;
    int64_t vocabulary_ = 0, contexts_ = 0;
    std::vector<int64_t> pairs_, windows_;  // of rotations; of tables of pages, -1: none yet
    std::vector<nb::object> kept_;
    Graph graph_;
};

}  // namespace

void bind_graph(nb::module_& m) {
    nb::class_<BoundGraph>(m, "Graph", "A forward pass; bitnet/kernels/instructions.py says what the parts mean.")
        .def(nb::init<std::vector<int64_t>, std::vector<int64_t>, int64_t, int64_t, float>(), "widths"_a,
             "layers"_a, "kv_heads"_a, "head_dim"_a, "eps"_a)
        .def("add_context", &BoundGraph::add_context, "rotations"_a)
        .def("add_rotation", &BoundGraph::add_rotation, "pairs"_a, "half"_a)
        .def("embed", &BoundGraph::embed, "out"_a, "table"_a, "scale"_a)
        .def("norm", &BoundGraph::norm, "out"_a, "x"_a, "weight"_a.noconvert())
        .def("linear", &BoundGraph::linear, "x"_a, "outs"_a, "matrices"_a, "biases"_a)
        .def("split", &BoundGraph::split, "x"_a, "outs"_a)
        .def("rotate", &BoundGraph::rotate, "x"_a, "rotation"_a)
        .def("temper", &BoundGraph::temper, "x"_a, "scale"_a, "length"_a)
        .def("attend", &BoundGraph::attend, "out"_a, "q"_a, "k"_a, "v"_a, "table"_a, "place"_a, "scale"_a,
             "window"_a, "softcap"_a)
        .def("gate", &BoundGraph::gate, "out"_a, "gate"_a, "up"_a, "kind"_a)
        .def("add", &BoundGraph::add, "x"_a, "y"_a)
        .def("select", &BoundGraph::select, "registers"_a)
        .def("run", &BoundGraph::run, "tokens"_a.noconvert(), "segments"_a, "result"_a, "out"_a.noconvert());
}

}  // namespace bitnet
