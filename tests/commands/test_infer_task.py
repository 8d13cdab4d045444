"""infer, as a user types it, with a tiny random model.

Exit codes: 2 wrong usage, 13 damaged or malformed data, 15 a check failed, 16 the model could not
be run, 19 not found, 20 unsupported, 23 offline, 130 interrupted.
"""

import io
import json
import re
import sys

import pytest
import tiny_models
from hf_folders import tiny_folder, tokenizer_folder
from tiny_keys import VOCAB
from tiny_models import TOKENS, tiny_gguf

from bitnet.commands.context import write
from bitnet.formats.gguf import GGUF
from bitnet.tokenizer.spec import byte_spelling

TEMPLATE = "{% for m in messages %}{{ m.role }}.{{ m.content }}.{% endfor %}assistant."


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model file; commands run in an empty folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tiny_gguf(tmp_path / "tiny.gguf", **{"tokenizer.chat_template": TEMPLATE})


@pytest.fixture
def stdin(monkeypatch):
    """A function that replaces standard input by these bytes."""

    def pipe(raw):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))

    return pipe


def test_text_goes_to_stdout_and_one_line_of_metrics_to_stderr(bitnet, model):
    done = bitnet("infer", "--model", model, "--prompt", "ab", "--max-tokens", 9)
    assert done.code == 0
    assert len(done.out.rstrip("\n")) > 3
    assert done.out.endswith("\n")
    (line,) = done.err.splitlines()
    assert "prompt 3 tokens" in line
    assert "| 9 tokens" in line
    assert "tok/s" in line


def test_json_has_the_same_text_and_its_ids(bitnet, model):
    words = ("--model", model, "--prompt", "ab", "--n-predict", 9)
    plain = bitnet("infer", *words)
    facts = json.loads(bitnet("infer", *words, "--json", "--dump-ids").out)
    assert facts["text"] + "\n" == plain.out
    assert facts["finish_reason"] == "length"
    assert facts["prompt_ids"] == [0, TOKENS.index("a"), TOKENS.index("b")]
    assert len(facts["ids"]) == facts["tokens"] == 9
    assert bitnet("infer", *words, "--max-new-tokens=3").code == 2  # the same option twice


def test_the_model_of_the_environment_is_the_default(bitnet, model, monkeypatch):
    monkeypatch.setenv("BITNET_GGUF", str(model))
    assert bitnet("infer", "--prompt", "ab", "--max-tokens", 1).code == 0


@pytest.mark.parametrize("raw", [b"ab", b"ab\n", b"\xef\xbb\xbfab\r\n"])
def test_a_prompt_comes_from_stdin_or_a_file(bitnet, model, stdin, tmp_path, raw):
    expected = bitnet("infer", "--model", model, "--prompt", "ab", "--max-tokens", 5).out
    stdin(raw)
    piped = bitnet("infer", "--model", model, "--prompt-file", "-", "--max-tokens", 5)
    assert piped.out == expected
    file = tmp_path / "prompt.txt"
    file.write_bytes(raw)
    read = bitnet("infer", "--model", model, "--prompt-file", file, "--max-tokens", 5)
    assert read.out == expected


def test_a_byte_that_is_not_utf8_is_counted_from_the_start_of_the_file(bitnet, model, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"\xef\xbb\xbfabc\xff")
    done = bitnet("infer", "--model", model, "--prompt-file", file)
    assert done.code == 2
    assert "byte 0xff at position 6" in done.err


