// Code points, UTF-8 and the properties that pre-tokenizers ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace bitnet::unicode {

struct Range;
struct Script;

// Index of the general category of a code point in kCategoryNames.
uint8_t category(uint32_t code);

// Bit set of general categories for a name such as "L", "Lu" or "Any"; 0 when there is none.
uint32_t category_mask(const std::string& name);

// The script with this name, or nullptr.
const Script* find_script(const std::string& name);
bool in_script(const Script* script, uint32_t code);

bool is_space(uint32_t code);        // White_Space
bool is_word(uint32_t code);         // \w of Oniguruma
bool is_added_word(uint32_t code);   // \w of Rust's regex crate
bool is_punctuation(uint32_t code);  // as BERT counts it: with all ASCII symbols
bool is_numeric(uint32_t code);      // Rust's char::is_numeric
bool is_mark(uint32_t code);

// Normalizing a text without such characters changes nothing.
bool may_change_nfc(uint32_t code);
bool may_change_nfkc(uint32_t code);

// One code point of valid UTF-8 at p; moves p past it.
inline uint32_t next(const char*& p) {
    const auto byte = [](char c) { return static_cast<uint32_t>(static_cast<unsigned char>(c)); };
    const uint32_t first = byte(*p);
    if (first < 0x80) return ++p, first;
    if (first < 0xE0) {
        const uint32_t code = (first & 0x1F) << 6 | (byte(p[1]) & 0x3F);
        return p += 2, code;
    }
    if (first < 0xF0) {
        const uint32_t code =
            (first & 0x0F) << 12 | (byte(p[1]) & 0x3F) << 6 | (byte(p[2]) & 0x3F);
        return p += 3, code;
    }
    const uint32_t code = (first & 0x07) << 18 | (byte(p[1]) & 0x3F) << 12 |
                          (byte(p[2]) & 0x3F) << 6 | (byte(p[3]) & 0x3F);
    return p += 4, code;
}

// Bytes of the UTF-8 character that starts with this byte.
inline size_t length(char c) {
    const auto first = static_cast<unsigned char>(c);
    return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

// Start of the character that ends before p.
inline const char* previous(const char* p) {
    do --p;
    while ((static_cast<unsigned char>(*p) & 0xC0) == 0x80);
    return p;
}

void append(std::string& out, uint32_t code);

}  // namespace bitnet::unicode
