"""A split model in the cache is one model, under the name of its first part."""

import hashlib

import pytest

from bitnet.base.errors import NotFound
from bitnet.base.outputs import OutputFile
from bitnet.hub.bundles import ARCHIVE, Bundle, import_bundle, write_bundle
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.models import list_models, locate_model, remove_model
from bitnet.hub.project import Project
from bitnet.hub.ref import parse
from bitnet.store.records import Pin

PARTS = [f"m-Q8_0-0000{number}-of-00002.gguf" for number in (1, 2)]
NAME = f"hf:org/split:{PARTS[0]}"


@pytest.fixture
def project(hub, tmp_path):
    for name in (*PARTS, "mmproj-m-F16.gguf"):
        hub.add("org/split", name, b"GGUF" + name.encode())
    (tmp_path / "work").mkdir()
    options = FetchOptions(base_url=hub.url, retries=1)
    return Project(tmp_path / "work", tmp_path / "cache", options, "none")


def listed(project):
    """Names of the models of the repository that are here, with their sizes."""
    return {row.name: row.size_bytes for row in list_models(project.store) if "split" in row.name}


@pytest.mark.parametrize("name", ["hf:org/split", NAME, f"hf:org/split:{PARTS[1]}"])
def test_a_split_model_is_listed_once_opened_and_removed_whole(project, hub, name):
    locate_model(parse(name), project, fetch=True)
    locate_model(parse("hf:org/split:mmproj-m-F16.gguf"), project, fetch=True)
    assert listed(project) == {NAME: sum(4 + len(part) for part in PARTS)}
    hub.close()
    path = locate_model(parse(NAME), project, fetch=False)
    assert sorted(each.name for each in path.parent.glob("m-*")) == PARTS
    remove_model(parse(NAME), project, dry_run=False)
    assert listed(project) == {}
    with pytest.raises(NotFound):
        locate_model(parse(NAME), project, fetch=False)


@pytest.mark.parametrize(
    ("parts", "names"), [(PARTS, {NAME}), (PARTS[1:], set()), (PARTS[:1], set())]
)
def test_of_a_bundle_a_split_model_is_available_if_all_of_its_parts_are(
    project, tmp_path, parts, names
):
    pins = []
    places = {}
    for name in parts:
        path = tmp_path / name
        path.write_bytes(b"GGUF" + name.encode())
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        pin = Pin("model", "org/split", "main", name, None, digest, path.stat().st_size)
        pins.append(pin)
        places[digest] = path
    write_bundle(Bundle(tuple(pins), places=places), OutputFile(tmp_path / "b.tar", ARCHIVE))
    _, _, found = import_bundle(
        tmp_path / "b.tar", project, check=print, into=None, report=lambda *_: None
    )
    assert found.keys() == names
    assert all(path.name == PARTS[0] for path in found.values())
