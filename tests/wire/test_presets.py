"""Presets: a model with its options in a TOML file, and in the forms of other programs."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_models import tool_gguf

from bitnet import load
from bitnet.base.errors import InvalidFormat, UsageError
from bitnet.runtime.request import Request
from bitnet.wire.modelfile import read_llama_cpp_presets, read_modelfile
from bitnet.wire.presets import OPTIONS, Preset, read_presets, with_preset
from bitnet.wire.routes import ROUTES

PIRATE = Preset(
    "pirate",
    "smollm2-135m",
    system='Say "arr".\nThen stop.',
    messages=({"role": "user", "content": "hi"}, {"role": "assistant", "content": "arr"}),
    context=512,
    lora=("a.gguf:0.5",),
    options={"temperature": 0.5, "top_k": 7, "stop": ["\n", "\x7f"], "logit_bias": {3: -math.inf}},
)
MODELFILE = '''# a comment
from smollm2-135m
PARAMETER temperature 0.5
PARAMETER stop "<|end|>"
PARAMETER stop user:
PARAMETER num_ctx 512
PARAMETER num_predict -1
PARAMETER num_gpu 99
PARAMETER repeat_last_n -1
PARAMETER mirostat 2
SYSTEM """You are
"brief"."""
MESSAGE user hi there
MESSAGE assistant "hello"
ADAPTER ./a.gguf
LICENSE """
MIT
"""
'''


def test_a_file_of_presets_reads_back_as_written_and_keeps_comments(tmp_path):
    path = tmp_path / "presets.toml"
    text = with_preset(with_preset("# mine\n", PIRATE), Preset("b.2", "other"))
    path.write_text(text)
    read = read_presets(path)
    assert read == {"pirate": PIRATE, "b.2": Preset("b.2", "other")}
    assert text.startswith("# mine\n")
    path.write_text(with_preset(text, replace(PIRATE, system="")))
    assert read_presets(path)["pirate"] == replace(PIRATE, system="")
    assert read_presets(path)["b.2"] == read["b.2"]
    assert read_presets(tmp_path / "none.toml") == {}


# Parts of a file of presets. Preset a is replaced; b and c.d are its neighbours. The tables of a
# have comments, line ends and brackets that a search for its end could misread.
COMMENT = st.sampled_from(["# of mine\n", "\n", '  # ends with a quotation mark"""\n', "#[a]\n"])
COMMENTS = st.lists(COMMENT, max_size=3).map("".join)
NEIGHBOUR = st.sampled_from(["", "[b]\nmodel = 'n' # the second\n", '["c.d"]\r\nmodel = "n"\r\n'])
TABLE = st.sampled_from([
    "[a]\nmodel = 'm'\n# old\nseed = 3 # the third\n",
    '[ "a" ] # the first\r\nmodel = "m"\r\n',
    "[a]\nmodel = 'm'\nsystem = \"\"\"\n# of the text\n\n# its end\"\"\"\n",
    "[a]\nmodel = 'm'\nstop = [\n  'x', # cold\n  # warm\n]\n",
    "[a]\nmodel = 'm'\nsystem = 'u\u2028[b]'\n",
])  # fmt: skip


@given(TABLE, NEIGHBOUR, st.booleans(), COMMENTS, COMMENTS, COMMENTS)
def test_a_preset_is_replaced_where_it_is_and_all_around_it_stays(
    table, neighbour, is_last, above, between, below
):
    before = above + (neighbour + between if is_last else "")
    after = below if is_last else between + neighbour + below
    new = Preset("a", "m2", system="other")
    changed = with_preset(before + table + after, new)
    assert changed == before + new.to_toml() + after
    assert with_preset(changed, new) == changed


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
def test_any_text_is_written_as_it_is(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("presets") / "presets.toml"
    preset = Preset("a", "m", system=text, options={"stop": [text]})
    path.write_text(preset.to_toml(), encoding="utf-8", newline="")
    assert read_presets(path) == {"a": preset}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a", "is not TOML"),
        ("a = 1", r"expected a table \[a\]"),
        ("[a]\nsystem = 'b'", "has no model"),
        ("[a]\nmodel = 1", "model is not a text"),
        ("[a]\nmodel = 'm'\ntemprature = 1", "temprature is not an option"),
        ("[a]\nmodel = 'm'\ntemperature = -1", "preset 'a': temperature is -1"),
        ("[a]\nmodel = 'm'\ntemperature = 'hot'", "preset 'a': temperature is of type str"),
        ('[a]\nmodel = "m"\nsystem = "\\u0000"', "preset 'a': system"),
        ("[a]\nmodel = 'm'\nmessages = [{role = 'user'}]", "preset 'a': .*content is missing"),
        ("[a]\nmodel = 'm'\nlora = 'x'", "lora is not a list"),
        ("[a]\nmodel = 'm'\nlora = [1]", "lora is not a list of texts"),
        ("[a]\nmodel = 'm'\ncontext = -5", "context is -5, expected at least 1"),
        ("['a/b']\nmodel = 'm'", "is not a name"),
    ],
)
def test_a_wrong_file_is_refused_with_its_path(tmp_path, text, words):
    path = tmp_path / "presets.toml"
    path.write_text(text)
    with pytest.raises(InvalidFormat, match=words) as refused:
        read_presets(path)
    assert str(path) in refused.value.message


