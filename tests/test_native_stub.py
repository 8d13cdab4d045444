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
    """Name, default, and True if it has to be passed by name, of each parameter of a definition."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    pairs = [
        *((node.arg, value, False) for node, value in zip(positional, defaults, strict=True)),
        *(
            (node.arg, value, True)
            for node, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        ),
        *((f"**{node.arg}", None, False) for node in (arguments.kwarg,) if node),
    ]
    return [(name, value and ast.unparse(value), named) for name, value, named in pairs]


def declared_parameters_of(body, prefix=""):
    """Names in the *body* of the stub: with parameters if it is a function, else with ``None``."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, None if node.decorator_list else parameters(node)
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name, None
            yield from declared_parameters_of(node.body, f"{node.name}.")
        elif isinstance(node, ast.AnnAssign):
            yield prefix + node.target.id, None


def parameters_of_module(owner, prefix=""):
    """Names as those of :func:`declared_parameters_of`, of the compiled module or a class in it."""
    for name, value in vars(owner).items():
        special = name.startswith("__") and name not in ("__init__", "__len__")
        if special or inspect.ismodule(value):
            continue
        signatures = getattr(value, "__nb_signature__", None)
        if signatures is None or isinstance(value, property):
            yield prefix + name, None
        else:
            ((signature, _, values),) = signatures  # without overloads: one of each
            yield prefix + name, parameters_in_signature(signature, values or ())
        if inspect.isclass(value) and not issubclass(value, Exception):
            yield from parameters_of_module(value, f"{prefix}{name}.")


def parameters_in_signature(signature, values):
    """Parameters, as of :func:`parameters`; a default in *signature* is an index of *values*."""
    depth = 0
    parts = [""]
    for character in signature.partition("(")[2].partition(") -> ")[0]:
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    result = []
    named = False
    for part in (part.strip() for part in parts):
        if part == "*":
            named = True
        elif part:
            name, _, default = part.partition(" = ")
            value = repr(values[int(default.strip("\\"))]) if default else None
            result.append((name.partition(":")[0], value, named))
    return result


def test_the_stub_has_what_the_module_has():
    assert dict(declared_parameters_of(ast.parse(STUB.read_text(encoding="utf-8")).body)) == dict(
        parameters_of_module(module)
    )
