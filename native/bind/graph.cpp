// Python binding of Graph. It is built from the instructions of bitnet/kernels/instructions.py,
// with a packing.Matrix or a float array wherever an instruction names a weight.
#include "bind/module.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "graph/graph.hpp"

namespace bitnet {
namespace {

using Doubles = Array<const double, nb::ndim<1>>;
using IdArray = Array<const int64_t, nb::ndim<1>>;
using Addresses = Array<const uint64_t, nb::ndim<1>>;

// *source* as an array; TypeError with the message *refusal* if it had to be converted: the graph
// keeps pointers to the caller's array, and not to a temporary copy.
template <class A>
A unconverted(nb::handle source, const char* refusal) {
    A array;
    if (!nb::try_cast(source, array, false)) throw nb::type_error(refusal);
    return array;
}
constexpr char kNotFloats[] = "an array must be float32 and C-contiguous";

// The fields of one instruction, which Graph.add takes as keyword arguments.
class Keywords : public Operands {
public:
    explicit Keywords(const nb::kwargs& fields) : fields_(fields) {}
    std::vector<int64_t> integers(const char* field) const override {
        return all<int64_t>(field, [](nb::handle item) { return nb::cast<int64_t>(item); });
    }
    double number(const char* field) const override { return nb::cast<double>(get(field)); }
    std::string text(const char* field) const override { return nb::cast<std::string>(get(field)); }
    // A field that is None has one array, without data; `all` would return an empty list.
    std::vector<FloatArray> arrays(const char* field) const override {
        if (get(field).is_none()) return {{}};
        return all<FloatArray>(field, [](nb::handle item) -> FloatArray {
            if (item.is_none()) return {};
            const auto array = unconverted<Floats>(item, kNotFloats);
            return {array.data(), int64_t(array.size())};
        });
    }
    std::vector<std::vector<Matrix>> matrices(const char* field) const override {
        return all<std::vector<Matrix>>(field, [](nb::handle item) {
            std::vector<Matrix> of_name;
            if (!nb::isinstance<nb::tuple>(item)) {
                of_name.push_back(matrix(item));
                return of_name;
            }
            for (const nb::handle source : nb::cast<nb::tuple>(item))  // one for each expert
                of_name.push_back(matrix(source));
            return of_name;
        });
    }

private:
    nb::object get(const char* field) const {
        if (!fields_.contains(field)) throw nb::key_error(field);
        return nb::borrow(fields_[field]);
    }
    // The items of a list, or the value itself if it is not a list; empty for None.
    template <class T, class Cast>
    std::vector<T> all(const char* field, Cast cast) const {
        std::vector<T> items;
        const nb::object value = get(field);
        if (!nb::isinstance<nb::list>(value)) {
            if (!value.is_none()) items.push_back(cast(value));
            return items;
        }
        for (const nb::handle item : nb::cast<nb::list>(value)) items.push_back(cast(item));
        return items;
    }
    static Matrix matrix(nb::handle source) {
        Matrix m;
        const auto bytes =
            unconverted<Bytes>(source.attr("data"), "the weights of a matrix are not bytes");
        m.rows = nb::cast<int64_t>(source.attr("rows"));
        m.cols = nb::cast<int64_t>(source.attr("columns"));
        m.type = checked_type(nb::cast<int>(source.attr("kind")), m.rows, m.cols, bytes);
        m.data = bytes.data();
        m.inputs = nb::cast<int64_t>(source.attr("inputs"));
        m.scale = nb::cast<float>(source.attr("scale"));
        require(m.inputs == m.cols || !is_float(m.type), "a float matrix is never padded");
        if (const nb::object factors = source.attr("factors"); !factors.is_none()) {
            const auto values = unconverted<Floats>(factors, kNotFloats);
            require(values.size() == 1 || int64_t(values.size()) == m.rows,
                    "factors must be one, or one per row");
            m.factors = values.data();
            m.n_factors = int64_t(values.size());
        }
        return m;
    }
    const nb::kwargs& fields_;
};

class PyGraph : public Graph {
public:
    void add(const std::string& instruction, const nb::kwargs& fields) {
        Graph::add(instruction, Keywords(fields));
        owners_.push_back(fields);
    }

    int64_t add_table(int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t window, bool q8) {
        return Graph::add_table(
            {layers, kv_heads, head_dim, window, q8 ? KvType::q8 : KvType::f16});
    }

    int64_t add_context(const std::vector<std::pair<Doubles, double>>& rotations) {
        std::vector<Frequencies> all;
        for (const auto& [frequencies, scale] : rotations)
            all.push_back({{frequencies.data(), frequencies.data() + frequencies.size()}, scale});
        const Released released;  // it waits for the pass that runs
        return Graph::add_context(std::move(all));
    }

    // Each of *segments* is a tuple: number of tokens, position of the first, number of output
    // rows, context, a tuple of page addresses per table, state, inputs of Take instructions, and,
    // if it has a second text, the position at which that begins.
    void run(const IdArray& tokens, const nb::list& segments, int64_t result,
             const OutFloats& out) {
        std::vector<Segment> all;
        for (nb::handle item : segments) {
            const auto parts = nb::cast<nb::tuple>(item);
            require(parts.size() == 7 || parts.size() == 8,
                    "a segment must be a tuple of seven or eight parts");
            Segment& s = all.emplace_back();
            s.count = nb::cast<int64_t>(parts[0]);
            s.start = nb::cast<int64_t>(parts[1]);
            s.outputs = nb::cast<int64_t>(parts[2]);
            s.context = nb::cast<int64_t>(parts[3]);
            for (const nb::handle table : nb::cast<nb::tuple>(parts[4])) {
                const auto addresses = nb::cast<Addresses>(table);
                auto& pages = s.pages.emplace_back();
                for (size_t i = 0; i < addresses.size(); ++i)
                    pages.push_back(reinterpret_cast<int16_t*>(uintptr_t(addresses.data()[i])));
            }
            const auto state = unconverted<OutFloats>(parts[5], kNotFloats);
            s.state = state.data();
            s.state_size = int64_t(state.size());
            const auto hidden = unconverted<Floats>(parts[6], kNotFloats);
            s.hidden = {hidden.data(), int64_t(hidden.size())};
            if (parts.size() == 8) s.second = nb::cast<int64_t>(parts[7]);
        }
        const Computing computing;  // releases the GIL, sets the floating-point mode
        Graph::run(tokens.data(), int64_t(tokens.size()), all, result, out.data(),
                   int64_t(out.size()));
    }

private:
    std::vector<nb::object> owners_;  // of the arrays that the graph points into
};

}  // namespace

void bind_graph(nb::module_& m) {
    nb::class_<PyGraph>(m, "Graph")
        .def(nb::init<>())
        .def("add_register", &PyGraph::add_register, "width"_a, "place"_a)
        .def("add_table", &PyGraph::add_table, "layers"_a, "kv_heads"_a, "head_dim"_a, "window"_a,
             "q8"_a = false)
        .def("add_context", &PyGraph::add_context, "rotations"_a)
        .def("add_rotation", &PyGraph::add_rotation, "pairs"_a, "half"_a)
        .def("set_state", &PyGraph::set_state, "size"_a)
        .def("add", &PyGraph::add, "instruction"_a, "fields"_a)
        .def("run", &PyGraph::run, "tokens"_a.noconvert(), "segments"_a, "result"_a,
             "out"_a.noconvert());
}

}  // namespace bitnet
