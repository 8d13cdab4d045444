"""Made-up Linux systems with control groups."""

import pytest


@pytest.fixture
def system(tmp_path):
    """Function that writes the files of a system below a folder, and returns that folder.

    Its arguments are the texts of ``/proc/self/cgroup`` and of the mounts of control groups, and
    the texts of files by path below ``/sys/fs/cgroup``.
    """

    def write(membership, mounts, files):
        for name, text in {
            "proc/self/cgroup": membership,
            "proc/self/mountinfo": "22 1 8:1 / / rw - ext4 /dev/root rw\n" + mounts,
            **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
        }.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write
