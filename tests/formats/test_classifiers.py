"""The function of a classifier's scores, with that of sentence-transformers as the oracle."""

import json
import warnings

import pytest
from quiet_libraries import QUIET

REASON = "sentence-transformers is not installed: pip install 'bitnet-xtask[parity]'"
torch = pytest.importorskip("torch", reason=REASON)
pytest.importorskip("transformers", reason=REASON)
sentence_transformers = pytest.importorskip("sentence_transformers", reason=REASON)

from sentence_folders import change_json, encoder_folder  # noqa: E402 - needs torch

from bitnet.formats.containers import open_checkpoint  # noqa: E402

pytestmark = QUIET
IDENTITY = "torch.nn.modules.linear.Identity"
SIGMOID = "torch.nn.modules.activation.Sigmoid"
FUNCTIONS = {torch.nn.Identity: "none", torch.nn.Sigmoid: "sigmoid"}  # our names of them
OWN = {"model_type": "CrossEncoder"}
TABLE = "sentence_transformers"  # key of config.json with a table of settings
FORMER = "sbert_ce_default_activation_function"  # key of config.json in older folders


def encoder_of(path):
    """The model in *path* as the library loads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sentence_transformers.CrossEncoder(str(path), device="cpu")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder of transformers with one score."""
    path = tmp_path_factory.mktemp("source") / "model"
    return encoder_folder(path, "Bert", "ForSequenceClassification", num_labels=1)


@pytest.fixture(scope="module")
def saved(source, tmp_path_factory):
    """The same model as the library saves it, with a list of modules."""
    path = tmp_path_factory.mktemp("saved") / "model"
    encoder_of(source).save_pretrained(str(path), create_model_card=False)
    return path


@pytest.fixture
def change():
    """A function that sets keys of a file until the end of the test."""
    before = {}

    def set_keys(path, **keys):
        before.setdefault(path, path.read_text() if path.exists() else None)
        if not path.exists():
            path.write_text("{}")
        change_json(path, **keys)

    yield set_keys
    for path, text in before.items():
        if text is None:
            path.unlink()
        else:
            path.write_text(text)


# Keys of config_sentence_transformers.json, and keys of config.json.
@pytest.mark.parametrize("folder", ["source", "saved"])
@pytest.mark.parametrize(
    ("own", "config"),
    [
        ({**OWN, "activation_fn": IDENTITY}, {}),
        ({**OWN, "activation_fn": SIGMOID}, {TABLE: {"activation_fn": IDENTITY}}),
        ({**OWN, "activation_fn": IDENTITY}, {TABLE: {"activation_fn": SIGMOID}}),
        ({**OWN, "activation_fn": SIGMOID}, {FORMER: IDENTITY}),
        ({**OWN, "activation_fn": None}, {TABLE: {"activation_fn": IDENTITY}}),
        ({"model_type": None, "activation_fn": IDENTITY}, {}),
        (OWN | {"activation_fn": None}, {TABLE: {"activation_fn": None}, FORMER: IDENTITY}),
        (OWN | {"activation_fn": None}, {TABLE: {"version": "4.0"}, FORMER: IDENTITY}),
    ],
)
def test_the_function_is_that_of_the_file_that_the_library_reads(
    folder, own, config, request, change
):
    path = request.getfixturevalue(folder)
    change(path / "config_sentence_transformers.json", **own)
    change(path / "config.json", **config)
    expected = FUNCTIONS[type(encoder_of(path).activation_fn)]
    assert open_checkpoint(path).value("classifier.relevance") == expected


def test_a_classifier_with_the_labels_yes_and_no_ranks_by_the_share_of_yes(tmp_path):
    labels = {0: "yes", 1: "no"}
    name = "ForSequenceClassification"
    path = encoder_folder(tmp_path / "model", "Bert", name, num_labels=2, id2label=labels)
    assert json.loads((path / "config.json").read_text())["id2label"] == {"0": "yes", "1": "no"}
    assert open_checkpoint(path).value("classifier.relevance") == "sigmoid"
