// Makes parts of a compiled tokenizer: its steps, from the normalizers and pre-tokenizers of a
// tokenizer.json, and its tables, from vocabularies and merges in Python.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <initializer_list>

#include "bind/module.hpp"
#include "tokenizer/added.hpp"
#include "tokenizer/file.hpp"
#include "tokenizer/steps.hpp"
#include "tokenizer/unicode.hpp"

namespace bitnet {
namespace {

// The regular expression that is built into the ByteLevel step.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Steps without options that are read here. That of Precompiled, its table, is given on its own.
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
// Names of Behavior, and of Scheme, in their orders.
constexpr std::string_view kBehaviors[] = {"removed", "isolated", "mergedwithprevious",
                                           "mergedwithnext", "contiguous"};
constexpr std::string_view kSchemes[] = {"never", "first", "always"};

constexpr uint32_t code(Behavior behavior) { return uint32_t(behavior); }

// The index of *name*, a value of *option*, among *names*; throws std::invalid_argument with both
// if it is not one of them.
template <class List>
uint32_t index_of(const List& names, std::string_view name, const std::string& option) {
    uint32_t index = 0;
    for (const std::string_view candidate : names) {
        if (candidate == name) return index;
        ++index;
    }
    throw std::invalid_argument(option + " " + std::string(name));
}

// A step of a tokenizer.json, with its options.
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
    // Whether the option is true; *otherwise* if the step does not have it.
    bool flag(const char* name, bool otherwise) const {
        if (!has(name)) return otherwise;
        const int truth = PyObject_IsTrue(get(name).ptr());
        if (truth < 0) throw nb::python_error();
        return truth != 0;
    }
    std::string text(const char* name) const {
        if (!nb::isinstance<nb::str>(get(name))) refuse(name);
        return nb::cast<std::string>(get(name));
    }
    // (whether the pattern is a regular expression, its text). An empty text counts as a regular
    // expression, since the tokenizers library matches it as one.
    std::pair<bool, std::string> pattern() const {
        const nb::object pattern = get("pattern");
        if (nb::isinstance<nb::str>(pattern)) return {text("pattern").empty(), text("pattern")};
        if (!nb::isinstance<nb::dict>(pattern) || nb::len(pattern) != 1) refuse("pattern");
        for (const auto [kind, value] : nb::cast<nb::dict>(pattern)) {
            const auto name = nb::cast<std::string>(kind);
            if (!nb::isinstance<nb::str>(value) || (name != "String" && name != "Regex"))
                refuse("pattern");
            const auto expression = nb::cast<std::string>(value);
            return {name == "Regex" || expression.empty(), expression};
        }
        refuse("pattern");
    }
    // The option "behavior" as a Behavior; *otherwise* is its value if the step does not have it.
    // MergedWithNext and merged_with_next are names of the same one.
    uint32_t behavior(const std::string& otherwise) const {
        const std::string name =
            has("behavior") ? nb::cast<std::string>(nb::str(get("behavior"))) : otherwise;
        std::string plain;
        for (const char c : name) {
            if (c != '_') plain += c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
        }
        return index_of(kBehaviors, plain, "behavior");
    }
    [[noreturn]] void refuse(const char* option) const {
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
                (entry.flag("clean_text", true) ? kCleanText : 0u) |
                    (lowercase ? kBertLowercase : 0u) | (accents ? kStripAccents : 0u) |
                    (entry.flag("handle_chinese_chars", true) ? kChineseChars : 0u)};
    }
    if (entry.type == "Strip")
        return {StepKind::kStrip, (entry.flag("strip_left", true) ? kLeft : 0u) |
                                      (entry.flag("strip_right", true) ? kRight : 0u)};
    if (entry.type == "Prepend") return {StepKind::kPrepend, 0, 0, entry.text("prepend")};
    if (entry.type == "Replace") {
        const auto [is_regex, text] = entry.pattern();
        return {is_regex ? StepKind::kReplaceRegex : StepKind::kReplace, 0, 0, text,
                entry.text("content")};
    }
    throw std::invalid_argument("normalizer " + entry.type);
}

