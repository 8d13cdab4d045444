"""``create``, and commands whose MODEL is a preset."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from server_process import listening
from tiny_models import tiny_gguf
from tool_models import tool_gguf

from bitnet import load
from bitnet.base.errors import UsageError
from bitnet.commands import load as load_commands
from bitnet.commands.command_line import Words
from bitnet.commands.context import Context
from bitnet.commands.declare import _fill
from bitnet.commands.presets import find_preset
from bitnet.commands.serve import _slots
from bitnet.runtime.model_options import ModelOptions
from bitnet.runtime.request import Request, SamplingOptions
from bitnet.server.serve_options import ServeOptions
from bitnet.wire.presets import OPTIONS, Preset

SYSTEM = "b"


@pytest.fixture(autouse=True)
def presets(tmp_path, monkeypatch):
    """Path of the file of presets, which does not exist yet."""
    path = tmp_path / "own" / "presets.toml"
    monkeypatch.setenv("BITNET_PRESETS", str(path))
    return path


@pytest.fixture
def path(tmp_path):
    """A model with a chat template."""
    return tool_gguf(tmp_path / "m.gguf")


def json_of(done):
    """The JSON value that a command printed."""
    return json.loads(done.out)


def test_a_preset_is_created_once_and_replaced_with_force(bitnet, presets, path):
    done = bitnet("create", "brief", "--from", str(path), "--system", SYSTEM, "--top-k", "3")
    assert (done.code, done.out) == (0, "")
    assert find_preset("brief").options == {"top_k": 3}
    again = bitnet("create", "brief", "--from", str(path))
    assert again.code != 0
    assert "--force" in again.err
    facts = json_of(bitnet("create", "brief", "--from", str(path), "--force", "--json"))
    assert facts == {"name": "brief", "file": str(presets), "ignored": []}
    assert find_preset("brief").system == ""
    assert find_preset("other") is None


def test_run_answers_as_the_preset_says(bitnet, path):
    words = ["--temperature", "0", "--max-tokens", "6"]
    bitnet("create", "brief", "--from", str(path), "--system", SYSTEM, *words)
    done = bitnet("run", "brief", "abc", "--json")
    with load(path) as model:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "abc"}]
        assert json_of(done)["text"] == model.chat(messages, max_tokens=6, temperature=0)
        with_own_system = [{"role": "system", "content": "a"}, messages[1]]
        expected = model.chat(with_own_system, max_tokens=3, temperature=0)
    assert json_of(done)["generation"]["max_tokens"] == {"value": 6, "from": "preset brief"}
    overridden = bitnet("run", "brief", "abc", "--system", "a", "--max-tokens", "3", "--json")
    assert json_of(overridden)["text"] == expected
    same = bitnet("infer", "brief", "--chat", "--prompt", "abc", "--json")
    assert json_of(same)["text"] == json_of(done)["text"]


@pytest.mark.parametrize("beginning", [f"SYSTEM {SYSTEM}", "MESSAGE user x\nMESSAGE assistant y"])
def test_a_preset_with_instructions_or_messages_is_refused_where_there_is_no_chat(
    beginning, bitnet, tmp_path, path
):
    plain = tiny_gguf(tmp_path / "plain.gguf")
    for name, model in (("with-template", path), ("without", plain)):
        (tmp_path / "Modelfile").write_text(f"FROM {model}\n{beginning}\n")
        assert bitnet("create", name, "-f", tmp_path / "Modelfile").code == 0
    words = ("--prompt", "abc", "--max-tokens", "1")
    refused = bitnet("infer", "with-template", *words)
    assert (refused.code, "hint: add --chat" in refused.err) == (UsageError.exit_code, True)
    assert bitnet("infer", "with-template", *words, "--chat").code == 0
    refused = bitnet("run", "without", "abc")
    assert (refused.code, "has no chat template" in refused.err) == (UsageError.exit_code, True)


def test_a_modelfile_is_imported_and_options_have_precedence(bitnet, tmp_path, path):
    file = tmp_path / "Modelfile"
    file.write_text(
        f"FROM {path}\nSYSTEM {SYSTEM}\nPARAMETER top_k 5\nPARAMETER num_gpu 1\n"
        "MESSAGE user x\nMESSAGE assistant y\n"
    )
    done = bitnet("create", "shots", "-f", str(file), "--top-k", "2")
    assert "PARAMETER num_gpu has no effect here" in done.err
    preset = find_preset("shots")
    assert (preset.model, preset.options) == (str(path), {"top_k": 2})
    done = bitnet("run", "shots", "abc", "--json", "--temperature", "0", "--max-tokens", "6")
    with load(path) as model:
        turns = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "y"},
            {"role": "user", "content": "abc"},
        ]
        assert json_of(done)["text"] == model.chat(turns, max_tokens=6, temperature=0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x"], "create needs a model"),
        (["a/b", "--from", "m"], "is not a name of a preset"),
        (["x", "--from", "m", "--temperature", "-1"], "temperature"),
        (["x", "-f", "none.txt"], "none.txt"),
        (["x", "--from", "m", "--context", "-5"], "--context is -5, expected at least 0"),
    ],
)
def test_a_wrong_preset_is_refused_and_nothing_is_written(bitnet, presets, words, message):
    done = bitnet("create", *words)
    assert done.code != 0
    assert message in done.err
    assert not presets.exists()


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("Modelfile", "FROM m\nPARAMETER top_k few", "Error: PARAMETER top_k is 'few', expected"),
        ("Modelfile", "FROM m\nPARAMETER tfs_z 2", "Error: PARAMETER tfs_z is not served"),
        ("preset.ini", "[x]\ntop-k = few", "Error: preset.ini: top-k is 'few', expected"),
    ],
)
def test_a_wrong_line_of_a_file_is_not_reported_as_an_option(bitnet, tmp_path, name, text, error):
    file = tmp_path / name
    file.write_text(text)
    assert error in bitnet("create", "x", "-f", str(file)).err


#: Options whose default is a value, so that the default itself may be typed.
DEFAULTS = {
    name: getattr(Request(), name) for name in OPTIONS if getattr(Request(), name) not in (None, [])
}
del DEFAULTS["logit_bias"]  # an empty mapping cannot be typed
#: Another value of each of them, for a preset.
OTHERS = {name: 2 if name == "lookup" else 0.5 for name in DEFAULTS} | {
    "dry_base": 2.0, "dry_allowed_length": 3, "dry_penalty_last_n": 32, "min_keep": 2
}  # fmt: skip


def flags(values):
    """The words that set the options of *values*."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]


