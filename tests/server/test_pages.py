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
# SHA-256 of dist/browser/markdown-it.esm.min.mjs in the npm package markdown-it 15.0.3.
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


def test_a_browser_that_has_a_file_already_gets_304_without_content(worker):
    first = worker.http.get("/page/chat.js")
    tag = first.headers["ETag"]
    assert first.headers["Cache-Control"] == "no-cache"
    for etags in (tag, f'"x", W/{tag}'):
        again = worker.http.get("/page/chat.js", headers={"If-None-Match": etags})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["ETag"] == tag
    other = worker.http.get("/page/chat.css", headers={"If-None-Match": tag})
    assert other.status_code == 200


def test_the_markdown_library_is_the_published_file_and_has_its_licences():
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


def test_the_chat_page_needs_no_key_but_the_description_and_models_do(serving):
    worker = serving(app_options={"api_key": "s3cret"})
    for path in SERVED:
        assert worker.http.get(path).status_code == (401 if path == "/docs" else 200)
    assert worker.http.get("/v1/models").status_code == 401


#: Files that this project wrote.
OWN = [FOLDER / name for name in FILES if name != "markdown-it.js"]


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_a_file_is_short_refers_to_no_other_host_and_makes_no_markup_from_text(path):
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 500
    for reference in re.findall(r"""(?:src|href|from|import|url)[=(\s]+["']([^"'$]+)["']""", text):
        assert re.match(r"/page/|\./|data:,|/openapi\.json", reference), reference
        if not reference.startswith(("data:", "/openapi")):
            assert (FOLDER / reference.rpartition("/")[2]).is_file(), reference
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
    assert path.suffix != ".html" or not re.search(r"<script>|<style|\son\w+=|\sstyle=", text)
