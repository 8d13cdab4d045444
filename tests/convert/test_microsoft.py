"""I2_S byte for byte as Microsoft's own tools write it."""

import pytest
from published_bitnets import digest, with_tokenizer

from bitnet.convert import Request, convert
from bitnet.formats.containers import open_checkpoint

# Of what benchmarks/microsoft.py printed: convert-hf-to-gguf-bitnet.py of microsoft/BitNet 16da220
# (July 2026) and the llama-quantize of its tree of January 2026, on x86-64.
DIGESTS = {
    "bitnet-b1.58-2B-4T-bf16": "d6b2de2a73f97852c47639361d72d9e61efe816efafda5242196180d639cf124",
    "bitnet_b1_58-large": "24959092419749cd8920c0e55595b09101fd78738205c56b47445e01837680b6",
    "Llama3-8B-1.58": "a90db42f8d8733e2048c4f822b6fff489bb73ba10cf06512e22503b10461fda3",
    "Falcon3-7B-1.58bit": "f6821761ac7dbc2806bddc29318b03db30d257fb970a57f6e77e756753b9ed16",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_every_tensor_is_what_the_quantizer_of_bitnet_cpp_writes(name, tmp_path):
    folder, file = with_tokenizer(tmp_path / name, name), tmp_path / "ours.gguf"
    convert(folder, file, Request("I2_S", no_tokenizer=True))
    assert digest(open_checkpoint(file)) == DIGESTS[name]


def test_a_digest_knows_codes_and_scales_and_not_what_is_behind_them(tmp_path):
    folder, file = with_tokenizer(tmp_path / "m", "Llama3-8B-1.58"), tmp_path / "ours.gguf"
    convert(folder, file, Request("I2_S", no_tokenizer=True))
    for place, same in ((0, False), (-32, False), (-28, True)):
        checkpoint = open_checkpoint(file)
        weight = checkpoint.weights["blk.1.ffn_up.weight"]
        changed = weight.data.copy()
        changed[place] ^= 1
        checkpoint.weights[weight.name] = type(weight)(
            weight.name, weight.shape, weight.quant, changed
        )
        assert (digest(checkpoint) == DIGESTS["Llama3-8B-1.58"]) == same
