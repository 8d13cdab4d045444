"""Convert models: safetensors to GGUF, and one quantization type to another.

A plan says what will be written, how large it gets, and which engines will compute it differently.
Anything that must be refused is refused before the file is written. Every tensor is read back from
the finished file and compared with its source before the file gets its name. A conversion is exact
if codes and scales, or the numbers, are the same. Rounding float weights to F16, BF16, Q8_0 and
below is the purpose of these types; other losses are refused unless they are allowed.

Memory is bounded: some million weights at a time, or one ternary matrix.
"""