TokenizerStep metaspace(const Entry& entry) {
    std::string scheme;
    if (entry.get("prepend_scheme").is_none())  // files of earlier versions of the library
        scheme = entry.flag("add_prefix_space", true) ? "always" : "never";
    else
        scheme = entry.text("prepend_scheme");
    const std::string symbol =
        entry.has("replacement") ? entry.text("replacement") : std::string(kSpaceSymbol);
    // One character.
    if (symbol.empty() || unicode::length(symbol, 0) != symbol.size()) entry.refuse("replacement");
    return {StepKind::kMetaspace, index_of(kSchemes, scheme, "prepend_scheme"),
            entry.flag("split", true), symbol};
}

// Appends the steps of one pre-tokenizer to *out*. If *spelled*, ByteLevel writes bytes as
// characters; otherwise the model reads the bytes themselves.
void pre_tokenizer(const Entry& entry, bool spelled, std::vector<TokenizerStep>& out) {
    const std::string& type = entry.type;
    for (const auto& [name, kind] : kPlainPreTokenizers) {
        if (type != name) continue;
        const bool isolates = kind == StepKind::kBertPreTokenizer;
        out.push_back({kind, code(isolates ? Behavior::kIsolated : Behavior::kRemoved)});
        return;
    }
    if (type == "Split") {
        const auto [is_regex, text] = entry.pattern();
        out.push_back({is_regex ? StepKind::kSplitRegex : StepKind::kSplitString,
                       entry.behavior(""), entry.flag("invert", false), text});
    } else if (type == "ByteLevel") {
        if (entry.flag("add_prefix_space", true))
            out.push_back({StepKind::kPrefixSpace, kAlways, 0, " "});
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
        int overflow = 0;  // not needed: a number of more than 64 bits becomes -1, and is refused
        const long long value = PyLong_CheckExact(length.ptr())
                                    ? PyLong_AsLongLongAndOverflow(length.ptr(), &overflow)
                                    : 0;
        if (value <= 0 || value > INT32_MAX) entry.refuse("length");
        out.push_back({StepKind::kFixedLength, uint32_t(value)});
    } else {
        throw std::invalid_argument("pre-tokenizer " + type);
    }
}

