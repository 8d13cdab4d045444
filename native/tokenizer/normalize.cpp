// Normalizers as the `tokenizers` library runs them, with the origins that it gives every byte.
#include "tokenizer/models.hpp"
#include "tokenizer/steps.hpp"
#include "tokenizer/unicode.hpp"

namespace bitnet {
namespace {

// A character of the changed text, as NormalizedString::transform of the library takes it.
struct Changed {
    uint32_t code;
    int change;  // above 0: it is inserted; 0: it replaces a character; -n: it replaces 1 + n
};
using Changes = std::vector<Changed>;

bool is_ascii(std::string_view text) {
    if (text.size() == 8) {
        uint64_t bytes;
        std::memcpy(&bytes, text.data(), sizeof bytes);
        return (bytes & 0x8080808080808080ull) == 0;
    }
    return std::none_of(text.begin(), text.end(), [](char c) { return (c & 0x80) != 0; });
}

template <typename Take>
void each_code(std::string_view text, Take take) {
    const char* p = text.data();
    const char* const end = p + text.size();
    while (p != end) take(unicode::next(p, end));
}

void check_growth(size_t size, size_t before) {
    if (size > limits::kGrowthBase + limits::kGrowth * before)
        throw OverBudget("a normalizer that makes the text too long");
}

// Replaces the text by `changes`, after leaving out its first `removed` characters.
void apply(Normalized& text, const Changes& changes, size_t removed) {
    std::string out;
    Origin origin;
    const char* p = text.text.data();
    const char* const end = p + text.text.size();
    const auto skip = [&](size_t count) {
        while (count-- > 0 && p != end) unicode::next(p, end);
    };
    if (text.traced) text.trace();
    // The first bytes may have no origin: an empty match has inserted them. As in the library, they
    // stay, and the changes have them once more.
    size_t kept = 0;
    while (kept < text.origin.size() && text.origin[kept].begin == text.origin[kept].end) ++kept;
    if (kept > 0) {
        if (kept == text.origin.size())
            throw std::invalid_argument(
                "a normalizer of a text that another one inserted is not supported");
        out.assign(text.text, 0, kept);
        origin.assign(kept, Span{0, 0});
        p += kept;
    }
    skip(removed);
    for (const Changed& changed : changes) {
        const auto at = size_t(p - text.text.data());
        const size_t before = out.size();
        unicode::append(out, changed.code);
        if (text.traced) {
            if (changed.change <= 0 && at >= text.origin.size())
                throw std::invalid_argument("a character map that leaves out more than there is");
            const Span from = changed.change <= 0 ? text.origin[at]
                              : at == 0           ? Span{0, 0}
                                                  : text.origin[at - 1];
            origin.insert(origin.end(), out.size() - before, from);
        }
        if (changed.change <= 0) skip(1 + size_t(-changed.change));
    }
    text.text = std::move(out);
    text.origin = std::move(origin);
}

// NFD or, with the compatible mappings, NFKD.
Changes decomposed(std::string_view text, bool compatible) {
    // Hangul syllables: 19 leading consonants, 21 vowels, 27 trailing consonants or none.
    constexpr uint32_t kL = 0x1100, kV = 0x1161, kT = 0x11A7, kS = 0xAC00;
    Changes out;
    size_t ready = 0;         // characters that are in order
    const auto order = [&] {  // by class, the marks since the last starter
        const auto before = [](const Changed& a, const Changed& b) {
            return unicode::combining_class(a.code) < unicode::combining_class(b.code);
        };
        const auto first = out.begin() + ptrdiff_t(ready);
        if (out.size() > ready + 1) std::stable_sort(first, out.end(), before);
        ready = out.size();
    };
    const auto add = [&](uint32_t code, int change) {
        if (unicode::combining_class(code) == 0) order();
        out.push_back({code, change});
    };
    each_code(text, [&](uint32_t code) {
        if (code - kS < 11172) {
            const uint32_t index = code - kS;
            add(kL + index / 588, 0);
            add(kV + index % 588 / 28, 1);
            if (index % 28 != 0) add(kT + index % 28, 1);
            return;
        }
        const unicode::Codes made =
            compatible ? unicode::compatible(code) : unicode::canonical(code);
        if (made.size == 0) return add(code, 0);
        for (size_t i = 0; i < made.size; ++i) add(made.at[i], i == 0 ? 0 : 1);
    });
    order();
    return out;
}

// Decomposed characters, composed as in NFC.
Changes composed(const Changes& parts) {
    Changes out, behind;  // behind: marks after the starter that do not compose with it
    bool begun = false;   // whether there was a starter
    Changed first{};      // the starter, with what has been composed with it
    int last_class = -1;  // of the last mark in behind
    const auto flush = [&] {
        if (begun) out.push_back(first);
        out.insert(out.end(), behind.begin(), behind.end());
        behind.clear();
        last_class = -1;
    };
    for (const Changed& part : parts) {
        const int kind = unicode::combining_class(part.code);
        if (!begun) {
            if (kind != 0) {
                out.push_back(part);
                continue;
            }
            first = part;
            begun = true;
            continue;
        }
        const bool blocked = last_class >= kind;
        const uint32_t whole = blocked ? 0 : unicode::compose(first.code, part.code);
        if (whole != 0) {
            first = {whole, first.change + part.change - 1};
            continue;
        }
        if (kind == 0) {
            flush();
            first = part;
            continue;
        }
        behind.push_back(part);
        last_class = kind;
    }
    flush();
    return out;
}

// NFC or NFKC. A character that never changes does not compose with those before it. So only
// stretches of characters that may change, with the one before them, are decomposed and composed.
template <typename Test>
void compose(Normalized& text, Test may_change, bool compatible) {
    const char* const begin = text.text.data();
    const char* const end = begin + text.text.size();
    const auto normal = [&](const char* from, const char* to) {
        return composed(decomposed({from, size_t(to - from)}, compatible));
    };
    std::string out;
    // The text up to done is copied; last is the character before p, or p if none is left to copy.
    const char *done = begin, *last = begin;
    for (const char* p = begin; p != end;) {
        if (end - p >= 8 && is_ascii({p, 8})) {
            p += 8;
            last = p - 1;
            continue;
        }
        const char* stop = p;
        if (!may_change(unicode::next(stop, end))) {
            last = p;
            p = stop;
            continue;
        }
        if (text.traced) return apply(text, normal(begin, end), 0);
        for (const char* ahead = stop; ahead != end && may_change(unicode::next(ahead, end));)
            stop = ahead;
        out.append(done, last);
        for (const Changed& changed : normal(last, stop)) unicode::append(out, changed.code);
        done = last = p = stop;
    }
    if (done == begin) return;
    out.append(done, end);
    text.text = std::move(out);
}

// Removes the characters for which keep(code) is false.
template <typename Keep>
void filter(Normalized& text, Keep keep) {
    Changes changes;
    size_t removed_first = 0;
    int removed = 0;
    each_code(text.text, [&](uint32_t code) {
        if (!keep(code)) {
            ++removed;
            return;
        }
        if (changes.empty())
            removed_first = size_t(removed);
        else
            changes.back().change = -removed;
        changes.push_back({code, 0});
        removed = 0;
    });
    if (!changes.empty()) changes.back().change = -removed;
    apply(text, changes, removed_first);
}

template <typename Map>
void map(Normalized& text, Map replacement) {
    Changes changes;
    each_code(text.text, [&](uint32_t code) { changes.push_back({replacement(code), 0}); });
    apply(text, changes, 0);
}

void lower(Normalized& text) {
    if (is_ascii(text.text)) {
        for (char& c : text.text) {
            if (c >= 'A' && c <= 'Z') c = char(c | 0x20);
        }
        return;
    }
    Changes changes;
    each_code(text.text, [&](uint32_t code) {
        const unicode::Codes made = unicode::lower(code);
        if (made.size == 0) changes.push_back({code, 0});
        for (size_t i = 0; i < made.size; ++i) changes.push_back({made.at[i], i == 0 ? 0 : 1});
    });
    apply(text, changes, 0);
}

// The blocks of CJK characters in the library: one begins at 2B920, and not at 2B820 as in BERT.
bool is_chinese(uint32_t code) {
    const auto in = [code](uint32_t first, uint32_t last) { return code >= first && code <= last; };
    return in(0x4E00, 0x9FFF) || in(0x3400, 0x4DBF) || in(0x20000, 0x2A6DF) ||
           in(0x2A700, 0x2B73F) || in(0x2B740, 0x2B81F) || in(0x2B920, 0x2CEAF) ||
           in(0xF900, 0xFAFF) || in(0x2F800, 0x2FA1F);
}

void normalize_bert(Normalized& text, uint32_t options) {
    const auto is_plain = [](char c) { return c >= ' ' && c <= '~'; };
    if (options & kCleanText && !std::all_of(text.text.begin(), text.text.end(), is_plain)) {
        const auto is_line = [](uint32_t code) {
            return code == '\t' || code == '\n' || code == '\r';
        };
        filter(text, [&](uint32_t code) {
            return code != 0 && code != 0xFFFD && (is_line(code) || !unicode::is_control(code));
        });
        map(text, [](uint32_t code) { return unicode::is_space(code) ? uint32_t{' '} : code; });
    }
    if (options & kChineseChars && !is_ascii(text.text)) {
        Changes changes;
        bool any = false;
        each_code(text.text, [&](uint32_t code) {
            const bool apart = is_chinese(code);
            any = any || apart;
            if (apart) changes.push_back({' ', 0});
            changes.push_back({code, apart ? 1 : 0});
            if (apart) changes.push_back({' ', 1});
        });
        if (any) apply(text, changes, 0);
    }
    if (options & kStripAccents && !is_ascii(text.text)) {
        apply(text, decomposed(text.text, false), 0);
        filter(text, [](uint32_t code) { return !unicode::is_nonspacing_mark(code); });
    }
    if (options & kBertLowercase) lower(text);
}

void normalize_nmt(Normalized& text) {
    const auto in = [](uint32_t code, uint32_t first, uint32_t last) {
        return code >= first && code <= last;
    };
    filter(text, [&](uint32_t code) {
        return !(in(code, 1, 8) || code == 0xB || in(code, 0xE, 0x1F) || code == 0x7F ||
                 code == 0x8F || code == 0x9F);
    });
    map(text, [&](uint32_t code) {
        const bool space = code == 9 || code == 0xA || code == 0xC || code == 0xD ||
                           code == 0x1680 || in(code, 0x200B, 0x200F) || code == 0x2028 ||
                           code == 0x2029 || code == 0x2581 || code == 0xFEFF || code == 0xFFFD;
        return space ? uint32_t{' '} : code;
    });
}

void strip(Normalized& text, uint32_t sides) {
    size_t left = 0, right = 0, count = 0;
    bool inside = false;
    each_code(text.text, [&](uint32_t code) {
        const bool space = unicode::is_space(code);
        inside = inside || !space;
        if (!inside && sides & kLeft) ++left;
        right = space ? right + 1 : 0;
        ++count;
    });
    if (!(sides & kRight)) right = 0;
    if (left == 0 && right == 0) return;
    Changes changes;
    size_t at = 0;
    each_code(text.text, [&](uint32_t code) {
        if (at >= left && at < count - right) changes.push_back({code, 0});
        ++at;
    });
    apply(text, changes, left);
}

void prepend(Normalized& text, const std::string& before) {
    if (text.text.empty() || before.empty()) return;
    if (text.traced) {
        text.trace();
        text.origin.insert(text.origin.begin(), before.size(), text.origin[0]);
    }
    text.text.insert(0, before);
}

// Replaces by `to` each stretch that next(done, &begin, &end) finds, until it returns false.
template <typename Next>
void replace(Normalized& text, const std::string& to, Next next) {
    std::string out;
    Origin origin;
    size_t done = 0, begin = 0, end = 0;
    bool changed = false;
    const auto keep = [&](size_t stop) {
        out.append(text.text, done, stop - done);
        if (text.traced) {
            origin.insert(origin.end(), text.origin.begin() + ptrdiff_t(done),
                          text.origin.begin() + ptrdiff_t(stop));
        }
    };
    while (next(done, &begin, &end)) {
        if (!changed && text.traced) text.trace();
        changed = true;
        keep(begin);
        out += to;
        if (text.traced)
            origin.insert(origin.end(), to.size(), end == 0 ? Span{0, 0} : text.origin[end - 1]);
        check_growth(out.size(), text.text.size());
        done = end;
    }
    if (!changed) return;
    keep(text.text.size());
    text.text = std::move(out);
    text.origin = std::move(origin);
}

void spell_bytes(Normalized& text) {
    Changes changes;
    const char* p = text.text.data();
    const char* const end = p + text.text.size();
    while (p != end) {
        const char* const first = p;
        unicode::next(p, end);
        for (const char* byte = first; byte != p; ++byte)
            changes.push_back({byte_character(uint8_t(*byte)), byte == first ? 0 : 1});
    }
    apply(text, changes, 0);
}

void normalize_charsmap(Normalized& text, const CharsMap& table) {
    constexpr size_t kWholeClusters = 6;  // bytes, from which on characters are looked up alone
    Changes changes;
    bool changed = false;
    // Adds what the table has for a part of the text; false if it has nothing.
    const auto replaced = [&](std::string_view part) {
        std::string_view made;
        if (!table.shortest(part, &made)) return false;
        changed = true;
        int extra = 0;  // characters more than in the part
        each_code(part, [&](uint32_t) { --extra; });
        each_code(made, [&](uint32_t code) {
            changes.push_back({code, 0});
            ++extra;
        });
        for (int i = 0; i < extra; ++i) changes[changes.size() - 1 - size_t(i)].change = 1;
        if (extra < 0 && !changes.empty()) changes.back().change += extra;
        return true;
    };
    for (size_t at = 0, size = 0; at < text.text.size(); at += size) {
        size = unicode::grapheme(text.text, at);
        const std::string_view cluster = std::string_view(text.text).substr(at, size);
        if (size < kWholeClusters && replaced(cluster)) continue;
        for (size_t i = 0, n = 0; i < size; i += n) {
            n = unicode::length(cluster, i);
            const char* p = cluster.data() + i;
            if (!replaced(cluster.substr(i, n))) changes.push_back({unicode::next(p, p + n), 0});
        }
    }
    if (changed) apply(text, changes, 0);
}

}  // namespace

uint32_t byte_character(unsigned char byte) {
    const auto plain = [](unsigned b) {
        return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
    };
    if (plain(byte)) return byte;
    uint32_t before = 0;
    for (unsigned b = 0; b < byte; ++b) before += !plain(b);
    return 0x100 + before;
}

void Normalized::trace() {
    if (!origin.empty()) return;
    for (size_t at = 0, n = 0; at < text.size(); at += n) {
        n = unicode::length(text, at);
        origin.insert(origin.end(), n, Span{at, at + n});
    }
}

Normalizer::Normalizer(const std::vector<TokenizerStep>& steps, const CharsMap& charsmap)
    : steps_(steps), charsmap_(charsmap) {
    for (const TokenizerStep& step : steps_) {
        if (step.kind == StepKind::kReplaceRegex) {
            expressions_.emplace_back(step.text);
            inserts_ = inserts_ || expressions_.back().nullable();
        }
        if (step.kind == StepKind::kPrecompiled && charsmap_.empty())
            throw std::invalid_argument("a step without its character map");
    }
}

bool Normalizer::moves() const {
    return std::any_of(steps_.begin(), steps_.end(),
                       [](const TokenizerStep& step) { return step.kind > StepKind::kLowercase; });
}

void Normalizer::run(Normalized& text, Budget& budget) {
    auto expression = expressions_.begin();
    const size_t size = text.text.size();
    text.traced = text.traced || inserts_;
    for (const TokenizerStep& step : steps_) {
        switch (step.kind) {
            case StepKind::kNfc:
                compose(text, unicode::may_change_nfc, false);
                break;
            case StepKind::kNfkc:
                compose(text, unicode::may_change_nfkc, true);
                break;
            case StepKind::kNfd:
                if (!is_ascii(text.text)) apply(text, decomposed(text.text, false), 0);
                break;
            case StepKind::kNfkd:
                if (!is_ascii(text.text)) apply(text, decomposed(text.text, true), 0);
                break;
            case StepKind::kStripAccents:
                if (is_ascii(text.text)) break;
                filter(text, [](uint32_t code) { return !unicode::is_combining_mark(code); });
                break;
            case StepKind::kLowercase:
                lower(text);
                break;
            case StepKind::kBertNormalizer:
                normalize_bert(text, step.mode);
                break;
            case StepKind::kNmt:
                normalize_nmt(text);
                break;
            case StepKind::kStrip:
                strip(text, step.mode);
                break;
            case StepKind::kPrepend:
                prepend(text, step.text);
                break;
            case StepKind::kReplace:
                replace(text, step.other, [&](size_t from, size_t* begin, size_t* end) {
                    *begin = text.text.find(step.text, from);
                    *end = *begin + step.text.size();
                    return *begin != std::string::npos;
                });
                break;
            case StepKind::kReplaceRegex: {
                const char* const first = text.text.data();
                RegexMatches matches(*expression++, first, first + text.text.size(), budget);
                replace(text, step.other, [&](size_t, size_t* begin, size_t* end) {
                    const char *from = nullptr, *to = nullptr;
                    if (!matches.next(&from, &to)) return false;
                    *begin = size_t(from - first);
                    *end = size_t(to - first);
                    return true;
                });
                break;
            }
            case StepKind::kSpellNormalizer:
                spell_bytes(text);
                break;
            case StepKind::kPrecompiled:
                normalize_charsmap(text, charsmap_);
                break;
            default:
                break;
        }
        check_growth(text.text.size(), size);
    }
}

}  // namespace bitnet
