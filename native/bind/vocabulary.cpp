// Vocabularies and merges of Python's as tables of a compiled tokenizer.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "bind/tokenizer.hpp"
#include "tokenizer/added.hpp"
#include "tokenizer/file.hpp"
#include "tokenizer/steps.hpp"

namespace bitnet {
namespace {

enum Kind : uint8_t { kNormal = 1, kControl = 3, kUserType = 4, kUnusedType = 5, kByteType = 6 };

template <typename Numbers>
std::string_view as_bytes(const Numbers& numbers) {
    return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof numbers[0]};
}

// Flags of a token that is not an added one.
uint8_t flags_of(uint8_t kind, bool sentencepiece) {
    const bool in_model = !sentencepiece || kind == kNormal || kind == kUserType || kind == kUnusedType;
    return static_cast<uint8_t>((in_model ? kInModel : 0) | (kind == kControl ? kSpecial | kVerbatim : 0) |
                                (kind == kUserType ? kUserDefined : 0) | (kind == kUnusedType ? kUnused : 0));
}

// The byte that a character spells in GPT-2's vocabularies, by its code; -1 for none.
const std::array<int16_t, 512>& alphabet() {
    static const auto table = [] {
        std::array<int16_t, 512> made;
        made.fill(-1);
        for (int byte = 0; byte < 256; ++byte) {
            made[byte_character(static_cast<unsigned char>(byte))] = static_cast<int16_t>(byte);
        }
        return made;
    }();
    return table;
}

// Appends the bytes that a text spells; false if it has another character.
bool append_spelled(PyObject* text, std::string& out) {
    const Py_ssize_t size = PyUnicode_GET_LENGTH(text);
    const size_t before = out.size();
    for (Py_ssize_t k = 0; k < size; ++k) {
        const Py_UCS4 code = PyUnicode_READ_CHAR(text, k);
        if (code >= alphabet().size() || alphabet()[code] < 0) {
            out.resize(before);
            return false;
        }
        out += static_cast<char>(alphabet()[code]);
    }
    return true;
}

// The byte that <0xNN> names, or -1.
int named_byte(std::string_view text) {
    const auto digit = [&](size_t at) {
        const char c = text[at];
        return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    };
    if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
    return digit(3) < 0 || digit(4) < 0 ? -1 : 16 * digit(3) + digit(4);
}

}  // namespace

nb::object pair_ids(nb::list pairs, nb::dict ids) {
    std::vector<uint32_t> found;
    found.reserve(2 * pairs.size());
    const auto look_up = [&](PyObject* text) {
        PyObject* const id = PyUnicode_CheckExact(text) ? PyDict_GetItemWithError(ids.ptr(), text) : nullptr;
        const unsigned long value = id != nullptr && PyLong_CheckExact(id) ? PyLong_AsUnsignedLong(id) : kNoId;
        if (PyErr_Occurred() != nullptr) throw nb::python_error();
        if (value < kMaxTokens) found.push_back(static_cast<uint32_t>(value));
        return value < kMaxTokens;
    };
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pairs.ptr()); ++i) {
        PyObject* const pair = PyList_GET_ITEM(pairs.ptr(), i);
        bool known = false;
        const bool joined = PyUnicode_CheckExact(pair) != 0;
        if (joined != (PyUnicode_CheckExact(PyList_GET_ITEM(pairs.ptr(), 0)) != 0)) return nb::none();
        if (PyList_CheckExact(pair) && PyList_GET_SIZE(pair) == 2) {
            known = look_up(PyList_GET_ITEM(pair, 0)) && look_up(PyList_GET_ITEM(pair, 1));
        } else if (joined) {  // both halves in one text, parted by a space
            const Py_ssize_t size = PyUnicode_GET_LENGTH(pair);
            const Py_ssize_t at = size > 1 ? PyUnicode_FindChar(pair, ' ', 1, size, 1) : -1;
            if (at > 0) {
                const auto left = nb::steal(PyUnicode_Substring(pair, 0, at));
                const auto right = nb::steal(PyUnicode_Substring(pair, at + 1, size));
                known = left.is_valid() && right.is_valid() && look_up(left.ptr()) && look_up(right.ptr());
            }
        }
        if (PyErr_Occurred() != nullptr) throw nb::python_error();
        if (!known) return nb::none();
    }
    return nb::bytes(found.data(), found.size() * sizeof(uint32_t));
}

