"""Calls of functions in the text of answers, in the forms of every family."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_models import CITIES, CLOCK, SIGNS, WEATHER, tool_gguf

from bitnet import load
from bitnet.base.errors import UsageError
from bitnet.runtime.request import Request
from bitnet.runtime.schema_types import type_name
from bitnet.runtime.tool_arguments import value_of
from bitnet.runtime.tool_calls import call_reader, write_calls
from bitnet.runtime.tool_detection import form_named_in, format_of
from bitnet.runtime.tool_formats import FORMATS, GEMMA, HERMES, CallRules
from bitnet.tokenizer.chat import ChatTemplate

ASK = [{"role": "user", "content": "a"}]
NAMES = {"weather": {}, "clock": {}}  # known functions, with schemas that allow any arguments
ROME = '{"city": "rome"}'
BRACES = '{"city": "} ] \\" {", "n": 1.5}'


def form(family):
    """Format of the calls of *family*."""
    return GEMMA if family == "gemma" else form_named_in(SIGNS[family])


def read(rules, text, cuts=()):
    """Text and calls in *text*, which the reader gets in parts cut at *cuts*."""
    reader = call_reader(rules)
    plain_text = ""
    calls = []
    begin = 0
    for end in [*sorted(cuts), len(text), None]:  # None: nothing follows
        if end is None:
            part_of_text, deltas = reader.read("", final=True)
        else:
            part_of_text, deltas = reader.read(text[begin:end])
        plain_text += part_of_text
        begin = end
        for delta in deltas:
            if delta.id:
                calls.append([delta.name, ""])
            calls[delta.index][1] += delta.arguments
    return plain_text, [tuple(call) for call in calls]


def object_of(name, arguments, key="arguments"):
    """A call as a JSON object, whose arguments are JSON text."""
    return f'{{"name": "{name}", "{key}": {arguments}}}'


ONE = object_of("weather", ROME)
ODD = object_of("weather", BRACES)
HALF = r'{"a": "\ud800"}'  # of a surrogate pair: not text, but JSON
SEPARATOR = "<｜tool▁sep｜>"
TO = "<|channel|>commentary to=functions."


def coder(name, **parameters):
    """A call in the format of Qwen Coder."""
    parts = [f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in parameters.items()]
    return f"<tool_call>\n<function={name}>\n{''.join(parts)}</function>\n</tool_call>"


def keys(name, line="", **values):
    """A call in GLM's format, with the text *line* between its parts."""
    pairs = [
        f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}"
        for key, value in values.items()
    ]
    return f"<tool_call>{name}{line}{''.join(pairs)}</tool_call>"


def pythonic(*calls):
    """Python expressions *calls* in LFM2's format."""
    return f"<|tool_call_start|>[{', '.join(calls)}]<|tool_call_end|>"


def gemma(call):
    """The *call* of a name and braces in FunctionGemma's format."""
    return f"<start_function_call>call:{call}<end_function_call>"


