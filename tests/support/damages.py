"""Damages after which a model can still be read, or nearly, and small models to damage.

A :class:`Model` has tensors by GGUF name and values of the metadata. A damage changes it, a writer
makes a GGUF file or a folder from it. Damages of the file itself change the written bytes.
"""

import json
from dataclasses import dataclass, field, replace

import numpy as np
from builders import INT32, STRING, Tensor, Typed, write_gguf
from hf_folders import config, hf_name, save_tensors
from tiny_keys import DIM, KEYS, VOCAB
from tiny_models import in_encoding, taught, tiny

from bitnet.tokenizer.spec import byte_spelling
from bitnet.verify.trace import TEXT

LAYERS = 6
# Block size in bytes, offset of the scale in it, and type of the scale.
SCALES = {"Q4_1": (20, 0, "<f2"), "Q8_0": (34, 0, "<f2"), "F32": (4, 0, "<f4")}
PAGE = 4096  # bytes


@dataclass
class Stored:
    """A tensor: shape rows first, name of its encoding, bytes."""

    shape: tuple
    encoding: str
    raw: np.ndarray

    @property
    def rows(self):
        """Its bytes, ``(rows, bytes)``; without the scale that follows those of I2_S."""
        count = int(np.prod(self.shape))
        body = self.raw[: count // 4] if self.encoding == "I2_S" else self.raw
        return body.reshape(self.shape[0], -1)

    @property
    def scales(self):
        """Its scales, which may be written to; of F32 the numbers themselves."""
        if self.encoding == "I2_S":
            at = int(np.prod(self.shape)) // 4
            return self.raw[at : at + 4].view("<f4")
        size, at, kind = SCALES[self.encoding]
        return self.raw.view(
            np.dtype({"names": ["d"], "formats": [kind], "offsets": [at], "itemsize": size})
        )["d"]


@dataclass
class Model:
    """A small model.

    Attributes:
        architecture: ``general.architecture``.
        tensors: each :class:`Stored` by its GGUF name.
        values: metadata that every container has, under common names.
        tokens: texts of the vocabulary, in the order of their ids.
        merges: pairs of tokens with a space between them.
        types: token types of GGUF.
        keys: further metadata, under the names of the container.
    """

    architecture: str
    tensors: dict
    values: dict
    tokens: list
    merges: list
    types: list
    keys: dict = field(default_factory=dict)

    def matrix(self, part="ffn_up", layer=3):
        """A matrix of a layer."""
        return self.tensors[f"blk.{layer}.{part}.weight"]

    def swap(self, first, second):
        """Exchange the numbers of two tensors of one shape."""
        a = self.tensors[first]
        b = self.tensors[second]
        assert (a.shape, a.encoding) == (b.shape, b.encoding)
        a.raw, b.raw = b.raw, a.raw

    def layer(self, number):
        """Names of the tensors of a layer."""
        return [name for name in self.tensors if name.startswith(f"blk.{number}.")]


def _words():
    """64 tokens: three special ones, letters, and merges of them in the order of their ids."""
    space = byte_spelling(b" ")
    letters = [*"abcdefghijklmnopqrstuvwxyz", "T", "O", space, ",", "."]
    pairs = "t h,th e,{s} a,a p,i s,f o,o r,a n,i t,{s} i,i n,{s} th,an d,{s} t,t w,o u,v e,e n,"
    pairs += "r e,n e,{s} o,i x,s e,ap i,{s} f,e i,g h,t e,l y,o m"
    merges = pairs.format(s=space).split(",")
    tokens = ["<s>", "</s>", "<extra>", *letters, *(pair.replace(" ", "") for pair in merges)]
    assert len(tokens) == VOCAB == len(set(tokens))
    return tokens, merges


def small(architecture, encoding):
    """A model that predicts :data:`TEXT` better than guessing; its matrices in *encoding*."""
    checkpoint = tiny(architecture, block_count=LAYERS, **{"rope.freq_base": 10000.0})
    if encoding == "F32":  # for a folder, whose queries and keys are not permuted for rope
        checkpoint = replace(checkpoint, rope_style="half")
    tokens, merges = _words()
    if encoding != "F32":
        checkpoint = in_encoding(checkpoint, encoding)
    checkpoint = taught(checkpoint, _ids(tokens, merges), rate=0.002)
    tensors = {
        name: Stored(weight.shape, weight.quant.name, weight.data.copy())
        for name, weight in checkpoint.weights.items()
    }
    values = {"rope_theta": 10000.0, "eps": 1e-5, "kv_heads": 2, "context": 64, "bos": 0, "eos": 1}
    values |= {"add_bos": True, "pre": "gpt-2", "template": "{{ messages[0].content }}</s>"}
    return Model(architecture, tensors, values, tokens, merges, [3, 3, 3, *[1] * (VOCAB - 3)])


def _ids(tokens, merges):
    """Ids of TEXT, nearly those of the tokenizer: letters, joined by each merge in turn."""
    space = byte_spelling(b" ")
    pieces = [space if letter == " " else letter for letter in TEXT]
    for merge in merges:
        left, right = merge.split(" ")
        at = 0
        while at < len(pieces) - 1:
            if pieces[at : at + 2] == [left, right]:
                pieces[at : at + 2] = [left + right]
            at += 1
    return [0, *(tokens.index(piece) for piece in pieces if piece in tokens)][
        : KEYS["context_length"]
    ]


def write_model(model, path):
    """*model* as a GGUF file."""
    values = model.values
    name = model.architecture
    keys = {f"{name}.{key}": value for key, value in KEYS.items()}
    keys |= {
        "general.architecture": name,
        "general.name": "Gate",
        f"{name}.block_count": LAYERS,
        f"{name}.context_length": values["context"],
        f"{name}.attention.head_count_kv": values["kv_heads"],
        f"{name}.attention.layer_norm_rms_epsilon": values["eps"],
        f"{name}.rope.freq_base": values["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": Typed(STRING, model.tokens),
        "tokenizer.ggml.merges": Typed(STRING, model.merges),
        "tokenizer.ggml.token_type": Typed(INT32, model.types),
        "tokenizer.ggml.bos_token_id": values["bos"],
        "tokenizer.ggml.eos_token_id": values["eos"],
        "tokenizer.ggml.add_bos_token": values["add_bos"],
        "tokenizer.ggml.pre": values["pre"],
        "tokenizer.chat_template": values["template"],
    }
    keys = {key: value for key, value in (keys | model.keys).items() if value is not None}
    ids = {"F32": 0, "Q4_1": 3, "Q8_0": 8, "I2_S": 36}
    tensors = [
        Tensor(key, tensor.shape, ids[tensor.encoding], tensor.raw.tobytes())
        for key, tensor in model.tensors.items()
    ]
    return write_gguf(path / "gate.gguf", keys, tensors)


def write_folder(model, path):
    """*model* as a folder with safetensors; its tensors are F32."""
    values = model.values
    save_tensors(
        path / "model.safetensors",
        {
            hf_name(name, model.architecture): tensor.raw.view("<f4").reshape(tensor.shape)
            for name, tensor in model.tensors.items()
        },
    )
    more = {"num_hidden_layers": LAYERS, "rope_theta": values["rope_theta"]}
    more |= {"rms_norm_eps": values["eps"], "num_key_value_heads": values["kv_heads"]}
    more |= {"max_position_embeddings": values["context"], "tie_word_embeddings": False}
    more |= {"bos_token_id": values["bos"], "eos_token_id": values["eos"]} | model.keys
    (path / "config.json").write_text(json.dumps(config(model.architecture, **more)))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    document = {
        "version": "1.0",
        "added_tokens": [
            {"id": id, "content": model.tokens[id], "special": True} | flags
            for id, kind in enumerate(model.types)
            if kind == 3
        ],
        "normalizer": None,
        "pre_tokenizer": split | {"use_regex": values["pre"] == "gpt-2"},
        "post_processor": None,
        "decoder": split | {"use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {text: id for id, text in enumerate(model.tokens)},
            "merges": model.merges,
        },
    }
    (path / "tokenizer.json").write_text(json.dumps(document))
    special = {
        "add_bos_token": values["add_bos"],
        "bos_token": model.tokens[values["bos"]],
        # An id without a token has no text; config.json has the id.
        "eos_token": model.tokens[values["eos"]] if values["eos"] < len(model.tokens) else None,
        "chat_template": values["template"],
    }
    (path / "tokenizer_config.json").write_text(json.dumps(special))
    return path


# Damages of the model. Each changes it in place. Some are made from a *change* of a tensor, of its
# rows, or of a page of its bytes.


def _numbers(change, part="ffn_up", layer=3):
    """Damage that applies *change* to a matrix, a :class:`Stored`."""
    return lambda model: change(model.matrix(part, layer))


def _scaled(factor, count=None):
    """Change that multiplies the first *count* scales by *factor*, by default all."""

    def change(tensor):
        tensor.scales[:count] = (tensor.scales[:count] * factor).astype(tensor.scales.dtype)

    return change


def _rows(change):
    """Change that replaces the rows, ``(rows, bytes)``, by the result of *change*."""

    def damage(tensor):
        rows = tensor.rows
        rows[:] = change(rows.copy())

    return damage


def _exchanged(first, second):
    """Change of rows that exchanges two of them."""

    def change(rows):
        rows[first], rows[second] = rows[second].copy(), rows[first].copy()
        return rows

    return change


def _page(change):
    """Change that replaces the page in the middle by ``change(page, body)``, *body* all bytes."""

    def damage(tensor):
        body = tensor.rows.reshape(-1)
        start = PAGE * (body.size // PAGE // 2)
        body[start : start + PAGE] = change(body[start : start + PAGE].copy(), body)

    return damage


def _random(page, _body):
    """Random bytes instead of *page*."""
    return np.random.default_rng(3).integers(0, 256, page.size).astype(np.uint8)


def _bit(tensor):
    tensor.rows[5, 7] ^= 1


def _layers(first, second):
    """Damage that exchanges two layers."""

    def damage(model):
        for name in model.layer(first):
            model.swap(name, name.replace(f"blk.{first}.", f"blk.{second}."))

    return damage


def _layer_twice(model):
    for name in model.layer(2):
        model.tensors[name].raw = model.tensors[name.replace("blk.2.", "blk.1.")].raw.copy()


def _parts(first, second, layer=2):
    """Damage that exchanges two matrices of a layer."""
    return lambda model: model.swap(f"blk.{layer}.{first}.weight", f"blk.{layer}.{second}.weight")


def _heads(part, size=DIM // KEYS["attention.head_count"]):
    """Damage that exchanges the first two heads of a projection, *size* rows each."""

    def change(rows):
        first = rows[:size].copy()
        rows[:size], rows[size : 2 * size] = rows[size : 2 * size], first
        return rows

    return _numbers(_rows(change), part, 2)


def _value(name, change):
    """Damage that sets the value *name* to *change*, or to what that function makes of it."""

    def damage(model):
        model.values[name] = change(model.values[name]) if callable(change) else change

    return damage


def _tokens_swapped(model):
    model.tokens[40], model.tokens[47] = model.tokens[47], model.tokens[40]


def _token_renamed(model):
    model.tokens[20] = "zz"


def _merge_dropped(at):
    return lambda model: model.merges.pop(at)


def _merges_swapped(model):
    model.merges[0], model.merges[1] = model.merges[1], model.merges[0]


def _special_made_normal(model):
    model.types[1] = 1


def _normal_made_special(model):
    model.types[35] = 3


def _missing(model):
    del model.tensors["blk.3.ffn_up.weight"]


def _norms(model):
    model.swap("blk.2.attn_norm.weight", "blk.2.ffn_norm.weight")


NORM = ("attn_norm", 3)  # part and layer

DAMAGES = {
    "all scales of a tensor times 100": _numbers(_scaled(100)),
    "all scales of a tensor times 2": _numbers(_scaled(2)),
    "all scales of a tensor negative": _numbers(_scaled(-1)),
    "the first scale times 100": _numbers(_scaled(100, 1)),
    "the first scale zero": _numbers(_scaled(0, 1)),
    "the first scale NaN": _numbers(_scaled(np.nan, 1)),
    "the first scale infinite": _numbers(_scaled(np.inf, 1)),
    "a row of zeros": _numbers(_rows(lambda rows: rows * (np.arange(len(rows)) != 9)[:, None])),
    "two rows exchanged": _numbers(_rows(_exchanged(3, 200))),
    "a row twice": _numbers(_rows(lambda rows: rows[[0, *range(len(rows) - 1)]])),
    "all rows permuted": _numbers(_rows(np.random.default_rng(0).permutation)),
    "rows reversed": _numbers(_rows(lambda rows: rows[::-1])),
    "a page of zeros": _numbers(_page(lambda page, _body: page * 0)),
    "a page of ones": _numbers(_page(lambda page, _body: page * 0 + 255)),
    "a page of random bytes": _numbers(_page(_random)),
    "a page from elsewhere in the tensor": _numbers(_page(lambda page, body: body[: page.size])),
    "a page moved by a byte": _numbers(_page(lambda page, _body: np.roll(page, 1))),
    "one bit": _numbers(_bit),
    "rows of the embedding exchanged": lambda model: _rows(_exchanged(10, 20))(
        model.tensors["token_embd.weight"]
    ),
    "rows of the embedding permuted": lambda model: _rows(np.random.default_rng(1).permutation)(
        model.tensors["token_embd.weight"]
    ),
    "a layer and its neighbour exchanged": _layers(2, 3),
    "the first and the last layer exchanged": _layers(0, LAYERS - 1),
    "a layer twice": _layer_twice,
    "two query heads exchanged": _heads("attn_q"),
    "two key heads exchanged": _heads("attn_k"),
    "two value heads exchanged": _heads("attn_v"),
    "key and value projections exchanged": _parts("attn_k", "attn_v"),
    "query and output projections exchanged": _parts("attn_q", "attn_output"),
    "gate and up projections exchanged": _parts("ffn_gate", "ffn_up"),
    "the norms of a layer exchanged": _norms,
    "a norm times 100": _numbers(_scaled(100), *NORM),
    "a norm of zeros": _numbers(_scaled(0), *NORM),
    "a norm negative": _numbers(_scaled(-1), *NORM),
    "one number of a norm times 1000": _numbers(_scaled(1000, 1), *NORM),
    "a tensor missing": _missing,
    "rope theta times 10": _value("rope_theta", lambda theta: theta * 10),
    "rope theta times 3": _value("rope_theta", lambda theta: theta * 3),
    "rope theta 1": _value("rope_theta", 1.0),
    "eps 1e-2": _value("eps", 1e-2),
    "eps 1e-6": _value("eps", 1e-6),
    "eps zero": _value("eps", 0.0),
    "key heads four": _value("kv_heads", 4),
    "context 32": _value("context", 32),
    "two tokens exchanged": _tokens_swapped,
    "a token renamed": _token_renamed,
    "the first merge dropped": _merge_dropped(0),
    "a merge dropped": _merge_dropped(17),
    "the last merge dropped": _merge_dropped(-1),
    "two merges exchanged": _merges_swapped,
    "a special token made normal": _special_made_normal,
    "a normal token made special": _normal_made_special,
    "begin and end exchanged": lambda model: model.values.update(bos=1, eos=0),
    "end is another token": _value("eos", 35),
    "end is the last token": _value("eos", VOCAB - 1),
    "end outside the vocabulary": _value("eos", VOCAB),
    "add_bos flipped": _value("add_bos", lambda flag: not flag),
    "another pre-tokenizer": _value("pre", "llama-bpe"),
    "a word of the template": _value("template", "{{ messages[0].content }}<s>"),
    "the template without the message": _value("template", "</s>"),
    "the template cut": _value("template", "{{ messages[0].content"),
}


# Damages of the file. Each takes its bytes and returns others.


def _cut(share):
    """Damage that keeps only the first *share* of the bytes."""
    return lambda raw: raw[: int(len(raw) * share)]


def _offset(raw):
    """*raw* with the offset of one tensor replaced by that of another: they share their bytes."""
    if raw[:4] == b"GGUF":
        # After the name: four bytes for the number of dimensions, eight for each of two, the type.
        second = raw.index(b"blk.1.attn_q.weight") + len(b"blk.1.attn_q.weight") + 4 + 16 + 4
        third = raw.index(b"blk.2.attn_q.weight") + len(b"blk.2.attn_q.weight") + 4 + 16 + 4
        return raw[:third] + raw[second : second + 8] + raw[third + 8 :]
    length = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8 : 8 + length])
    names = [name for name in head if name.endswith("q_proj.weight")]
    head[names[2]]["data_offsets"] = head[names[1]]["data_offsets"]
    changed = json.dumps(head).encode().ljust(length)
    return len(changed).to_bytes(8, "little") + changed + raw[8 + length :]


FILE_DAMAGES = {
    "half of the file": _cut(0.5),
    "the last thousandth cut": _cut(0.999),
    "the header cut": _cut(0.0005),
    "the offset of another tensor": _offset,
}
