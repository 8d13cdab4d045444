"""Setups for the cases of :mod:`hint_cases`: each creates models, hubs or projects in a place."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

from builders import write_gguf
from hub_server import Rule
from tiny_models import tiny, tiny_gguf, write_model

MODEL = "models/model.gguf"
FLOAT64 = "--against float64 --max-positions 4 --greedy 1"
COMMIT = f"example.org/me/bitnet@{'0' * 40}"


def model(place):
    """A model with a tokenizer."""
    tiny_gguf(place.work / MODEL)


def conversation(place):
    """A model with a chat template, and messages."""
    tiny_gguf(place.work / MODEL, **{"tokenizer.chat_template": "{{ messages[0].content }}"})
    messages = [{"role": "user", "content": "a"}]
    (place.work / "conversation.json").write_text(json.dumps(messages))


def shared(place):
    """A model on the hub."""
    model(place)
    place.hub.add("org/tiny", "tiny.gguf", (place.work / MODEL).read_bytes())


def by_address(place):
    """A model on a server that is not a hub."""
    model(place)
    content = (place.work / MODEL).read_bytes()
    place.hub.rules.append(Rule(where="cdn", path="tiny.gguf", status=200, body=content))


def disconnected(place):
    """A hub that cannot be reached."""
    place.env["HF_ENDPOINT"] = "http://127.0.0.1:9"


def downloaded(place):
    """A model of the hub, downloaded into a project."""
    shared(place)
    place.must("bitnet download-model org/tiny --file tiny.gguf")


def replaced(place):
    """A pinned file that its repository has replaced since."""
    downloaded(place)
    tiny_gguf(place.work / "other.gguf", **{"general.name": "another"})
    place.hub.add("org/tiny", "tiny.gguf", (place.work / "other.gguf").read_bytes())
    shutil.rmtree(place.work / "models")
    shutil.rmtree(place.env["BITNET_CACHE_DIR"])
    lock = place.work / "bitnet.lock.json"
    facts = json.loads(lock.read_text())
    for entry in facts["files"]:
        entry["commit"] = None
    lock.write_text(json.dumps(facts))


def changed(place):
    """A pinned file that was edited."""
    downloaded(place)
    path = next(place.work.glob("models/*/tiny.gguf"), None) or place.work / "models/tiny.gguf"
    content = path.read_bytes() + b"\0"
    path.unlink()
    path.write_bytes(content)


def moved_away(place):
    """A pinned file that is missing."""
    next(place.work.glob("models/**/tiny.gguf")).unlink()


def emptied(place):
    """A project whose pinned files are gone."""
    downloaded(place)
    shutil.rmtree(place.work / "models")
    shutil.rmtree(place.env["BITNET_CACHE_DIR"])


def llama3(place):
    """A model of LLaMA-3's vocabulary without a tokenizer, and a hub that has one."""
    keys = {"general.architecture": "llama", "llama.vocab_size": 128_256}
    write_gguf(place.work / "models/bare.gguf", keys)
    place.hub.add("baseten/Meta-Llama-3-tokenizer", "tokenizer.json", tokenizer_json(128_256))


def tokenizer_json(count):
    """The bytes of a tokenizer.json with *count* tokens."""
    vocab = ", ".join(f'"t{number}": {number}' for number in range(count))
    return f'{{"model": {{"type": "BPE", "vocab": {{{vocab}}}, "merges": []}}}}'.encode()


def wrong_llama3(place):
    """A hub whose tokenizer has too few tokens."""
    place.hub.add("baseten/Meta-Llama-3-tokenizer", "tokenizer.json", tokenizer_json(1000))


def mended_llama3(place):
    """A hub with the right tokenizer."""
    place.hub.add("baseten/Meta-Llama-3-tokenizer", "tokenizer.json", tokenizer_json(128_256))


def damaged_in_cache(place):
    """A tokenizer in the cache with changed bytes."""
    place.hub.add("openai-community/gpt2", "tokenizer.json", tokenizer_json(50_257))
    place.must("bitnet tokenizer --source gpt2-50k")
    for path in Path(place.env["BITNET_CACHE_DIR"]).rglob("*"):
        if path.is_file() and path.stat().st_size > 100_000:
            path.chmod(0o644)
            path.write_bytes(b"{}" + path.read_bytes()[2:])


def damaged_model(place):
    """A downloaded model with a changed bit."""
    downloaded(place)
    for path in Path(place.env["BITNET_CACHE_DIR"]).rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size > 1_000_000:
            content = path.read_bytes()
            path.chmod(0o644)
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def templates(place):
    """A project with the templates of CI."""
    place.must(f"bitnet ci-init --from git+https://{COMMIT}")


