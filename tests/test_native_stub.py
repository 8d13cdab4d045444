"""``_native.pyi`` names what the compiled module has, with the parameters that it takes."""

import ast
import inspect
from pathlib import Path

import pytest

import bitnet
from bitnet.base import native

module = native.module()
pytestmark = pytest.mark.skipif(module is None, reason="the native module is not installed")
STUB = Path(bitnet.__file__).with_name("_native.pyi")


def parameters(function):
    """Names and defaults, each with whether it has to be named."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    pairs = [
        *((one.arg, value, False) for one, value in zip(positional, defaults, strict=True)),
        *(
            (one.arg, value, True)
            for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        ),
        *((f"**{one.arg}", None, False) for one in (arguments.kwarg,) if one),
    ]
    return [(name, value and ast.unparse(value), named) for name, value, named in pairs]


def declared(body, prefix=""):
    """The parameters of every function and method in the stub; ``None`` for other names."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, None if node.decorator_list else parameters(node)
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name, None
            yield from declared(node.body, f"{node.name}.")
        elif isinstance(node, ast.AnnAssign):
            yield prefix + node.target.id, None


def built(owner, prefix=""):
    """The same of the compiled module."""
    for name, value in vars(owner).items():
        special = name.startswith("__") and name not in ("__init__", "__len__")
        if special or isinstance(value, type(ast)):
            continue
        signatures = getattr(value, "__nb_signature__", None)
        if signatures is None or isinstance(value, property):
            yield prefix + name, None
        else:
            ((signature, _, values),) = signatures
            yield prefix + name, built_parameters(signature, values or ())
        if inspect.isclass(value) and not issubclass(value, Exception):
            yield from built(value, f"{prefix}{name}.")


def built_parameters(signature, values):
    """Defaults stand as a number among *values*."""
    depth = 0
    parts = [""]
    for character in signature.partition("(")[2].partition(") -> ")[0]:
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    found = []
    named = False
    for part in (part.strip() for part in parts):
        if part == "*":
            named = True
        elif part:
            name, _, default = part.partition(" = ")
            value = repr(values[int(default.strip("\\"))]) if default else None
            found.append((name.partition(":")[0], value, named))
    return found


def test_the_stub_has_what_the_module_has():
    assert dict(declared(ast.parse(STUB.read_text(encoding="utf-8")).body)) == dict(built(module))
