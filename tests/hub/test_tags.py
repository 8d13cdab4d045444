"""Tags, the quantization after the colon: one model, or an error that lists the models."""

import itertools
import json

import pytest
from tiny_models import tiny_gguf

from bitnet.base.errors import NotFound, UsageError
from bitnet.hub.ref import Ref
from bitnet.hub.repo_models import choose, models_in
from bitnet.hub.tags import DEFAULTS, has_tag, is_tag, quantization_of
from bitnet.sources import Source


@pytest.mark.parametrize(
    ("file", "quantization"),
    [
        ("m-Q4_K_M.gguf", "Q4_K_M"),
        ("m.q8_0.gguf", "Q8_0"),
        ("tiny_Q4_0.gguf", "Q4_0"),
        ("Q4_K_M/m-00001-of-00002.gguf", "Q4_K_M"),
        ("Q4_K_M/m-Q8_0-00001-of-00002.gguf", "Q8_0"),
        ("m-F16-Q5_K_S.gguf", "Q5_K_S"),
        ("m-UD-IQ2_XXS.gguf", "IQ2_XXS"),
        ("m-27B.gguf", ""),
    ],
)
def test_the_quantization_is_read_from_the_name(file, quantization):
    assert quantization_of(file) == quantization


@pytest.mark.parametrize("text", ["m.gguf", "*Q4*", "sub/m", "", "m?", "[ab]"])
def test_files_and_patterns_are_not_tags(text):
    assert not is_tag(text)


TAGS = ("Q4_K_M", "Q4_K_S", "Q4_K", "Q4_0", "Q4_1", "IQ4_XS", "IQ4_NL", "Q8_0", "BF16", "F16",
        "I2_S", "TQ1_0", "PQ2_0", "MXFP4", "UD-Q4_K_XL", "UD-Q8_0")  # fmt: skip
# Forms of file names, in which the quantization may be the name of the folder.
SHAPES = ("m-{}.gguf", "m.{}.gguf", "{}/m-00001-of-00002.gguf", "sub/m-{}-00002-of-00002.gguf")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_tag_means_the_files_of_its_quantization_and_of_no_other(shape):
    for tag, other in itertools.product(TAGS, repeat=2):
        file = shape.format(other)
        # A tag without UD- (Unsloth's dynamic quantization) also means files with it.
        expected = tag in (other, other.removeprefix("UD-"))
        assert has_tag(file, tag) == has_tag(file, tag.lower()) == expected, (file, tag)


def model_files(*names):
    """Files of a repository with *names*, each a byte larger than the one before."""
    return [Source("", "", name, size=1_000_000 + number) for number, name in enumerate(names)]


def chosen(tag, *names, pattern=""):
    """The model of a repository with the files *names* that *tag* or *pattern* means."""
    return choose(Ref("", repo="o/r", file=pattern, tag=tag), models_in(model_files(*names), ""))


def test_a_hint_names_the_model_with_its_revision():
    for tag, problem in (("Q5_0", NotFound), ("Q4_0", UsageError), ("", UsageError)):
        with pytest.raises(problem) as caught:
            choose(
                Ref("", repo="o/r", revision="v1", tag=tag),
                models_in(model_files("a-Q4_0.gguf", "b-Q4_0.gguf"), ""),
                named=True,
            )
        assert caught.value.hint.startswith("name one: hf:o/r@v1:")


@pytest.mark.parametrize("tag", ["Q5_K_M", "Q4_K", "Q4", "M", "instruct", "typo"])
def test_a_tag_that_no_file_has_lists_the_models_and_takes_none(tag):
    with pytest.raises(NotFound) as caught:
        chosen(tag, "m-instruct-Q4_K_M.gguf", "m-instruct-Q8_0.gguf")
    assert "m-instruct-Q4_K_M.gguf" in caught.value.message
    assert "m-instruct-Q8_0.gguf" in caught.value.message
    assert caught.value.hint == "name one: hf:o/r:Q8_0"


def test_the_only_model_of_a_repository_is_not_chosen_for_another_tag():
    with pytest.raises(NotFound, match="has the tag 'Q8_0'"):
        chosen("Q8_0", "m-Q4_K_M.gguf")


def test_a_tag_of_several_models_is_refused_with_a_list_of_those_models():
    with pytest.raises(UsageError, match="2 models of o/r have the tag 'Q4_0'") as caught:
        chosen("Q4_0", "a-Q4_0.gguf", "b-Q4_0.gguf", "a-Q8_0.gguf")
    assert "a-Q8_0" not in caught.value.message
    assert caught.value.hint == "name one: hf:o/r:b-Q4_0.gguf"


def test_a_projector_of_images_is_not_a_model_of_the_tag():
    assert chosen("F16", "mmproj-m-F16.gguf", "m-F16.gguf").name == "m-F16.gguf"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_without_a_tag_the_documented_order_decides(count):
    # The last DEFAULTS may be missing without effect; without the first ones, the next is chosen.
    every = ["m-BF16.gguf", *(f"m-{quantization}.gguf" for quantization in DEFAULTS)]
    names = every[: len(every) - count + 1]
    assert chosen("", *names).encoding == DEFAULTS[0]
    assert chosen("", "m-BF16.gguf", *every[count:]).encoding == DEFAULTS[count - 1]


def test_without_a_tag_the_only_model_is_taken_whatever_its_quantization():
    assert chosen("", "m-IQ1_M.gguf").name == "m-IQ1_M.gguf"


