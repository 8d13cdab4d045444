"""The files of the pages: what they are served as, and that they are all there."""

import hashlib
import re
from importlib.resources import files
from pathlib import Path

import pytest

from bitnet.server.pages import POLICY

FOLDER = Path(str(files("bitnet.server") / "page"))
KINDS = {"js": "text/javascript", "css": "text/css", "html": "text/html"}
FILES = sorted(path.name for path in FOLDER.iterdir() if path.suffix[1:] in KINDS)
SERVED = ["/", "/docs", *(f"/page/{name}" for name in FILES)]
# dist/browser/markdown-it.esm.min.mjs of markdown-it 15.0.3, as npm has it.
MARKDOWN_IT = "d5432491790141da046b1197353705db03264f40b5727f3b4b591f5aba193e30"


@pytest.mark.parametrize("path", SERVED)
def test_a_file_has_its_type_and_the_policy(worker, path):
    reply = worker.http.get(path)
    kind = KINDS.get(path.rpartition(".")[2], "text/html")
    assert reply.status_code == 200
    assert reply.headers["Content-Type"] == f"{kind}; charset=utf-8"
    assert reply.headers["Content-Security-Policy"] == POLICY
    assert reply.headers["X-Content-Type-Options"] == "nosniff"


def test_the_policy_allows_files_of_this_worker_and_nothing_else():
    rules = dict(rule.partition(" ")[::2] for rule in POLICY.split("; "))
    assert rules.pop("default-src") == rules.pop("base-uri") == "'none'"
    assert rules.pop("frame-ancestors") == rules.pop("form-action") == "'none'"
    assert rules.pop("require-trusted-types-for") == "'script'"
    assert rules.pop("trusted-types") == "'none'"
    assert rules.pop("img-src") == "data:"
    assert rules == dict.fromkeys(("script-src", "style-src", "connect-src"), "'self'")


def test_a_browser_that_has_the_bytes_gets_none(worker):
    first = worker.http.get("/page/chat.js")
    tag = first.headers["ETag"]
    assert first.headers["Cache-Control"] == "no-cache"
    for known in (tag, f'"x", W/{tag}'):
        again = worker.http.get("/page/chat.js", headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["ETag"] == tag
    other = worker.http.get("/page/chat.css", headers={"If-None-Match": tag})
    assert other.status_code == 200


def test_the_markdown_library_is_the_one_that_was_published_with_its_licences():
    library = (FOLDER / "markdown-it.js").read_bytes()
    assert hashlib.sha256(library).hexdigest() == MARKDOWN_IT
    licences = (FOLDER / "markdown-it.LICENSE").read_text()
    packages = ("markdown-it", "linkify-it", "mdurl", "punycode.js", "uc.micro", "entities")
    assert all(f"== {name}-" in licences for name in packages)
    assert licences.count("Copyright") >= len(packages)


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "%2e%2e/app.py", ""])
def test_no_other_file_is_served(worker, name):
    reply = worker.http.get(f"/page/{name}")
    assert reply.status_code == 404
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_the_page_comes_without_the_key_and_the_model_does_not(serving):
    worker = serving(app_options={"api_key": "s3cret"})
    for path in SERVED:
        assert worker.http.get(path).status_code == (401 if path == "/docs" else 200)
    assert worker.http.get("/v1/models").status_code == 401


OWN = [FOLDER / name for name in FILES if name != "markdown-it.js"]


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_a_file_is_short_asks_for_nothing_elsewhere_and_makes_no_markup(path):
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 500
    for found in re.findall(r"""(?:src|href|from|import|url)[=(\s]+["']([^"'$]+)["']""", text):
        assert re.match(r"/page/|\./|data:,|/openapi\.json", found), found
        if not found.startswith(("data:", "/openapi")):
            assert (FOLDER / found.rpartition("/")[2]).is_file(), found
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
    assert path.suffix != ".html" or not re.search(r"<script>|<style|\son\w+=|\sstyle=", text)
