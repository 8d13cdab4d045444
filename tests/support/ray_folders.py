"""A folder of its own for Ray, so that clusters of two test processes never meet."""

import contextlib
import tempfile

import pytest


@contextlib.contextmanager
def own_ray_folder():
    """Where Ray has its sockets, which need a short path, and the address of the latest cluster."""
    folder = tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True)
    with folder as path, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", path)
        yield
