"""Vectors of texts by llama.cpp, and the similarity of the vectors of two programs."""

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


def smallest_cosine(actual, expected):
    """The smallest cosine between vectors of the same text."""
    lengths = np.linalg.norm(actual, axis=1) * np.linalg.norm(expected, axis=1)
    return float(((actual * expected).sum(axis=1) / lengths).min())