@pytest.mark.parametrize(("name", "group"), [("run", Request()), ("serve", SamplingOptions())])
def test_an_option_that_is_typed_has_precedence_even_with_its_default(name, group):
    typed = {key: value for key, value in DEFAULTS.items() if hasattr(group, key)}
    words = Words(load_commands()[name], ["m", *flags(typed)])
    options = asdict(_fill(group, words.values))
    filled = Preset("p", "m", options=OTHERS).fill(Request(**options).with_origin("command line"))
    assert {key: getattr(filled, key) for key in DEFAULTS} == OTHERS | typed


def test_a_preset_stores_an_option_that_is_typed_with_its_default(bitnet, tmp_path):
    file = tmp_path / "Modelfile"
    file.write_text("FROM org/model\nPARAMETER presence_penalty 1.5\nPARAMETER top_k 5\n")
    bitnet("create", "p", "-f", str(file), *flags(DEFAULTS))
    assert find_preset("p").options == DEFAULTS | {"top_k": 5}


def test_a_worker_answers_as_the_preset_says(bitnet, path):
    preset = Preset("brief", str(path), system=SYSTEM, options={"temperature": 0, "max_tokens": 6})
    ask = {"messages": [{"role": "user", "content": "abc"}]}
    with listening(path) as worker:
        with_system = {"messages": [{"role": "system", "content": SYSTEM}, *ask["messages"]]}
        greedy = {"temperature": 0, "max_tokens": 6}
        expected = worker.post("/v1/chat/completions", with_system | greedy).json()
        worker.slot.preset = preset
        answered = worker.post("/v1/chat/completions", ask).json()
        longer = worker.post("/v1/chat/completions", ask | {"max_tokens": 9}).json()
    assert answered["choices"][0]["message"] == expected["choices"][0]["message"]
    assert answered["usage"]["completion_tokens"] == 6
    assert longer["usage"]["completion_tokens"] == 9


