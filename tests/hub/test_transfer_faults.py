"""Whatever a server does, a download ends, with the right file or with an error."""

import hashlib
import random
from contextlib import ExitStack

import pytest
from faulty_server import MOST_REQUESTS, Fault, FaultyServer, Habits
from hypothesis import example, given
from hypothesis import strategies as st

from bitnet.base.errors import BitnetError, NetworkError
from bitnet.hub import transfer
from bitnet.hub.fetch import fetch
from bitnet.hub.fetch_options import FetchOptions
from bitnet.hub.orders import FileOrder
from bitnet.hub.session import HubSession
from bitnet.sources import Source
from bitnet.store import Store

SIZE = 100_000  # bytes
CONTENT = random.Random(1).randbytes(SIZE)
VERSIONS = [CONTENT, random.Random(2).randbytes(SIZE), random.Random(3).randbytes(SIZE - 7)]

# Shares of a body or part, each less than the whole.
SHARES = st.floats(0, 0.999)
FAULTS = st.one_of(
    st.builds(Fault, ends_at=SHARES),
    st.builds(Fault, ends_at=SHARES, is_whole=st.just(True)),
    st.builds(Fault, ends_at=st.none() | SHARES, part=SHARES, no_total=st.booleans()),
    st.builds(Fault, is_empty=st.just(True)),
    st.builds(Fault, status=st.sampled_from([500, 503])),
)
REPLACED = st.builds(Fault, ends_at=st.none() | SHARES, is_replaced=st.just(True))
HABITS = st.builds(
    Habits,
    ranges=st.booleans(),
    says_ranges=st.booleans(),
    length=st.booleans(),
    head_length=st.booleans(),
    etag=st.booleans(),
    if_range=st.booleans(),
)


class Clock:
    """Time that passes only by ``sleep``."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds


@pytest.fixture(scope="module", autouse=True)
def small_pieces():
    """Small pieces, so that the file is large enough for several connections."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "PROBE_BYTES", 8_000)
        patch.setattr(transfer, "SMALLEST_PIECE", 8_000)
        yield


