"""The commands: one module each, found by listing this folder.

A module defines one function decorated with :func:`bitnet.tasks.declare.task`;
``name="cache.list"`` puts it into the group ``cache``. Bodies parse, call and print; the work is
done elsewhere, and everything heavy is imported inside the body, so that ``inv --list`` stays fast.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from invoke.collection import Collection

from bitnet.tasks.declare import Task

__all__ = ["load"]


def load() -> Collection:
    """All commands as an Invoke collection."""
    root = Collection()
    for module_name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        module = import_module(f"{__name__}.{module_name}")
        for member in vars(module).values():
            if isinstance(member, Task) and member.__module__ == module.__name__:
                add(root, member)
    return root


def add(root: Collection, command: Task) -> None:
    """Put *command* into *root*, or into the group its dotted name says."""
    *group, name = command.name.split(".")
    where = root
    for part in group:
        if part not in where.collections:
            where.add_collection(Collection(part))
        where = where.collections[part]
    where.add_task(command, name=name)
