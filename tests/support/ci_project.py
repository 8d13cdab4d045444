"""A project with the templates in it, and a stand-in for the program that CI builds there."""

from bitnet.ci.templates import EVERY, plan_files, write_files

IMAGE = f"python:3.12-bookworm@sha256:{'ab' * 32}"

BACKEND = '''"""Builds a wheel with one module, and needs nothing for it."""
import zipfile

def build_wheel(folder, settings=None, metadata=None):
    name = "tool-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("tool.py", "VERSION = 1\\n")
        about = "Metadata-Version: 2.1\\nName: tool\\nVersion: 1\\n"
        wheel.writestr("tool-1.dist-info/METADATA", about)
        wheel.writestr("tool-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr("tool-1.dist-info/RECORD", "")
    return name
'''


def tool(folder):
    """A Python project without requirements, which the tests of CI install in place of bitnet."""
    folder.mkdir(parents=True)
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (folder / "pyproject.toml").write_text(system)
    (folder / "backend.py").write_text(BACKEND)


def write_project(folder, source="tool"):
    """Every template below *folder*; what they install is the tool, and needs nothing."""
    tool(folder / "tool")
    write_files(folder, plan_files(folder, list(EVERY), source=source, image=IMAGE))
    for lock in (folder / ".github/bitnet").glob("*.txt"):
        if lock.name != "source.txt":
            lock.write_text("# nothing\n")  # these name the packages that bitnet requires
