"""The files and functions between a GGUF file and its logits."""

import pytest
from tiny_models import tiny_gguf
from walks import Walk, gguf_to_logits

from bitnet.base import native


@pytest.mark.skipif(native.module() is None, reason="without compiled kernels the way is another")
def test_a_gguf_file_gives_logits_through_few_files_and_functions(tmp_path):
    path = tiny_gguf(tmp_path / "tiny.gguf")
    walk = Walk()
    walk.run(lambda: gguf_to_logits(path))
    assert walk.files >= {"/formats/gguf.py", "/families/llama.py", "/models/hidden_program.py"}
    # A reader can follow so many; a change that needs more has to raise these bounds.
    assert len(walk.files) <= 35
    assert len(walk.functions) <= 250
