// Python binding of the native tokenizer: bitnet._native.TokenizerEngine and build_tokenizer; and
// of its regular expressions and scanners by themselves.
#include "bind/module.hpp"

#include <nanobind/stl/string.h>

#include <limits>
#include <optional>

#include "tokenizer/regex.hpp"
#include "tokenizer/scanner.hpp"
#include "tokenizer/tokenizer.hpp"
#include "tokenizer/unicode.hpp"

namespace bitnet {

std::string_view utf8(nb::handle text) {
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (data == nullptr) throw nb::python_error();  // lone surrogates, or no memory
    if (size > std::numeric_limits<int32_t>::max()) throw nb::value_error("text of 2 GiB or more");
    return {data, size_t(size)};
}

namespace {

std::string_view view(const nb::bytes& bytes) {
    return {static_cast<const char*>(bytes.data()), bytes.size()};
}

// Python ints for token ids, made once: to make them for every text takes longer than to encode it.
class Numbers {
public:
    Numbers() = default;
    Numbers(const Numbers&) = delete;
    Numbers& operator=(const Numbers&) = delete;
    ~Numbers() {
        for (PyObject* number : ints_) Py_XDECREF(number);
    }

    // A Python list to which ids are added; it is allocated for *expected* ids.
    class List {
    public:
        List(Numbers& numbers, uint32_t n_tokens, size_t expected) : numbers_(numbers) {
            if (numbers.ints_.size() < n_tokens) numbers.ints_.resize(n_tokens, nullptr);
            list_ = nb::steal(PyList_New(Py_ssize_t(expected)));
            if (!list_.is_valid()) throw nb::python_error();
        }
        void add(const Ids& ids) {
            const Py_ssize_t room = PyList_GET_SIZE(list_.ptr());
            for (const uint32_t id : ids) {
                const auto number = nb::steal(numbers_.number(id));
                if (size_ < room)
                    PyList_SET_ITEM(list_.ptr(), size_, number.inc_ref().ptr());
                else if (PyList_Append(list_.ptr(), number.ptr()) != 0)
                    throw nb::python_error();
                ++size_;
            }
        }
        nb::object take() {
            const Py_ssize_t room = PyList_GET_SIZE(list_.ptr());
            if (size_ < room && PyList_SetSlice(list_.ptr(), size_, room, nullptr) != 0)
                throw nb::python_error();
            return std::move(list_);
        }

    private:
        Numbers& numbers_;
        nb::object list_;
        Py_ssize_t size_ = 0;
    };

private:
    PyObject* number(uint32_t id) {
        PyObject* object = id < ints_.size() ? ints_[id] : nullptr;
        if (object == nullptr) {
            object = PyLong_FromUnsignedLong(id);
            if (object == nullptr) throw nb::python_error();
            if (id >= ints_.size()) return object;
            ints_[id] = object;
        }
        Py_INCREF(object);
        return object;
    }
    std::vector<PyObject*> ints_;  // by id; null: not made yet
};

// TokenizerEngine with the buffer of the compiled tokenizer, which the engine points into.
class PyTokenizer {
public:
    explicit PyTokenizer(nb::handle buffer)
        : buffer_(buffer), engine_(buffer_.text().data(), buffer_.size()) {}

    nb::object encode(nb::str text, bool parse_special) {
        const std::string_view input = utf8(text);
        Ids ids;
        {
            const Released released;
            engine_.encode(input, parse_special, ids);
        }
        Numbers::List list(numbers_, size(), ids.size());
        list.add(ids);
        return list.take();
    }

    // The ids of encode as an array, without a Python object for each.
    nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>> encode_array(nb::str text, bool parse_special,
                                                               size_t threads) {
        const std::string_view input = utf8(text);
        Ids ids;
        ManyTexts many(engine_, parse_special, threads);
        {
            const Released released;
            many.add(input);
            many.end();
        }
        while (many.pending()) {
            {
                const Released released;
                while (!many.is_ready()) many.help();
            }
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
            ManyTexts::Encoded part = many.take();
            if (ids.empty())
                ids = std::move(part.ids);
            else
                ids.insert(ids.end(), part.ids.begin(), part.ids.end());
        }
        return to_array(std::move(ids));
    }