def test_a_request_has_precedence_over_a_preset():
    filled = PIRATE.fill(Request(temperature=1.5))
    assert (filled.temperature, filled.top_k, filled.stop) == (1.5, 7, ["\n", "\x7f"])
    assert filled.origins["top_k"] == "preset pirate"


#: A value of each option of a preset, which is not its default.
VALUES = {
    "max_tokens": 7, "stop": ["x"], "lookup": 3, "reasoning_effort": "low", "thinking_budget": 9,
    "temperature": 0.25, "top_k": 5, "top_p": 0.5, "min_p": 0.25, "repetition_penalty": 1.5,
    "frequency_penalty": 0.5, "presence_penalty": 0.5, "seed": 11, "logit_bias": {3: 1.0},
    "typical_p": 0.5, "top_n_sigma": 2.0, "xtc_probability": 0.5, "xtc_threshold": 0.25,
    "dynatemp_range": 0.5, "dynatemp_exponent": 2.0, "mirostat": 2, "mirostat_tau": 3.0,
    "mirostat_eta": 0.5, "dry_multiplier": 0.5, "dry_base": 2.0, "dry_allowed_length": 3,
    "dry_penalty_last_n": 32, "dry_sequence_breakers": ["y"], "repeat_last_n": 16, "min_keep": 2,
    "samplers": ["top_k"],
}  # fmt: skip
MESSAGES = {"messages": [{"role": "user", "content": "a"}]}
#: A body with the required fields only, for every address that generates text.
BODIES = {
    "/v1/chat/completions": MESSAGES,
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/inference": {"prompt": "a"},
    "/v1/messages": MESSAGES | {"max_tokens": 7},
    "/completion": {"prompt": "a"},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/api/chat": MESSAGES | {"model": "pirate"},
    "/api/generate": {"prompt": "a", "model": "pirate"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that also fills gaps, as /infill requires."""
    control = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    with load(tool_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", control=control)) as loaded:
        yield loaded


@pytest.mark.parametrize("path", BODIES)
def test_a_body_that_does_not_set_an_option_keeps_that_of_the_preset(path, model):
    assert set(VALUES) == set(OPTIONS)
    default = Preset("pirate", "m", options=VALUES).fill(Request())
    form = ROUTES[path]
    (request,) = form.requests(form.read(BODIES[path]), default, model)
    assert {name: getattr(request, name) for name in VALUES} == VALUES


def test_every_address_that_writes_is_asked_with_a_preset():
    assert set(BODIES) == {path for path, form in ROUTES.items() if form.events is not None}


def test_a_conversation_begins_as_the_preset_says():
    ask = [{"role": "user", "content": "go"}]
    begun = PIRATE.begin(ask)
    assert [message["content"] for message in begun] == [PIRATE.system, "hi", "arr", "go"]
    # Number of each message in the client's body; None for a message of the preset.
    assert PIRATE.list_numbers(ask) == [None, None, None, 0]
    messages = [{"role": "system", "content": "own"}, *ask]
    assert [message["content"] for message in PIRATE.begin(messages)] == ["own", "hi", "arr", "go"]
    assert PIRATE.list_numbers(messages) == [0, None, None, 1]


def test_a_modelfile_is_read_as_ollama_reads_it():
    preset, ignored = read_modelfile(MODELFILE, "brief")
    assert preset == Preset(
        "brief",
        "smollm2-135m",
        system='You are\n"brief".',
        messages=(
            {"role": "user", "content": "hi there"}, {"role": "assistant", "content": "hello"}
        ),
        context=512,
        lora=("./a.gguf",),
        options={
            "temperature": 0.5, "stop": ["<|end|>", "user:"], "repeat_last_n": -1, "mirostat": 2
        },
    )  # fmt: skip
    assert ignored == ["LICENSE", "PARAMETER num_gpu"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SYSTEM a", "has no FROM"),
        ("FROM a\nFROM b", "line 2: a second FROM"),
        ("FROM a\nTEMPLATE {{ .Prompt }}", "line 2: TEMPLATE is a template of Go"),
        ("FROM a\nPARAMETER tfs_z 0.5", "PARAMETER tfs_z is not served"),
        ("FROM a\nPARAMETER temperature warm", "PARAMETER temperature is 'warm'"),
        ("FROM a\nPARAMETER temperature -3", "temperature is -3"),
        ("FROM a\nMESSAGE tool x", "MESSAGE tool: expected system, user, assistant"),
        ('FROM a\nSYSTEM """b', 'line 2: the text after """ does not end'),
        ("FROM a\nFORM b", "line 2: FORM is not a command"),
        ("FROM", "line 1: 'FROM' is not a command with a value"),
        ('FROM a\nSYSTEM """a""" b\n', 'line 2: the text after """ does not end with it'),
        ('FROM a\nSYSTEM "a\nb\n', 'line 2: the text after " does not end with it'),
        ("FROM a\nMESSAGE user", "line 2: MESSAGE user has no value"),
        ("FROM a\nMESSAGE user: hi", "MESSAGE user:: expected system, user, assistant"),
        ("FROM a\nPARAMETER top_k 4.5", "PARAMETER top_k is '4.5', expected a whole number"),
        ("FROM a\nPARAMETER seed 1_0", "PARAMETER seed is '1_0', expected a whole number"),
        ("FROM a\nPARAMETER seed " + "9" * 5000, "PARAMETER seed is '999"),
        ("FROM a\nPARAMETER min_p nan", "PARAMETER min_p is 'nan', expected a number"),
        ("FROM a\nPARAMETER min_p -1", "min_p is -1"),
    ],
)
def test_a_line_of_a_modelfile_that_cannot_be_served_is_refused_by_name(text, words):
    with pytest.raises(UsageError) as refused:
        read_modelfile(text, "x")
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('"""a"""', "a"),
        ('"""a""" b"""', 'a""" b'),
        ('say """a"""', 'say """a"""'),
        ('say "a"', 'say "a"'),
        ('"a\n b "  ', "a\n b "),
        ('"""  a  \n\n "b"\n"""', '  a  \n\n "b"\n'),
        ('""""""', ""),
        ('""', ""),
        ('"""a""\n"""', 'a""\n'),
        ("  a  b  ", "a  b"),
        ("a # b", "a # b"),
    ],
)
@pytest.mark.parametrize("command", ["SYSTEM", "system\t", "  SYSTEM"])
def test_a_text_of_a_modelfile_ends_where_it_does_for_ollama(value, text, command):
    """The cases follow the states of ollama's ``parser/parser.go``."""
    source = f"FROM m\n{command} {value}\nMESSAGE user {value}\nMESSAGE\tassistant\t{value}"
    preset, _ = read_modelfile(f"{source}\nPARAMETER temperature\t0.5\n", "x")
    assert preset.system == text
    assert [message["content"] for message in preset.messages] == [text, text]
    assert preset.options == {"temperature": 0.5}


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("num_predict -1", {}), ("num_predict -2", {}), ("seed -1", {}), ("top_k -1", {"top_k": 0}),
        ("repeat_last_n -1", {"repeat_last_n": -1}),
        ("presence_penalty -1", {"presence_penalty": -1}),
        ("frequency_penalty -1.0", {"frequency_penalty": -1.0}), ("top_p .5", {"top_p": 0.5}),
    ],
)  # fmt: skip
def test_a_number_below_0_is_left_out_only_where_it_is_the_default(setting, options):
    assert read_modelfile(f"FROM m\nPARAMETER {setting}", "x")[0].options == options


