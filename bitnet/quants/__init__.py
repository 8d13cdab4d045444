"""Weight encodings: the bytes of a block to numbers and back."""
