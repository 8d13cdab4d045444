"""The recipe of ``bitnet-tiny`` on a tiny text: training, resuming, exports and refusals."""

import json
import lzma

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")
import torch
from tokenizers import Tokenizer

from bitnet import load as open_model
from bitnet.formats.containers import open_checkpoint
from bitnet.quants import registry
from training import card, export
from training.export import load, to_folder, to_gguf
from training.model import Shape, TinyBitNet, ternary
from training.text import BEGIN, END, prepare, read_texts, split, train_tokenizer
from training.train import Recipe, Trainer, batch_of, main

SHAPE = Shape(
    vocab_size=300,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=32,
)
RECIPE = Recipe(steps=6, batch=2, length=16, warmup=2, dropout=0.1, held_out=0.2)
TEXT = "\n\n".join(
    f"The {who} had {what}, and\nso it was a truth. 'It's {n}!'"
    for n, (who, what) in enumerate(
        (who, what) for who in ("man", "aunt", "sister") for what in ("a house", "ten", "wit")
    )
)


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "one.txt").write_text(TEXT, encoding="utf-8")
    return folder


def train(texts, out, *, stop=0, dtype=torch.bfloat16):
    """A trainer that has run to the end of RECIPE, or to step *stop*."""
    trainer = Trainer(texts, out, SHAPE, RECIPE)
    trainer.run(every=2, stop=stop, dtype=dtype)
    return trainer


def test_a_training_that_was_stopped_continues_with_the_same_bits(texts, tmp_path):
    whole = train(texts, tmp_path / "whole")
    train(texts, tmp_path / "parts", stop=3)
    resumed = train(texts, tmp_path / "parts")
    assert whole.step == resumed.step == RECIPE.steps
    start = Trainer(texts, tmp_path / "start", SHAPE, RECIPE).model.state_dict()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    assert not torch.equal(start["embedding"], whole.model.embedding)
    log = (tmp_path / "parts/log.jsonl").read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    # Every second step, and the one at which it was stopped.
    assert [line["step"] for line in lines] == [2, 3, 4, 6]


def test_training_lowers_the_loss_of_a_repeating_text_to_less_than_a_third(texts, tmp_path):
    (texts / "one.txt").write_text("\n\n".join(["I am, I was, I will be."] * 40))
    trainer = Trainer(
        texts, tmp_path / "out", SHAPE, Recipe(steps=60, batch=4, length=16, warmup=5)
    )
    first_loss = trainer.train_step(torch.float32)
    for _ in range(59):
        last_loss = trainer.train_step(torch.float32)
    assert last_loss < first_loss / 3


def test_the_learning_rate_rises_stays_and_falls_to_zero():
    recipe = Recipe(steps=100, warmup=10, decay=0.5)
    rates = [recipe.rate(step / 100, step) for step in range(101)]
    assert rates[:10] == pytest.approx([(n + 1) / 10 for n in range(10)])
    assert rates[10:51] == [1.0] * 41
    assert rates[75] == pytest.approx(0.5)
    assert rates[100] == 0


def test_the_learning_rate_is_constant_without_warmup_and_decay():
    recipe = Recipe(steps=10, warmup=0, decay=0.0)
    assert {recipe.rate(step / 10, step) for step in range(11)} == {1.0}


def test_minutes_of_earlier_runs_count_as_progress(texts, tmp_path):
    trainer = Trainer(texts, tmp_path / "out", SHAPE, Recipe(minutes=2.0, length=16))
    trainer.seconds = 90.0  # of 120
    trainer.save()
    assert Trainer(texts, tmp_path / "out", SHAPE, Recipe(minutes=2.0, length=16)).progress == 0.75
    assert Trainer(texts, tmp_path / "out", SHAPE, Recipe(steps=10, length=16)).progress == 0.0


