// Normalizers and pre-tokenizers of a tokenizer.json, read as the steps of a compiled tokenizer;
// vocabularies and merges of Python's as its tables.
#include <nanobind/stl/string.h>

#include <initializer_list>

#include <nanobind/stl/vector.h>
#include "bind/module.hpp"
#include "tokenizer/added.hpp"
#include "tokenizer/file.hpp"
#include "tokenizer/steps.hpp"
#include "tokenizer/unicode.hpp"

namespace bitnet {
namespace {

// The expression built into the ByteLevel step.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::pair<std::string_view, StepKind> kPlainNormalizers[] = {
    {"NFC", StepKind::kNfc},
    {"NFKC", StepKind::kNfkc},
    {"NFD", StepKind::kNfd},
    {"NFKD", StepKind::kNfkd},
    {"Lowercase", StepKind::kLowercase},
    {"StripAccents", StepKind::kStripAccents},
    {"Nmt", StepKind::kNmt},
    {"ByteLevel", StepKind::kSpellNormalizer},
    {"Precompiled", StepKind::kPrecompiled}};
constexpr std::pair<std::string_view, StepKind> kPlainPreTokenizers[] = {
    {"WhitespaceSplit", StepKind::kWhitespaceSplit},
    {"Whitespace", StepKind::kWhitespace},
    {"UnicodeScripts", StepKind::kUnicodeScripts},
    {"BertPreTokenizer", StepKind::kBertPreTokenizer}};
constexpr std::string_view kBehaviors[] = {"removed", "isolated", "mergedwithprevious",
                                           "mergedwithnext", "contiguous"};
constexpr std::string_view kSchemes[] = {"never", "first", "always"};

constexpr uint32_t code(Behavior behavior) { return uint32_t(behavior); }

template <class List>
uint32_t index_of(const List& names, std::string_view name, const std::string& what) {
    uint32_t at = 0;
    for (const std::string_view known : names) {
        if (known == name) return at;
        ++at;
    }
    throw std::invalid_argument(what + " " + std::string(name));
}

// A step with its options, as a tokenizer.json has them.
class Entry {
public:
    explicit Entry(nb::handle step)
        : type(nb::cast<std::string>(step.attr("type"))),
          options_(nb::cast<nb::dict>(step.attr("options"))) {}

    const std::string type;

