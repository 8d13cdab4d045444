"""Small files in the format of Mistral's ``tekken.json``, in each of its versions."""

import base64
import json

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
JOINED = (
    "th",
    "he",
    "the",
    " t",
    " the",
    "in",
    "ing",
    "aa",
    "aaa",
    "aaaa",
    "  ",
    "é",
    " é",
    "字",
    "##",
)
IMAGE = {"image_patch_size": 16, "max_image_size": 1024}
AUDIO = {
    "sampling_rate": 16000,
    "frame_rate": 12.5,
    "audio_encoding_config": {"num_mel_bins": 128, "hop_length": 160, "window_size": 400},
}
NAMES = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    *("[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]", "[AUDIO]", "[BEGIN_AUDIO]", "[TRANSCRIBE]", "##"),
)


def special(names=NAMES, *, control=True):
    """Entries of ``special_tokens``; the last of NAMES is also the text of a token of ``vocab``."""
    return [{"rank": id, "token_str": name, "is_control": control} for id, name in enumerate(names)]


def document(version="v3", *, joined=JOINED, spare=3, count=30, **parts):
    """A ``tekken.json`` of the bytes and *joined*, with *count* special tokens.

    The *spare* last tokens are beyond the size of the vocabulary, and do not count. *parts* are
    further keys. A file of version v3 or v7 need not list its special tokens, and does not here.
    """
    texts = [bytes([byte]) for byte in range(256)]
    texts += [text if isinstance(text, bytes) else text.encode() for text in joined]
    texts += [b"spare%d" % n for n in range(spare)]
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(text).decode(), "token_str": None}
        for rank, text in enumerate(texts)
    ]
    config = {
        "pattern": PATTERN,
        "num_vocab_tokens": len(texts),
        "default_vocab_size": count + len(texts) - spare,
        "default_num_special_tokens": count,
        "version": version,
    }
    if version not in ("v3", "v7"):
        parts = {"special_tokens": special()} | parts
    return {"config": config, "vocab": vocabulary} | parts


def write(path, *args, **parts):
    """:func:`document` as a file."""
    path.write_text(json.dumps(document(*args, **parts)), encoding="utf-8")
    return path
