"""A real browser, and what a person does in it."""

import json
import re
import shutil
import string

import pytest
from tiny_keys import VOCAB
from waiting import PATIENCE_S

from bitnet.tokenizer.spec import byte_spelling


def pytest_collection_modifyitems(items):
    """Mark each test that uses the browser as one that needs Chromium."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.needs("chromium"))


@pytest.fixture(scope="module")  # while it runs, this thread has an event loop
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="pip install 'bitnet-xtask[browser]' for the page's tests"
    )
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        playwright.expect.set_options(timeout=PATIENCE_S * 1000)
        yield browser
        browser.close()


class Person:
    """A person in front of a page; a complaint of the page is a failure."""

    def __init__(self, page):
        from playwright.sync_api import expect

        self.page = page
        self.expect = expect
        self.problems = []
        self.urls = []
        self.sent = []  # bodies of requests to /v1/chat/completions
        page.context.set_default_timeout(PATIENCE_S * 1000)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._note_problem)
        page.on("request", self._note_request)

    def _note_problem(self, message):
        # The browser writes a line of its own for each status of 400 and above.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.problems.append(message.text)

    def _note_request(self, request):
        self.urls.append(request.url)
        if request.url.endswith("/v1/chat/completions"):
            self.sent.append(request.post_data_json)

    @property
    def text(self):
        return self.page.get_by_role("textbox", name="Message", exact=True)

    @property
    def answers(self):
        return self.page.locator("article.assistant .markdown")

    @property
    def questions(self):
        return self.page.locator("article.user .said")

    @property
    def conversations(self):
        return self.page.locator("#conversations .open")

    def button(self, name):
        return self.page.get_by_role("button", name=name, exact=True)

    def does(self, action, conversation):
        """Choose *action* in the menu of a conversation in the list."""
        self.button(f"Actions: {conversation}").click()
        self.button(f"{action}: {conversation}").click()

    def goes_to(self, address):
        self.page.goto(address)
        self.sees_the_page()

    def reloads(self):
        self.page.reload()
        self.sees_the_page()

    def sees_the_page(self):
        self.expect(self.page.locator("body[data-ready]")).to_be_attached()

    def writes(self, text):
        self.text.fill(text)
        self.text.press("Enter")

    def says(self, text):
        """Send *text* and wait for the whole answer."""
        self.writes(text)
        self.waits()

    def waits(self):
        self.expect(self.button("Send")).to_be_visible()

    def sets(self, **fields):
        """Fill fields of the drawer."""
        self.button("Settings").click()
        for label, value in fields.items():
            self.page.get_by_label(label.replace("_", " ")).fill(value)
        self.button("Close").click()


@pytest.fixture
def person(browser):
    """A person whose page talks to this machine only, and never complains."""
    context = browser.new_context(viewport={"width": 1000, "height": 700})
    person = Person(context.new_page())
    yield person
    context.close()
    assert person.problems == []
    elsewhere = [url for url in person.urls if not re.match(r"http://127\.0\.0\.1:|data:", url)]
    assert elsewhere == []


#: Characters for which the model of `writer` has a token.
WRITABLE = " \n" + string.ascii_lowercase + "*_`|-<>/=()[]:.!#0123ABC~$,'"
#: A context with room for a conversation.
ROOM = {"llama.context_length": 1024}


@pytest.fixture
def worker(serving):
    """A worker whose model writes random letters."""
    return serving(keys=ROOM)


@pytest.fixture
def writer(serving):
    """A worker whose model has a token for each character of Markdown."""
    spelled = [byte_spelling(character.encode()) for character in WRITABLE]
    tokens = ["<s>", "</s>", "<extra>", *spelled]
    assert len(tokens) <= VOCAB
    tokens += [f"<unused{number}>" for number in range(VOCAB - len(tokens))]
    return serving(keys=ROOM | {"tokenizer.ggml.tokens": tokens})


@pytest.fixture
def dictate(person):
    """Have the model write exactly a text from now on, by a grammar in the page's own requests."""

    def dictate_text(text):
        def handle(route):
            body = route.request.post_data_json | {"structured_outputs": {"choice": [text]}}
            route.continue_(post_data=json.dumps(body))

        person.page.unroute("**/v1/chat/completions")
        person.page.route("**/v1/chat/completions", handle)

    return dictate_text
