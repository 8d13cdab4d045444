"""Quantization types: from the bytes of a block to numbers and back."""
