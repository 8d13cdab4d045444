"""A folder of its own for Ray, so that clusters of two test processes stay apart."""

import contextlib
import tempfile

import pytest


@contextlib.contextmanager
def own_ray_folder():
    """Give Ray a folder for its sockets, with a short path, and for a cluster's address."""
    folder = tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True)
    with folder as path, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", path)
        yield