    bool has(const char* name) const { return options_.contains(name); }
    nb::object get(const char* name) const {
        return has(name) ? nb::borrow(options_[name]) : nb::none();
    }
    bool flag(const char* name, bool otherwise) const {
        if (!has(name)) return otherwise;
        const int truth = PyObject_IsTrue(get(name).ptr());
        if (truth < 0) throw nb::python_error();
        return truth != 0;
    }
    std::string text(const char* name) const {
        if (!nb::isinstance<nb::str>(get(name))) wrong(name);
        return nb::cast<std::string>(get(name));
    }
    // Whether the pattern is an expression, and its text; the empty text matches as an expression
    // does.
    std::pair<bool, std::string> pattern() const {
        const nb::object pattern = get("pattern");
        if (nb::isinstance<nb::str>(pattern)) return {text("pattern").empty(), text("pattern")};
        if (!nb::isinstance<nb::dict>(pattern) || nb::len(pattern) != 1) wrong("pattern");
        for (const auto [kind, value] : nb::cast<nb::dict>(pattern)) {
            const auto name = nb::cast<std::string>(kind);
            if (!nb::isinstance<nb::str>(value) || (name != "String" && name != "Regex"))
                wrong("pattern");
            const auto found = nb::cast<std::string>(value);
            return {name == "Regex" || found.empty(), found};
        }
        wrong("pattern");
    }
    uint32_t behavior(std::string name) const {
        if (has("behavior")) name = nb::cast<std::string>(nb::str(get("behavior")));
        std::string plain;
        for (const char c : name) {
            if (c != '_') plain += c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
        }
        return index_of(kBehaviors, plain, "behavior");
    }
    [[noreturn]] void wrong(const char* option) const {
        throw std::invalid_argument("the " + std::string(option) + " of a " + type + " step");
    }

private:
    nb::dict options_;
};

TokenizerStep normalizer(const Entry& entry) {
    for (const auto& [name, kind] : kPlainNormalizers) {
        if (entry.type == name) return {kind};
    }
    if (entry.type == "BertNormalizer") {
        const bool lowercase = entry.flag("lowercase", true);
        const bool accents =
            entry.get("strip_accents").is_none() ? lowercase : entry.flag("strip_accents", false);
        return {StepKind::kBertNormalizer,
                entry.flag("clean_text", true) | uint32_t{lowercase} << 1 | uint32_t{accents} << 2 |
                    uint32_t{entry.flag("handle_chinese_chars", true)} << 3};
    }
    if (entry.type == "Strip")
        return {StepKind::kStrip,
                entry.flag("strip_left", true) | uint32_t{entry.flag("strip_right", true)} << 1};
    if (entry.type == "Prepend") return {StepKind::kPrepend, 0, 0, entry.text("prepend")};
    if (entry.type == "Replace") {
        const auto [is_regex, text] = entry.pattern();
        return {is_regex ? StepKind::kReplaceRegex : StepKind::kReplace, 0, 0, text,
                entry.text("content")};
    }
    throw std::invalid_argument("normalizer " + entry.type);
}

TokenizerStep metaspace(const Entry& entry) {
    const nb::object given = entry.get("prepend_scheme");
    std::string scheme;
    if (given.is_none())  // as earlier versions of tokenizers say it
        scheme = entry.flag("add_prefix_space", true) ? "always" : "never";
    else
        scheme = entry.text("prepend_scheme");
    const std::string symbol =
        entry.has("replacement") ? entry.text("replacement") : std::string(kSpaceSymbol);
    if (symbol.empty() || unicode::length(symbol, 0) != symbol.size()) entry.wrong("replacement");
    return {StepKind::kMetaspace, index_of(kSchemes, scheme, "prepend_scheme"),
            entry.flag("split", true), symbol};
}

// spelled: ByteLevel writes bytes as characters; else the model reads the bytes themselves.
void pre_tokenizer(const Entry& entry, bool spelled, std::vector<TokenizerStep>& out) {
    const std::string& type = entry.type;
    for (const auto& [name, kind] : kPlainPreTokenizers) {
        const bool isolates = kind == StepKind::kBertPreTokenizer;
        if (type == name)
            return out.push_back({kind, code(isolates ? Behavior::kIsolated : Behavior::kRemoved)});
    }
    if (type == "Split") {
        const auto [is_regex, text] = entry.pattern();
        out.push_back({is_regex ? StepKind::kSplitRegex : StepKind::kSplitString,
                       entry.behavior(""), entry.flag("invert", false), text});
    } else if (type == "ByteLevel") {
        if (entry.flag("add_prefix_space", true))
            out.push_back({StepKind::kPrefixSpace, 2, 0, " "});
        if (entry.flag("use_regex", true))
            out.push_back({StepKind::kSplitRegex, code(Behavior::kIsolated), 0, kGpt2Pattern});
        if (spelled) out.push_back({StepKind::kSpell});
    } else if (type == "Digits") {
        const bool alone = entry.flag("individual_digits", false);
        out.push_back(
            {StepKind::kDigits, code(alone ? Behavior::kIsolated : Behavior::kContiguous)});
    } else if (type == "Metaspace") {
        out.push_back(metaspace(entry));
    } else if (type == "Punctuation") {
        out.push_back({StepKind::kPunctuation, entry.behavior("isolated")});
    } else if (type == "CharDelimiterSplit") {
        out.push_back(
            {StepKind::kSplitString, code(Behavior::kRemoved), 0, entry.text("delimiter")});
    } else if (type == "FixedLength") {
        const nb::object length = entry.get("length");
        const long value = PyLong_CheckExact(length.ptr()) ? PyLong_AsLong(length.ptr()) : 0;
        if (PyErr_Occurred() != nullptr) throw nb::python_error();
        if (value <= 0 || value >= long{1} << 31) entry.wrong("length");
        out.push_back({StepKind::kFixedLength, uint32_t(value)});
    } else {
        throw std::invalid_argument("pre-tokenizer " + type);
    }
}

void append(std::string& out, std::initializer_list<uint32_t> numbers) {
    for (const uint32_t number : numbers)
        out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// The compiled form of steps, objects with a type and options as in a tokenizer.json; spelled:
// ByteLevel writes bytes as characters. Throws std::invalid_argument for a step that is not run
// exactly.
nb::bytes pack_steps(nb::handle normalizers, nb::handle pre_tokenizers, bool spelled) {
    std::vector<TokenizerStep> steps;
    try {
        for (const nb::handle step : normalizers) steps.push_back(normalizer(Entry(step)));
        for (const nb::handle step : pre_tokenizers) pre_tokenizer(Entry(step), spelled, steps);
    } catch (const nb::cast_error&) {
        throw std::invalid_argument("a step with something else than a text");
    }
    std::string out;
    append(out, {uint32_t(steps.size())});
    for (const TokenizerStep& step : steps) {
        const auto kind = uint32_t(step.kind);
        append(out, {kind, step.mode, step.flag, uint32_t(step.text.size())});
        out.append(step.text);
        append(out, {uint32_t(step.other.size())});
        out.append(step.other);
    }
    return to_bytes(out);
}

}  // namespace

namespace {

enum Kind : uint8_t { kNormal = 1, kControl = 3, kUserType = 4, kUnusedType = 5, kByteType = 6 };

template <typename Numbers>
std::string_view as_bytes(const Numbers& numbers) {
    return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof numbers[0]};
}

// Flags of a token that is not an added one.
uint8_t flags_of(uint8_t kind, bool sentencepiece) {
    const bool in_model =
        !sentencepiece || kind == kNormal || kind == kUserType || kind == kUnusedType;
    return uint8_t((in_model ? kInModel : 0) | (kind == kControl ? kSpecial | kVerbatim : 0) |
                   (kind == kUserType ? kUserDefined : 0) | (kind == kUnusedType ? kUnused : 0));
}

// The byte that a character spells in GPT-2's vocabularies, by its code; -1 for none.
const std::array<int16_t, 512>& alphabet() {
    static const auto table = [] {
        std::array<int16_t, 512> made;
        made.fill(-1);
        for (int byte = 0; byte < 256; ++byte) made[byte_character(uint8_t(byte))] = int16_t(byte);
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
        out += char(alphabet()[code]);
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

// The ids of pairs of texts, as bytes of 32-bit numbers; None when one is not a pair of known
// texts.
nb::object pair_ids(nb::list pairs, nb::dict ids) {
    std::vector<uint32_t> found;
    found.reserve(2 * pairs.size());
    const auto look_up = [&](PyObject* text) {
        PyObject* const id =
            PyUnicode_CheckExact(text) ? PyDict_GetItemWithError(ids.ptr(), text) : nullptr;
        const unsigned long value =
            id != nullptr && PyLong_CheckExact(id) ? PyLong_AsUnsignedLong(id) : kNoId;
        if (PyErr_Occurred() != nullptr) throw nb::python_error();
        if (value < kMaxTokens) found.push_back(uint32_t(value));
        return value < kMaxTokens;
    };
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pairs.ptr()); ++i) {
        PyObject* const pair = PyList_GET_ITEM(pairs.ptr(), i);
        bool known = false;
        const bool joined = PyUnicode_CheckExact(pair) != 0;
        if (joined != (PyUnicode_CheckExact(PyList_GET_ITEM(pairs.ptr(), 0)) != 0))
            return nb::none();
        if (PyList_CheckExact(pair) && PyList_GET_SIZE(pair) == 2) {
            known = look_up(PyList_GET_ITEM(pair, 0)) && look_up(PyList_GET_ITEM(pair, 1));
        } else if (joined) {  // both halves in one text, parted by a space
            const Py_ssize_t size = PyUnicode_GET_LENGTH(pair);
            const Py_ssize_t at = size > 1 ? PyUnicode_FindChar(pair, ' ', 1, size, 1) : -1;
            if (at > 0) {
                const auto left = nb::steal(PyUnicode_Substring(pair, 0, at));
                const auto right = nb::steal(PyUnicode_Substring(pair, at + 1, size));
                known = left.is_valid() && right.is_valid() && look_up(left.ptr()) &&
                        look_up(right.ptr());
            }
        }
        if (PyErr_Occurred() != nullptr) throw nb::python_error();
        if (!known) return nb::none();
    }
    return nb::bytes(found.data(), found.size() * sizeof(uint32_t));
}

// Parts of build_tokenizer: bytes, offsets and flags of a vocabulary, ids of bytes, added tokens.
// kinds: the type of each token in GGUF's numbers; added: an id, flags and a text each; outside:
// ids that ordinary text never becomes; sentencepiece: only normal, user-defined and unused tokens
// are in the model.
nb::object spell(nb::list texts, nb::bytes kinds, nb::list added,
                 const std::vector<uint32_t>& outside, bool byte_level, bool byte_fallback,
                 bool sentencepiece) {
    const auto count = size_t(PyList_GET_SIZE(texts.ptr()));
    if (kinds.size() != count) throw nb::value_error("a type for each token");
    const auto kind = [&](size_t id) { return uint8_t(kinds.c_str()[id]); };
    std::string out, flags;
    for (size_t id = 0; id < count; ++id) flags += char(flags_of(kind(id), sentencepiece));
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
        is_special[id] =
            (bits & AddedToken::kSpecial) != 0;  // of several with one id the last one counts
        packed.append(as_bytes(std::array<uint32_t, 3>{id, bits, uint32_t(text.size())}))
            .append(text);
    }
    std::vector<uint32_t> offsets{0}, byte_ids(256, kNoId);
    std::string spelled;
    for (size_t id = 0; id < count; ++id) {
        PyObject* const text = PyList_GET_ITEM(texts.ptr(), Py_ssize_t(id));
        if (!PyUnicode_Check(text)) throw nb::value_error("a token that is not a text");
        const size_t before = out.size();
        const bool as_bytes = byte_level && !is_added[id] && append_spelled(text, out);
        if (!as_bytes) out += utf8(text);
        const std::string_view bytes = std::string_view(out).substr(before);
        const auto is_printable = [](char c) { return c > ' ' && c < 0x7F; };
        const bool is_plain = std::all_of(bytes.begin(), bytes.end(), is_printable);
        if (is_added[id])
            flags[id] |= (is_special[id] ? kSpecial : 0) | (kind(id) != kUserType ? kVerbatim : 0);
        if (bytes.empty() || (byte_level && (is_added[id] ? !is_plain : !as_bytes)))
            flags[id] &= ~kInModel;
        spelled.clear();
        if (byte_level && PyUnicode_GET_LENGTH(text) == 1 && append_spelled(text, spelled))
            byte_ids[uint8_t(spelled[0])] = uint32_t(id);
        const bool may_name = !sentencepiece || kind(id) == kNormal || kind(id) == kByteType;
        if (const int byte = named_byte(bytes);
            byte >= 0 && byte_fallback && !byte_level && may_name) {
            byte_ids[size_t(byte)] = uint32_t(id);
            flags[id] |= kByteToken;
        }
        if (out.size() > kNoId) throw nb::value_error("tokens of 4 GiB");
        offsets.push_back(uint32_t(out.size()));
    }
    for (const uint32_t id : outside) flag(id) &= ~kInModel;
    return nb::make_tuple(to_bytes(out), to_bytes(as_bytes(offsets)), to_bytes(flags),
                          to_bytes(as_bytes(byte_ids)), to_bytes(packed));
}

}  // namespace

void bind_tokenizer_parts(nb::module_& m) {
    m.def("pair_ids", &pair_ids, "pairs"_a, "ids"_a);
    m.def("spell", &spell, "texts"_a, "kinds"_a, "added"_a, "outside"_a, "byte_level"_a,
          "byte_fallback"_a, "sentencepiece"_a);
    m.def("pack_steps", &pack_steps, "normalizers"_a, "pre_tokenizers"_a, "spelled"_a);
}

}  // namespace bitnet
