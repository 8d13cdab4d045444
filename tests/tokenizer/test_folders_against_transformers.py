"""A folder means what transformers makes of it, or is refused with the name of a key."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
from folder_expectations import outcome, write
from model_folders import TINY, ModelFolder
from quiet_libraries import QUIET
from tokenizer_folders import CLASSES, Folder, VocabularyFolder
from usual_folders import FOLDERS as USUAL
from usual_folders import UsualFolder

from bitnet.base.errors import Unsupported
from bitnet.tokenizer import class_table, load_tokenizer
from bitnet.tokenizer.former_classes import FORMER_CLASSES

pytestmark = [pytest.mark.slow, *QUIET]

FOLDERS = 2_000  # drawn folders that have tokenizer.json
PARTS = 20  # tests over which these are spread
VOCABULARIES = 400  # drawn folders that have vocab.json alone
MODELS = 400  # drawn folders that have tokenizer.model alone
SAVED = 800  # drawn folders that each earlier version saves


@pytest.fixture(scope="module")
def transformers(tmp_path_factory):
    """The installed transformers 5, without its warnings."""
    module = pytest.importorskip("transformers", reason="pip install 'bitnet-xtask[parity]'")
    if not module.__version__.startswith("5."):
        pytest.skip("the rules are those of transformers 5")
    module.logging.set_verbosity_error()
    return module


def count_equal(kind, seeds, folder):
    """Number of drawn folders of *kind* with transformers' results; others must be refused."""
    expectation = import_module("against_transformers").expectation
    equal = 0
    for seed in seeds:
        drawn = kind(seed)
        path = drawn.write(folder / str(seed))
        result = outcome(path, expectation(path, drawn.texts()))
        assert not result.startswith("difference"), (seed, result)
        if result.split(":")[0] == "equal":
            equal += 1
    return equal


@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_folders_give_transformers_ids_texts_and_templates(part, transformers, tmp_path):
    equal = count_equal(Folder, range(part, FOLDERS, PARTS), tmp_path)
    assert equal > FOLDERS // PARTS // 3  # many are compared, not refused


def test_drawn_vocabularies_give_transformers_ids_texts_and_templates(transformers, tmp_path):
    equal = count_equal(VocabularyFolder, range(VOCABULARIES), tmp_path)
    assert equal > VOCABULARIES // 2


def test_drawn_models_give_transformers_ids_texts_and_templates(transformers, tmp_path):
    equal = count_equal(ModelFolder, range(MODELS), tmp_path)
    assert equal > MODELS // 4


@pytest.mark.parametrize("name", USUAL)
@pytest.mark.parametrize("linked", [False, True])
def test_a_folder_as_users_have_it_gives_transformers_results(name, linked, transformers, tmp_path):
    """With links its files are in another folder, as in the cache of a hub."""
    folder = UsualFolder(name)
    path = folder.write(tmp_path / "folder")
    if linked:
        for file in [file for file in path.iterdir() if file.is_file()]:
            blob = tmp_path / f"blob of {file.name}"
            file.rename(blob)
            file.symlink_to(f"../{blob.name}")
    expectation = import_module("against_transformers").expectation
    assert outcome(path, expectation(path, folder.texts())) == "equal"


def model_folder(path, name):
    """A folder of the tiny SentencePiece model and the class *name*."""
    path.mkdir()
    shutil.copy(TINY, path / "tokenizer.model")
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    return path


@pytest.mark.parametrize("name", ["LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer"])
def test_a_class_builds_the_pieces_as_transformers_for_200_texts(name, transformers, tmp_path):
    expectation = import_module("against_transformers").expectation
    path = model_folder(tmp_path / "model", name)
    texts = [text for seed in range(7) for text in Folder(seed).texts()][:200]
    assert outcome(path, expectation(path, texts)) == "equal"


@pytest.mark.parametrize("name", ["XLMRobertaTokenizer", "T5Tokenizer", "DebertaV2Tokenizer"])
def test_the_command_of_a_refusal_writes_the_tokenizer_of_transformers(
    name, transformers, tmp_path
):
    expectation = import_module("against_transformers").expectation
    path = model_folder(tmp_path / "a model", name)
    with pytest.raises(Unsupported) as refused:
        load_tokenizer(path)
    # The hint has a command, and after "and name it" the option with the file that it writes.
    command, _, rebuilt = refused.value.hint.partition("): ")[2].partition(" and name it: ")
    _python, *words = shlex.split(command)
    subprocess.run([sys.executable, "-W", "ignore", *words], check=True)
    option, file = shlex.split(rebuilt)
    assert option == "--tokenizer"
    expected = expectation(path, Folder(1).texts())
    assert outcome(Path(file), expected) == "equal"


def record_with(version, cases):
    """Results of the transformers *version* for those of *cases* that it reads, one by one."""
    folder = os.environ.get("BITNET_TEST_TRANSFORMERS_4")
    if not folder:
        pytest.skip("needs environments of transformers 4: BITNET_TEST_TRANSFORMERS_4")
    script = Path(__file__).parents[1] / "support" / "record_folders.py"
    python = Path(folder) / f"transformers-{version}" / "bin" / "python"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.run(
        [python, "-W", "ignore", script, "--print", *cases],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    return map(json.loads, process.stdout.splitlines())


@pytest.mark.parametrize("version", ["4.46.3", "4.57.1"])
def test_drawn_vocabularies_give_the_ids_of_earlier_versions(version, tmp_path):
    cases = [f"vocabulary-{seed}@{version}" for seed in range(VOCABULARIES)]
    counts = Counter()
    for case in record_with(version, cases):
        path = write(case, tmp_path / case["case"])
        result = outcome(path, case, ids_only=True)
        assert not result.startswith("difference"), (case["case"], result)
        counts[result.split(":")[0]] += 1
    assert counts["equal"] > VOCABULARIES // 8


@pytest.mark.parametrize("version", ["4.46.3", "4.57.1"])
def test_drawn_folders_saved_by_earlier_versions_give_their_ids(version, tmp_path):
    counts = Counter()
    for case in record_with(version, [f"{seed}@{version}" for seed in range(SAVED)]):
        name = case["files"]["tokenizer_config.json"].get("tokenizer_class", "")
        if name.removesuffix("Fast") not in FORMER_CLASSES:
            continue  # read as transformers 5 reads it
        path = write(case, tmp_path / case["case"])
        result = outcome(path, case, ids_only=True)
        assert not result.startswith("difference"), (case["case"], result)
        counts[result.split(":")[0]] += 1
    assert counts["equal"] > SAVED // 8


def test_the_table_of_classes_is_that_of_the_installed_transformers(transformers):
    support = import_module("tokenizer_classes")
    recorded = json.loads(Path(support.TABLE).read_text("utf-8"))
    if transformers.__version__ != recorded["transformers"]:
        pytest.skip(f"the table is that of transformers {recorded['transformers']}")
    assert support.table() == recorded


def test_every_drawn_class_is_in_the_table_or_unknown_to_transformers():
    rows = json.loads(
        Path(class_table.__file__).with_name("tokenizer_classes.json").read_text("utf-8")
    )["classes"]
    names = {name.removesuffix("Fast") for name in CLASSES}  # both spellings share a row
    assert names - rows.keys() == {"PreTrainedTokenizer", "SomebodysTokenizer"}
