import pytest

from bitnet.hub.options import FetchOptions
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
def session(hub, clock):
    """Makes sessions for *hub* that wait in no time."""
    made = []

    def make(**options):
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