def test_stretches_of_an_epoch_begin_at_paragraphs_and_are_repeatable():
    tokenizer = train_tokenizer([[TEXT]], 300)
    paragraphs = TEXT.split("\n\n")
    tokens = prepare([paragraphs], tokenizer, ends=False)  # without END behind texts
    recipe = Recipe(batch=1, length=16)
    count = len(tokens.ids) // 16
    rows = torch.cat([batch_of(tokens, 298, recipe, step) for step in range(count)])
    # A stretch of 16 tokens behind BEGIN, which has id 298.
    assert rows.shape == (count, 17)
    assert set(rows[:, 0].tolist()) == {298}
    starts = {tuple(tokens.ids[s : s + 16].tolist()) for s in tokens.starts}
    last = tuple(tokens.ids[-16:].tolist())  # the end has no whole stretch
    stretches = [tuple(row[1:].tolist()) for row in rows]
    assert set(stretches) <= starts | {last}
    assert len(set(stretches)) > count // 3
    again = torch.cat([batch_of(tokens, 298, recipe, step) for step in range(count)])
    assert torch.equal(rows, again)


def test_texts_are_joined_paragraphs_and_their_ends_are_held_out(texts):
    ((name, paragraphs),) = read_texts(texts).items()
    assert name == "one.txt"
    assert paragraphs[0] == "The man had a house, and so it was a truth. 'It's 0!'"
    seen, unseen = split(paragraphs, 0.25)
    assert seen + unseen == paragraphs
    # At most three quarters, and less by no more than the longest paragraph.
    assert sum(map(len, seen)) <= 0.75 * sum(map(len, paragraphs)) < sum(map(len, seen)) + 70
    with pytest.raises(ValueError, match="has no"):
        read_texts(texts.parent)


@pytest.mark.parametrize("held_out", [0.03, 0.25, 0.9])
@pytest.mark.parametrize(
    "paragraphs",
    [
        ["a" * 1000],
        ["x" * 10] * 5 + ["y" * 1000],
        ["y" * 1000] + ["x" * 10] * 5,
        ["word " * 200 + "end"],
        ["a " + "字" * 1000],
        ["one line"] * 200,
    ],
    ids=["one", "last", "first", "words", "no spaces", "lines"],
)
def test_at_least_the_share_and_not_much_more_is_held_out_of_any_text(paragraphs, held_out):
    seen, unseen = split(paragraphs, held_out)
    count = len(" ".join(paragraphs).replace(" ", ""))
    letters = "".join(seen + unseen).replace(" ", "")
    assert letters == "".join(paragraphs).replace(" ", "")
    assert 0.95 * held_out <= len("".join(unseen).replace(" ", "")) / count <= 2 * held_out + 0.01


def test_a_long_paragraph_is_cut_between_two_words():
    assert split(["one two three four"], 0.4) == (["one two"], ["three four"])
    assert split(["one", "two three four five"], 0.3) == (["one", "two three"], ["four five"])


def test_without_a_share_nothing_is_held_out(texts, tmp_path):
    trainer = Trainer(texts, tmp_path / "out", SHAPE, Recipe(steps=2, length=16, held_out=0.0))
    assert not len(trainer.unseen.ids)
    trainer.note([1.0])
    assert json.loads((tmp_path / "out/log.jsonl").read_text())["held_out"] is None
    with pytest.raises(ValueError, match="was held out"):
        card.card(texts, tmp_path / "out", tmp_path / "none.gguf")