def deepseek(*calls):
    """The *calls* in DeepSeek's format."""
    parts = [f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>" for call in calls]
    return f"<｜tool▁calls▁begin｜>{''.join(parts)}<｜tool▁calls▁end｜>"


# Family of the format, an answer, its text without calls, and its calls.
CASES = [
    ("hermes", f"<tool_call>\n{ONE}\n</tool_call>", "", [("weather", ROME)]),
    ("hermes", f"<tool_call>{ODD}</tool_call>", "", [("weather", BRACES)]),
    ("hermes", f"I look.\n<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n"
     f"{object_of('clock', '{}')}\n</tool_call>", "I look.", [("weather", ROME), ("clock", "{}")]),
    ("hermes", f"<tool_call>\n{ONE}\n</tool_call> Done <b> now", "Done <b> now",
     [("weather", ROME)]),
    ("hermes", f"a <tool_call>{object_of('other', '{}')}",
     f"a <tool_call>{object_of('other', '{}')}",
     []),
    ("hermes", "a <tool_call>\n{\"name\": ", "a <tool_call>\n{\"name\": ", []),
    ("hermes", "1 < 2 <tool", "1 < 2 <tool", []),
    ("hermes", "<tool_call> weather", "<tool_call> weather", []),
    ("smollm", f"<tool_call>[{ONE}, {ODD}]</tool_call>", "",
     [("weather", ROME), ("weather", BRACES)]),
    ("llama", object_of("weather", ROME, "parameters"), "", [("weather", ROME)]),
    ("llama", f"<|python_tag|>{object_of('weather', ROME, 'parameters')}; {ONE}", "",
     [("weather", ROME)] * 2),
    ("llama", f"It is {ONE}", f"It is {ONE}", []),
    ("llama", '{"answer": 1} and', '{"answer": 1} and', []),
    ("mistral", f"[TOOL_CALLS] [{ONE}]", "", [("weather", ROME)]),
    ("mistral", f"[TOOL_CALLS][{ONE},{ODD}]", "", [("weather", ROME), ("weather", BRACES)]),
    ("mistral-named", f"[TOOL_CALLS]weather[ARGS]{ROME}[TOOL_CALLS]clock[CALL_ID]9[ARGS]{{}}", "",
     [("weather", ROME), ("clock", "{}")]),
    ("phi", f"<|tool_call|>[{ONE}]<|/tool_call|>", "", [("weather", ROME)]),
    ("granite", f"<|tool_call|>[{ONE}]", "", [("weather", ROME)]),
    ("gemma", f"```json\n{object_of('weather', ROME, 'parameters')}\n```", "", [("weather", ROME)]),
    ("gemma", f"```tool_code\n[{ONE}]\n```", "", [("weather", ROME)]),
    ("gemma", "```python\nprint()\n```", "```python\nprint()\n```", []),
    ("json", json.dumps({"name": "weather", "arguments": ROME}), "", [("weather", ROME)]),
    ("json", '{"name": "clock"}', "", [("clock", "{}")]),
    ("json", '{"name": "clock", "arguments": null}', "", [("clock", "{}")]),
    ("json", '{"name": "clock", "arguments": [1]}', '{"name": "clock", "arguments": [1]}', []),
    ("json", '{"name": "clock",}', '{"name": "clock",}', []),
    ("json", "  no call", "  no call", []),
    ("qwen-coder", f"I look.\n{coder('weather', city='rome')}", "I look.", [("weather", ROME)]),
    ("qwen-coder", coder("clock"), "", [("clock", "{}")]),
    ("qwen-coder", coder("clock", n="[1, true]", t="a\nb <c>") + "\n" + coder("clock"), "",
     [("clock", '{"n": [1, true], "t": "a\\nb <c>"}'), ("clock", "{}")]),
    ("qwen-coder", coder("other"), coder("other"), []),
    ("qwen-coder", "a <tool_call> b", "a <tool_call> b", []),
    ("qwen-coder", coder("clock", a="NaN", b="[1e999]"), "",
     [("clock", '{"a": "NaN", "b": "[1e999]"}')]),
    ("qwen-coder", coder("clock", a='["\\ud800"]'), "", [("clock", '{"a": ["\\ud800"]}')]),
    ("hermes", f"<tool_call>{object_of('clock', HALF)}</tool_call>", "", [("clock", HALF)]),
    ("pythonic", pythonic(r"clock(path='C:\\', b=2)"), "",
     [("clock", r'{"path": "C:\\", "b": 2}')]),
    ("pythonic", pythonic(r"clock(path='C:\\')"), "", [("clock", r'{"path": "C:\\"}')]),
    ("pythonic", pythonic(r"clock(a='\\\'', b='\'\\')"), "",
     [("clock", r"""{"a": "\\'", "b": "'\\"}""")]),
    ("pythonic", pythonic(r"clock(path='C:\', b='x')"), "",
     [("clock", r'{"path": "C:\\", "b": "x"}')]),
    ("pythonic", pythonic("clock(a='it's', b=\"x 'y'\")"), "",
     [("clock", """{"a": "it's", "b": "x 'y'"}""")]),
    ("keys", f"I look.{keys('weather', city='rome')}", "I look.", [("weather", ROME)]),
    ("keys", keys("clock") + keys("clock", n="[1, true]", t="a\nb <c>"), "",
     [("clock", "{}"), ("clock", '{"n": [1, true], "t": "a\\nb <c>"}')]),
    ("key-lines", keys("weather", "\n", city="rome"), "", [("weather", ROME)]),
    ("keys", keys("other"), keys("other"), []),
    ("keys", "<tool_call>weather<arg_key>a</tool_call>", "<tool_call>weather<arg_key>a</tool_call>",
     []),
    ("functiongemma", gemma("weather{city:<escape>rome<escape>}"), "", [("weather", ROME)]),
    ("functiongemma", gemma("clock{a:[1,<escape>},{<escape>],b:{c:true},d:-1.5}"), "",
     [("clock", '{"a": [1, "},{"], "b": {"c": true}, "d": -1.5}')]),
    ("functiongemma", gemma("clock{a:"), gemma("clock{a:"), []),
    ("deepseek", f"So.{deepseek(f'weather{SEPARATOR}{ROME}', f'clock{SEPARATOR}{{}}')}", "So.",
     [("weather", ROME), ("clock", "{}")]),
    ("deepseek-v3", deepseek(f"function{SEPARATOR}weather\n```json\n{BRACES}\n```"), "",
     [("weather", BRACES)]),
    ("harmony", f"{TO}weather <|constrain|>json<|message|>{ROME}", "", [("weather", ROME)]),
    ("harmony", "<|channel|>final<|message|>It is <b> 1 < 2", "It is <b> 1 < 2", []),
    ("harmony", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
     f"{TO}weather<|message|>{ROME}", "I look.", [("weather", ROME)]),
    ("harmony", f" to=functions.weather<|channel|>commentary json<|message|>{ROME}", "",
     [("weather", ROME)]),
    ("harmony", "<|channel|>commentary<|message|>1 <|end|><|start|>assistant to=functions.clock"
     "<|channel|>analysis <|constrain|>json<|message|>{}", "1 ", [("clock", "{}")]),
    ("harmony", "<|channel|>final <|constrain|>json<|message|>{}<|return|>", "{}", []),
    ("harmony", "call to=functions.clock <|end", "call to=functions.clock <|end", []),
    ("harmony", " to=functions.other<|channel|>commentary<|message|>{}",
     " to=functions.other<|channel|>commentary<|message|>{}".lstrip(), []),
    ("harmony", f"{TO}clock<|message|>[1]<|end|>", f"{TO}clock<|message|>[1]<|end|>", []),
    ("harmony", "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final"
     "<|message|>b", "<|channel|>analysis<|message|>a<|end|>b", []),
    ("harmony", "<|channel|>final", "<|channel|>final", []),
    ("harmony", "to be <|channel|>", "to be <|channel|>", []),
]  # fmt: skip


@pytest.mark.parametrize(("family", "text", "said", "calls"), CASES)
@given(data=st.data())
def test_calls_are_found_however_the_text_is_cut(family, text, said, calls, data):
    cuts = data.draw(st.lists(st.integers(0, len(text))))
    assert read(CallRules(form(family), NAMES), text, cuts) == (said, calls)


# White space may be where a tilde is.
CALL_WITH_SPACES = (
    "clock~{~a~:~<escape> x <escape>~,~b~:~[~<escape>y<escape>~,~1~]~,~c~:~{~d~:~true~}~}~"
)


@pytest.mark.parametrize("space", ["", " ", "\n", " \t\n  "])
def test_white_space_around_the_parts_of_braces_has_no_meaning(space):
    plain_text, ((name, arguments),) = read(
        CallRules(form("functiongemma"), NAMES), gemma(CALL_WITH_SPACES.replace("~", space))
    )
    assert (plain_text, name) == ("", "clock")
    assert json.loads(arguments) == {"a": " x ", "b": ["y", 1], "c": {"d": True}}


@pytest.mark.parametrize(
    "braces",
    ["{a:x<escape>y<escape>}", "{a:<escape>x<escape>b:1}", "{a:[1}", "{a:[1}]", "{a:1]", "{a: }"],
)
def test_braces_that_are_not_arguments_are_the_text_of_the_answer(braces):
    text = gemma(f"clock{braces}")
    assert read(CallRules(form("functiongemma"), NAMES), text) == (text, [])


_WORDS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), max_size=8)
_TEXTS = _WORDS.filter(lambda text: not set(text) & set("<>'\"|[]\\"))
_VALUES = _TEXTS | st.booleans() | st.integers(-99, 99) | st.sampled_from([0.5, -2.25])
_KEYS = st.sampled_from(["city", "days", "exact", "note"])
_NAMES = ("weather", "clock", "mcp__" + "a" * 123)  # 128 characters: as long as Anthropic's
_CALLS = st.lists(
    st.tuples(st.sampled_from(_NAMES), st.dictionaries(_KEYS, _VALUES)), min_size=1, max_size=3
)


