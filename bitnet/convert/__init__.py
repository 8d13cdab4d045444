"""Convert models: safetensors to GGUF, and one quantization type to another.

A plan says what will be written, how large it gets, and which engines will compute it differently.
Every tensor is decoded again as it is written and compared with its source, and read back from the
finished file before that gets its name. A conversion is exact if the numbers are the same. Rounding
floats to F16, BF16, Q8_0 and below is the purpose of these types; other losses are refused unless
they are allowed.

Memory is bounded: some million weights at a time, or one ternary matrix.
"""