def edited_templates(place):
    """Templates of CI that the user has changed."""
    templates(place)
    for path in place.work.rglob("*.yml"):
        path.write_text(path.read_text() + "# mine\n")


def two_tokenizers(place):
    """A model, and two tokenizers, of which the first is the model's."""
    model(place)
    place.must(f"bitnet export-tokenizer {MODEL} --output one")
    text = (place.work / "one/tokenizer.json").read_text()
    (place.work / "two").mkdir()
    (place.work / "two/tokenizer.json").write_text(text.replace('"a"', '"\u00e4"'))


def no_tokenizer(place):
    """A model without a tokenizer."""
    tiny_gguf(place.work / "models/bare.gguf", tokenizer=False)


def no_vocabulary(place):
    """A GGUF file that names only its architecture."""
    write_gguf(place.work / "models/bare.gguf", {"general.architecture": "llama"})


def broken(place):
    """A model whose file is cut."""
    model(place)
    path = place.work / MODEL
    path.write_bytes(path.read_bytes()[:-100])


def attested(place):
    """A model and its attestation."""
    model(place)
    place.must(f"bitnet attest {MODEL} --output a.json")


def another_attested(place):
    """A model, and the attestation of another one."""
    attested(place)
    tiny_gguf(place.work / MODEL, **{"llama.rope.freq_base": 50.0})


def text_file(name, text):
    """Setup of a model, and a file *name* with *text*."""

    def write(place):
        model(place)
        (place.work / name).write_text(text)

    return write


def embedder(place):
    """A model of vectors, and texts."""
    (place.work / "texts.txt").write_text("a\nb\n")
    tiny_gguf(place.work / "models/embedder.gguf", **{"llama.pooling_type": 1})


def other_rules(place):
    """The exported tokenizer of a model, changed so that it also lowercases."""
    two_tokenizers(place)
    path = place.work / "one/tokenizer.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"normalizer": {"type": "Lowercase"}}))


def recurrent(place):
    """A model of an architecture that is refused."""
    tiny_gguf(place.work / "models/rwkv.gguf", **{"general.architecture": "rwkv7"})


def unusual(place):
    """A model with an unusual rope base, and its attestation."""
    tiny_gguf(place.work / MODEL, **{"llama.rope.freq_base": 50.0})
    place.must(f"bitnet attest {MODEL} --output a.json")


def without_workflows(place):
    """A project whose workflows and actions of CI are gone."""
    templates(place)
    shutil.rmtree(place.work / ".github/workflows")
    shutil.rmtree(place.work / ".github/actions")


def in_the_cache(place):
    """A tokenizer that was downloaded into the cache."""
    llama3(place)
    place.must("bitnet pre-download-tokenizers")


def reported(place):
    """A report of a comparison with a changed verdict."""
    place.must(f"bitnet crossval bitnet-tiny {FLOAT64} --report-dir .")
    path = next(path for path in place.work.glob("*.json") if path.name != "bitnet.lock.json")
    path.rename(place.work / "report.json")
    text = (place.work / "report.json").read_text()
    (place.work / "report.json").write_text(text.replace('"passed"', '"failed"'))


def recorded(place):
    """The trace of one model, and another model."""
    write_model(place.work / "untrained.gguf", tiny("llama", seed=1))
    model(place)
    place.must(f"bitnet crossval untrained.gguf {FLOAT64} --record trace.json")


def untrained(place):
    """A model of random weights."""
    write_model(place.work / MODEL, tiny("llama", seed=1))


def not_numbers(place):
    """A model with a weight that is not a number."""
    checkpoint = tiny("llama")
    weight = checkpoint.weights["blk.0.ffn_up.weight"]
    values = weight.data.copy()
    values.view("<f4")[0] = float("nan")
    weights = {**checkpoint.weights, weight.name: replace(weight, data=values)}
    write_model(place.work / MODEL, replace(checkpoint, weights=weights))


def other_bundle(place):
    """A statement with changed digests."""
    model(place)
    place.must(f"bitnet attest {MODEL} --bundle a.json")
    facts = json.loads((place.work / "a.json").read_text())
    facts["subject"][0]["digest"]["sha256"] = "0" * 64
    (place.work / "a.json").write_text(json.dumps(facts))


def bundled(place):
    """A bundle of a model, which the cache lacks."""
    downloaded(place)
    place.must("bitnet bundle export hf:org/tiny --output b.tar")
    shutil.rmtree(place.env["BITNET_CACHE_DIR"])