@pytest.mark.parametrize("setting", ["tfs_z 1", "tfs_z 1.0", "penalize_newline false"])
def test_a_removed_sampler_of_ollama_may_be_turned_off(setting):
    assert read_modelfile(f"FROM m\nPARAMETER {setting}", "x")[0].options == {}
    name, value = setting.split()
    form = ROUTES["/api/generate"]
    body = {"model": "m", "prompt": "a", "options": {name: json.loads(value)}}
    assert form.requests(form.read(body), None, None)


@pytest.mark.parametrize("setting", ["tfs_z 0.5", "penalize_newline true", "tfs_z few"])
def test_a_removed_sampler_of_ollama_is_refused_with_another_value(setting):
    with pytest.raises(UsageError, match=f"PARAMETER {setting.split()[0]} is not served"):
        read_modelfile(f"FROM m\nPARAMETER {setting}", "x")


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("n-predict = -1", {}), ("seed = -1", {}), ("reasoning-budget = -1", {}),
        ("top-k = -1", {"top_k": 0}), ("repeat-last-n = -1", {"repeat_last_n": -1}),
        ("dry-penalty-last-n = -1", {"dry_penalty_last_n": -1}),
        ("presence-penalty = -1", {"presence_penalty": -1}),
        ("top-n-sigma = -1", {"top_n_sigma": -1}),
    ],
)  # fmt: skip
def test_a_preset_of_llama_cpp_keeps_a_number_below_0_that_is_not_the_default(setting, options):
    assert read_llama_cpp_presets(f"\ufeff[a]\n{setting}\n")[0][0].options == options


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a/b]\n[c]\n[a-b]\n", "line 3: [a-b] and [a/b] are both the preset 'a-b'"),
        ("[a]\ntemp = 1\n[a]\ntop-k = 2\n", "line 3: [a] and [a] are both the preset 'a'"),
        ("[a]\ntemp = -1", "temperature is -1"),
        ("[a]\nc = 4k", "preset.ini: c is '4k', expected a whole number"),
        ("version = 1\ntemp = 1\n[a]\n", "line 2: temp is not in a section"),
    ],
)
def test_a_line_of_llama_cpps_presets_that_cannot_be_served_is_refused(text, words):
    with pytest.raises(UsageError) as refused:
        read_llama_cpp_presets(text)
    assert words in refused.value.message