def schema_of(value):
    """A schema of the type of *value*."""
    return {"type": type_name(value)}


@pytest.mark.parametrize("call_format", dict(FORMATS).values(), ids=lambda each: each.name)
@given(calls=_CALLS, size=st.integers(1, 40))
def test_calls_are_read_as_they_are_written_in_every_format(call_format, calls, size):
    if call_format.notation.kind == "braces":  # its texts are sorted by their keys
        calls = [(name, dict(sorted(arguments.items()))) for name, arguments in calls]
    if call_format.headers:  # an answer is a single message, with one call
        calls = calls[:1]
    # A property has one type, that of its last value; arguments of other types are left out.
    properties = {key: schema_of(value) for _, each in calls for key, value in each.items()}
    calls = [
        (name, {key: each[key] for key in each if properties[key] == schema_of(each[key])})
        for name, each in calls
    ]
    schemas = {name: {"type": "object", "properties": properties} for name in _NAMES}
    written = write_calls(
        call_format,
        [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls],
    )
    cuts = range(0, len(written), size)
    _, calls_read = read(CallRules(call_format, schemas), written, cuts)
    assert [(name, json.loads(arguments)) for name, arguments in calls_read] == calls


# An argument that is not written as JSON, the schema of its property, and the value.
@pytest.mark.parametrize(
    ("raw", "schema", "value"),
    [
        ("3", {"type": "string"}, "3"),
        ("3", {"type": ["string", "null"]}, "3"),
        ("null", {"type": ["string", "null"]}, None),
        ("3", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, 3),
        ("True", {"type": "boolean"}, True),
        ("None", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        ("{'a': [1, 'é']}", {"type": "object"}, {"a": [1, "é"]}),
        ("{'a': (1j,)}", {"type": "object"}, "{'a': (1j,)}"),
        ("__import__('os')", {}, "__import__('os')"),
        ("[" * 5000, {"type": "array"}, "[" * 5000),
        ("nan", {"type": "number"}, "nan"),
        ("NaN", {}, "NaN"),
        ("-Infinity", {"type": ["string", "number"]}, "-Infinity"),
        ("1e999", {"type": "number"}, "1e999"),
        ("[NaN]", {"type": "array"}, "[NaN]"),
        ('{"a": [1e999]}', {"type": "object"}, '{"a": [1e999]}'),
        ("3", {"enum": ["3", "4"]}, "3"),
        ("3", {"enum": [3, 4]}, 3),
        ("Rome", {"type": "integer"}, "Rome"),
    ],
)
def test_a_value_is_of_the_type_that_its_schema_allows(raw, schema, value):
    assert value_of(raw, schema) == value


def test_a_template_whose_calls_no_format_reads_is_refused_for_tools():
    template = ChatTemplate(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}"
        "{% for c in m.tool_calls or [] %}~{{ c.function.name }}~{{ c.function.arguments }}~"
        "{% endfor %}\n{% endfor %}{{ tools | tojson if tools }}",
        source="m.gguf",
    )
    with pytest.raises(UsageError, match=r"m\.gguf writes have a form") as error:
        format_of(template)
    assert error.value.field == "tools"


