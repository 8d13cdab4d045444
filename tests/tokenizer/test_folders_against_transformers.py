"""A folder means what transformers makes of it, or is refused with the name of a key."""

import json
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
from folder_expectations import outcome
from tokenizer_folders import CLASSES, Folder

from bitnet.tokenizer import tokenizer_class

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

FOLDERS = 2_000
PARTS = 20


@pytest.fixture(scope="module")
def transformers(tmp_path_factory):
    found = pytest.importorskip("transformers", reason="pip install 'bitnet[parity]'")
    if not found.__version__.startswith("5."):
        pytest.skip("the rules are those of transformers 5")
    found.logging.set_verbosity_error()
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_folders_give_transformers_ids_texts_and_templates(part, transformers, tmp_path):
    expectation = import_module("against_transformers").expectation
    counts = Counter()
    for seed in range(part, FOLDERS, PARTS):
        folder = Folder(seed)
        path = folder.write(tmp_path / str(seed))
        result = outcome(path, expectation(path, folder.texts()))
        assert not result.startswith("difference"), (seed, result)
        counts[result.split(":")[0]] += 1
    assert counts["equal"] > FOLDERS // PARTS // 3


def test_the_table_of_classes_is_that_of_the_installed_transformers(transformers):
    support = import_module("tokenizer_classes")
    recorded = json.loads(Path(support.TABLE).read_text("utf-8"))
    if transformers.__version__ != recorded["transformers"]:
        pytest.skip(f"the table is that of transformers {recorded['transformers']}")
    assert support.table() == recorded


def test_every_drawn_class_is_in_the_table_or_unknown_to_transformers():
    rows = json.loads(
        Path(tokenizer_class.__file__).with_name("tokenizer_classes.json").read_text("utf-8")
    )["classes"]
    names = {name.removesuffix("Fast") for name in CLASSES}
    assert names - rows.keys() == {"PreTrainedTokenizer", "SomebodysTokenizer"}
