"""Ternary weights byte for byte as the tools of other projects write them."""

import pytest
from conversions import convert
from published_bitnets import digest, with_tokenizer

from bitnet.convert.convert_options import ConvertOptions
from bitnet.formats.containers import open_checkpoint

# SHA-256 by model and type, as benchmarks/converters.py printed them on x86-64. I2_S:
# convert-hf-to-gguf-bitnet.py of microsoft/BitNet 16da220 (July 2026) and the llama-quantize of its
# tree of January 2026. TQ1_0 and TQ2_0: convert_hf_to_gguf.py of llama.cpp b11434 (October 2026).
DIGESTS = {
    "bitnet-b1.58-2B-4T-bf16": {
        "I2_S": "d6b2de2a73f97852c47639361d72d9e61efe816efafda5242196180d639cf124",
    },
    "bitnet_b1_58-large": {
        "I2_S": "24959092419749cd8920c0e55595b09101fd78738205c56b47445e01837680b6",
        "TQ1_0": "6d9d5722993a153218f5981176eed901e3784998edb9e024b3a389f08c775ef6",
        "TQ2_0": "1860188a1159e43711fd63768b05635f94a1a0ea6499ad4052c3ed11822c368b",
    },
    "Llama3-8B-1.58": {
        "I2_S": "a90db42f8d8733e2048c4f822b6fff489bb73ba10cf06512e22503b10461fda3",
        "TQ1_0": "c773b986f15ca955243bdf5bdf66459b71fcac15b8d976a349a7490233b1bc6c",
        "TQ2_0": "d1dd61edb4478f75ddfd8efbcc130b634aad0331b064fcbb9709ec001bbe2e2a",
    },
    "Falcon3-7B-1.58bit": {
        "I2_S": "f6821761ac7dbc2806bddc29318b03db30d257fb970a57f6e77e756753b9ed16",
        "TQ1_0": "bf75dbe8528567607f60e7dfee118c1979e474184a1df2df344433ab05c4f161",
        "TQ2_0": "a1a821677197e2563e979ae8edb1eea7a458c171d7391114ac2bcdd4e120fc12",
    },
    "Falcon-E-1B": {
        "I2_S": "a6fd3b8b025ebdf94c96564cf5d011dc7ce1cff8f27a0acca2ce386e9f164963",
        "TQ1_0": "2c401006558265734fcd9ccfe84ab1b756e7900807ff1a28129010f0cd57b421",
        "TQ2_0": "f78a9be43b0c4fe63fe995bd02e9d685ffff345a2e2532900d1c0dec2ac845ce",
    },
}


@pytest.mark.parametrize(
    ("name", "encoding"), [(name, encoding) for name in DIGESTS for encoding in DIGESTS[name]]
)
def test_every_tensor_is_what_the_other_tool_writes(name, encoding, tmp_path):
    # The weights follow from the name. Only the other tools need the tokenizer.
    folder = with_tokenizer(tmp_path / name, name)
    file = tmp_path / "ours.gguf"
    convert(folder, file, ConvertOptions(encoding, no_tokenizer=True))
    assert digest(open_checkpoint(file)) == DIGESTS[name][encoding]


def test_a_digest_covers_codes_and_scales_but_not_the_padding_behind_them(tmp_path):
    folder = with_tokenizer(tmp_path / "m", "Llama3-8B-1.58")
    file = tmp_path / "ours.gguf"
    convert(folder, file, ConvertOptions("I2_S", no_tokenizer=True))
    # An I2_S tensor ends with 32 bytes: its scale in four, then padding that no tool defines.
    for place, same in ((0, False), (-32, False), (-28, True)):
        checkpoint = open_checkpoint(file)
        weight = checkpoint.weights["blk.1.ffn_up.weight"]
        changed = weight.data.copy()
        changed[place] ^= 1
        checkpoint.weights[weight.name] = type(weight)(
            weight.name, weight.shape, weight.quant, changed
        )
        assert (digest(checkpoint) == DIGESTS["Llama3-8B-1.58"]["I2_S"]) == same
