"""JSON schemas of the values that clients send, and whether a value follows one.

A schema may mark its field as refused, or as without effect on an answer; a field without such a
mark is supported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from bitnet.base.options import range_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Schema = dict[str, Any]
Place = tuple[str | int, ...]


class Problem(NamedTuple):
    """A place where a value does not follow its schema, and why."""

    place: Place
    text: str  # ``expected a text``; with a verb if it continues the name: ``is not served``
    is_of_type: bool = True  # False: the value has another type than the schema


#: Key of a schema: the field has no effect on an answer, and a header of the reply names it.
IGNORED = "x-bitnet-ignored"
#: Key of a schema: the field would change the answer and is not supported; the value is a hint.
REFUSED = "x-bitnet-refused"
_NEUTRAL = "x-bitnet-neutral"  # key beside REFUSED: values that ask for nothing
DEFAULT = "x-default-as"  # key of a schema: the number that stands for the default

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
OBJECT: Schema = {"type": "object"}
NULL: Schema = {"type": "null"}
OBJECTS: Schema = {"type": "array", "items": OBJECT}
TEXTS: Schema = {"type": "array", "items": TEXT}
TOKEN_ID: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}

#: For each type of a schema, the types of its values in Python, and its name in errors.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "a text"), "integer": ((int,), "a whole number"),
    "number": ((int, float), "a number"), "boolean": ((bool,), "true or false"),
    "object": ((dict,), "a JSON object"), "array": ((list,), "a list"),
    "null": ((type(None),), "null"),
}  # fmt: skip


def any_of(*schemas: Schema, about: str = "") -> Schema:
    """A schema of values that follow any of *schemas*, with the description *about*.

    Null needs no schema of its own: every field may be null, unless it is required.
    """
    schema = dict(schemas[0]) if len(schemas) == 1 else {"anyOf": [*schemas]}
    return schema | ({"description": about} if about else {})


def mark_ignored(**fields: Schema) -> dict[str, Schema]:
    """*fields* without effect on an answer: accepted, and named in a header of the reply."""
    return {name: schema | {IGNORED: True} for name, schema in fields.items()}


def mark_refused(*names: str, hint: str = "", neutral: Sequence[Any] = ()) -> dict[str, Schema]:
    """Fields *names*, which are refused unless their value is empty, or one of *neutral*."""
    return {name: {REFUSED: hint, _NEUTRAL: [*neutral]} for name in names}


def is_neutral(schema: Schema, value: Any) -> bool:
    """True if *value* asks for nothing, in a field that *schema* refuses otherwise."""
    if isinstance(value, dict):  # clients send objects without values
        value = [entry for entry in value.values() if entry is not None]
    return is_empty(value) or any(
        value == neutral and type(value) is type(neutral) for neutral in schema.get(_NEUTRAL, ())
    )


def is_empty(value: Any) -> bool:
    """True if *value* means the same as leaving the field out."""
    return value is None or value is False or value == "" or value == [] or value == {}


def find_ignored(schema: Schema, value: Any, path: str = "") -> Iterator[str]:
    """Names of the fields in *value*, which follows *schema*, that have no effect on an answer.

    *path* is the name of the value itself. Names do not contain the numbers of list entries.
    """
    if is_empty(value) or REFUSED in schema:
        return
    if schema.get(IGNORED):
        yield path
        return
    for each in schema.get("anyOf", ()):
        if find_problem(each, value, ()) is None:
            yield from find_ignored(each, value, path)
            return
    if isinstance(value, list):
        if "items" in schema:
            for entry in value:
                yield from find_ignored(schema["items"], entry, path)
    elif isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from find_ignored(inner, value[name], f"{path}.{name}".lstrip("."))


def find_problem(schema: Schema, value: Any, path: Place) -> Problem | None:
    """The first place where *value*, which is at *path*, does not follow *schema*, and why."""
    if (hint := schema.get(REFUSED)) is not None:
        if is_neutral(schema, value):
            return None
        return Problem(path, f"is not served: {hint}" if hint else "is not served")
    if "anyOf" in schema:
        return _any_of_problem(schema["anyOf"], value, path)
    if not _has_type(schema, value):
        return Problem(path, f"expected {_KINDS[schema['type']][1]}", is_of_type=False)
    check = _CHECKS.get(schema["type"])
    return check(schema, value, path) if check else None


def _any_of_problem(schemas: Sequence[Schema], value: Any, path: Place) -> Problem | None:
    """None if *value* follows any of *schemas*, else its problem with the closest one."""
    problems = []
    for schema in schemas:
        if _has_type(schema, value):
            problem = find_problem(schema, value, path)
            if problem is None:
                return None
            problems.append(problem)
    if problems:
        # The deepest problem is the most specific one. Of two at one place, a number out of its
        # bounds is more specific than a type that another schema expects.
        return max(problems, key=lambda problem: (len(problem.place), problem.is_of_type))
    kinds = dict.fromkeys(schema["type"] for schema in schemas)
    words = [_KINDS[kind][1] for kind in kinds if kind != "null"]
    return Problem(path, f"expected {' or '.join(words)}", is_of_type=False)


def _has_type(schema: Schema, value: Any) -> bool:
    """True if *value* has the type of *schema*."""
    kind = schema["type"]
    return isinstance(value, _KINDS[kind][0]) and (kind == "boolean" or type(value) is not bool)


# Problems of values of the right type, a function for each type: find_problem uses _CHECKS.


def _text_problem(schema: Schema, value: str, path: Place) -> Problem | None:
    if "enum" in schema and value not in schema["enum"]:
        return Problem(path, f"expected one of {', '.join(schema['enum'])}")
    low = schema.get("minLength", 0)
    high = schema.get("maxLength")
    if len(value) >= low and (high is None or len(value) <= high):
        return None
    expected = f"at least {low:,}" if high is None else f"{low:,} to {high:,}"
    return Problem(path, f"expected {expected} characters")


def _bounds_problem(schema: Schema, value: float, path: Place) -> Problem | None:
    if value == schema.get(DEFAULT):
        return None
    low = schema.get("minimum")
    high = schema.get("maximum")
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        return Problem(path, f"is {str(value)[:40]}, expected {range_text(low or 0, high)}")
    return None


def _list_problem(schema: Schema, value: list[Any], path: Place) -> Problem | None:
    low = schema.get("minItems", 0)
    high = schema.get("maxItems")
    if len(value) < low:
        return Problem(path, f"expected at least {low:,}")
    if high is not None and len(value) > high:
        return Problem(path, f"{len(value):,} entries, expected at most {high:,}")
    items = schema["items"]
    # Fast path: prompts are long lists of texts or token ids.
    kinds = set(map(type, value))
    if items == TEXT and kinds <= {str}:
        return None
    if items == TOKEN_ID and kinds == {int} and min(value) >= 0 and max(value) < 2**31:
        return None
    problems = (find_problem(items, entry, (*path, at)) for at, entry in enumerate(value))
    return next((problem for problem in problems if problem), None)


def _object_problem(schema: Schema, value: dict[str, Any], path: Place) -> Problem | None:
    for name in schema.get("required", ()):
        if name not in value:
            return Problem((*path, name), "this field is required")
    own = schema.get("properties", {})
    additional = schema.get("additionalProperties")
    for name, inner in value.items():
        at = (*path, name[:80])
        if inner is None and name not in schema.get("required", ()):
            continue  # as if it were left out: clients send all entries that they know
        if name in own:
            if problem := find_problem(own[name], inner, at):
                return problem
        elif (additional is None and own) or additional is False:
            return Problem(at, "this field is not known here")
        elif isinstance(additional, dict) and (problem := find_problem(additional, inner, at)):
            return problem
    return None


_CHECKS: dict[str, Callable[[Schema, Any, Place], Problem | None]] = {
    "string": _text_problem, "integer": _bounds_problem, "number": _bounds_problem,
    "array": _list_problem, "object": _object_problem,
}  # fmt: skip