def test_standard_input_is_the_prompt_or_precedes_the_one_that_is_given(bitnet, model, stdin):
    words = ("infer", "--model", model, "-n", 5)
    expected = bitnet(*words, "--prompt", "ab").out
    stdin(b"ab\n")
    assert bitnet(*words).out == expected
    for more in ((), ("--prompt", "ab")):  # it is read in both cases
        stdin(b"c\xff")
        refused = bitnet(*words, *more)
        assert (refused.code, "stdin is not UTF-8" in refused.err) == (2, True)
    stdin(b"a\n")
    joined = bitnet("infer", "--model", model, "--prompt", "b", "--json", "--dump-ids")
    stdin(b"")
    alone = bitnet("infer", "--model", model, "--prompt", "a\nb", "--json", "--dump-ids")
    ids = [json.loads(done.out)["prompt_ids"] for done in (joined, alone)]
    assert ids[0] == ids[1]
    assert "needs --prompt or --prompt-file" in bitnet(*words).err


def test_infer_on_a_terminal_does_not_wait_for_a_prompt(bitnet, model, monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(b"ab"))
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert bitnet("infer", "--model", model).code == 2


def test_synonyms_of_other_tools_mean_the_same(bitnet, model):
    words = ("infer", "--model", model, "--prompt", "ab", "--seed", 3)
    long = bitnet(*words, "--max-tokens", 7, "--temperature", 2).out
    assert bitnet(*words, "-n", 7, "--temp", 2).out == long


def test_draws_differ_from_run_to_run_unless_a_seed_or_determinism_is_asked_for(
    bitnet, model, monkeypatch
):
    words = ("infer", "--model", model, "--prompt", "ab", "--temperature", 3, "--json")
    first, second = (json.loads(bitnet(*words).out) for _ in range(2))
    assert first["text"] != second["text"]
    repeated = json.loads(bitnet(*words, "--seed", first["seed"]).out)
    assert repeated["text"] == first["text"]
    # Without --temperature the answer is greedy.
    assert "seed" not in json.loads(bitnet(*words[:-3], "--json").out)  # nothing was drawn
    monkeypatch.setenv("BITNET_DETERMINISTIC", "1")
    fixed = [json.loads(bitnet(*words).out) for _ in range(2)]
    assert fixed[0]["text"] == fixed[1]["text"]
    assert fixed[0]["seed"] == 42


def test_a_seed_repeats_an_answer_and_another_one_does_not(bitnet, model):
    def run(seed):
        words = ("--temperature", 2, "--top-p", 0.99, "--repeat-penalty", 1.1, "--seed", seed)
        return bitnet("infer", "--model", model, "--prompt", "ab", *words).out

    assert run(1) == run(1) != run(2)


def test_stop_strings_end_the_answer(bitnet, model):
    words = ("infer", "--model", model, "--prompt", "ab", "--temperature", 3, "--seed", 42)
    whole = bitnet(*words).out
    stop = whole[5:8]
    stopped = json.loads(bitnet(*words, "--stop", "\x01", "--stop", stop, "--json").out)
    assert stopped["text"] == whole[: whole.index(stop)]
    assert stopped["finish_reason"] == "stop"


def test_a_message_goes_through_the_template(bitnet, model):
    words = ("--model", model, "--max-tokens", 1, "--dump-ids", "--json")
    chat = bitnet("infer", *words, "--chat", "--system", "b", "--prompt", "a")
    plain = bitnet("infer", *words, "--prompt", "system.b.user.a.assistant.")
    # The template writes what the model wants; BOS is not added on top.
    assert json.loads(chat.out)["prompt_ids"] == json.loads(plain.out)["prompt_ids"][1:]


def test_old_flags_are_accepted_with_a_note(bitnet, model):
    words = ("--no-default-features", "--features", "cpu,gpu", "--stats", "--max-tokens", 2)
    done = bitnet("infer", "--model", model, "--prompt", "a", *words)
    assert done.code == 0
    assert done.err.count("Note: ") == 1
    assert "asked for: cpu,gpu" in done.err
    # One pass over the prompt and one for the second token, through two blocks.
    assert "GPU operations: 0, CPU operations: 4, GPU efficiency: 0.0%" in done.err


