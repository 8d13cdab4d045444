"""Folders that the user of the tests may not search, also if it is root."""

import errno
import os


def lock_folder(monkeypatch, folder):
    """Have the system refuse every path below *folder*, as for a user without access to it."""
    for name in ("stat", "open", "scandir", "listdir", "mkdir"):
        monkeypatch.setattr(os, name, _refusing(getattr(os, name), f"{folder}{os.sep}"))


def _refusing(call, beginning):
    """*call* that refuses paths with this *beginning*."""

    def refuse(path, *args, **options):
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(beginning):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return call(path, *args, **options)

    return refuse
