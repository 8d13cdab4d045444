import hashlib
import random

import pytest

from bitnet.hub.download import download
from bitnet.hub.repository import file_url

CONTENT = random.Random(7).randbytes(3_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def fetch(hub, session, path, **wanted):
    options = wanted.pop("options", {})
    with session(**options) as one:
        url = file_url("org/model", "main", "model.gguf", one.options)
        return download(url, path, session=one, progress="none", **wanted)


@pytest.fixture
def target(hub, tmp_path):
    hub.add("org/model", "model.gguf", CONTENT)
    return tmp_path / "models" / "model.gguf"


def names(path):
    return sorted(entry.name for entry in path.parent.iterdir())


def test_a_file_is_fetched_verified_and_alone(hub, session, target):
    done = fetch(hub, session, target)
    assert target.read_bytes() == CONTENT
    assert (done.sha256, done.size, done.cached) == (DIGEST, len(CONTENT), False)
    assert done.etag == DIGEST
    assert done.commit == hub.repos["org/model"].revisions["main"]
    assert names(target) == ["model.gguf", "model.gguf.lock"]
