"""gguf-py as the oracle: it reads what we write, and we read what it writes."""

import numpy as np
import pytest
from builders import f32, gguf_bytes, llama_metadata, vocabulary
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import quantize

from bitnet.formats.gguf import GGUF
from bitnet.formats.gguf_header import Array


@pytest.fixture(params=["auto", "reference"])
def backend(request, monkeypatch):
    """Run the test with the compiled module, if it is there, and without it."""
    monkeypatch.setenv("BITNET_BACKEND", request.param)


def _values(gguf):
    """Metadata of *gguf* with arrays as lists."""
    return {
        key: list(value) if isinstance(value, Array) else value
        for key, value in gguf.metadata.items()
    }


def _write(path, *, alignment=None):
    """Write a file with values and tensors of many types by gguf-py; returns *path*."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(4, 512)).astype(np.float32)
    writer = GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_context_length(4096)
    writer.add_rope_freq_base(500000.0)
    writer.add_bool("x.flag", True)
    writer.add_uint8("x.u8", 200)
    writer.add_int64("x.i64", -(2**40))
    writer.add_float64("x.f64", 1e300)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "\u0120b", "\N{GRINNING FACE}"])
    writer.add_token_types([1, 1, 3])
    writer.add_array("x.floats", [0.5, 1.5])
    kinds = ["F32", "F16", "Q8_0", "Q4_0", "TQ1_0", "TQ2_0", "BF16"]
    for kind in kinds:
        raw = quantize(weights, GGMLQuantizationType[kind])
        writer.add_tensor(f"w.{kind}", raw, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("alignment", [None, 64])
def test_what_gguf_py_writes_is_read_as_gguf_py_reads_it(backend, tmp_path, alignment):
    path = _write(tmp_path / "m.gguf", alignment=alignment)
    reader = GGUFReader(path)
    with GGUF.open(path) as gguf:
        theirs = {
            key: part.contents()
            for key, part in reader.fields.items()
            if not key.startswith("GGUF.")
        }
        assert _values(gguf) == theirs
        assert list(gguf.tensors) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors:
            info = gguf.tensors[tensor.name]
            assert info.shape == tuple(reversed(tensor.shape.tolist()))
            assert info.type.name == tensor.tensor_type.name
            assert (info.offset, info.size_bytes) == (tensor.data_offset, tensor.n_bytes)
            assert bytes(gguf.tensor_bytes(tensor.name)) == tensor.data.tobytes()


def test_gguf_py_reads_what_the_builders_write(backend, tmp_path):
    metadata = {**llama_metadata(), **vocabulary(["x", "y"], merges=["x y"])}
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(metadata, [f32("a", (2, 3), 4.0), f32("b", (5,))]))
    reader = GGUFReader(path)
    with GGUF.open(path) as gguf:
        for key, value in _values(gguf).items():
            assert reader.get_field(key).contents() == value
        for tensor in reader.tensors:
            assert bytes(gguf.tensor_bytes(tensor.name)) == tensor.data.tobytes()