def test_no_model_and_no_network_is_one_error(bitnet, model, monkeypatch):
    monkeypatch.setenv("BITNET_OFFLINE", "1")
    done = bitnet("infer", "--prompt", "a")
    assert done.code == 23
    assert "download-model smollm2-135m" in done.err


def test_a_model_without_tokenizer_needs_consent_to_fetch_one(bitnet, tmp_path, monkeypatch):
    bare = tiny_gguf(tmp_path / "bare.gguf", tokenizer=False)
    refused = bitnet("infer", "--model", bare, "--prompt", "a")
    assert refused.code == 19
    assert f"for llama model with vocab_size {VOCAB} (strict mode)" in refused.err
    unknown = bitnet("infer", "--model", bare, "--prompt", "a", "--auto-download")
    assert unknown.code == 19
    mock = bitnet("infer", "--model", bare, "--prompt", "!", "--allow-mock", "--max-tokens", 2)
    assert mock.code == 0
    assert "MOCK" in mock.err
    monkeypatch.setenv("BITNET_STRICT_TOKENIZERS", "1")
    assert bitnet("infer", "--model", bare, "--prompt", "!", "--allow-mock").code == 19


def test_auto_download_fetches_the_tokenizer_that_discovery_proposes(
    bitnet, hub, tmp_path, monkeypatch
):
    monkeypatch.setattr(tiny_models, "VOCAB", 32_000)
    bare = tiny_gguf(tmp_path / "bare.gguf", tokenizer=False)
    vocab = {f"t{number}": number for number in range(31_998)} | {"a": 31_998, "b": 31_999}
    content = {"version": "1.0", "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    hub.add("meta-llama/Llama-2-7b-hf", "tokenizer.json", json.dumps(content).encode())
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", "hf_any")
    words = ("infer", "--model", bare, "--prompt", "ab", "--max-tokens", 2, "--json", "--dump-ids")
    refused = bitnet(*words)
    assert refused.code == 19
    assert "add --auto-download" in refused.err
    done = bitnet(*words, "--auto-download", "-v")
    assert done.code == 0
    assert json.loads(done.out)["prompt_ids"] == [31_998, 31_999]
    assert "Can download compatible tokenizer from: meta-llama/Llama-2-7b-hf" in done.err
    assert "Successfully downloaded tokenizer" in done.err
    hub.forget()
    assert bitnet(*words).code == 0  # in the cache now: no consent, no connection
    assert hub.requests() == []


def test_an_address_given_as_tokenizer_is_fetched_once(bitnet, hub, tmp_path, monkeypatch):
    bare = tiny_gguf(tmp_path / "bare.gguf", tokenizer=False)
    vocab = {f"t{number}": number for number in range(VOCAB - 2)} | {"a": VOCAB - 2, "b": VOCAB - 1}
    content = {"version": "1.0", "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    hub.add("org/words", "tokenizer.json", json.dumps(content).encode())
    vocab["one too many"] = VOCAB
    hub.add("org/other", "tokenizer.json", json.dumps(content).encode())
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    url = f"{hub.url}/org/words/resolve/main/tokenizer.json"
    words = ("infer", "--model", bare, "--prompt", "ab", "--max-tokens", 2, "--json", "--dump-ids")
    for source in (url, "hf://org/words", "org/words"):
        # Offline, a source works if it was fetched before. Fetching the file at url does not show
        # which file of org/words is its tokenizer; hf://org/words is another name of org/words.
        before = bitnet(*words, "--tokenizer", source, "--offline")
        assert before.code == (0 if source == "org/words" else 23)
        done = bitnet(*words, "--tokenizer", source)
        assert json.loads(done.out)["prompt_ids"] == [VOCAB - 2, VOCAB - 1]
        hub.forget()
        assert bitnet(*words, "--tokenizer", source, "--offline").code == 0
        assert hub.requests() == []
    wrong = bitnet(*words, "--tokenizer", "org/other")
    assert wrong.code == 15
    assert "Model: 64, Tokenizer: 65" in wrong.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "needs --prompt or --prompt-file"),
        (("--prompt", ""), 2, "the prompt is empty"),
        (("--prompt", "a", "--prompt-file", "-"), 2, "both given"),
        (("--prompt-file", "none.txt"), 19, "none.txt"),
        (("--prompt", "\udcff"), 2, "--prompt is not UTF-8"),
        (("--prompt", "a" * 64), 16, "65 tokens, the context holds 64"),
        (("--prompt", "abc", "--context", "2"), 16, "4 tokens, the context holds 2"),
        (("--prompt", "a", "--context", "65"), 2, "made for 64"),
        (("--prompt", "a", "--context", "0"), 2, "--context is 0"),
        (("--prompt", "a", "--threads=-1"), 2, "--threads is -1"),
        (("--prompt", "a", "--max-tokens", "0"), 2, "--max-tokens is 0"),
        (("--prompt", "a", "--temperature=-1"), 2, "--temperature is -1"),
        (("--prompt", "a", "--temperature", "warm"), 2, "--temperature expects a number"),
        (("--prompt", "a", "--temperature", "nan"), 2, "--temperature expects a number"),
        (("--prompt", "a", "--top-k", "many"), 2, "--top-k expects a whole number"),
        (("--prompt", "a", "--top-p", "1.01"), 2, "--top-p is 1.01, expected 0 to 1"),
        (("--prompt", "a", "--min-p=-1"), 2, "--min-p is -1.0"),
        (("--prompt", "a", "--repeat-penalty", "0"), 2, "--repetition-penalty is 0.0"),
        (("--prompt", "a", "--seed=-1"), 2, "--seed is -1"),
        (("--prompt", "a", "--sampler", "greedy"), 2, "no option --sampler"),
        (("--prompt", "a\0b"), 2, "NUL character at position 1"),
        (("--prompt", "a", "--system", "b"), 2, "--system needs a chat"),
        (("--prompt", "a", "--tokenizer", "none.json"), 19, "none.json"),
        (("--prompt", "a", "--tokenizer", "https://"), 2, "'https://' is not an address"),
        (("--prompt", "a", "--tokenizer", "org/none", "--offline"), 23, "offline"),
    ],
)
def test_what_cannot_be_done_is_one_error_with_its_exit_code(bitnet, model, words, code, said):
    done = bitnet("infer", "--model", model, *words)
    assert done.code == code
    assert said in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "the prompt is empty"),
        (b"\n", "the prompt is empty"),
        (b"a\0b", "NUL character at position 1"),
        (b"caf\xe9", "stdin is not UTF-8: byte 0xe9 at position 3"),
    ],
)
def test_stdin_that_is_not_text_is_refused(bitnet, model, stdin, raw, said):
    stdin(raw)
    done = bitnet("infer", "--model", model, "--prompt-file", "-")
    assert done.code == 2
    assert said in done.err