@pytest.mark.parametrize(
    "names", [("m-BF16.gguf", "m-Q5_K_M.gguf"), ("a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "a-Q8_0.gguf")]
)
def test_without_a_tag_several_models_of_no_default_quantization_or_of_the_same_are_refused(names):
    with pytest.raises(UsageError, match="none was fetched"):
        chosen("", *names)


def test_a_pattern_of_several_models_is_not_decided_by_the_order():
    with pytest.raises(UsageError, match="none was fetched"):
        chosen("", "m-Q4_K_M.gguf", "m-Q8_0.gguf", pattern="*Q*")


# --- commands ------------------------------------------------------------------------------------

REPO = "org/one"
RUN = ("a", "--max-tokens", "1")


@pytest.fixture
def contents(hub, tmp_path, monkeypatch):
    """Bytes of three models that the hub has in REPO, by the quantization in their names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    model_bytes = tiny_gguf(tmp_path / "made.gguf").read_bytes()
    (tmp_path / "made.gguf").unlink()
    by_tag = {
        tag: model_bytes + bytes(32 * number)
        for number, tag in enumerate(("Q8_0", "Q4_K_M", "F16"))
    }
    for tag, content in by_tag.items():
        hub.add(REPO, f"m-{tag}.gguf", content)
    return by_tag


def names_here(bitnet):
    """Names of the models from the hub that are here."""
    return [
        row["name"] for row in json.loads(bitnet("models", "--json").out) if "hf:" in row["name"]
    ]


@pytest.mark.parametrize("name", ["hf:org/one:q8_0", "hf.co/org/one:Q8_0", "org/one:Q8_0"])
def test_every_command_accepts_a_tag_and_fetches_nothing_that_is_here(
    name, contents, bitnet, hub, tmp_path
):
    done = bitnet("run", name, *RUN)
    assert done.code == 0, done.err
    assert names_here(bitnet) == ["hf:org/one:m-Q8_0.gguf"]
    hub.forget()
    for words in (
        ("infer", name, "--prompt", *RUN),
        ("tokenize", name, "a"),
        ("inspect-gguf", name),
        ("plan", name),
        ("bundle", "export", name, "--output", tmp_path / "one.tar"),
    ):
        done = bitnet(*words)
        assert done.code == 0, (words, done.err)
    assert hub.requests() == []
    # Exit codes, here and below: 23 offline, 19 not found, 2 a wrong command line.
    assert bitnet("infer", "org/one:F16", "--prompt", *RUN, "--offline").code == 23
    assert bitnet("rm", "org/one:F16").code == 19
    assert bitnet("rm", name).code == 0
    assert names_here(bitnet) == []


def test_a_model_is_removed_by_its_tag_alone(contents, bitnet):
    for tag in ("Q8_0", "F16"):
        assert bitnet("run", f"{REPO}:{tag}", *RUN).code == 0
    assert bitnet("rm", f"{REPO}:Q8_0").code == 0
    assert names_here(bitnet) == ["hf:org/one:m-F16.gguf"]


def test_a_tag_is_fetched_though_another_quantization_is_here(contents, bitnet):
    assert bitnet("run", f"{REPO}:F16", *RUN).code == 0
    done = bitnet("run", f"{REPO}:Q8_0", *RUN)
    assert "Fetching org/one: m-Q8_0.gguf" in done.err
    done = bitnet("run", f"{REPO}:Q5_0", *RUN)
    assert done.code == 19
    assert "m-Q4_K_M.gguf" in done.err


def test_without_a_tag_and_a_terminal_the_default_is_fetched(contents, bitnet, tmp_path):
    assert bitnet("download-model", REPO).code == 0
    assert (tmp_path / "models/org-one/m-Q4_K_M.gguf").read_bytes() == contents["Q4_K_M"]
    assert bitnet("download-model", f"{REPO}:F16").code == 0
    assert (tmp_path / "models/org-one/m-F16.gguf").read_bytes() == contents["F16"]
    assert bitnet("download", f"hf.co/{REPO}:Q8_0", "--output", "there").code == 0
    assert [path.name for path in (tmp_path / "there").glob("*.gguf")] == ["m-Q8_0.gguf"]


def test_a_tag_together_with_a_file_is_refused(contents, bitnet):
    done = bitnet("download-model", f"{REPO}:F16", "--file", "m-Q8_0.gguf")
    assert done.code == 2
    assert "leave --file out" in done.err


def test_a_pasted_page_of_the_hub_is_fetched_from_the_endpoint(contents, bitnet, hub):
    done = bitnet("run", "https://huggingface.co/org/one/blob/main/m-F16.gguf", *RUN)
    assert done.code == 0, done.err
    assert hub.sent("cdn") == len(contents["F16"])


@pytest.mark.parametrize(
    "command", ["run", "infer", "download-model", "plan", "rm", "serve", "verify"]
)
@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("smolm2-135m", "did you mean smollm2-135m?"),
        ("SmolLM2-135M", "did you mean smollm2-135m?"),
        ("qwen3", "models like that: bonsai-1.7b, bonsai-4b"),
        ("llama3.2", "bitnet search llama3.2"),
    ],
)
def test_a_word_that_is_not_a_model_suggests_names_and_no_option(command, typed, hint, bitnet):
    if command == "serve":
        pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    prompt = {"run": ("a",), "infer": ("--prompt", "a")}
    done = bitnet(command, typed, *prompt.get(command, ()))
    assert done.code in (2, 19)
    assert hint in done.err
    assert "--id" not in done.err
