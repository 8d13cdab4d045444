"""Vectors of texts as llama.cpp computes them."""

import numpy as np


def vectors_by_llama_cpp(path, texts):
    """Vectors of *texts*, none of them empty, by the GGUF file *path*; needs xllamacpp."""
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = str(path)
    settings.embedding = True
    settings.n_ctx = 64
    settings.warmup = False
    answer = xllamacpp.Server(settings).handle_embeddings({"input": texts, "model": "it"})
    return np.array([entry["embedding"] for entry in answer["data"]])
