"""Precedence of sampling values: request, command line, the model's files, default."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from tiny_models import tiny_gguf

import bitnet
from bitnet.formats.checkpoint import Inventory
from bitnet.formats.containers import open_checkpoint
from bitnet.formats.generation import (
    GenerationSettings,
    SamplingDefault,
    read_generation_settings,
)
from bitnet.runtime.chain_options import Sampling
from bitnet.runtime.request import EVERYTHING, RECOMMENDED, Request, SamplingOptions
from bitnet.wire.routes import ROUTES

#: A value for every field that files may recommend. At each of the four LEVELS it is another one;
#: only mirostat, which has two versions, has each of them at two levels.
REQUEST = {
    "temperature": 0.1,
    "top_k": 1,
    "top_p": 0.1,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "repeat_last_n": 1,
    "xtc_probability": 0.1,
    "xtc_threshold": 0.15,
    "mirostat": 1,
    "mirostat_tau": 1.0,
    "mirostat_eta": 0.1,
    "samplers": ["top_k"],
}
COMMAND = {
    "temperature": 0.2,
    "top_k": 2,
    "top_p": 0.2,
    "min_p": 0.2,
    "repetition_penalty": 1.2,
    "repeat_last_n": 2,
    "xtc_probability": 0.2,
    "xtc_threshold": 0.25,
    "mirostat": 2,
    "mirostat_tau": 2.0,
    "mirostat_eta": 0.2,
    "samplers": ["top_p"],
}
FILE = {
    "temperature": 0.3,
    "top_k": 3,
    "top_p": 0.3,
    "min_p": 0.3,
    "repetition_penalty": 1.3,
    "repeat_last_n": 3,
    "xtc_probability": 0.3,
    "xtc_threshold": 0.35,
    "mirostat": 1,
    "mirostat_tau": 3.0,
    "mirostat_eta": 0.3,
    "samplers": ["min_p"],
}
FALLBACK = {
    "temperature": 0.4,
    "top_k": 4,
    "top_p": 0.4,
    "min_p": 0.4,
    "repetition_penalty": 1.4,
    "repeat_last_n": 4,
    "xtc_probability": 0.4,
    "xtc_threshold": 0.45,
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.4,
    "samplers": ["xtc"],
}
LEVELS = ("request", "command line", "file", "default")  # the first that has a value wins


def settings_of(**sampling):
    """Settings of a model whose files recommend *sampling*."""
    return GenerationSettings(
        {name: SamplingDefault(value, f"file: {name}") for name, value in sampling.items()}
    )


def folder(path, **config):
    """A stand-in for the checkpoint of a folder with this generation_config.json."""
    (path / "generation_config.json").write_text(json.dumps(config))
    return SimpleNamespace(gguf=None, path=path, inventory=Inventory(path))


@pytest.mark.parametrize("name", RECOMMENDED)
@pytest.mark.parametrize("level", LEVELS)
def test_a_value_is_that_of_the_first_level_that_has_one(name, level):
    first = LEVELS.index(level)
    # Levels before *first* leave the field out, those from it on have their own values.
    values = [{name: of[name]} if at >= first else {} for at, of in enumerate(
        (REQUEST, COMMAND, FILE, FALLBACK)
    )]  # fmt: skip
    default = Request(**values[1], fallback=values[3]).with_origin("command line")
    request = Request.from_mapping(values[0], default).with_settings(settings_of(**values[2]))
    expected = (REQUEST, COMMAND, FILE, FALLBACK)[first][name]
    assert getattr(request.sampling, name) == getattr(request, name) == expected
    origin = {"file": f"file: {name}"}.get(level, level)
    assert request.sampling_facts()[name] == {"value": expected, "from": origin}


@pytest.mark.parametrize("name", RECOMMENDED)
def test_a_value_that_no_level_has_is_that_of_greedy_decoding(name):
    request = Request().with_settings(GenerationSettings())
    default = getattr(Sampling(), name)
    assert getattr(request, name) == (list(default) if name == "samplers" else default)
    assert request.origins[name] == "default"


def test_filling_a_request_a_second_time_changes_nothing():
    once = Request(top_k=7).with_settings(settings_of(**FILE))
    assert once.with_settings(settings_of(**FALLBACK)) == once


@pytest.mark.parametrize("options", [{}, {"fallback": FALLBACK}])
def test_temperature_zero_leaves_the_files_sampling_out(options):
    request = Request(temperature=0.0, **options).with_settings(settings_of(**FILE))
    assert request.temperature == 0
    assert not any(origin.startswith("file") for origin in request.origins.values())


def test_reproducible_runs_are_greedy_unless_a_temperature_is_given(monkeypatch):
    monkeypatch.setenv("BITNET_DETERMINISTIC", "1")
    files = settings_of(**FILE)
    assert Request(fallback=FALLBACK).with_settings(files).temperature == 0
    # The other values are those of the fallback, not of the files.
    assert Request(fallback=FALLBACK).with_settings(files).repetition_penalty == 1.4
    assert Request(temperature=0.7).with_settings(files).temperature == 0.7


@pytest.mark.parametrize(
    # Lengths of the files, fields of the request, and the limit with its origin. The prompt has ten
    # tokens, which count in max_length and not in max_new_tokens.
    ("files", "asked", "expected"),
    [
        ({}, {}, (128, "default")),
        ({}, {"max_tokens": 9}, (9, "request")),
        ({"max_new_tokens": 500}, {}, (500, "file")),
        ({"max_new_tokens": 500}, {"max_tokens": 9}, (9, "request")),
        ({"max_new_tokens": 500, "max_length": 30}, {}, (500, "file")),
        ({"max_length": 30}, {}, (20, "file")),
        ({"max_length": 5}, {}, (1, "file")),
        ({"max_length": 4096}, {}, (128, "default")),
        ({"max_length": 4096}, {"fallback": {"max_tokens": EVERYTHING}}, (4086, "file")),
        ({"max_length": 30}, {"max_tokens": 99}, (99, "request")),
        ({"max_length": 30}, {"min_tokens": 40}, (40, "min_tokens")),
    ],
)
def test_the_length_limit_is_that_of_the_files_unless_the_request_has_one(files, asked, expected):
    lengths = {name: SamplingDefault(value, "file") for name, value in files.items()}
    settings = GenerationSettings(**lengths)
    request = Request(**asked).with_settings(settings, prompt_tokens=10)
    assert (request.length_limit, request.origins["max_tokens"]) == expected


@pytest.mark.parametrize("key", ["max_new_tokens", "max_length"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "9", True])
def test_a_wrong_length_is_refused_by_its_key(tmp_path, key, value):
    with pytest.raises(bitnet.base.errors.InvalidFormat, match=key):
        read_generation_settings(folder(tmp_path, **{key: value}))


#: The shortest body of each address that generates text.
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5},
    "/api/chat": {"model": "m", "messages": [{"role": "user", "content": "a"}]},
    "/api/generate": {"model": "m", "prompt": "a"},
    "/completion": {"prompt": "a"},
    "/v1/inference": {"prompt": "a"},
}


@pytest.mark.parametrize("path", BODIES)
def test_every_dialect_uses_the_sampling_that_the_files_recommend(path):
    form = ROUTES[path]
    (request,) = form.requests(form.read(BODIES[path]), Request(), None)
    assert request.with_settings(settings_of(**FILE)).sampling._asdict() == FILE


@pytest.mark.parametrize("path", BODIES)
def test_values_of_a_servers_command_line_override_those_of_the_files(path):
    form = ROUTES[path]
    default = Request(**asdict(SamplingOptions(**COMMAND))).with_origin("command line")
    (request,) = form.requests(form.read(BODIES[path]), default, None)
    assert request.with_settings(settings_of(**FILE)).sampling._asdict() == COMMAND


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (
            "/v1/chat/completions",
            {"temperature": 0.1, "top_k": 1},
            {"temperature": 0.1, "top_k": 1},
        ),
        ("/v1/responses", {"temperature": 0.1, "top_p": 0.1}, {"temperature": 0.1, "top_p": 0.1}),
        ("/v1/messages", {"temperature": 0.1, "top_k": 1}, {"temperature": 0.1, "top_k": 1}),
        ("/api/chat", {"options": {"min_p": 0.1}}, {"min_p": 0.1}),
        ("/completion", {"repeat_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ],
)
def test_values_of_a_body_override_those_of_command_line_and_files(path, body, expected):
    form = ROUTES[path]
    default = Request(**COMMAND).with_origin("command line")
    (request,) = form.requests(form.read(BODIES[path] | body), default, None)
    # The body's fields win over those of the command line, and the files have no say.
    filled = request.with_settings(settings_of(**FILE))
    assert filled.sampling._asdict() == COMMAND | expected
    assert {name for name, origin in filled.origins.items() if origin == "request"} >= {*expected}


def test_a_folder_that_samples_has_transformers_defaults_for_the_rest(tmp_path):
    settings = read_generation_settings(folder(tmp_path, do_sample=True, top_p=0.9))
    values = {name: entry["value"] for name, entry in settings.facts().items()}
    assert values == {"temperature": 1.0, "top_k": 50, "top_p": 0.9}
    assert settings.facts()["top_k"]["from"] == "generation_config.json: do_sample, without top_k"


def test_a_gguf_file_with_filters_alone_samples(tmp_path):
    path = tiny_gguf(tmp_path / "tiny.gguf", **{"general.sampling.top_k": 64})
    settings = read_generation_settings(open_checkpoint(path))
    assert Request().with_settings(settings).temperature == 1.0


def test_an_answer_uses_the_sampling_of_its_file_and_reports_the_origin(tmp_path):
    keys = {"general.sampling.temp": 0.75, "general.sampling.top_k": 3}
    with bitnet.load(tiny_gguf(tmp_path / "tiny.gguf", **keys), allow_mock=True) as model:
        answer = model.answer(Request(prompt="ab", max_tokens=2))
        facts = answer.sequence.request.sampling_facts()
        greedy = model.answer(Request(prompt="ab", max_tokens=2, temperature=0.0))
    assert facts["temperature"] == {"value": 0.75, "from": "general.sampling.temp"}
    assert facts["top_k"] == {"value": 3, "from": "general.sampling.top_k"}
    assert greedy.sequence.sampler.sampling == Sampling()


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"])
def test_published_files_that_recommend_nothing_answer_greedily(test_models, name):
    path = test_models / name
    if not path.exists():
        pytest.skip(f"{name} is not in the folder BITNET_TEST_MODELS names")
    checkpoint = open_checkpoint(path)
    settings = read_generation_settings(checkpoint)
    assert settings.facts() == {}
    assert Request().with_settings(settings).sampling == Sampling()
