// Normalizers and pre-tokenizers of a tokenizer.json, read as the steps of a compiled tokenizer.
#include <nanobind/stl/string.h>

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bind/tokenizer.hpp"
#include "tokenizer/file.hpp"
#include "tokenizer/steps.hpp"
#include "tokenizer/unicode.hpp"

namespace bitnet {
namespace {

// The expression built into the ByteLevel step.
constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::pair<std::string_view, StepKind> kPlainNormalizers[] = {
    {"NFC", StepKind::kNfc}, {"NFKC", StepKind::kNfkc}, {"NFD", StepKind::kNfd}, {"NFKD", StepKind::kNfkd},
    {"Lowercase", StepKind::kLowercase}, {"StripAccents", StepKind::kStripAccents}, {"Nmt", StepKind::kNmt},
    {"ByteLevel", StepKind::kSpellNormalizer}, {"Precompiled", StepKind::kPrecompiled}};
constexpr std::pair<std::string_view, StepKind> kPlainPreTokenizers[] = {
    {"WhitespaceSplit", StepKind::kWhitespaceSplit}, {"Whitespace", StepKind::kWhitespace},
    {"UnicodeScripts", StepKind::kUnicodeScripts}, {"BertPreTokenizer", StepKind::kBertPreTokenizer}};
constexpr std::string_view kBehaviors[] = {"removed", "isolated", "mergedwithprevious", "mergedwithnext", "contiguous"};
constexpr std::string_view kSchemes[] = {"never", "first", "always"};

constexpr uint32_t code(Behavior behavior) { return static_cast<uint32_t>(behavior); }

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
        : type(nb::cast<std::string>(step.attr("type"))), options_(nb::cast<nb::dict>(step.attr("options"))) {}

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
    // Whether the pattern is an expression, and its text; the empty text matches as an expression does.
    std::pair<bool, std::string> pattern() const {
        const nb::object pattern = get("pattern");
        if (nb::isinstance<nb::str>(pattern)) return {text("pattern").empty(), text("pattern")};
        if (!nb::isinstance<nb::dict>(pattern) || nb::len(pattern) != 1) wrong("pattern");
        for (const auto [kind, value] : nb::cast<nb::dict>(pattern)) {
            const auto name = nb::cast<std::string>(kind);
            if (!nb::isinstance<nb::str>(value) || (name != "String" && name != "Regex")) wrong("pattern");
            const auto found = nb::cast<std::string>(value);
            return {name == "Regex" || found.empty(), found};
        }
        wrong("pattern");
    }
    uint32_t behavior(std::string name) const {
        if (has("behavior")) name = nb::cast<std::string>(nb::str(get("behavior")));
        std::string plain;
        for (const char c : name) {
            if (c != '_') plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
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
        const bool accents = entry.get("strip_accents").is_none() ? lowercase : entry.flag("strip_accents", false);
        return {StepKind::kBertNormalizer, entry.flag("clean_text", true) | uint32_t{lowercase} << 1 |
                                               uint32_t{accents} << 2 |
                                               uint32_t{entry.flag("handle_chinese_chars", true)} << 3};
    }
    if (entry.type == "Strip") {
        return {StepKind::kStrip, entry.flag("strip_left", true) | uint32_t{entry.flag("strip_right", true)} << 1};
    }
    if (entry.type == "Prepend") return {StepKind::kPrepend, 0, 0, entry.text("prepend")};
    if (entry.type == "Replace") {
        const auto [is_regex, text] = entry.pattern();
        return {is_regex ? StepKind::kReplaceRegex : StepKind::kReplace, 0, 0, text, entry.text("content")};
    }
    throw std::invalid_argument("normalizer " + entry.type);
}

TokenizerStep metaspace(const Entry& entry) {
    const nb::object given = entry.get("prepend_scheme");
    const std::string scheme = given.is_none() ? entry.flag("add_prefix_space", true) ? "always" : "never"
                                               : entry.text("prepend_scheme");
    const std::string symbol = entry.has("replacement") ? entry.text("replacement") : std::string(kSpaceSymbol);
    if (symbol.empty() || unicode::length(symbol, 0) != symbol.size()) entry.wrong("replacement");
    return {StepKind::kMetaspace, index_of(kSchemes, scheme, "prepend_scheme"), entry.flag("split", true), symbol};
}

// spelled: ByteLevel writes bytes as characters; else the model reads the bytes themselves.
void pre_tokenizer(const Entry& entry, bool spelled, std::vector<TokenizerStep>& out) {
    const std::string& type = entry.type;
    for (const auto& [name, kind] : kPlainPreTokenizers) {
        const bool isolates = kind == StepKind::kBertPreTokenizer;
        if (type == name) return out.push_back({kind, code(isolates ? Behavior::kIsolated : Behavior::kRemoved)});
    }
    if (type == "Split") {
        const auto [is_regex, text] = entry.pattern();
        out.push_back({is_regex ? StepKind::kSplitRegex : StepKind::kSplitString, entry.behavior(""),
                       entry.flag("invert", false), text});
    } else if (type == "ByteLevel") {
        if (entry.flag("add_prefix_space", true)) out.push_back({StepKind::kPrefixSpace, 2, 0, " "});
        if (entry.flag("use_regex", true)) {
            out.push_back({StepKind::kSplitRegex, code(Behavior::kIsolated), 0, kGpt2Pattern});
        }
        if (spelled) out.push_back({StepKind::kSpell});
    } else if (type == "Digits") {
        const bool alone = entry.flag("individual_digits", false);
        out.push_back({StepKind::kDigits, code(alone ? Behavior::kIsolated : Behavior::kContiguous)});
    } else if (type == "Metaspace") {
        out.push_back(metaspace(entry));
    } else if (type == "Punctuation") {
        out.push_back({StepKind::kPunctuation, entry.behavior("isolated")});
    } else if (type == "CharDelimiterSplit") {
        out.push_back({StepKind::kSplitString, code(Behavior::kRemoved), 0, entry.text("delimiter")});
    } else if (type == "FixedLength") {
        const nb::object length = entry.get("length");
        const long value = PyLong_CheckExact(length.ptr()) ? PyLong_AsLong(length.ptr()) : 0;
        if (PyErr_Occurred() != nullptr) throw nb::python_error();
        if (value <= 0 || value >= long{1} << 31) entry.wrong("length");
        out.push_back({StepKind::kFixedLength, static_cast<uint32_t>(value)});
    } else {
        throw std::invalid_argument("pre-tokenizer " + type);
    }
}

void append(std::string& out, std::initializer_list<uint32_t> numbers) {
    for (const uint32_t number : numbers) out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

}  // namespace

nb::bytes pack_steps(nb::handle normalizers, nb::handle pre_tokenizers, bool spelled) {
    std::vector<TokenizerStep> steps;
    try {
        for (const nb::handle step : normalizers) steps.push_back(normalizer(Entry(step)));
        for (const nb::handle step : pre_tokenizers) pre_tokenizer(Entry(step), spelled, steps);
    } catch (const nb::cast_error&) {
        throw std::invalid_argument("a step with something else than a text");
    }
    std::string out;
    append(out, {static_cast<uint32_t>(steps.size())});
    for (const TokenizerStep& step : steps) {
        const auto kind = static_cast<uint32_t>(step.kind);
        append(out, {kind, step.a, step.b, static_cast<uint32_t>(step.text.size())});
        out.append(step.text);
        append(out, {static_cast<uint32_t>(step.other.size())});
        out.append(step.other);
    }
    return to_bytes(out);
}

}  // namespace bitnet
