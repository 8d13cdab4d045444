"""Control groups of this process (Linux, both versions): where the limits of a container stand."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def group_folders(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, bool]]:
    """Folders of the groups with *controller*, from the process's own to the top; true: version 2.

    *root* is the parent of the system's ``proc`` and ``sys``.
    """
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = list(_mounts((root / "proc/self/mountinfo").read_text()))
    except (OSError, UnicodeDecodeError):
        return
    for line in memberships:
        _, controllers, group = line.split(":", 2)
        version_2 = not controllers
        if not version_2 and controller not in controllers.split(","):
            continue
        for kind, options, mounted_group, mount_point in mounts:
            if kind != ("cgroup2" if version_2 else "cgroup"):
                continue
            if version_2 or controller in options:
                for folder in _folders(root, group, mounted_group, mount_point):
                    yield folder, version_2


def _mounts(mountinfo: str) -> Iterator[tuple[str, list[str], str, str]]:
    """Kind, options, mounted group and mount point of each mount of control groups."""
    for line in mountinfo.splitlines():
        place, _, source = line.partition(" - ")
        fields, kind = place.split(" "), source.split(" ")
        if len(fields) >= 5 and len(kind) >= 3 and kind[0] in ("cgroup", "cgroup2"):
            yield kind[0], kind[2].split(","), fields[3], fields[4]


def _folders(root: Path, group: str, mounted_group: str, mount_point: str) -> Iterator[Path]:
    """Folders of *group* and its parents, as far as they are mounted."""
    top = root / mount_point.lstrip("/")
    try:
        inside = PurePosixPath(group).relative_to(mounted_group)
    except ValueError:  # a container whose own group is mounted
        inside = PurePosixPath()
    for part in (inside, *inside.parents):
        yield top / part