def fetch_from(folder, servers, *, digest=None, connections=1):
    """Fetch result of the file at the first of *servers*; the others may continue it."""
    clock = Clock()
    store = Store(folder)
    store.prepare()
    urls = [server.url for server in servers]
    source = Source("m", "", "model.gguf", url=urls[0], sha256=digest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BITNET_CONNECTIONS", str(connections))
        with HubSession(FetchOptions(), clock=clock, sleep=clock.sleep) as session:
            return fetch(FileOrder(source), store, urls, session=session, progress="none")


def requested_ranges(server):
    """Ranges of the requests to *server*, which must be fewer than an endless client would send."""
    assert len(server.ranges_asked) < MOST_REQUESTS
    return server.ranges_asked


# --- faults drawn by Hypothesis ------------------------------------------------------------------


@given(HABITS, st.lists(FAULTS, max_size=6), st.sampled_from([1, 3]))
@example(Habits(ranges=False), [Fault(ends_at=0.3), Fault(ends_at=0.2)], 1)
@example(Habits(ranges=False, length=False), [Fault(ends_at=0.3), Fault(ends_at=0.2)], 1)
@example(Habits(), [Fault(ends_at=0.3), *[Fault(is_empty=True)] * 3], 1)
def test_a_file_is_right_after_any_sequence_of_faults(tmp_path_factory, habits, faults, threads):
    with FaultyServer(habits, [CONTENT], faults) as server:
        folder = tmp_path_factory.mktemp("store")
        assert fetch_from(folder, [server], connections=threads).blob.path.read_bytes() == CONTENT
        requested_ranges(server)


@given(
    HABITS,
    st.lists(FAULTS | REPLACED, max_size=5),
    st.permutations(range(len(VERSIONS))),
    st.sampled_from([1, 3]),
)
@example(Habits(), [Fault(is_replaced=True)], [0, 1, 2], 1)
@example(Habits(ranges=False, length=False), [Fault(is_replaced=True)], [0, 2, 1], 1)
def test_a_file_replaced_during_its_download_is_of_one_version_whose_etag_is_recorded(
    tmp_path_factory, habits, faults, order, threads
):
    habits = Habits(**{**vars(habits), "etag": True})
    versions = [VERSIONS[number] for number in order]
    with FaultyServer(habits, versions, faults) as server:
        folder = tmp_path_factory.mktemp("store")
        result = fetch_from(folder, [server], connections=threads)
        version = int(result.pin.revision.removeprefix("v"))
        assert result.blob.path.read_bytes() == versions[version]
        requested_ranges(server)


@given(
    HABITS,
    HABITS,
    st.lists(FAULTS, max_size=4),
    st.lists(FAULTS, max_size=4),
    st.integers(0, 12),
    st.sampled_from([1, 3]),
)
def test_a_mirror_continues_after_any_number_of_requests_to_a_server_that_dies(
    tmp_path_factory, habits, other, faults, other_faults, requests, threads
):
    habits = Habits(**{**vars(habits), "dead_after": requests})
    digest = hashlib.sha256(CONTENT).hexdigest()
    with ExitStack() as servers:
        first = servers.enter_context(FaultyServer(habits, [CONTENT], faults))
        second = servers.enter_context(FaultyServer(other, [CONTENT], other_faults))
        folder = tmp_path_factory.mktemp("store")
        result = fetch_from(folder, [first, second], digest=digest, connections=threads)
        assert result.blob.path.read_bytes() == CONTENT
        requested_ranges(first)
        requested_ranges(second)


@given(HABITS, st.lists(FAULTS | REPLACED, max_size=5), st.integers(0, 12), st.booleans())
def test_a_download_from_a_server_that_dies_is_continued_by_a_later_run_when_it_is_back(
    tmp_path_factory, habits, faults, requests, is_known
):
    digest = hashlib.sha256(CONTENT).hexdigest() if is_known else None
    habits = Habits(**{**vars(habits), "etag": True, "dead_after": requests})
    versions = [CONTENT] if is_known else VERSIONS  # with a digest, other versions are refused
    folder = tmp_path_factory.mktemp("store")
    with FaultyServer(habits, versions, faults) as server:
        try:
            result = fetch_from(folder, [server], digest=digest)
        except BitnetError:
            # The server was dead; it is back for the next run.
            assert len(server.ranges_asked) > requests
            server.habits = Habits(**{**vars(habits), "dead_after": None})
            result = fetch_from(folder, [server], digest=digest)
        assert result.blob.path.read_bytes() in versions
        requested_ranges(server)


# --- single sequences of faults ------------------------------------------------------------------


def test_a_file_of_unknown_size_is_continued_after_a_break(tmp_path):
    habits = Habits(head_length=False, length=False)
    with FaultyServer(habits, [CONTENT], [Fault(ends_at=0.25)]) as server:
        assert fetch_from(tmp_path, [server]).blob.path.read_bytes() == CONTENT
        assert requested_ranges(server) == [None, "bytes=25000-"]


def test_a_file_whose_size_no_reply_states_ends_where_the_server_has_no_more(tmp_path):
    habits = Habits(head_length=False, length=False)
    faults = [Fault(ends_at=0.25), Fault(no_total=True)]
    with FaultyServer(habits, [CONTENT], faults) as server:
        assert fetch_from(tmp_path, [server]).blob.path.read_bytes() == CONTENT
        assert requested_ranges(server) == [None, "bytes=25000-", "bytes=100000-"]


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_a_server_that_can_never_continue_is_given_up(tmp_path, size):
    habits = Habits(ranges=False)
    faults = [Fault(ends_at=0.9)] * MOST_REQUESTS  # every reply breaks off
    with FaultyServer(habits, [bytes(size)], faults) as server:
        with pytest.raises(NetworkError, match="cannot continue a file"):
            fetch_from(tmp_path, [server])
        # The first request, MOST_RESTARTS that start over, and one that may not.
        assert len(requested_ranges(server)) == transfer.MOST_RESTARTS + 2