def test_only_the_first_call_is_read_if_parallel_calls_are_off():
    rules = CallRules(HERMES, NAMES, parallel=False)
    assert read(rules, f"<tool_call>{ONE}</tool_call><tool_call>{ODD}</tool_call>") == (
        "", [("weather", ROME)]
    )  # fmt: skip


def test_a_guided_call_is_returned_in_parts_while_it_is_generated():
    reader = call_reader(CallRules(HERMES, NAMES, guided=True))
    _, (begun,) = reader.read('<tool_call>\n{"name": "weather", "arguments": ')
    assert (begun.name, begun.arguments) == ("weather", "")
    assert [delta.arguments for delta in reader.read('{"city"')[1]] == ['{"city"']
    assert [delta.arguments for delta in reader.read(': "}"}}\n</')[1]] == [': "}"}']


def test_ids_of_calls_are_unique_and_have_nine_letters_and_digits():
    reader = call_reader(CallRules(HERMES, NAMES, guided=True))
    _, deltas = reader.read("".join(f"<tool_call>\n{ONE}\n</tool_call>\n" for _ in range(20)))
    ids = [delta.id for delta in deltas if delta.id]
    assert len(set(ids)) == 20
    # Mistral's templates demand this form.
    assert all(len(one) == 9 and one.isalnum() for one in ids)