def test_a_worker_serves_a_preset_alone_or_beside_models(bitnet, path):
    bitnet("create", "brief", "--from", str(path), "--context", "64")
    options = ServeOptions(models=f"brief,{path}")
    first, second = _slots(options, ModelOptions(), Context(), None)
    assert (first.name, first.context, first.preset.name) == ("brief", 64, "brief")
    assert (second.name, second.preset) == ("m", None)
    (only,) = _slots(ServeOptions(), ModelOptions(model="brief"), Context(), None)
    assert (only.name, only.path) == ("brief", path)


def test_a_worker_serves_the_adapters_that_a_preset_names(bitnet, tmp_path, path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"")
    for name in ("first", "second"):
        bitnet("create", name, "--from", path.name, "--lora", "sql=x.gguf:0.5")
    assert find_preset("first").lora == (f"sql={tmp_path / 'x.gguf'}:0.5",)
    (slot,) = _slots(ServeOptions(), ModelOptions(model="first"), Context(), None)
    assert slot.adapter("sql") == "sql"
    done = bitnet("run", "first", "abc")
    assert (done.code, "--lora sql=..." in done.err) == (UsageError.exit_code, True)

    for options in (
        ServeOptions(models="first,second"),
        ServeOptions(models="first", alias=["sql=first"]),
    ):
        with pytest.raises(UsageError, match=r"that name, too|name of the model itself"):
            _slots(options, ModelOptions(), Context(), None)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes")
@pytest.mark.parametrize("line", ["FROM {pipe}", "FROM {model}\nADAPTER {pipe}"])
def test_a_pipe_in_a_modelfile_is_refused_at_once(bitnet, presets, tmp_path, path, line):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "Modelfile").write_text(line.format(pipe="./pipe", model=path))
    done = bitnet("create", "late", "-f", str(tmp_path / "Modelfile"))
    assert done.code == 13
    assert "is not a regular file but a pipe" in done.err
    assert not presets.exists()


def test_existing_files_are_recorded_with_absolute_paths_and_names_as_they_are(
    bitnet, tmp_path, path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    bitnet("create", "near", "--from", path.name)
    assert find_preset("near").model == str(path)
    bitnet("create", "far", "--from", "org/model:Q4_K_M")
    assert find_preset("far").model == "org/model:Q4_K_M"

    # As Ollama reads them: paths are relative to the Modelfile.
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "Modelfile").write_text(f"FROM ../{path.name}\n")
    bitnet("create", "beside", "-f", "below/Modelfile")
    assert Path(find_preset("beside").model).samefile(path)


def test_an_adapter_may_have_a_colon_in_its_name(bitnet, tmp_path, path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:b").write_bytes(b"")
    bitnet("create", "odd", "--from", path.name, "--lora", "a:b", "--lora", "a:b:0.5")
    assert find_preset("odd").lora == (str(tmp_path / "a:b"), f"{tmp_path / 'a:b'}:0.5")


def test_comments_in_the_file_of_presets_are_kept(bitnet, presets, path):
    presets.parent.mkdir(parents=True)
    presets.write_text("# mine\n")
    assert bitnet("create", "brief", "--from", str(path)).code == 0
    assert presets.read_text().startswith("# mine\n\n[brief]\n")


def test_a_chat_template_that_does_not_exist_is_refused_at_once(bitnet, presets, path):
    done = bitnet("create", "odd", "--from", str(path), "--chat-template", "absent.jinja")
    assert done.code != 0
    assert "absent.jinja" in done.err
    assert not presets.exists()


def test_a_user_without_a_home_folder_runs_models_and_has_no_presets(bitnet, path, monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("BITNET_PRESETS")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert find_preset("brief") is None
    assert bitnet("run", str(path), "abc", "--max-tokens", "1").code == 0
    refused = bitnet("create", "brief", "--from", str(path))
    assert refused.code == 2
    assert "set BITNET_PRESETS" in refused.err
