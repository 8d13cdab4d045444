// Runs the tokenizer engine over damaged compiled files with a right checksum, damaged patterns and
// texts that are not UTF-8; built with sanitizers by `inv sanitize`. Buffers are allocated to the
// byte, so any read outside is caught. With arguments: only those files, as compiled tokenizers.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "tokenizer/regex.hpp"
#include "tokenizer/tokenizer.hpp"
#include "tokenizer/file.hpp"

namespace {

using bitnet::AddedToken;
using bitnet::Behavior;
using bitnet::Budget;
using bitnet::ModelKind;
using bitnet::StepKind;

uint64_t state = 0x9e3779b97f4a7c15;  // of draw(): any number but 0
// Files and patterns that were accepted or refused; texts that were encoded, or stopped by a limit.
size_t opened = 0, refused = 0, ran = 0, stopped = 0;

// A random number below *below*, by xorshift64.
uint64_t draw(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

// The bytes of *values*.
template <class T>
std::string packed(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A copy on the heap of exactly its size, so that the sanitizer sees a read behind it.
struct Exact {
    std::unique_ptr<char[]> bytes;
    size_t size;
    explicit Exact(std::string_view from) : bytes(new char[from.size()]), size(from.size()) {
        if (size != 0) std::memcpy(bytes.get(), from.data(), size);
    }
    std::string_view view() const { return {bytes.get(), size}; }
};

const std::vector<std::string> kTexts = {
    "",
    "a",
    "hello aab  <m> ab\n\xC3\xA9\xE5\xAD\x97 12345",
    std::string(300, 'a') + "b",
    std::string(300, ' ') + "<m>" + std::string(40, ' '),
    std::string(200, '1') + "x",
    std::string("\0\x7f\t\n", 4),
    // Not UTF-8, as the result of a normalizer may be.
    "\xC3",
    "\xE5\xAD",
    "\xF0\x9F\x98",
    "a\x80\x80",
    "\xFF\xFE",
    "\xED\xA0\x80",
    "ab\xF4",
};

// Contents of a compiled tokenizer.
struct Parts {
    ModelKind model = ModelKind::kBpe;
    uint32_t flags = 0;
    std::vector<std::string> tokens;
    std::vector<uint32_t> merges;
    std::string steps, charsmap, added, prefix, suffix;
};

// A step of normalization or pre-tokenization; the arguments are the fields of TokenizerStep.
std::string step(StepKind kind, uint32_t mode = 0, uint32_t flag = 0, const std::string& text = "",
                 const std::string& other = "") {
    return packed<uint32_t>({uint32_t(kind), mode, flag, uint32_t(text.size())}) + text +
           packed<uint32_t>({uint32_t(other.size())}) + other;
}

// A step that splits with *behavior*.
std::string split(StepKind kind, Behavior behavior, uint32_t flag = 0,
                  const std::string& text = "") {
    return step(kind, uint32_t(behavior), flag, text);
}

// The section of *all* steps: their number, then each of them.
std::string steps(const std::vector<std::string>& all) {
    std::string section = packed<uint32_t>({uint32_t(all.size())});
    for (const std::string& one : all) section += one;
    return section;
}

// An added token; *flags* are of AddedToken::Flag.
std::string added_token(uint32_t id, uint32_t flags, const std::string& text) {
    return packed<uint32_t>({id, flags, uint32_t(text.size())}) + text;
}

// A character map that replaces one byte by a text.
std::string charsmap(unsigned char key, const std::string& text) {
    std::vector<uint32_t> units(1024, 0);
    units[0] = 256u << 10;
    const uint32_t at = 256u ^ key;
    units[at] = (at ^ 512u) << 10 | key | 1u << 8;
    units[512] = 1u << 31;
    return packed<uint32_t>({uint32_t(units.size() * 4)}) + packed(units) + text +
           std::string(1, '\0');
}

// The compiled file of *parts*.
std::string build(const Parts& parts) {
    std::vector<uint32_t> offsets{0}, bytes_ids(256, bitnet::kNoId);
    std::string bytes, flags;
    std::vector<double> scores;
    for (const std::string& token : parts.tokens) {
        bytes += token;
        offsets.push_back(uint32_t(bytes.size()));
        const bool is_byte = parts.flags & bitnet::kByteFallback && flags.size() < 256;
        flags += char(is_byte ? bitnet::kByteToken : bitnet::kInModel);
        scores.push_back(-double(scores.size()));
    }
    if (parts.flags & (bitnet::kByteLevel | bitnet::kByteFallback)) {
        for (uint32_t i = 0; i < 256; ++i) bytes_ids[i] = i;
    }
    if (parts.model == ModelKind::kSpm || parts.model == ModelKind::kUnigram)
        flags.back() = bitnet::kInModel | bitnet::kUserDefined;
    bitnet::Config settings{};
    settings.model = uint32_t(parts.model);
    settings.flags = parts.flags;
    settings.max_chars_per_word = 100;
    const std::string key(32, 'k'), meta = "{}";
    const std::string config(reinterpret_cast<const char*>(&settings), sizeof(settings));
    const std::string offset_bytes = packed(offsets), merge_bytes = packed(parts.merges),
                      id_bytes = packed(bytes_ids),
                      score_bytes = parts.flags & bitnet::kSteps
                                        ? packed(scores)
                                        : packed(std::vector<float>(scores.begin(), scores.end()));
    return bitnet::build_tokenizer({key, meta, config, offset_bytes, bytes, flags, merge_bytes,
                                    score_bytes, id_bytes, parts.added, parts.steps, parts.charsmap,
                                    parts.prefix, parts.suffix});
}

// Opens *content* as a compiled tokenizer and encodes every text; an invalid id aborts.
void run(std::string_view content) {
    const Exact file(content);
    std::unique_ptr<bitnet::TokenizerEngine> engine;
    try {
        engine = std::make_unique<bitnet::TokenizerEngine>(file.bytes.get(), file.size);
        ++opened;
    } catch (const std::invalid_argument&) {
        ++refused;
        return;
    }
    for (const std::string& text : kTexts) {
        const Exact input(text);
        for (const bool special : {false, true}) {
            bitnet::Ids ids;
            try {
                engine->encode(input.view(), special, ids);
                bitnet::Spans spans;
                engine->encode(input.view(), special, ids, &spans);
                ++ran;
            } catch (const bitnet::OverBudget&) {
                ++stopped;
            } catch (const std::invalid_argument&) {
                ++stopped;
            }
            for (const uint32_t id : ids) {
                if (id != bitnet::kNoId && id >= engine->file().n_tokens) {
                    std::fprintf(stderr, "an id outside of the vocabulary: %u\n", id);
                    std::abort();
                }
            }
        }
    }
    for (uint32_t id = 0; id < engine->file().n_tokens; ++id) engine->file().token(id);
}

// Writes the right size and checksum into the header, as an attacker would.
void sign(std::string& content) {
    const size_t head = sizeof(bitnet::FileHeader);
    if (content.size() < head) return;
    const uint64_t size = content.size(),
                   sum = bitnet::checksum(content.data() + head, content.size() - head);
    std::memcpy(&content[offsetof(bitnet::FileHeader, size)], &size, sizeof size);
    std::memcpy(&content[offsetof(bitnet::FileHeader, checksum)], &sum, sizeof sum);
}

// *content* with one to four random numbers, often edge cases, written behind *from*; at times it
// is also cut.
std::string damaged(std::string content, size_t from) {
    static constexpr uint64_t kEdges[] = {0,   1,     7,        0xC3,       0xF0,       0xFF, 255,
                                          256, 65535, 1u << 21, 1ull << 31, 0xffffffff, ~0ull};
    if (content.size() < from + 16) return content;
    for (uint64_t n = 1 + draw(4); n > 0; --n) {
        const size_t at = from + draw(content.size() - from - 8);
        const uint64_t value = draw(2) ? kEdges[draw(std::size(kEdges))] : draw(~0ull);
        std::memcpy(&content[at], &value, size_t{1} << draw(4));
    }
    if (draw(8) == 0) content.resize(from + draw(content.size() - from));
    return content;
}

// A valid tokenizer of each kind, with many kinds of steps among them.
std::vector<Parts> seeds() {
    std::vector<std::string> bytes, names;  // names: <0x00> and so on
    for (int i = 0; i < 256; ++i) {
        static constexpr char kHex[] = "0123456789ABCDEF";
        bytes.push_back(std::string(1, char(i)));
        names.push_back({'<', '0', 'x', kHex[i / 16], kHex[i % 16], '>'});
    }
    Parts bpe;
    bpe.flags = bitnet::kByteLevel;
    bpe.tokens = bytes;
    bpe.tokens.insert(bpe.tokens.end(), {"aa", "ab", "he", "<m>"});
    bpe.merges = {'a', 'a', 'a', 'b', 'h', 'e'};
    bpe.added = added_token(259, AddedToken::kLeft | AddedToken::kRight, "<m>") +
                added_token(258, AddedToken::kSingleWord | AddedToken::kNormalized, "he");
    bpe.steps = steps(
        {step(StepKind::kReplace, 0, 0, "b", "bb"), split(StepKind::kDigits, Behavior::kIsolated),
         split(StepKind::kSplitRegex, Behavior::kIsolated, 0,
               "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))"),
         split(StepKind::kSplitRegex, Behavior::kIsolated, 0, " ?\\p{L}+|\\s+(?!\\S)|\\s+")});
    Parts unigram;
    unigram.model = ModelKind::kUnigram;
    unigram.flags = bitnet::kByteFallback | bitnet::kAddSpacePrefix;
    unigram.tokens = names;
    unigram.tokens.insert(unigram.tokens.end(),
                          {"a", "b", "h", "e", "l", "o", "aab", "\xE5\xAD\x97",
                           "\xC3\xA9"
                           "a",
                           "ell"});
    unigram.charsmap = charsmap('a', "b\xC3\xA9");
    Parts spm = unigram;
    spm.model = ModelKind::kSpm;
    spm.flags |= bitnet::kRemoveExtraWhitespaces;
    Parts words;
    words.model = ModelKind::kWordPiece;
    words.tokens = {"[UNK]", "hello", "##lo", "a", "##a", "##b"};
    words.prefix = "##";
    words.steps =
        steps({step(StepKind::kLowercase),
               step(StepKind::kBertNormalizer, bitnet::kCleanText | bitnet::kBertLowercase),
               split(StepKind::kBertPreTokenizer, Behavior::kIsolated)});
    Parts plain;
    plain.flags = bitnet::kFuseUnknown;
    plain.tokens = {"<unk>", "a", "b", "ab", "\xE2\x96\x81"};
    plain.merges = {1, 2};
    plain.steps = steps({step(StepKind::kMetaspace, bitnet::kAlways, 1, "\xE2\x96\x81"),
                         split(StepKind::kSplitString, Behavior::kMergedWithPrevious, 1, "b")});
    Parts affixed;
    affixed.tokens = {"<unk>", "a", "##a", "##a</w>", "a</w>", "aa</w>", "##b</w>"};
    affixed.merges = {1, 3};
    affixed.prefix = "##";
    affixed.suffix = "</w>";
    affixed.steps =
        steps({step(StepKind::kSpellNormalizer),
               step(StepKind::kPrefixSpace, bitnet::kAlways, 0, " "), step(StepKind::kSpell)});
    Parts level;
    level.model = ModelKind::kWordLevel;
    level.tokens = {"<unk>", "hello", "aab", "\xC3\xA9"};
    level.steps =
        steps({step(StepKind::kNfd), step(StepKind::kNmt),
               step(StepKind::kStrip, bitnet::StripSide::kLeft | bitnet::StripSide::kRight),
               step(StepKind::kReplaceRegex, 0, 0, "[ab]*", "x"), step(StepKind::kUnicodeScripts),
               step(StepKind::kFixedLength, 2)});
    Parts stepped = unigram;
    stepped.flags = bitnet::kByteFallback | bitnet::kSteps;
    stepped.steps = steps({step(StepKind::kPrecompiled), step(StepKind::kPrepend, 0, 0, "b"),
                           step(StepKind::kMetaspace, bitnet::kFirst, 1, "\xE2\x96\x81")});
    return {bpe, unigram, spm, words, plain, affixed, level, stepped};
}

// Runs each seed, *copies* damaged files of it, and as many files with damage in one part.
void check_files(int copies) {
    for (const Parts& seed : seeds()) {
        const std::string whole = build(seed);
        const size_t before = opened;
        run(whole);
        if (opened == before) throw std::logic_error("a seed was refused");
        const size_t head = sizeof(bitnet::FileHeader), tables = head + bitnet::kSections * 16;
        for (int i = 0; i < copies; ++i) {
            std::string content = damaged(whole, draw(8) == 0 ? head : tables);
            sign(content);
            run(content);
        }
        for (int i = 0; i < copies; ++i) {  // all but one part is intact
            Parts parts = seed;
            std::string* const all[] = {&parts.steps, &parts.charsmap, &parts.added, &parts.prefix};
            std::string& part = *all[draw(std::size(all))];
            part = draw(16) == 0 ? part.substr(0, part.empty() ? 0 : draw(part.size()))
                                 : damaged(part, 0);
            try {
                run(build(parts));
            } catch (const std::invalid_argument&) {
                ++refused;
            }
        }
    }
}

// Runs *copies* random patterns over every text, and patterns that are too large.
void check_patterns(int copies) {
    const std::vector<std::string> pieces = {
        "a",           "b",      "\\p{L}", "\\p{N}",  "\\s",     "\\S",      "[^\\s\\p{L}]",
        "[a-c&&[^b]]", ".",      "\\d",    "^",       "$",       "\\A",      "\\z",
        "(",           ")",      "(?:",    "(?=",     "(?!",     "(?>",      "(?i:",
        "|",           "*",      "+",      "?",       "{1,3}",   "{2}",      "{3,}",
        "{,2}",        "{1000}", "*+",     "+?",      "[",       "]",        "&&",
        "-",           "^",      "\\",     "\\x{41}", "\\u0061", "\xC3\xA9", "\xE5",
        "\xFF",        "'s",     "1",      " ",       "\n"};
    for (int i = 0; i < copies; ++i) {
        std::string pattern;
        for (uint64_t n = 1 + draw(14); n > 0; --n) pattern += pieces[draw(pieces.size())];
        const Exact exact(pattern);
        try {
            bitnet::Regex regex{std::string(exact.view())};
            ++opened;
            for (const std::string& text : kTexts) {
                const Exact input(text);
                Budget budget(input.size);
                const char *from = nullptr, *to = nullptr, *last = input.bytes.get(),
                           *end = last + input.size;
                bitnet::RegexMatches matches(regex, last, end, budget);
                for (bool first = true; matches.next(&from, &to); last = to, first = false) {
                    const bool twice = !first && from == last && to == last;
                    if (twice || from < last || to < from || to > end)
                        throw std::logic_error("a match outside of the text");
                }
                ++ran;
            }
        } catch (const std::invalid_argument&) {
            ++refused;
        } catch (const bitnet::OverBudget&) {
            ++stopped;
        }
    }
    for (const char* const part :
         {"a{1}", "{1}", "(", "(?=", "[", "a|", "(a", "(?:a{2}", "a++", "\\", "{"}) {
        std::string pattern = "a";
        for (int i = 0; i < 40000; ++i) pattern += part;
        try {
            bitnet::Regex regex(pattern);
            throw std::logic_error("a pattern beyond every bound was compiled");
        } catch (const std::invalid_argument&) {
            ++refused;
        }
    }
}

// Gives a pattern texts of almost 4 GiB, and of 4 GiB, where positions of 32 bits would wrap. Texts
// of a call from Python are shorter, but normalizers lengthen them. No byte of these is read.
void check_sizes() {
    constexpr uint64_t kMost = 0xFFFFFFFF;
    if (kMost >= PTRDIFF_MAX) return;  // no such text fits into memory
    const std::unique_ptr<char[]> text(new (std::nothrow) char[kMost + 1]);
    if (text == nullptr) return;
    bitnet::Regex regex("a");
    regex.set_text(text.get(), text.get() + kMost);
    try {
        regex.set_text(text.get(), text.get() + kMost + 1);
    } catch (const bitnet::OverBudget&) {
        ++stopped;
        return;
    }
    throw std::logic_error("a text of 4 GiB was accepted");
}

}  // namespace

int main(int argc, char** argv) {
    try {
        for (int i = 1; i < argc; ++i) {
            std::ifstream file(argv[i], std::ios::binary);
            run(std::string{std::istreambuf_iterator<char>(file), {}});
        }
        if (argc == 1) {
            check_files(3000);
            check_patterns(60000);
            check_sizes();
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    std::printf("%zu opened, %zu refused; %zu texts run, %zu stopped; no complaint\n", opened,
                refused, ran, stopped);
}
