// What the files about tokenizers give each other.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "bind/module.hpp"

namespace bitnet {

// The text of a Python string, which keeps it. Throws for half of a surrogate pair, or too long a text.
std::string_view utf8(nb::handle text);

// The ids of pairs of texts, as bytes of 32-bit numbers; None when one is not a pair of known texts.
nb::object pair_ids(nb::list pairs, nb::dict ids);

// Parts of build_tokenizer: bytes, offsets and flags of a vocabulary, ids of bytes, added tokens. kinds: the
// type of each token in GGUF's numbers; added: an id, flags and a text each; outside: ids that ordinary
// text never becomes; sentencepiece: only normal, user-defined and unused tokens are in the model.
nb::object spell(nb::list texts, nb::bytes kinds, nb::list added,
                       const std::vector<uint32_t>& outside, bool byte_level, bool byte_fallback, bool sentencepiece);

// The compiled form of steps, objects with a type and options as in a tokenizer.json; spelled: ByteLevel
// writes bytes as characters. Throws std::invalid_argument for a step that is not run exactly.
nb::bytes pack_steps(nb::handle normalizers, nb::handle pre_tokenizers, bool spelled);

}  // namespace bitnet
