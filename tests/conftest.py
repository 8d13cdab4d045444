"""Every test runs by itself: with a temporary home and cache, and with loopback sockets only."""

import logging
import os
import shutil
import signal
import socket
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import durations
import hypothesis
import mirror
import pytest
from grids import beyond_pairs
from hub_server import HubServer

from bitnet.base import native, settings

# The same examples in every run, and no limit to the time one takes: a busy machine is not a bug.
# HYPOTHESIS_PROFILE=ci draws more of them, as the slow job does, and default looks for new ones.
hypothesis.settings.register_profile("fast", hypothesis.settings.get_profile("ci"), max_examples=30)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# A process that a script starts with `&` ignores SIGINT, and one that `nohup` starts SIGHUP. Every
# process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Of NumPy and torch, before they are imported. The matrices of tests are small, and threads of all
# workers would wait for each other most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What no test sees of the user's environment. PYTHONDONTWRITEBYTECODE would make every process
# that a test starts compile the package again.
PROXIES = [f"{scheme}_PROXY" for scheme in ("HTTP", "HTTPS", "ALL")]
HIDDEN = {
    *(name for setting in settings.ALL for name in setting.names),
    *(*PROXIES, *map(str.lower, PROXIES), "GITHUB_STEP_SUMMARY", "PYTHONDONTWRITEBYTECODE"),
} & {*os.environ}

DIMENSIONS_OF_A_GRID = 3  # least number of parameters of a test of which not every case is fast
SECONDS = pytest.StashKey()  # processor time by folder of tests
READY = pytest.StashKey[bool]()  # a worker has reported what it collected

_REAL_CONNECT = socket.socket.connect
_LOOPBACK = ("127.", "::1", "localhost")
_UNIX = getattr(socket, "AF_UNIX", None)  # Python for Windows has no such sockets


def pytest_collection_modifyitems(items):
    """Mark cases of large grids as slow, and leave slow and optional tests out of the coverage.

    A grid is a test of three parameters or more: its fast cases have every pair of values. Optional
    are tests that read files which a checkout does not have.
    """
    grids = defaultdict(dict)
    for item in items:
        if hasattr(item, "callspec") and len(item.callspec.params) >= DIMENSIONS_OF_A_GRID:
            case = tuple(f"{value!r:.100}" for value in item.callspec.params.values())
            grids[item.nodeid.split("[")[0]][case] = item
    for grid in grids.values():
        for case in beyond_pairs(list(grid)):
            grid[case].add_marker("slow")
    for item in items:
        if item.get_closest_marker("slow") or {"test_data", "test_models"} & {*item.fixturenames}:
            item.add_marker("no_cover")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Note the processor time of a test, its fixtures and its processes."""
    before = sum(os.times()[:4])
    result = yield
    item.config.stash[SECONDS][durations.folder_of(item.path)] += sum(os.times()[:4]) - before
    return result


def pytest_configure(config):
    config.stash[SECONDS] = Counter()
    if config.getoption("record_index"):
        config.pluginmanager.register(mirror.Recorder())


def pytest_sessionfinish(session):
    """Hand the times of a worker to the process that started it, or record them on request."""
    seconds = session.config.stash[SECONDS]
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["seconds"] = dict(seconds)
    elif session.config.getoption("record_durations"):
        durations.write(seconds)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config, specs):
    """Report the wait: workers write nothing until each of them has imported every test."""
    recorded_s = durations.recorded_seconds()
    minutes = recorded_s / min(len(specs), os.cpu_count() or 1) / 60
    _report(
        config,
        f"{len(specs)} workers import the tests before the first one runs; all fast tests take "
        f"{recorded_s} s of a processor, here about {minutes:.0f} minutes",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node, ids):
    """Report the first worker that is ready."""
    if not node.config.stash.get(READY, False):
        node.config.stash[READY] = True
        _report(node.config, f"a worker has imported {len(ids):,} tests")


def _report(config, line):
    """Write *line* at once, also into a pipe."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.ensure_newline()
        reporter.write_line(line)
        reporter.flush()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Add the times of a worker that ends."""
    finished = getattr(node, "workeroutput", {})  # a worker that crashed has none
    node.config.stash[SECONDS].update(finished.get("seconds", {}))


def pytest_terminal_summary(terminalreporter, config):
    slower = list(durations.beyond_bounds(config.stash[SECONDS]))
    if slower and not config.getoption("record_durations"):
        terminalreporter.section("slower than tests/durations.json; inv test --record")
        terminalreporter.write_line("\n".join(slower))


def pytest_addoption(parser):
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json")
    parser.addoption("--record-index", action="store_true", help="write tests/README.md")


def pytest_runtest_setup(item):
    """Skip a test whose program is not installed: the README asks for Python and a compiler."""
    for marker in item.iter_markers("needs"):
        (program,) = marker.args
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed; a job of .ci/run requires it")


@pytest.fixture(autouse=True)
def _own_world(tmp_path_factory, monkeypatch):
    """An empty home, and none of the user's variables that change the program."""
    for name in HIDDEN:
        monkeypatch.delenv(name, raising=False)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    yield
    # Thousands of homes with models and caches would take gigabytes. They are removed by the true
    # functions of the system, whatever the test put in their place; it may have locked a folder.
    monkeypatch.undo()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(autouse=True)
