"""Bodies of requests with wrong values: around the bounds of each field, and at every depth."""

import copy
import json
import random

from full_bodies import BODIES

DEEP = "@deep@"  # stands for nesting that ``json.dumps`` cannot write
# The first is allowed by ``MAX_DEPTH`` of bitnet/runtime/request_checks.py, the others are not.
DEPTHS = (99, 150, 3000, 40_000)
TOO_DEEP = 120
CHAT = [{"role": "user", "content": "a"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

#: A valid body for each form; the fuzzer changes its fields.
VALID = {
    "ChatRequest": {"messages": CHAT, "max_tokens": 2},
    "CompletionRequest": {"prompt": "a", "max_tokens": 2},
    "EmbeddingRequest": {"input": "a"},
    "ResponseRequest": {"input": "a", "max_output_tokens": 2},
    "MessagesRequest": {"messages": CHAT, "max_tokens": 2},
    "CountRequest": {"messages": CHAT},
    "OllamaChat": {"model": "tiny", "messages": CHAT, "options": {"num_predict": 2}},
    "OllamaGenerate": {"model": "tiny", "prompt": "a", "options": {"num_predict": 2}},
    "OllamaEmbed": {"model": "tiny", "input": "a"},
    "OllamaEmbeddings": {"model": "tiny", "prompt": "a"},
    "OllamaShow": {"model": "tiny"},
    "LlamaCompletion": {"prompt": "a", "n_predict": 2},
    "LlamaInfill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 2},
    "LlamaEmbedding": {"content": "a"},
    "TemplateRequest": {"messages": CHAT},
    "InferenceRequest": {"prompt": "a", "max_tokens": 2},
    "TokenizeRequest": {"content": "a"},
    "DetokenizeRequest": {"tokens": [5]},
    "RerankRequest": {"query": "a", "documents": ["b", "c"]},
    "ScoreRequest": {"text_1": "a", "text_2": ["b", "c"]},
}
#: Values of every JSON type: empty, out of range, not text, too many, too long.
JUNK = (
    *(None, True, False, 0, -1, -2, 1, 2, 7, 2**31, 2**63, -(2**63), 10**400),
    *(0.5, -0.0, 1e-308, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "a", "\0", "\ud800", "a\udfffb", "é😀", "\u2028", "x" * 5000, "{}", "[" * 200, "none"),
    *([], [None], [[]], [{}], [0, 1], [2**40], [-1], [1, "a"], ["a"] * 20, [0] * 3000, [""]),
    *({}, {"": ""}, {"type": "x"}, {"type": "object"}, {"a": None}, {"\ud800": 1}),
    *({str(number): number for number in range(2000)}, CHAT, CHAT * 5000, [TOOL], [TOOL] * 3),
    *([{"role": "\ud800", "content": "a"}], [{"role": "user"}], [{"role": "user", "content": 1}]),
    *([{"role": "user", "content": [{"type": "text", "text": "a"}]}],),
    *([{"role": "user", "content": [{"type": "image_url"}]}],),
    *([{"role": "assistant", "content": None, "tool_calls": [{"function": 1}]}],),
    *([{"role": "tool", "content": "a", "tool_call_id": {}}], [{"type": "function_call"}]),
    {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}},
    {"type": "json_schema", "schema": {"$ref": "#/$defs/none"}},
    {"$ref": "#/$defs/0", "$defs": {str(at): {"$ref": f"#/$defs/{at + 1}"} for at in range(900)}},
    {"$ref": "#", "properties": {"a": {"$ref": "#"}}},
    {"type": "object", "properties": {str(at): {"type": "string"} for at in range(5000)}},
    {"pattern": "(a|b)*" * 2000, "type": "string"},
    {"type": "array", "items": {"minimum": 10**400}},
    {"type": "function", "function": {"name": "\ud800"}},
    {"type": "tool", "name": "g"},
    {"type": "enabled", "budget_tokens": -1},
    *("(" * 3000, "(a{1000}){1000}", "[\ud800]", "(?=a)", "\\p{L}{1,4000}"),
)
#: Bodies that are not objects, or not JSON.
RAW = (
    *(b"", b"null", b"[]", b"0", b'"a"', b"{", b"{}", b"{} {}", b"\xff\xfe", b"\0", b"{'a': 1}"),
    *(b'{"a": 1', b"[" * 100_000, b"1" * 100_000, b'{"a":' * 20_000, b" " * 200_000),
    *(b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "a", "prompt": 1}', b'{"messages": [] x'),
)


#: Values that are wrong at most places of a body, one of each kind.
WRONG = (
    *(None, True, False, 0, -1, 2, 2**63, 10**400, -(10**400), 0.5, 1e308, "", "x", "\ud800"),
    *([], [None], [0], ["x"], [[]], [{}], {}, {"x": None}, {"x": 10**400}, {"": [{}]}),
    *({"type": None}, {"type": []}, {"type": {}}, {"type": "text"}, [{"type": []}], [{"type": 5}]),
    DEEP,
)
#: The full bodies of BODIES, and bodies as full for the addresses that only count or convert.
FULL = BODIES | {
    "/v1/messages/count_tokens": {
        name: value for name, value in BODIES["/v1/messages"].items() if name != "max_tokens"
    },
    "/apply-template": {
        "messages": BODIES["/v1/chat/completions"]["messages"],
        "tools": BODIES["/v1/chat/completions"]["tools"],
        "chat_template_kwargs": {"a": [1]},
    },
    "/tokenize": {"content": "a b", "with_pieces": True},
    "/detokenize": {"tokens": [5, 6]},
}


def with_wrong_values(fields, full):
    """Yield place and body: *full* with each of WRONG at each place, and in each other field.

    *fields* are the names of all fields.
    """
    others = [(name,) for name in fields if name not in full]
    for place in [*places(full), *others]:
        for value in WRONG:
            yield place, _written(_replaced(full, place, value), TOO_DEEP)


def places(value, place=()):
    """Paths of all entries in *value*, at every depth, and of one more entry of each list."""
    entries = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
        yield (*place, len(value))
    for name, inner in entries:
        yield (*place, name)
        yield from places(inner, (*place, name))


def _replaced(body, place, value):
    """*body* with *value* at *place*."""
    changed = copy.deepcopy(body)
    target = changed
    *outer, name = place
    for part in outer:
        target = target[part]
    if isinstance(target, list) and name == len(target):
        target.append(value)
    else:
        target[name] = value
    return changed


def bodies(form, valid, seed, count):
    """Bodies for the form *form*: some of RAW, one for each field, *count* with up to three fields.

    Args:
        form: a :class:`bitnet.wire.forms.Form`.
        valid: a body that is answered.
        seed: of the choices.
        count: of bodies with several fields.
    """
    draw = random.Random(f"{form.name} {seed}")
    schemas = form.fields
    names = [*schemas, "unknown", "\ud800"]
    yield from (raw for raw in RAW if draw.random() < 0.3)
    single = [[name] for name in names]
    several = [draw.sample(names, min(len(names), draw.randint(2, 3))) for _ in range(count)]
    for chosen in [*single, *several]:
        body = dict(valid)
        for name in chosen:
            body[name] = draw.choice((*JUNK, *_edges(schemas.get(name, {})), DEEP))
            if name in valid and draw.random() < 0.1:
                del body[name]
        yield _written(body, draw.choice(DEPTHS))


def _edges(schema):
    """Values at the bounds of *schema* and one beyond them."""
    edges = list(schema.get("enum", ()))
    for bound in (schema.get("minimum"), schema.get("maximum"), schema.get("maxItems")):
        edges += [] if bound is None else [bound - 1, bound, bound + 1]
    for each in schema.get("anyOf", ()):
        edges += _edges(each)
    return edges


def _written(body, depth):
    """Bytes of *body* as JSON, with lists nested *depth* deep in the place of DEEP."""
    text = json.dumps(body)
    return text.replace(f'"{DEEP}"', "[" * depth + "]" * depth).encode()