def test_another_kind_of_file_is_not_a_model(bitnet, model):
    model.write_bytes(b"not a model")
    done = bitnet("infer", "--model", model, "--prompt", "a")
    assert done.code == 13
    assert "neither a GGUF file nor safetensors" in done.err


def test_a_gguf_file_that_is_cut_anywhere_is_refused(bitnet, model):
    whole = model.read_bytes()
    with GGUF.open(model) as file:
        start = file.data_offset
        vocabulary = whole.index(b"tokenizer.ggml.tokens")
    # Within the metadata and its vocabulary, around the start of the tensors, and within them.
    cuts = [*range(5, start, 97), vocabulary, start - 1, start, *range(start, len(whole), 150_001)]
    for cut in [*cuts, len(whole) - 999, len(whole) - 1]:
        model.write_bytes(whole[:cut])
        done = bitnet("infer", "--model", model, "--prompt", "a")
        assert (cut, done.code) == (cut, 13)  # a failure shows where the file was cut
        assert "Traceback" not in done.err
        assert done.out == ""


def test_a_folder_cut_anywhere_is_refused(bitnet, tmp_path):
    folder = tokenizer_folder(tiny_folder(tmp_path / "model", "llama"), TOKENS)
    words = ("infer", "--model", folder, "--prompt", "a", "--max-tokens", 1)
    assert bitnet(*words).code == 0
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for cut in (1, 7, 8, 9, 500, 3000, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        done = bitnet(*words)
        # Damaged, or with a header that is not understood; a failure shows where the file was cut.
        assert (cut, done.code) in ((cut, 13), (cut, 20))
        assert "Traceback" not in done.err


def test_ctrl_c_keeps_the_text_so_far(bitnet, model, monkeypatch):
    words = ("infer", "--model", model, "--prompt", "abcabcabc")  # its greedy answer is long
    whole = bitnet(*words).out
    written = []

    def interrupt(piece):
        written.append(piece)
        escaped = write(piece)
        if len(written) == 3:
            raise KeyboardInterrupt
        return escaped

    monkeypatch.setattr("bitnet.commands.generate.write", interrupt)
    done = bitnet(*words)
    assert done.code == 130
    assert "interrupted" in done.err
    assert done.out == "".join(written[:3]) + "\n"
    assert whole.startswith("".join(written[:3]))
    assert len(done.out) < len(whole)


def test_drafts_change_the_metrics_and_not_the_text(bitnet, model):
    words = ("infer", "--model", model, "--prompt", "abcabcabc", "--max-tokens", 40)
    plain = bitnet(*words, "--lookup", 0)
    quick = bitnet(*words)
    assert quick.out == plain.out
    assert "drafted" not in plain.err
    assert re.search(r"\| 40 tokens \(\d+ of \d+ drafted\), ", quick.err)
    facts = json.loads(bitnet(*words, "--json").out)
    assert facts["passes"] == 40 - facts["accepted"]
    assert facts["acceptance"] == facts["accepted"] / facts["drafted"]


def test_a_draft_model_changes_the_metrics_and_not_the_text(bitnet, model):
    words = ("infer", "--model", model, "--prompt", "abcabcabc", "--max-tokens", 40)
    plain = bitnet(*words)
    quick = bitnet(*words, "--draft-model", model, "--stats")
    assert quick.out == plain.out
    assert re.search(r"drafts: \d+ of \d+ tokens accepted \(\d+%\)", quick.err)
    facts = json.loads(bitnet(*words, "--draft-model", model, "--json").out)
    assert facts["drafted"] > 0
    assert facts["passes"] == 40 - facts["accepted"]
    assert facts["draft_gain"] is None or facts["draft_gain"] > 0


def test_a_draft_model_of_another_vocabulary_is_refused(bitnet, model):
    refused = bitnet("infer", "--model", model, "--prompt", "a", "--draft-model", "bitnet-tiny")
    assert (refused.code, refused.out) == (15, "")
    assert "the draft model has another vocabulary" in refused.err


def test_log_probabilities_come_with_json(bitnet, model):
    words = ("infer", "--model", model, "--prompt", "ab", "--max-tokens", 4, "--logprobs", 2)
    facts = json.loads(bitnet(*words, "--json", "--dump-ids").out)
    assert [entry["id"] for entry in facts["logprobs"]] == facts["ids"]
    for entry in facts["logprobs"]:
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["text"]
        first, second = entry["top_logprobs"]
        assert first == {key: entry[key] for key in ("id", "text", "bytes", "logprob")}
        assert first["logprob"] > second["logprob"]
    refused = bitnet(*words)
    assert (refused.code, refused.out) == (2, "")
    assert "--logprobs needs --json" in refused.err


def test_a_regex_and_a_schema_shape_the_answer(bitnet, model, tmp_path):
    pytest.importorskip("llguidance")
    words = ("infer", "--model", model, "--prompt", "ab", "--temperature", 3)
    assert re.fullmatch("[xyz]{5}\n", bitnet(*words, "--regex", "[xyz]{5}").out)
    # The tiny vocabulary has letters, and of JSON no more than a few words.
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": [true, null]}')
    forms = [schema, schema.read_text()]  # as a file, and as JSON
    assert {bitnet(*words, "--json-schema", one).out for one in forms} <= {"true\n", "null\n"}
    assert bitnet(*words, "--json-schema", "{").code == 2
    assert bitnet(*words, "--json-schema", tmp_path / "none").code == 19
    assert bitnet(*words, "--json-schema", "true", "--regex", "a").code == 2


def test_a_bias_forbids_or_forces_a_token(bitnet, model):
    words = ("infer", "--model", model, "--prompt", "ab", "--max-tokens", 3)
    q = TOKENS.index("q")
    z = TOKENS.index("z")
    assert bitnet(*words, "--logit-bias", f"{q}=90", "--logit-bias", f"{z}=50").out == "qqq\n"
    banned = [
        word for token in range(VOCAB) if token != z for word in ("--logit-bias", f"{token}=-inf")
    ]
    assert bitnet(*words, *banned).out == "zzz\n"


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--logit-bias", "a=1", "--logit-bias is 'a=1', expected a token id and a number"),
        ("--logit-bias", "5", "--logit-bias is '5', expected a token id and a number"),
        ("--logit-bias", "5=nan", "--logit-bias is '5=nan', expected a token id and a number"),
        ("--logit-bias", f"{VOCAB}=1", f"logit bias for token id {VOCAB}, the vocabulary has 64"),
        ("--lookup", "16", "--lookup is 16, expected 0 to 15"),
        ("--logprobs", "101", "--logprobs is 101, expected 0 to 100"),
        ("--regex", "(", "the --regex cannot be used: "),
    ],
)
def test_an_option_with_a_wrong_value_is_named_in_the_error(bitnet, model, option, value, text):
    if option == "--regex":
        pytest.importorskip("llguidance")
    done = bitnet("infer", "--model", model, "--prompt", "ab", option, value)
    assert (done.code, done.out) == (2, "")
    assert text in done.err