nb::object spell(nb::list texts, nb::bytes kinds, nb::list added, const std::vector<uint32_t>& outside,
                 bool byte_level, bool byte_fallback, bool sentencepiece) {
    const auto count = static_cast<size_t>(PyList_GET_SIZE(texts.ptr()));
    if (kinds.size() != count) throw nb::value_error("a type for each token");
    const auto kind = [&](size_t id) { return static_cast<uint8_t>(kinds.c_str()[id]); };
    std::string out, flags;
    for (size_t id = 0; id < count; ++id) flags += static_cast<char>(flags_of(kind(id), sentencepiece));
    const auto flag = [&](size_t id) -> char& {
        if (id >= count) throw nb::index_error("an id outside of the vocabulary");
        return flags[id];
    };
    std::string packed;
    std::vector<bool> is_added(count), is_special(count);
    for (const nb::handle token : added) {
        uint32_t id = kNoId;
        if (!nb::try_cast(token[0], id)) id = kNoId;
        flag(id);
        const auto bits = nb::cast<uint32_t>(token[1]);
        const std::string_view text = utf8(token[2]);
        is_added[id] = true;
        is_special[id] = (bits & AddedToken::kSpecial) != 0;  // of several with one id the last one counts
        packed.append(as_bytes(std::array<uint32_t, 3>{id, bits, static_cast<uint32_t>(text.size())})).append(text);
    }
    std::vector<uint32_t> offsets{0}, byte_ids(256, kNoId);
    std::string spelled;
    for (size_t id = 0; id < count; ++id) {
        PyObject* const text = PyList_GET_ITEM(texts.ptr(), static_cast<Py_ssize_t>(id));
        if (!PyUnicode_Check(text)) throw nb::value_error("a token that is not a text");
        const size_t before = out.size();
        const bool as_bytes = byte_level && !is_added[id] && append_spelled(text, out);
        if (!as_bytes) out += utf8(text);
        const std::string_view bytes = std::string_view(out).substr(before);
        const auto is_printable = [](char c) { return c > ' ' && c < 0x7F; };
        const bool is_plain = std::all_of(bytes.begin(), bytes.end(), is_printable);
        if (is_added[id]) flags[id] |= (is_special[id] ? kSpecial : 0) | (kind(id) != kUserType ? kVerbatim : 0);
        if (bytes.empty() || (byte_level && (is_added[id] ? !is_plain : !as_bytes))) flags[id] &= ~kInModel;
        spelled.clear();
        if (byte_level && PyUnicode_GET_LENGTH(text) == 1 && append_spelled(text, spelled)) {
            byte_ids[static_cast<unsigned char>(spelled[0])] = static_cast<uint32_t>(id);
        }
        const bool may_name = !sentencepiece || kind(id) == kNormal || kind(id) == kByteType;
        if (const int byte = named_byte(bytes); byte >= 0 && byte_fallback && !byte_level && may_name) {
            byte_ids[static_cast<size_t>(byte)] = static_cast<uint32_t>(id);
            flags[id] |= kByteToken;
        }
        if (out.size() > kNoId) throw nb::value_error("tokens of 4 GiB");
        offsets.push_back(static_cast<uint32_t>(out.size()));
    }
    for (const uint32_t id : outside) flag(id) &= ~kInModel;
    return nb::make_tuple(to_bytes(out), to_bytes(as_bytes(offsets)), to_bytes(flags), to_bytes(as_bytes(byte_ids)),
                          to_bytes(packed));
}

}  // namespace bitnet