    // Lists of ids, one for each text.
    nb::list encode_many(nb::list texts, bool parse_special, size_t threads) {
        std::vector<nb::object> strings;  // owned, because the list may change meanwhile
        std::vector<std::string_view> inputs;
        for (const nb::handle text : texts) {
            strings.push_back(nb::cast<nb::str>(text));
            inputs.push_back(utf8(strings.back()));
        }
        nb::list out;
        ManyTexts many(engine_, parse_special, threads);
        std::optional<Numbers::List> ids;  // of the text whose parts are being taken
        {
            const Released released;
            for (const std::string_view input : inputs) many.add(input);
            many.end();
        }
        while (many.pending()) {
            if (!many.is_ready()) {
                const Released released;
                many.help();
            }
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
            // This thread makes the Python lists while the others encode.
            while (many.is_ready()) {
                const ManyTexts::Encoded part = many.take();
                const size_t bytes = inputs[nb::len(out)].size();
                // Of a text in parts, the number of ids is not known yet: about one for three
                // bytes.
                if (!ids)
                    ids.emplace(numbers_, size(), part.ends_text ? part.ids.size() : bytes / 3);
                ids->add(part.ids);
                if (!part.ends_text) continue;
                out.append(ids->take());
                ids.reset();
            }
        }
        return out;
    }

    // (id, index of its first character, index after its last character) of each id.
    nb::list spans(nb::str text, bool parse_special) {
        const std::string_view input = utf8(text);
        Ids ids;
        Spans spans;
        std::vector<size_t> characters;  // number up to each byte, including that of the byte
        {
            const Released released;
            engine_.encode(input, parse_special, ids, &spans);
            characters.reserve(input.size());
            size_t count = 0;
            for (const char c : input) {
                if (!unicode::continues(c)) ++count;
                characters.push_back(count);
            }
        }
        nb::list out;
        for (size_t i = 0; i < ids.size(); ++i) {
            const Span span = spans[i];
            if (span.end > input.size()) throw std::logic_error("a span ends behind its text");
            const size_t first = span.begin < input.size() ? characters[span.begin] - 1
                                 : input.empty()           ? 0
                                                           : characters.back();
            const size_t stop = span.end > span.begin ? characters[span.end - 1] : first;
            out.append(nb::make_tuple(ids[i], first, stop));
        }
        return out;
    }

    nb::bytes token_spelling(uint32_t id) const {
        check(id);
        return to_bytes(engine_.file().token(id));
    }

    uint32_t token_flags(uint32_t id) const {
        check(id);
        return engine_.file().flags(id);
    }

    // Id of the token that the model spells this way, or None.
    nb::object find(nb::bytes spelling) const {
        const std::string_view text = view(spelling);
        const uint32_t id = engine_.file().find(text.data(), text.size());
        return id == kNoId ? nb::none() : nb::cast(id);
    }

    nb::bytes section(Section id) const { return to_bytes(engine_.file().section(id)); }
    // (id, text, flags of AddedToken) of the tokens that are cut out of a text.
    nb::list added() const {
        nb::list out;
        for (const AddedToken& token : read_added(engine_.file().section(Section::kAdded), size()))
            out.append(nb::make_tuple(token.id, nb::str(token.text.data(), token.text.size()),
                                      token.flags));
        return out;
    }
    nb::bytes key() const { return to_bytes(buffer_.text().substr(32, 32)); }
    uint32_t size() const { return engine_.file().n_tokens; }

private:
    void check(uint32_t id) const {
        if (id >= engine_.file().n_tokens) throw nb::index_error("token id out of range");
    }

