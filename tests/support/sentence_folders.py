"""Folders of sentence-transformers with tiny random encoders, written by that library itself."""

import json
import warnings

import sentence_transformers
import torch
import transformers
from sentence_transformers.sentence_transformer import modules as st_modules

WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man", "is", "eat", "##ing", "food"),
    *(".", ",", "dog", "run", "##s", "é", "2", "##0", "never", "query", "passage", ":"),
]
WORDS_OF_MPNET = [
    *("<s>", "<pad>", "</s>", "[UNK]", "a", "man", "is", "eat", "##ing", "food", ".", ",", "dog"),
    *("run", "##s", "2", "##0", "<mask>"),
]
TEXTS = ["A man is eating food.", "dogs run", "", "unknown words, 20 dogs", "a " * 40]
TINY = {
    "vocab_size": len(WORDS),
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}


def encoder_folder(path, kind="Bert", task="Model", **options):
    """A transformers folder with a random model of *kind* for *task* and BERT's tokenizer."""
    torch.manual_seed(len(kind) + len(task) + len(options))
    config = getattr(transformers, f"{kind}Config")(**(TINY | options))
    model = getattr(transformers, f"{kind}{task}")(config).float().eval()
    randomize(model)
    model.save_pretrained(path)
    save_tokenizer(path)
    return path


def mpnet_folder(path, task="Model", **options):
    """A transformers folder with a random MPNet for *task* and its own tokenizer."""
    torch.manual_seed(len(task))
    sizes = {
        "vocab_size": len(WORDS_OF_MPNET),
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "max_position_embeddings": 258,
    }
    config = transformers.MPNetConfig(**(sizes | options))
    model = getattr(transformers, f"MPNet{task}")(config).float().eval()
    randomize(model)
    with torch.no_grad():
        model.get_parameter(
            next(name for name, _ in model.named_parameters() if "relative_attention" in name)
        ).mul_(5.0)  # so that a wrong row is seen
    model.save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(WORDS_OF_MPNET))
    transformers.MPNetTokenizer(str(path / "vocab.txt")).save_pretrained(path)
    return path


def randomize(model):
    """Add noise to every parameter, so that none is left as it is initialized."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)


def save_tokenizer(path):
    """Write BERT's tokenizer with a few words to the folder *path*."""
    (path / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(path / "vocab.txt")).save_pretrained(path)


def sentence_folder(path, source, *, pooling="mean", dense=(), normalize=True, limit=None, **more):
    """Write *source* as a folder of sentence-transformers with its modules.

    *dense* are Dense layers: a width, an activation, and True for a bias. *more* are fields of
    ``SentenceTransformer``, such as ``prompts``.
    """
    arguments = {} if limit is None else {"max_seq_length": limit}
    chain = [
        st_modules.Transformer(str(source), **arguments),
        st_modules.Pooling(TINY["hidden_size"], pooling),
    ]
    width = TINY["hidden_size"]
    for outputs, activation, has_bias in dense:
        chain.append(
            st_modules.Dense(width, outputs, bias=has_bias, activation_function=activation)
        )
        width = outputs
    if normalize:
        chain.append(st_modules.Normalize())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sentence_transformers.SentenceTransformer(modules=chain, device="cpu", **more)
        model.save_pretrained(str(path), create_model_card=False)
    return path


def expected_vectors(path, texts=TEXTS, **options):
    """Vectors of *texts* by sentence-transformers, ``(N, dim)``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sentence_transformers.SentenceTransformer(str(path), device="cpu")
        return model.encode(list(texts), **options)


def change_json(path, **changes):
    """Set the fields *changes* of the JSON object in the file *path*."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
