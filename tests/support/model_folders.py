"""Random folders of a SentencePiece model and its side files, without ``tokenizer.json``."""

from pathlib import Path

from tokenizer_folders import MODEL_TYPES, Folder

from bitnet.base.errors import BitnetError
from bitnet.tokenizer.sentencepiece_model import parse_model

TINY = Path(__file__).parents[1] / "fixtures" / "spm" / "tiny.model"
MODEL = "tokenizer.model"
CLASSES = (
    *("LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "GemmaTokenizer"),
    *("GemmaTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend", "SomebodysTokenizer"),
    *("T5Tokenizer", "XLMRobertaTokenizer", "CamembertTokenizer", "MBartTokenizer"),
    *("DebertaV2Tokenizer", "LlamaTokenizer", "GemmaTokenizer", "LlamaTokenizer"),
)


class ModelFolder(Folder):
    """Files of a random folder; those of odd seeds have the same model."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        draw = self.draw
        self.content = TINY.read_bytes() if seed % 2 else _readable(seed)
        model = parse_model(self.content)
        kinds = enumerate(model.token_types)
        # Unknown, control and user-defined tokens.
        texts = [(id, model.tokens[id]) for id, kind in kinds if kind in (2, 3, 4)]
        self._added = [{"id": id, **self._flags(text)} for id, text in texts]
        self.files = {}
        if draw.random() < 0.85:
            self.files["tokenizer_config.json"] = self._config(draw.choice(CLASSES))
        if draw.random() < 0.3:
            self.files["special_tokens_map.json"] = self._map()
        if draw.random() < 0.2:
            more = draw.sample(("<new>", "<tool>", "<|im_end|>"), 2)
            self.files["added_tokens.json"] = {
                text: len(model.tokens) + at for at, text in enumerate(more)
            }
        if draw.random() < 0.6:
            version = draw.choice((None, "5.1.0", "5.24.0"))
            config = {"model_type": draw.choice(MODEL_TYPES)}
            self.files["config.json"] = config | (
                {"transformers_version": version} if version else {}
            )
        if not self.files:
            self.files["tokenizer_config.json"] = {"tokenizer_class": "LlamaTokenizer"}
        self._templates()
        config = self.files.get("tokenizer_config.json")
        if config and draw.random() < 0.6:  # as in most real folders, which lack these keys
            for key in ("split_special_tokens", "image_token", "strip_accents", "do_lower_case"):
                config.pop(key, None)
            for role in ("sep_token", "pad_token", "cls_token", "mask_token"):
                config.pop(role, None)

    def write(self, path: Path) -> Path:
        """Write the files into the folder *path*."""
        path.mkdir(parents=True, exist_ok=True)
        (path / MODEL).write_bytes(self.content)
        return super().write(path)


def _readable(seed: int) -> bytes:
    """The content of a random model that this package supports."""
    # Imported here: environments with earlier transformers lack sentencepiece, and need only
    # other folders.
    from sentencepiece_configurations import random_model

    while True:
        content = random_model(seed)
        try:
            parse_model(content)
        except BitnetError:
            seed += 100_000
            continue
        return content