def test_json_is_complete_on_a_stdout_that_shows_only_ascii(bitnet, model, monkeypatch):
    half_of_a_character = TOKENS.index(byte_spelling(b"\xc3"))
    words = (
        "infer",
        "--model",
        model,
        "--prompt",
        "ab",
        "--json",
        f"--logit-bias={half_of_a_character}=90",
    )
    text = json.loads(bitnet(*words).out)["text"]
    assert not text.isascii()
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    bitnet(*words)
    assert json.loads(narrow.buffer.getvalue())["text"] == text


def test_an_argument_is_utf8_in_every_locale(bitnet, model):
    words = ("infer", "--model", model, "--max-tokens", 1, "--dump-ids", "--json", "--prompt")
    # As Python hands over what its locale cannot decode.
    escaped = "日".encode().decode("ascii", "surrogateescape")
    assert json.loads(bitnet(*words, escaped).out)["prompt_ids"][1:] == [
        TOKENS.index(byte_spelling(bytes([byte]))) for byte in "日".encode()
    ]
    done = bitnet(*words, "a\udcff")
    assert done.code == 2
    assert "--prompt is not UTF-8" in done.err


@pytest.mark.parametrize("value", ["-v", "--json", "--prompt", "--prompt=a", "-", "--", "-vab"])
def test_a_value_behind_an_equals_sign_is_never_an_option(bitnet, tmp_path, value):
    file = tmp_path / "text"
    file.write_text(value)
    expected = bitnet("tokenize", "bitnet-tiny", "--file", file)
    done = bitnet("tokenize", "bitnet-tiny", f"--text={value}")
    assert (done.code, done.out) == (0, expected.out), done.err
