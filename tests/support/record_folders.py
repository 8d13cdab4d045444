"""Write ``tests/tokenizer/found/folders.jsonl``: folders and the results of transformers for them.

    python tests/support/record_folders.py 353 17@4.57.1

records the random folder with the seed 353, and the folder that transformers 4.57.1 saves from the
one with the seed 17. ``vocabulary-17`` and ``vocabulary-17@4.57.1`` are random folders with
``vocab.json`` and without ``tokenizer.json``; config.json of the second names this version.
``model-17`` is a random folder with ``tokenizer.model`` alone, and ``usual-plain`` the folder
``plain`` of ``usual_folders.py``. A case with ``@VERSION`` must be recorded by a Python with this
version, the others by one with transformers 5. Cases that are already recorded keep their place.
With ``--print`` first, the cases that the installed version reads are printed, and nothing is
written.
"""

import json
import sys
import tempfile
from base64 import b64encode
from contextlib import suppress
from pathlib import Path

import transformers
from against_transformers import expectation
from folder_expectations import RECORDED
from model_folders import ModelFolder
from tokenizer_folders import Folder, VocabularyFolder
from usual_folders import UsualFolder

_FOLDERS = {"": Folder, "vocabulary": VocabularyFolder, "model": ModelFolder}
_FOLDERS["usual"] = UsualFolder
TEXTS = 12  # of each folder: the first six, and the last ones


def record(case: str) -> dict[str, object]:
    """Files of the folder *case* and the results of the installed transformers."""
    seed, _, version = case.partition("@")
    kind, _, number = seed.partition("-") if "-" in seed else ("", "", seed)
    folder = _FOLDERS[kind](int(number) if number.isdigit() else number)
    with tempfile.TemporaryDirectory() as place:
        path = folder.write(Path(place) / "drawn")
        if version and kind:
            mark(path, folder.files, version)
        elif version:
            path = save(path, Path(place) / "saved", folder.files, version)
        texts = folder.texts()
        chosen = [*texts[:6], *texts[-TEXTS + 6 :]]
        expected = expectation(path, chosen)
        files = {
            file.relative_to(path).as_posix(): read(file)
            for file in sorted(path.rglob("*"))
            if file.is_file() and (kind or file.name not in ("vocab.json", "merges.txt"))
        }
    if expected is None:
        raise ValueError(f"transformers does not read the folder {case}")
    return {"case": case, **expected, "files": {n: compact(n, t) for n, t in files.items()}}


def read(file: Path) -> str:
    """The content of *file*, that of a ``tokenizer.model`` in base64."""
    if file.suffix == ".model":
        return b64encode(file.read_bytes()).decode()
    return file.read_bytes().decode()  # with its line ends


def save(drawn: Path, path: Path, files: dict[str, object], version: str) -> Path:
    """The folder *drawn* as the installed transformers saves it, with its version."""
    transformers.AutoTokenizer.from_pretrained(drawn).save_pretrained(path)
    mark(path, files, version)
    return path


def mark(path: Path, files: dict[str, object], version: str) -> None:
    """Write *version*, that of the installed transformers, into ``config.json`` of the folder."""
    if transformers.__version__ != version:
        raise ValueError(f"this is transformers {transformers.__version__}, not {version}")
    config = {**files.get("config.json", {}), "transformers_version": version}
    (path / "config.json").write_text(json.dumps(config))


def compact(name: str, text: str) -> object:
    """The file *name* with the content *text* as a JSON value.

    A vocabulary whose ids are in order becomes the list of its texts.
    """
    if not name.endswith(".json"):
        return text
    content = json.loads(text)
    if name == "tokenizer.json":
        vocabulary = content["model"]["vocab"]
        if isinstance(vocabulary, dict) and [*vocabulary.values()] == [*range(len(vocabulary))]:
            content["model"]["vocab"] = [*vocabulary]
    return content


def print_cases(cases: list[str]) -> None:
    """Print those of *cases* that the installed transformers reads."""
    for case in cases:
        with suppress(Exception):  # its errors for unreadable folders have no base class
            print(json.dumps(record(case)))


def main(cases: list[str]) -> None:
    """Record *cases*."""
    if cases[:1] == ["--print"]:
        print_cases(cases[1:])
        return
    lines = RECORDED.read_text("utf-8").splitlines() if RECORDED.exists() else []
    recorded = {json.loads(line)["case"]: line for line in lines}
    for case in cases:
        recorded[case] = json.dumps(record(case), ensure_ascii=False, separators=(",", ":"))
    RECORDED.write_text("".join(f"{line}\n" for line in recorded.values()), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
