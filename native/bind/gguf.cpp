// Reads the strings of a GGUF file, each of which follows its length. A vocabulary has hundreds of
// thousands of them, which take long in Python.
#include "bind/module.hpp"

namespace bitnet {
namespace {

// Calls take(begin, size), the place of its text, for each of *count* strings from offset *at* on.
// Stops at the first string that does not fit, or when the bytes that remain are too few for the
// lengths of the strings that remain. Then *at* is the offset of the first string that was not
// read, and *count* the number of those.
template <class Take>
void each_string(std::string_view data, size_t& at, uint64_t& count, Take take) {
    for (; count > 0 && count <= (data.size() - at) / sizeof(uint64_t); --count) {
        uint64_t length;  // little-endian, as every machine that this is built for
        std::memcpy(&length, data.data() + at, sizeof length);
        if (length > data.size() - at - sizeof length) return;
        take(at + sizeof length, size_t(length));
        at += sizeof length + size_t(length);
    }
}

// (offset after the strings that fit, number of strings that do not), of *count* strings at *at*.
nb::tuple gguf_skip_strings(nb::handle object, size_t at, uint64_t count) {
    const Buffer buffer(object);
    if (at > buffer.size()) throw nb::value_error("an offset behind the end");
    {
        const Released released;
        each_string(buffer.text(), at, count, [](size_t, size_t) {});
    }
    return nb::make_tuple(at, count);
}

// Offsets, as a bytearray of uint64, at which the *count* strings in *object* begin (with their
// lengths), and of the end of the last one; None if the strings do not fit.
nb::object gguf_string_starts(nb::handle object, uint64_t count) {
    const Buffer buffer(object);
    if (count > buffer.size() / sizeof(uint64_t)) return nb::none();
    nb::object out = nb::steal(
        PyByteArray_FromStringAndSize(nullptr, Py_ssize_t((count + 1) * sizeof(uint64_t))));
    if (!out.is_valid()) throw nb::python_error();
    char* starts = PyByteArray_AS_STRING(out.ptr());
    size_t at = 0;
    const auto put = [&](uint64_t start) {
        std::memcpy(starts, &start, sizeof start);
        starts += sizeof start;
    };
    {
        const Released released;
        each_string(buffer.text(), at, count,
                    [&](size_t text, size_t) { put(text - sizeof(uint64_t)); });
    }
    if (count > 0) return nb::none();
    put(at);
    return out;
}

// The *count* strings in *object*; bytes that are not UTF-8 become surrogates. None if the strings
// do not fit.
nb::object gguf_strings(nb::handle object, uint64_t count) {
    const Buffer buffer(object);
    if (count > buffer.size() / 8) return nb::none();
    nb::object out = nb::steal(PyList_New(Py_ssize_t(count)));
    if (!out.is_valid()) throw nb::python_error();
    size_t at = 0;
    Py_ssize_t i = 0;
    each_string(buffer.text(), at, count, [&](size_t begin, size_t size) {
        PyObject* text =
            PyUnicode_DecodeUTF8(buffer.text().data() + begin, Py_ssize_t(size), "surrogateescape");
        if (text == nullptr) throw nb::python_error();
        PyList_SET_ITEM(out.ptr(), i++, text);
    });
    return count > 0 ? nb::object(nb::none()) : out;
}

}  // namespace

void bind_gguf(nb::module_& m) {
    m.def("gguf_skip_strings", &gguf_skip_strings, "buffer"_a, "at"_a, "count"_a);
    m.def("gguf_string_starts", &gguf_string_starts, "buffer"_a, "count"_a);
    m.def("gguf_strings", &gguf_strings, "buffer"_a, "count"_a);
}

}  // namespace bitnet