    const Buffer buffer_;
    Numbers numbers_;
    TokenizerEngine engine_;
};

nb::bytes build(nb::bytes key, nb::bytes meta, nb::bytes config, nb::bytes offsets, nb::bytes bytes,
                nb::bytes flags, nb::bytes merges, nb::bytes scores, nb::bytes byte_ids,
                nb::bytes added, nb::bytes steps, nb::bytes charsmap, nb::bytes prefix,
                nb::bytes suffix) {
    const TokenizerParts parts{view(key),      view(meta),  view(config), view(offsets),
                               view(bytes),    view(flags), view(merges), view(scores),
                               view(byte_ids), view(added), view(steps),  view(charsmap),
                               view(prefix),   view(suffix)};
    return to_bytes(build_tokenizer(parts));
}

// Calls each(begin, end), offsets in bytes, for every match of *pattern* in *text*.
template <typename Each>
void each_match(const std::string& pattern, std::string_view text, Each each) {
    Regex regex(pattern);
    Budget budget(text.size());
    RegexMatches matches(regex, text.data(), text.data() + text.size(), budget);
    const char *begin = nullptr, *end = nullptr;
    while (matches.next(&begin, &end)) each(size_t(begin - text.data()), size_t(end - text.data()));
}

nb::list find_all(const std::string& pattern, nb::str text) {
    const std::string_view input = utf8(text);
    std::vector<std::string_view> matches;
    {
        const Released released;
        each_match(pattern, input, [&](size_t begin, size_t end) {
            matches.push_back(input.substr(begin, end - begin));
        });
    }
    nb::list texts;
    for (const std::string_view match : matches) texts.append(nb::str(match.data(), match.size()));
    return texts;
}

// *text* with *content* in place of every match of *pattern*.
nb::str replace_all(const std::string& pattern, const std::string& content, nb::str text) {
    const std::string_view input = utf8(text);
    std::string out;
    {
        const Released released;
        size_t done = 0;
        each_match(pattern, input, [&](size_t begin, size_t end) {
            out.append(input, done, begin - done).append(content);
            done = end;
            if (out.size() > limits::kGrowthBase + limits::kGrowth * input.size())
                throw OverBudget("a decoder that makes the text too long");
        });
        out.append(input, done, std::string_view::npos);
    }
    return nb::str(out.data(), out.size());
}

// (pieces, rest): the pieces that the scanner for *pattern* cuts *text* into, up to a rest that it
// cannot read. None if no scanner knows the pattern.
nb::object scan_all(const std::string& pattern, nb::str text) {
    const Scanner scanner(pattern);
    if (!scanner.known()) return nb::none();
    const std::string_view input = utf8(text);
    nb::list pieces;
    const char* const end = input.data() + input.size();
    for (const char *p = input.data(), *stop = p; p != end; p = stop) {
        stop = scanner.next(p, end);
        if (stop == nullptr) return nb::make_tuple(pieces, nb::str(p, size_t(end - p)));
        pieces.append(nb::str(p, size_t(stop - p)));
    }
    return nb::make_tuple(pieces, nb::str(""));
}

// Indices of the characters before which *text* may be cut into parts for threads.
nb::list scan_parts(nb::str text) {
    const std::string_view input = utf8(text);
    nb::list cuts;
    for (size_t at = 0, characters = 0; at < input.size(); ++at) {
        if (unicode::continues(input[at])) continue;
        if (Scanner::may_cut(input, at)) cuts.append(characters);
        ++characters;
    }
    return cuts;
}

}  // namespace

void bind_tokenizer(nb::module_& m) {
    static_assert(offsetof(FileHeader, key) == 32, "key() reads it there");
    nb::exception<OverBudget>(m, "OverBudget", PyExc_RuntimeError);
    nb::class_<PyTokenizer>(m, "TokenizerEngine")
        .def(nb::init<nb::handle>(), "buffer"_a)
        .def("encode", &PyTokenizer::encode, "text"_a, "parse_special"_a)
        .def("encode_array", &PyTokenizer::encode_array, "text"_a, "parse_special"_a, "threads"_a)
        .def("encode_many", &PyTokenizer::encode_many, "texts"_a, "parse_special"_a, "threads"_a)
        .def("spans", &PyTokenizer::spans, "text"_a, "parse_special"_a)
        .def("token_spelling", &PyTokenizer::token_spelling, "id"_a)
        .def("token_flags", &PyTokenizer::token_flags, "id"_a)
        .def("find", &PyTokenizer::find, "spelling"_a)
        .def_prop_ro("meta", [](const PyTokenizer& self) { return self.section(Section::kMeta); })
        .def("added", &PyTokenizer::added)
        .def_prop_ro("key", &PyTokenizer::key)
        .def("__len__", &PyTokenizer::size);
    m.def("build_tokenizer", &build, nb::kw_only(), "key"_a, "meta"_a, "config"_a, "offsets"_a,
          "bytes"_a, "flags"_a, "merges"_a, "scores"_a, "byte_ids"_a, "added"_a, "steps"_a,
          "charsmap"_a, "prefix"_a, "suffix"_a);
    m.def("regex_find_all", &find_all, "pattern"_a, "text"_a);
    m.def("regex_replace", &replace_all, "pattern"_a, "content"_a, "text"_a);
    m.def("scan_all", &scan_all, "pattern"_a, "text"_a);
    m.def("scan_parts", &scan_parts, "text"_a);
}

}  // namespace bitnet
