"""Training needs PyTorch; the recipe is a folder of the checkout, not of the package."""

import sys
from pathlib import Path

import pytest

pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install 'bitnet-xtask[training]'"
)
pytest.importorskip("safetensors", reason="safetensors is not installed")

sys.path.append(str(Path(__file__).parents[2]))
