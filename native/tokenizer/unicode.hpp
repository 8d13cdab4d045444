// Code points, UTF-8 and the properties that pre-tokenizers ask for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bitnet::unicode {

using Script = std::vector<std::pair<uint32_t, uint32_t>>;  // its ranges, in order

// Index of the general category of a code point in kCategoryNames.
uint8_t category(uint32_t code);

// Bit set of the general categories that a name such as "L", "Lu" or "Any" stands for; 0 if
// unknown.
uint32_t category_mask(const std::string& name);

// The script with this name, or nullptr.
const Script* find_script(const std::string& name);
bool in_script(const Script* script, uint32_t code);

bool is_space(uint32_t code);        // White_Space
bool is_word(uint32_t code);         // \w of Oniguruma
bool is_rust_word(uint32_t code);    // \w of Rust's regex crate, as beside added tokens
bool is_punctuation(uint32_t code);  // as BERT counts it: with all ASCII symbols
bool is_numeric(uint32_t code);      // Rust's char::is_numeric
bool is_mark(uint32_t code);

bool is_combining_mark(uint32_t code);   // what StripAccents leaves out
bool is_nonspacing_mark(uint32_t code);  // what BertNormalizer leaves out, once decomposed
bool is_control(uint32_t code);          // what BertNormalizer leaves out with clean_text

// Code points that a character becomes; size 0 if it stays as it is, or is a Hangul syllable.
struct Codes {
    const uint32_t* at = nullptr;
    size_t size = 0;
};
Codes canonical(uint32_t code);   // in NFD
Codes compatible(uint32_t code);  // in NFKD
Codes lower(uint32_t code);
uint8_t combining_class(uint32_t code);
uint32_t compose(uint32_t first, uint32_t second);  // in NFC; 0 if the two do not compose
uint8_t script(uint32_t code);  // number for UnicodeScripts; 0 continues the script before

// Bytes of the extended grapheme cluster at text[at]. Flags and letters behind a virama may be
// split: normalize_charsmap replaces no cluster that long as a whole.
size_t grapheme(std::string_view text, size_t at);

// NFC or NFKC does not change a text without any character for which this is true.
bool may_change_nfc(uint32_t code);
bool may_change_nfkc(uint32_t code);

// Bytes of the UTF-8 character that starts with this byte.
inline size_t length(char c) {
    const auto first = uint8_t(c);
    if (first < 0x80) return 1;
    if (first < 0xE0) return 2;
    return first < 0xF0 ? 3 : 4;
}

// Bytes of the character at text[at]; never past the end of the text, whatever its bytes are.
inline size_t length(std::string_view text, size_t at) {
    return std::min(length(text[at]), text.size() - at);
}

// One code point at p; moves p past it, never past end. Bytes that are not UTF-8 give any number.
inline uint32_t next(const char*& p, const char* end) {
    const auto byte = [](char c) { return uint32_t(uint8_t(c)); };
    const uint32_t first = byte(*p);
    if (first < 0x80) {
        ++p;
        return first;
    }
    const size_t size = length(*p);
    if (size_t(end - p) < size) {
        p = end;
        return 0xFFFD;
    }
    if (size == 2) {
        const uint32_t code = (first & 0x1F) << 6 | (byte(p[1]) & 0x3F);
        p += 2;
        return code;
    }
    if (size == 3) {
        const uint32_t code = (first & 0x0F) << 12 | (byte(p[1]) & 0x3F) << 6 | (byte(p[2]) & 0x3F);
        p += 3;
        return code;
    }
    const uint32_t code = (first & 0x07) << 18 | (byte(p[1]) & 0x3F) << 12 |
                          (byte(p[2]) & 0x3F) << 6 | (byte(p[3]) & 0x3F);
    p += 4;
    return code;
}

inline bool continues(char c) { return (uint8_t(c) & 0xC0) == 0x80; }

// Start of the character that ends before p, not before begin. p must be behind begin.
inline const char* previous(const char* p, const char* begin) {
    do --p;
    while (p != begin && continues(*p));
    return p;
}

// Whether all bytes are UTF-8, without overlong forms and surrogates.
bool is_utf8(std::string_view text);

// Appends a code point in UTF-8.
void append(std::string& out, uint32_t code);

}  // namespace bitnet::unicode
