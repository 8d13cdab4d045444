"""The command line: a module for each group of commands, and the program that runs them.

A command is a function with the decorator of :mod:`bitnet.commands.declare`; ``name="cache.list"``
puts it into the group ``cache``. Bodies parse, call and print; the work is done elsewhere, and what
is heavy is imported inside the body, so that ``bitnet --list`` stays fast.
"""

from __future__ import annotations

from importlib import import_module

from invoke.collection import Collection

from bitnet.commands.declare import Task

__all__ = ["load"]

#: The modules with commands.
COMMANDS = (
    *("bulk", "cache", "check", "convert", "crossval", "generate", "launch", "models", "presets"),
    *("score", "serve", "tokenizers"),
)


def load() -> Collection:
    """All commands as an Invoke collection."""
    root = Collection()
    for name in COMMANDS:
        module = import_module(f"{__name__}.{name}")
        for member in vars(module).values():
            if isinstance(member, Task) and member.__module__ == module.__name__:
                add(root, member)
    return root


def add(root: Collection, command: Task) -> None:
    """Put *command* into *root*, or into the group that its dotted name begins with."""
    *group, name = command.name.split(".")
    collection = root
    for part in group:
        if part not in collection.collections:
            collection.add_collection(Collection(part))
        collection = collection.collections[part]
    collection.add_task(command, name=name)