# Marks of a format that are control tokens in the vocabularies of its models.
CONTROL = {
    "hermes": ["<tool_call>", "</tool_call>"],
    "mistral": ["[TOOL_CALLS]"],
    "mistral-named": ["[TOOL_CALLS]", "[ARGS]"],
    "phi": ["<|tool_call|>", "<|/tool_call|>"],
    "qwen-coder": ["<tool_call>", "</tool_call>"],
    "keys": ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
             "</arg_value>"],
    "key-lines": ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                  "</arg_value>"],
    "functiongemma": ["<start_function_call>", "<end_function_call>", "<escape>"],
    "deepseek": ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
                 "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"],
    "harmony": ["<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>"],
}  # fmt: skip
CONTROL["deepseek-v3"] = CONTROL["deepseek"]
CONTROL["kimi-k3"] = ["<|open|>", "<|close|>", "<|sep|>"]
CONTROL["gemma-4"] = ["<|tool_call>", "<tool_call|>", '<|"|>']
CONTROL["minimax-m3"] = ["]<]minimax[>["]
CONTROL["solar"] = ["<|tool_calls|>", "<|tool_call:begin|>", "<|tool_call:name|>",
                    "<|tool_call:args|>", "<|tool_call:end|>", "<|calls|>"]  # fmt: skip
# Families without DeepSeek's, whose marks have characters that a tiny vocabulary cannot spell.
SPELLED = [family for family in [*SIGNS, "plain"] if not family.startswith("deepseek")]


@pytest.mark.parametrize(
    ("family", "control"),
    [*((family, ()) for family in SPELLED), *CONTROL.items()],
)
def test_a_required_call_is_valid_although_the_model_is_random(tmp_path, family, control):
    pytest.importorskip("llguidance")
    with load(tool_gguf(tmp_path / "m.gguf", family, control=control)) as model:
        with_tools = Request(max_tokens=400, messages=ASK, tools=[WEATHER, CLOCK])

        def answer_with(choice, **more):
            request = Request(**vars(with_tools) | {"tool_choice": choice} | more)
            answer = model.answer(request)
            assert "".join(answer) == answer.text == ""
            return answer

        (call,) = answer_with("required", parallel_tool_calls=False).calls
        arguments = json.loads(call.arguments)
        if call.name == "weather":
            assert arguments["city"] in CITIES
        else:
            assert (call.name, set(arguments)) == ("clock", {"zone", "exact"})
        answer = answer_with({"type": "function", "function": {"name": "clock"}})
        (call,) = answer.calls
        assert call.name == "clock"
        assert answer.finish_reason == "stop"
        assert answer.sequence.request.calls is not None
        # The same tokens, read as a free answer, are the same call.
        rules = answer.sequence.request.calls
        free = CallRules(rules.form, rules.schemas, shown=rules.shown)
        text = "".join(
            rules.shown.get(token, model.tokenizer.token_bytes(token).decode())
            for token in answer.ids
        )
        assert read(free, text) == ("", [(call.name, call.arguments)])


