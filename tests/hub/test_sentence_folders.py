"""A repository of sentence-transformers is fetched with its settings, and computes with them."""

import pytest

REASON = "sentence-transformers is not installed: pip install 'bitnet-xtask[parity]'"
torch = pytest.importorskip("torch", reason=REASON)
pytest.importorskip("transformers", reason=REASON)
pytest.importorskip("sentence_transformers", reason=REASON)

from engine_vectors import smallest_cosine  # noqa: E402
from quiet_libraries import QUIET  # noqa: E402
from sentence_folders import (  # noqa: E402 - needs torch
    TEXTS,
    encoder_folder,
    expected_vectors,
    sentence_folder,
)

from bitnet import load  # noqa: E402
from bitnet.hub.fetch_options import FetchOptions  # noqa: E402
from bitnet.hub.models import list_models, locate_model  # noqa: E402
from bitnet.hub.project import Project  # noqa: E402
from bitnet.hub.ref import parse  # noqa: E402

pytestmark = QUIET


def test_a_fetched_model_pools_and_projects_as_its_repository_says(hub, tmp_path):
    source = encoder_folder(tmp_path / "encoder")
    chain = {"pooling": "cls", "dense": [(8, torch.nn.Identity(), True)], "limit": 6}
    prompts = {"query": "query: ", "document": ""}
    own = sentence_folder(tmp_path / "own", source, prompts=prompts, **chain)
    for path in own.rglob("*"):
        if path.is_file():
            hub.add("org/vectors", path.relative_to(own).as_posix(), path)
    project = Project(tmp_path, tmp_path / "cache", FetchOptions(base_url=hub.url), "none")

    fetched = locate_model(parse("hf:org/vectors"), project, fetch=True)

    names = {path.relative_to(own) for path in own.rglob("*") if path.is_file()}
    assert {path.relative_to(fetched) for path in fetched.rglob("*") if path.is_file()} == names
    model = load(fetched)
    assert smallest_cosine(model.embed(TEXTS), expected_vectors(own)) > 1 - 1e-5
    (row,) = [row for row in list_models(project.store) if row.name == "hf:org/vectors"]
    assert row.file == "model.safetensors"
    hub.close()  # what is here is found without asking
    assert locate_model(parse("hf:org/vectors"), project, fetch=False) == fetched