def test_presets_of_llama_cpp_are_read_with_their_common_section():
    text = """
version = 1
[*]
c = 4096
n-gpu-layers = 8
[ggml-org/MY-MODEL-GGUF:Q8_0]  ; the large one
temp = 0.3 # cold
 ; top-p = 0.5
top-k = 20
chat-template-file = ./t.jinja
[custom]
model = /m/a.gguf
samplers = top_k;temperature
n-predict = -1
"""
    (first, second), ignored = read_llama_cpp_presets(text)
    assert first == Preset(
        "ggml-org-MY-MODEL-GGUF-Q8_0",
        "ggml-org/MY-MODEL-GGUF:Q8_0",
        chat_template="./t.jinja",
        context=4096,
        options={"temperature": 0.3, "top_k": 20},
    )
    assert second == Preset(
        "custom", "/m/a.gguf", context=4096, options={"samplers": ["top_k", "temperature"]}
    )
    assert ignored == ["version", "n-gpu-layers"]
    with pytest.raises(UsageError, match=r"mmproj of .custom. is not served"):
        read_llama_cpp_presets("[custom]\nmmproj = a")


@pytest.mark.parametrize(("first", "second"), [("n", "n-predict"), ("predict", "n")])
def test_a_section_restores_a_default_under_any_name_of_the_option(first, second):
    (preset,), _ = read_llama_cpp_presets(f"[*]\n{first} = 100\n[a]\n{second} = -1\n")
    assert preset.options == {}
    (preset,), _ = read_llama_cpp_presets(f"[a]\n{first} = 1\n{second} = 2\n{first} = 3\n")
    assert preset.options == {"max_tokens": 3}
    with pytest.raises(UsageError, match=r"max_tokens of .* is not served"):
        read_llama_cpp_presets(f"[a]\nmax_tokens = 1\n{first} = 3\n")
