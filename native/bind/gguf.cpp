// Python's view of the GGUF index.
#include "bind/module.hpp"

#include <cstring>
#include <type_traits>

#include "gguf/index.hpp"

namespace bitnet {
namespace {

nb::bytes slice(const Buffer& buffer, uint64_t at, uint64_t size) {
    return to_bytes(buffer.text().substr(size_t(at), size_t(size)));
}

nb::tuple problem_tuple(const Buffer& buffer, const gguf::Problem& problem) {
    return nb::make_tuple(uint32_t(problem.fault), uint32_t(problem.section), problem.index, problem.at, problem.amount,
                          slice(buffer, problem.name_at, problem.name_size));
}

// (problem, keys, tensors, end); problem is None when everything is in order.
nb::tuple gguf_index(nb::handle object, uint64_t total) {
    const Buffer buffer(object);
    if (buffer.size() > total) throw nb::value_error("the buffer is larger than its file");
    gguf::Index index;
    gguf::Problem problem;
    {
        const Released released;
        problem = gguf::walk(buffer.data(), buffer.size(), total, index);
    }
    if (problem.fault != gguf::Fault::none)
        return nb::make_tuple(problem_tuple(buffer, problem), nb::none(), nb::none(), 0);
    nb::list keys;
    for (const auto& k : index.keys)
        keys.append(nb::make_tuple(slice(buffer, k.name_at, k.name_size), k.type, k.at, k.end, k.item_type, k.length));
    nb::list tensors;
    for (const auto& t : index.tensors) {
        nb::list dims;
        for (uint32_t i = t.n_dims; i > 0; --i) dims.append(t.dims[i - 1]);  // rows first
        tensors.append(nb::make_tuple(slice(buffer, t.name_at, t.name_size), nb::tuple(dims), t.type, t.offset));
    }
    return nb::make_tuple(nb::none(), keys, tensors, index.end);
}

// uint64 start of each string of an array and the end of the last; None when they do not fit.
nb::object gguf_string_starts(nb::handle object, uint64_t count) {
    const Buffer buffer(object);
    if (count > buffer.size() / 8) return nb::none();
    nb::object out = nb::steal(PyByteArray_FromStringAndSize(nullptr, Py_ssize_t((count + 1) * sizeof(uint64_t))));
    if (!out.is_valid()) throw nb::python_error();
    auto* starts = reinterpret_cast<uint64_t*>(PyByteArray_AS_STRING(out.ptr()));
    bool fits;
    {
        const Released released;
        fits = gguf::string_starts(buffer.data(), buffer.size(), count, starts);
    }
    return fits ? out : nb::object(nb::none());
}

// Text of `size` bytes whose characters lie below U+0800, which is nearly all of a vocabulary: Python's
// own decoder allocates twice for what is not ASCII. nullptr without an error set for all others.
PyObject* decode_short(const uint8_t* p, uint64_t size) {
    uint64_t count = 0;
    bool ascii = true, latin = true;
    for (uint64_t i = 0; i < size; ++count) {
        const uint8_t lead = p[i];
        if (lead < 0x80) {
            ++i;
            continue;
        }
        if (lead < 0xc2 || lead > 0xdf || i + 1 == size || (p[i + 1] & 0xc0) != 0x80) return nullptr;
        ascii = false;
        latin = latin && lead <= 0xc3;
        i += 2;
    }
    if (ascii) return nullptr;
    PyObject* text = PyUnicode_New(Py_ssize_t(count), latin ? 0xff : 0xffff);
    if (text == nullptr) return nullptr;
    const auto fill = [p, size](auto* out) {
        for (uint64_t i = 0; i < size; ++i) {
            const uint8_t lead = p[i];
            const unsigned character = lead < 0x80 ? lead : (lead & 0x1fu) << 6 | (p[++i] & 0x3fu);
            *out++ = static_cast<std::remove_pointer_t<decltype(out)>>(character);
        }
    };
    if (latin)
        fill(static_cast<Py_UCS1*>(PyUnicode_DATA(text)));
    else
        fill(static_cast<Py_UCS2*>(PyUnicode_DATA(text)));
    return text;
}

// The strings of an array; bytes that are not UTF-8 become surrogates. None when they do not fit.
nb::object gguf_strings(nb::handle object, uint64_t count) {
    const Buffer buffer(object);
    if (count > buffer.size() / 8) return nb::none();
    nb::object out = nb::steal(PyList_New(Py_ssize_t(count)));
    if (!out.is_valid()) throw nb::python_error();
    const uint8_t* at = buffer.data();
    const uint8_t* end = at + buffer.size();
    for (uint64_t i = 0; i < count; ++i) {
        uint64_t length;
        if (uint64_t(end - at) < sizeof length) return nb::none();
        std::memcpy(&length, at, sizeof length);
        at += sizeof length;
        if (length > uint64_t(end - at)) return nb::none();
        PyObject* text = decode_short(at, length);
        if (text == nullptr && !PyErr_Occurred())
            text = PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(at), Py_ssize_t(length), "surrogateescape");
        if (text == nullptr) throw nb::python_error();
        PyList_SET_ITEM(out.ptr(), Py_ssize_t(i), text);
        at += length;
    }
    return out;
}

}  // namespace

void bind_gguf(nb::module_& m) {
    m.def("gguf_index", &gguf_index, "buffer"_a, "total"_a,
          "Structure of a GGUF header: (problem, keys, tensors, end).");
    m.def("gguf_string_starts", &gguf_string_starts, "buffer"_a, "count"_a,
          "Starts of the strings of an array as native uint64, and the end of the last.");
    m.def("gguf_strings", &gguf_strings, "buffer"_a, "count"_a, "The strings of an array.");
}

}  // namespace bitnet
