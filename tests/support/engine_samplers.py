"""Samplers and grammars of llama.cpp through its C API, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path


def ask(name, vocabulary, cases, folder):
    """Results of the function *name* of this file for *cases*, a list.

    Args:
        name: ``sample``, ``follow`` or ``accept``.
        vocabulary: GGUF file.
        cases: JSON values.
        folder: for the files between the processes.
    """
    request = folder / "asked.json"
    reply = folder / "found.json"
    request.write_text(json.dumps([name, str(vocabulary), cases]))
    command = [sys.executable, __file__, str(request), str(reply)]
    done = subprocess.run(command, stderr=subprocess.PIPE, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(reply.read_text())


def _main(request, reply):
    """Answer the file *request*, and write the results to *reply*."""
    import ctypes
    from importlib import import_module

    from bitnet.crossval.llama_library import Llama

    name, path, cases = json.loads(Path(request).read_text())
    file = import_module("xllamacpp.xllamacpp").__file__
    library = ctypes.CDLL(file)
    model = Llama(library, path, Path(file), threads=1, weights=False)
    engine = _Engine(library, model)
    functions = {"sample": engine.sample, "follow": engine.follow, "accept": engine.accept}
    Path(reply).write_text(json.dumps([functions[name](case) for case in cases]))


class _Engine:
    """llama.cpp's functions for samplers, with a vocabulary."""

    def __init__(self, library, model):
        import ctypes

        self.c = ctypes
        self.library = library
        self.vocabulary = ctypes.c_void_p(model._vocabulary)
        self.n_vocab = model.n_vocab

        class Token(ctypes.Structure):
            _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))

        class Tokens(ctypes.Structure):
            _fields_ = (
                ("data", ctypes.POINTER(Token)),
                ("size", ctypes.c_size_t),
                ("selected", ctypes.c_int64),
                ("sorted", ctypes.c_bool),
            )

        self.token = Token
        self.tokens = Tokens
        for name in ("llama_sampler_apply", "llama_sampler_accept", "llama_sampler_free"):
            getattr(library, name).restype = None

    def make(self, name, *values):
        """The sampler *name* with *values*; None if llama.cpp refuses them."""
        c = self.c
        library = self.library
        function = getattr(library, f"llama_sampler_init_{name}")
        function.restype = c.c_void_p
        kinds = {
            "top_k": (c.c_int32,), "top_p": (c.c_float, c.c_size_t),
            "min_p": (c.c_float, c.c_size_t), "typical": (c.c_float, c.c_size_t),
            "top_n_sigma": (c.c_float,), "temp_ext": (c.c_float,) * 3, "temp": (c.c_float,),
            "xtc": (c.c_float, c.c_float, c.c_size_t, c.c_uint32),
            "penalties": (c.c_int32, c.c_int32, c.c_float, c.c_float, c.c_float),
            "mirostat": (c.c_int32, c.c_uint32, c.c_float, c.c_float, c.c_int32),
            "mirostat_v2": (c.c_uint32, c.c_float, c.c_float),
        }  # fmt: skip
        if name == "dry":
            *numbers, breakers = values
            texts = (c.c_char_p * len(breakers))(*(text.encode() for text in breakers))
            types = (c.c_float, c.c_float, c.c_int32, c.c_int32)
            scalars = [kind(value) for kind, value in zip(types, numbers, strict=True)]
            ptr = function(self.vocabulary, *scalars, texts, c.c_size_t(len(breakers)))
        elif name == "grammar":
            ptr = function(self.vocabulary, values[0].encode(), b"root")
        else:
            ptr = function(*(kind(value) for kind, value in zip(kinds[name], values, strict=True)))
        return None if ptr is None else c.c_void_p(ptr)

    def apply(self, samplers, logits):
        """Ids and logits that *samplers* leave of *logits*, and the id that they select.

        None among *logits* stands for minus infinity; the id is None if none is selected.
        """
        c = self.c
        array = (self.token * len(logits))()
        for at, logit in enumerate(logits):
            array[at] = self.token(at, float("-inf") if logit is None else logit, 0.0)
        data = c.cast(array, c.POINTER(self.token))
        tokens = self.tokens(data, len(logits), -1, False)
        for sampler in samplers:
            self.library.llama_sampler_apply(sampler, c.byref(tokens))
        pairs = [(tokens.data[at].id, tokens.data[at].logit) for at in range(tokens.size)]
        chosen = tokens.data[tokens.selected].id if tokens.selected >= 0 else None
        return pairs, chosen

    def sample(self, case):
        """Tokens that a chain leaves after a text, with their probabilities."""
        import numpy as np

        samplers = [self.make(*sampler) for sampler in case["samplers"]]
        for token in case["text"]:
            for sampler in samplers:
                self.library.llama_sampler_accept(sampler, self.c.c_int32(token))
        pairs, _ = self.apply(samplers, case["logits"])
        for sampler in samplers:
            self.library.llama_sampler_free(sampler)
        logits = np.array([logit for _, logit in pairs], dtype=np.float64)
        weights = np.exp(logits - logits.max())
        shares = (weights / weights.sum()).tolist()
        return {str(id): share for (id, _), share in zip(pairs, shares, strict=True) if share > 0}

    def follow(self, case):
        """Tokens that mirostat leaves at each of several steps, and the one that it chooses."""
        samplers = [self.make(*sampler) for sampler in case["samplers"]]
        steps = []
        for logits in case["steps"]:
            pairs, chosen = self.apply(samplers, logits)
            steps.append([sorted(id for id, _ in pairs), chosen])
        for sampler in samplers:
            self.library.llama_sampler_free(sampler)
        return steps

    def accept(self, case):
        """For each prefix of some ids, the ids that a grammar allows next.

        None if llama.cpp refuses the grammar.
        """
        sampler = self.make("grammar", case["grammar"])
        if sampler is None:
            return None
        zeros = [0.0] * self.n_vocab
        allowed = []
        for token in [*case["ids"], None]:
            pairs, _ = self.apply([sampler], zeros)
            allowed.append([id for id, logit in pairs if logit == 0.0])
            if token is None or token not in allowed[-1]:
                break
            self.library.llama_sampler_accept(sampler, self.c.c_int32(token))
        self.library.llama_sampler_free(sampler)
        return allowed


if __name__ == "__main__":
    _main(*sys.argv[1:])