def refusal_of(program, monkeypatch, capsys, *words):
    """Stderr of *program*, which refuses *words*."""
    monkeypatch.setattr("sys.argv", ["program", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        program()
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--batch", "0", "batch is 0; it must be 1 or more"),
        ("--length", "0", "length is 0"),
        ("--length", "512", "the model has 256 positions"),
        ("--steps", "-1", "steps is -1"),
        ("--minutes", "0", "minutes is 0.0; it must be above 0"),
        ("--minutes", "nan", "minutes is nan"),
        ("--warmup", "-1", "warmup is -1"),
        ("--decay", "1.5", "decay is 1.5; it must be 0 to 1"),
        ("--matrix-rate", "nan", "matrix_rate is nan"),
        ("--other-rate", "inf", "other_rate is inf"),
        ("--weight-decay", "-1", "weight_decay is -1.0"),
        ("--dropout", "1", "dropout is 1.0"),
        ("--held-out", "1", "held_out is 1.0"),
        ("--seed", "-1", "seed is -1"),
        ("--vocab-size", "70000", "vocab_size is 70000; it must be 258 to 65536"),
        ("--vocab-size", "100", "vocab_size is 100"),
        ("--num-hidden-layers", "0", "num_hidden_layers is 0"),
        ("--num-attention-heads", "3", "hidden_size is 256; it must be a multiple of 6"),
        ("--num-key-value-heads", "3", "num_key_value_heads is 3; it must divide the 4"),
        ("--every", "0", "every is 0; it must be 1 or more"),
        ("--stop", "-1", "stop is -1"),
        ("--threads", "-1", "threads is -1"),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_name(
    texts, tmp_path, monkeypatch, capsys, option, value, expected
):
    words = (texts, tmp_path / "out", option, value)
    assert expected in refusal_of(main, monkeypatch, capsys, *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("texts/two.txt.xz", lzma.compress(b"a" * 100)[:-8], "two.txt.xz is damaged"),
        ("texts/two.txt", b"\xff\xfe", "two.txt is not UTF-8"),
        ("texts/one.txt", b"", "no text to train on"),
        ("out/tokenizer.json", b"{", "tokenizer.json is not a tokenizer"),
        ("out/checkpoint.pt", b"PK", "checkpoint.pt is damaged"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_its_name(
    texts, tmp_path, monkeypatch, capsys, name, content, expected
):
    (tmp_path / "out").mkdir()
    (tmp_path / name).write_bytes(content)
    words = (texts, tmp_path / "out", "--hidden-size", 16, "--intermediate-size", 16)
    assert expected in refusal_of(main, monkeypatch, capsys, *words)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(texts, tmp_path):
    (tmp_path / "out").mkdir()
    train_tokenizer([[TEXT]], 301).save(str(tmp_path / "out/tokenizer.json"))
    with pytest.raises(ValueError, match=r"has 301 tokens, more than vocab_size \(300\)"):
        Trainer(texts, tmp_path / "out", SHAPE, RECIPE)


@pytest.mark.parametrize("program", [export.main, card.main], ids=["export", "card"])
@pytest.mark.parametrize("damaged", ["", "checkpoint.pt", "tokenizer.json"])
def test_a_missing_or_damaged_training_is_refused(
    texts, tmp_path, monkeypatch, capsys, program, damaged
):
    out = tmp_path / "out"
    expected = "has no checkpoint.pt"
    if damaged:
        Trainer(texts, out, SHAPE, RECIPE).save()
        (out / damaged).write_bytes(b"PK")
        expected = f"{damaged} is "
    words = (out, tmp_path / "new") if program is export.main else (texts, out, tmp_path / "new")
    assert expected in refusal_of(program, monkeypatch, capsys, *words)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["model", "model.gguf"])
def test_an_export_does_not_replace_existing_files(tmp_path, monkeypatch, capsys, name):
    (tmp_path / name).write_bytes(b"another")
    words = (tmp_path / "out", tmp_path / "model")
    assert f"{name} exists" in refusal_of(export.main, monkeypatch, capsys, *words)
    assert (tmp_path / name).read_bytes() == b"another"


@pytest.mark.parametrize("what", ["no texts", "another shape"])
def test_a_folder_without_texts_or_of_another_shape_is_refused(
    texts, tmp_path, monkeypatch, capsys, what
):
    out = tmp_path / "out"
    Trainer(texts, out, SHAPE, RECIPE).save()
    folder, expected = (texts, "another shape") if what == "another shape" else (out, "has no .txt")
    assert expected in refusal_of(main, monkeypatch, capsys, folder, out)


def test_the_tokenizer_is_reversible_and_begins_with_its_token():
    tokenizer = train_tokenizer([[TEXT]], 300)
    assert tokenizer.get_vocab_size() == 300
    ids = tokenizer.encode("The aunt – naïve, 1811!\n\nIt's").ids
    assert ids[0] == tokenizer.token_to_id(BEGIN) == 298
    assert tokenizer.token_to_id(END) == 299
    assert tokenizer.decode(ids) == "The aunt – naïve, 1811!\n\nIt's"


def test_gradients_pass_the_rounding_straight_through():
    torch.manual_seed(3)
    model = TinyBitNet(SHAPE)
    layer = model.blocks[0].gate_up
    x = torch.randn(5, 128, requires_grad=True)
    gate, up = layer(x, torch.float32)
    (gate.sum() + 2 * up.sum()).backward()
    rounded_weights = [codes * scale for codes, scale in map(ternary, layer.weights)]
    expected = rounded_weights[0].sum(0) + 2 * rounded_weights[1].sum(0)
    # Straight-through: the gradient of the input is that of the product with rounded weights.
    torch.testing.assert_close(x.grad, expected.expand(5, -1).detach())
    step = x.detach().abs().amax(-1, keepdim=True) / 127
    rounded = (x.detach() / step).round() * step
    torch.testing.assert_close(layer.weights[1].grad, 2 * rounded.sum(0).expand(256, -1))
    torch.testing.assert_close(gate, (rounded @ rounded_weights[0].T).detach())


@pytest.mark.slow
def test_transformers_agrees_with_the_exported_folder(texts, tmp_path, bitnet):
    for package in ("transformers", "accelerate"):
        pytest.importorskip(package, reason="pip install 'bitnet-xtask[parity]'")
    train(texts, tmp_path / "out")
    folder = tmp_path / "bitnet-test"
    to_folder(load(tmp_path / "out"), tmp_path / "out/tokenizer.json", folder)
    more = ("--reference", "transformers", "--greedy", 3, "--max-positions", 20, "--json")
    done = bitnet("crossval", "--model", folder, *more)
    assert done.code == 0, done.err
    assert json.loads(done.out)["summary"]["exact_to_reference"] < 3e-5


def test_folder_and_gguf_have_the_logits_and_codes_of_the_trained_model(texts, tmp_path):
    train(texts, tmp_path / "out", dtype=torch.float32)
    model = load(tmp_path / "out")
    folder = tmp_path / "bitnet-test"
    gguf = tmp_path / "bitnet-test.gguf"
    to_folder(model, tmp_path / "out/tokenizer.json", folder)
    to_gguf(folder, gguf)

    text = "The aunt had wit, and 10"
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    with torch.no_grad():
        expected = model(torch.tensor([ids]))[0].numpy()
    with open_model(folder) as of_folder, open_model(gguf) as of_gguf:
        assert of_folder.tokenizer.encode(text) == of_gguf.tokenizer.encode(text) == ids
        from_folder = of_folder.logits(ids)
        from_gguf = of_gguf.logits(ids)
    np.testing.assert_array_equal(from_folder, from_gguf)
    # Norms, embedding and scales are rounded to float16, which moves a few roundings to int8.
    assert np.abs(from_gguf - expected).max() < 0.03 * np.ptp(expected)

    checkpoint = open_checkpoint(gguf)
    assert checkpoint.architecture == "bitnet-b1.58"
    assert checkpoint.metadata["general.license"] == "CC0-1.0"
    weight = checkpoint.weights["blk.1.ffn_up.weight"]
    assert weight.quant.name == "I2_S"
    codes, _ = ternary(model.blocks[1].gate_up.weights[1].detach())
    np.testing.assert_array_equal(registry.unpack_ternary(weight).codes, codes.numpy())
