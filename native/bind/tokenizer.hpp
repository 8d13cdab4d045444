#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace bitnet {

void bind_tokenizer(nanobind::module_& m);

// The text of a Python string, which keeps it. Throws for half of a surrogate pair, or too long a text.
std::string_view utf8(nanobind::handle text);

// The ids of pairs of texts, as bytes of 32-bit numbers; None when one is not a pair of known texts.
nanobind::object pair_ids(nanobind::list pairs, nanobind::dict ids);

// Parts of build_tokenizer: bytes, offsets and flags of a vocabulary, ids of bytes, added tokens. kinds: the
// type of each token in GGUF's numbers; added: an id, flags and a text each; outside: ids that ordinary
// text never becomes; sentencepiece: only normal, user-defined and unused tokens are in the model.
nanobind::object spell(nanobind::list texts, nanobind::bytes kinds, nanobind::list added,
                       const std::vector<uint32_t>& outside, bool byte_level, bool byte_fallback, bool sentencepiece);

// The compiled form of steps, objects with a type and options as in a tokenizer.json; spelled: ByteLevel
// writes bytes as characters. Throws std::invalid_argument for a step that is not run exactly.
nanobind::bytes pack_steps(nanobind::handle normalizers, nanobind::handle pre_tokenizers, bool spelled);

}  // namespace bitnet