// Appends the bytes of *numbers*.
void append(std::string& out, std::initializer_list<uint32_t> numbers) {
    for (const uint32_t number : numbers)
        out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// The steps of a tokenizer.json in the form that read_steps reads. Each step is a Python object
// with a type and options; *spelled* is as in pre_tokenizer. Throws std::invalid_argument for a
// step that the engine would not run exactly.
nb::bytes pack_steps(nb::handle normalizers, nb::handle pre_tokenizers, bool spelled) {
    std::vector<TokenizerStep> steps;
    try {
        for (const nb::handle step : normalizers) steps.push_back(normalizer(Entry(step)));
        for (const nb::handle step : pre_tokenizers) pre_tokenizer(Entry(step), spelled, steps);
    } catch (const nb::cast_error&) {
        throw std::invalid_argument(
            "a step with a type or an option that must be a text and is not");
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

// ---- vocabularies and merges

// Those of GGUF's types of tokens (LLAMA_TOKEN_TYPE_*) that make a difference here.
enum TokenType : uint8_t {
    kNormal = 1,
    kControl = 3,
    kUserType = 4,
    kUnusedType = 5,
    kByteType = 6
};

template <typename Numbers>
std::string_view as_bytes(const Numbers& numbers) {
    return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof numbers[0]};
}

// TokenFlags that follow from the type *kind* of a token.
uint8_t flags_of(uint8_t kind, bool sentencepiece) {
    const bool in_model =
        !sentencepiece || kind == kNormal || kind == kUserType || kind == kUnusedType;
    return uint8_t((in_model ? kInModel : 0) | (kind == kControl ? kSpecial | kVerbatim : 0) |
                   (kind == kUserType ? kUserDefined : 0) | (kind == kUnusedType ? kUnused : 0));
}

// The byte that each character spells in GPT-2's vocabularies, by its code point; -1: none.
const std::array<int16_t, 512>& alphabet() {
    static const auto table = [] {
        std::array<int16_t, 512> bytes;
        bytes.fill(-1);
        for (int byte = 0; byte < 256; ++byte) bytes[byte_character(uint8_t(byte))] = int16_t(byte);
        return bytes;
    }();
    return table;
}

// Appends the bytes that the characters of a text spell. If a character spells no byte, appends
// nothing and returns false.
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

// The ids of merges, two uint32 for each of *pairs*, as bytes; None if a pair is not one of texts
// that *ids* has. A pair is a list of two texts, or both in one text.
nb::object pair_ids(nb::list pairs, nb::dict ids) {
    std::vector<uint32_t> halves;
    halves.reserve(2 * pairs.size());
    const auto look_up = [&](PyObject* text) {
        PyObject* const id =
            PyUnicode_CheckExact(text) ? PyDict_GetItemWithError(ids.ptr(), text) : nullptr;
        const unsigned long value =
            id != nullptr && PyLong_CheckExact(id) ? PyLong_AsUnsignedLong(id) : kNoId;
        if (PyErr_Occurred() != nullptr) throw nb::python_error();
        if (value < kMaxTokens) halves.push_back(uint32_t(value));
        return value < kMaxTokens;
    };
    const auto is_text = [&](Py_ssize_t i) {
        return PyUnicode_CheckExact(PyList_GET_ITEM(pairs.ptr(), i)) != 0;
    };
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pairs.ptr()); ++i) {
        PyObject* const pair = PyList_GET_ITEM(pairs.ptr(), i);
        bool has_ids = false;
        const bool joined = is_text(i);
        if (joined != is_text(0)) return nb::none();  // the library does not mix the two forms
        if (PyList_CheckExact(pair) && PyList_GET_SIZE(pair) == 2) {
            has_ids = look_up(PyList_GET_ITEM(pair, 0)) && look_up(PyList_GET_ITEM(pair, 1));
        } else if (joined) {
            // A space separates the halves. It is not the first character of the text, because a
            // half is never empty, and may begin with a space.
            const Py_ssize_t size = PyUnicode_GET_LENGTH(pair);
            const Py_ssize_t at = size > 1 ? PyUnicode_FindChar(pair, ' ', 1, size, 1) : -1;
            if (at > 0) {
                const auto left = nb::steal(PyUnicode_Substring(pair, 0, at));
                const auto right = nb::steal(PyUnicode_Substring(pair, at + 1, size));
                has_ids = left.is_valid() && right.is_valid() && look_up(left.ptr()) &&
                          look_up(right.ptr());
            }
        }
        if (PyErr_Occurred() != nullptr) throw nb::python_error();
        if (!has_ids) return nb::none();
    }
    return nb::bytes(halves.data(), halves.size() * sizeof(uint32_t));
}

