"""A model in three wheels, so small that every test can build them."""

import base64
import hashlib
import zipfile

from bitnet.sources import Package, Source

HALVES = (b"GGUF first half " * 5000, b"second half" * 7000)
WHOLE = b"".join(HALVES)

TINY = Source(
    "tiny",
    "tiny",
    file="tiny.gguf",
    sha256=hashlib.sha256(WHOLE).hexdigest(),
    revision="1.0",
    size=len(WHOLE),
    parts=(
        Package("tiny-model-part1", "1.0", "tiny_model_part1/tiny.part0"),
        Package("tiny-model-part2", "1.0", "tiny_model_part2/tiny.part1"),
    ),
    notices=(
        Package("tiny-model", "1.0", "tiny_model/SHA256SUMS"),
        Package("tiny-model", "1.0", "tiny_model/NOTICE.md"),
    ),
    licence="MIT",
    licence_url="https://example.org/licence",
)


def wheel(folder, name, files, version="1.0", paths=()):
    """A wheel as a build back end would write it.

    Args:
        folder: where it goes.
        name: of the distribution.
        files: contents by path below the module.
        version: of the distribution.
        paths: large files by path in the wheel; they are stored as they are.
    """
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in files.items():
            archive.writestr(f"{module}/{member}", content)
        for member, file in dict(paths).items():
            archive.write(file, member, zipfile.ZIP_STORED)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        names = archive.namelist()
        rows = [f"{member},sha256={_digest(archive.read(member))}," for member in names]
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]))
    return path


def _digest(content):
    """SHA-256 as RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