@pytest.mark.parametrize("family", ["qwen-coder", "functiongemma", "keys"])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "a"}}},
        {"anyOf": [{"type": "object"}]},
        {"type": "object", "required": ["a"]},
    ],
)
def test_a_schema_that_the_grammar_of_a_format_cannot_express_is_refused(tmp_path, family, schema):
    pytest.importorskip("llguidance")
    function = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with load(tool_gguf(tmp_path / "m.gguf", family)) as model:
        request = Request(messages=ASK, tools=[function], tool_choice="required")
        with pytest.raises(UsageError) as error:
            model.prepare(request)
    assert error.value.field == "tools"


@pytest.mark.parametrize(
    "family",
    [
        *("qwen-coder", "keys", "key-lines", "functiongemma", "deepseek", "harmony"),
        *("dsml", "gemma-4", "glimmer", "kimi-k3", "minicpm", "minimax-m3", "pythonic", "seed"),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_arguments_of_every_type_are_valid_in_every_form(tmp_path, family, seed):
    pytest.importorskip("llguidance")
    inner = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"],
             "additionalProperties": False}  # fmt: skip
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["aa", "bb"]},
            "word": {"enum": ["ab", "cd"]},
            "flag": {"type": "boolean"},
            "inner": inner,
        },
        "required": ["word", "inner"],
        "additionalProperties": False,
    }
    if family != "minimax-m3":  # its template leaves null out
        schema["properties"]["left"] = {"type": "null"}
    function = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with load(tool_gguf(tmp_path / "m.gguf", family, control=CONTROL.get(family, ()))) as model:
        sampling = {"temperature": 1.0, "seed": seed}
        request = Request(
            max_tokens=600, messages=ASK, tools=[function], tool_choice="required",
            parallel_tool_calls=False, **sampling,
        )  # fmt: skip
        answer = model.answer(request)
        list(answer)
        (call,) = answer.calls
    arguments = json.loads(call.arguments)
    assert arguments["word"] in ("ab", "cd")
    assert set(arguments["inner"]) == {"x"}
    assert isinstance(arguments["inner"]["x"], bool)
    assert set(arguments) <= set(schema["properties"])
    assert isinstance(arguments.get("flag", True), bool)
    assert arguments.get("kind", "aa") in ("aa", "bb")
    assert arguments.get("left") is None


def test_tools_are_described_where_the_template_has_no_place_for_them(tmp_path):
    with load(tool_gguf(tmp_path / "m.gguf", "plain")) as model:

        def text(*messages, tools=None):
            ids, _ = model.prepare(Request(messages=messages, tools=tools))
            return model.tokenizer.decode(ids)

        described = text(*ASK, tools=[WEATHER])
        assert '"name": "weather"' in described
        assert "<tool_call>" in described
        assert "weather" not in text(*ASK)
        call = {"id": "1", "type": "function",
                "function": {"name": "weather", "arguments": ROME}}  # fmt: skip
        with_result = text(
            *ASK, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "rain"}
        )
        assert f"<tool_call>\n{ONE}\n</tool_call>" in with_result
        assert "<tool_response>\nrain\n</tool_response>" in with_result


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [{"type": "function"}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"function": {"name": "a" * 129}}]}, "tools.0.function.name"),
        ({"tools": [{"function": {"name": "a", "parameters": 1}}]}, "tools.0.function.parameters"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER],
          "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"x": 1}}},
         "tool_choice.function.x"),
    ],
)  # fmt: skip
def test_wrong_tools_are_refused_by_their_field(fields, field):
    with pytest.raises(UsageError) as error:
        Request(messages=ASK, **fields)
    assert error.value.field == field