// Arguments of build_tokenizer for a vocabulary: (bytes, offsets, flags, byte_ids, added).
//
//   texts            of all tokens, by id
//   kinds            the TokenType of each
//   added            an id, flags of AddedToken and a text for each added token
//   outside          ids of tokens that the model never makes
//   byte_level       the characters of a token spell bytes, as GPT-2's do
//   byte_fallback    tokens <0xNN> stand for bytes
//   sentencepiece    only normal, user-defined and unused tokens are in the model
nb::object spell(nb::list texts, nb::bytes kinds, nb::list added,
                 const std::vector<uint32_t>& outside, bool byte_level, bool byte_fallback,
                 bool sentencepiece) {
    const auto count = size_t(PyList_GET_SIZE(texts.ptr()));
    if (kinds.size() != count) throw nb::value_error("kinds must have one type for each token");
    const auto kind = [&](size_t id) { return uint8_t(kinds.c_str()[id]); };
    const auto check_id = [&](size_t id) {
        if (id >= count) throw nb::index_error("an id outside of the vocabulary");
    };
    std::string out, flags;
    for (size_t id = 0; id < count; ++id) flags += char(flags_of(kind(id), sentencepiece));

    std::string packed_added;
    std::vector<bool> is_added(count), is_special(count);
    for (const nb::handle token : added) {
        uint32_t id = kNoId;
        if (!nb::try_cast(token[0], id)) id = kNoId;  // not a number of 32 bits: out of range
        check_id(id);
        const auto bits = nb::cast<uint32_t>(token[1]);
        const std::string_view text = utf8(token[2]);
        is_added[id] = true;
        // Of several added tokens with one id, the last one counts.
        is_special[id] = (bits & AddedToken::kSpecial) != 0;
        packed_added.append(as_bytes(std::array<uint32_t, 3>{id, bits, uint32_t(text.size())}))
            .append(text);
    }

    std::vector<bool> is_outside(count);
    for (const uint32_t id : outside) {
        check_id(id);
        is_outside[id] = true;
    }

    std::vector<uint32_t> offsets{0}, byte_ids(256, kNoId);
    std::string spelled_byte;
    for (size_t id = 0; id < count; ++id) {
        PyObject* const text = PyList_GET_ITEM(texts.ptr(), Py_ssize_t(id));
        if (!PyUnicode_Check(text)) throw nb::value_error("a token that is not a text");
        const size_t before = out.size();
        const bool spells_bytes = byte_level && !is_added[id] && append_spelled(text, out);
        if (!spells_bytes) out += utf8(text);
        const std::string_view bytes = std::string_view(out).substr(before);
        if (is_added[id])
            flags[id] |= (is_special[id] ? kSpecial : 0) | (kind(id) != kUserType ? kVerbatim : 0);

        // A byte-level model makes only tokens whose characters spell their bytes. The bytes of an
        // added token are its text as it is, which is its own spelling if it is printable ASCII.
        const auto is_printable = [](char c) { return c > ' ' && c < 0x7F; };
        const bool is_own_spelling =
            is_added[id] ? std::all_of(bytes.begin(), bytes.end(), is_printable) : spells_bytes;
        if (bytes.empty() || is_outside[id] || (byte_level && !is_own_spelling))
            flags[id] &= ~kInModel;

        // Tokens of single bytes, which the model makes.
        spelled_byte.clear();
        const bool is_one_character = PyUnicode_GET_LENGTH(text) == 1;
        if (byte_level && is_one_character && !is_outside[id] && append_spelled(text, spelled_byte))
            byte_ids[uint8_t(spelled_byte[0])] = uint32_t(id);
        const bool may_name_byte = !sentencepiece || kind(id) == kNormal || kind(id) == kByteType;
        if (byte_fallback && !byte_level && may_name_byte) {
            if (const int byte = named_byte(bytes); byte >= 0) {
                byte_ids[size_t(byte)] = uint32_t(id);
                flags[id] |= kByteToken;
            }
        }
        if (out.size() > kNoId) throw nb::value_error("the tokens have 4 GiB or more");
        offsets.push_back(uint32_t(out.size()));
    }
    return nb::make_tuple(to_bytes(out), to_bytes(as_bytes(offsets)), to_bytes(flags),
                          to_bytes(as_bytes(byte_ids)), to_bytes(packed_added));
}

}  // namespace

void bind_tokenizer_parts(nb::module_& m) {
    m.def("pair_ids", &pair_ids, "pairs"_a, "ids"_a);
    m.def("spell", &spell, "texts"_a, "kinds"_a, "added"_a, "outside"_a, "byte_level"_a,
          "byte_fallback"_a, "sentencepiece"_a);
    m.def("pack_steps", &pack_steps, "normalizers"_a, "pre_tokenizers"_a, "spelled"_a);
}

}  // namespace bitnet
