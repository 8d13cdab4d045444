#pragma once

#include <nanobind/nanobind.h>

namespace bitnet {

void bind_tokenizer(nanobind::module_& m);

// The compiled form of steps, objects with a type and options as in a tokenizer.json; spelled: ByteLevel
// writes bytes as characters. Throws std::invalid_argument for a step that is not run exactly.
nanobind::bytes pack_steps(nanobind::handle normalizers, nanobind::handle pre_tokenizers, bool spelled);

}  // namespace bitnet