def _own_log():
    """Restore the program's logger, which a command that runs in this process configures."""
    logger = logging.getLogger("bitnet")
    level, handlers, propagate = logger.level, [*logger.handlers], logger.propagate
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers
    logger.propagate = propagate


@pytest.fixture(autouse=True, scope="module")
def _own_threads():
    """Restore the number of threads after each file: it is that of the process, not of a model."""
    module = native._import()[0]  # without the warning of native.module() if there is none
    before = module and module.threads()
    yield
    if module is not None:
        module.set_threads(before)


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch):
    """Fail a test that connects to another machine."""

    def connect(self, address):
        if self.family != _UNIX and not str(address[0]).startswith(_LOOPBACK):
            raise AssertionError(f"a test opened a connection to {address!r}")
        return _REAL_CONNECT(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.fixture
def hub():
    """A model hub on loopback that can misbehave."""
    with HubServer() as server:
        yield server


@pytest.fixture(scope="session")
def test_data(tmp_path_factory):
    """Folder with real tokenizers and vocabularies; ``inv test-data`` fetches it.

    Phi-3's files get the ``model_type`` of their repository's ``config.json``, without which
    transformers opens them with another class.
    """
    folder = os.environ.get("BITNET_TEST_DATA")
    if not folder:
        pytest.skip("BITNET_TEST_DATA is not set; `inv test-data` fetches the files it points at")
    source = Path(folder).absolute()
    view = tmp_path_factory.mktemp("data")
    tokenizers = view / "tokenizers"
    tokenizers.mkdir()
    for path in source.iterdir():
        if path.name != "tokenizers":
            (view / path.name).symlink_to(path)
    for path in (source / "tokenizers").iterdir():
        if path.name != "phi3":
            (tokenizers / path.name).symlink_to(path)
            continue
        (tokenizers / "phi3").mkdir()
        for file in path.iterdir():
            (tokenizers / "phi3" / file.name).symlink_to(file)
        (tokenizers / "phi3" / "config.json").write_text('{"model_type": "phi3"}')
    return view


@dataclass(frozen=True)
class Finished:
    """A command that ran: its exit code and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def bitnet(capsys):
    """Run a command line in this process: ``bitnet("exit-codes", "--json")``."""
    from bitnet.commands import load
    from bitnet.commands.program import Program

    def run(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            Program(load(), "bitnet").run(["bitnet", *map(str, words)])
        shown = capsys.readouterr()
        return Finished(stopped.value.code, shown.out, shown.err)

    return run


@pytest.fixture(scope="session")
def test_models():
    """Folder with the packaged models: two GGUF files, and the folder all-minilm-l6-v2."""
    folder = os.environ.get("BITNET_TEST_MODELS")
    if not folder:
        pytest.skip("BITNET_TEST_MODELS is not set; `inv download-model` fetches the models")
    return Path(folder)
