"""The chat page in a real browser."""

import os
import re
import shutil

import pytest
from server_process import listening
from waiting import PATIENCE_S, until

playwright = pytest.importorskip(
    "playwright.sync_api", reason="pip install 'bitnet-xtask[browser]' for the tests of the page"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SCREENSHOT = os.environ.get("BITNET_TEST_SCREENSHOT")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        playwright.expect.set_options(timeout=PATIENCE_S * 1000)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page that may talk to this machine only, and must not complain."""
    context = browser.new_context(viewport={"width": 900, "height": 700})
    context.set_default_timeout(PATIENCE_S * 1000)
    page = context.new_page()
    problems, elsewhere = [], []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: elsewhere.append(request.url))
    yield page
    context.close()
    assert problems == []
    assert [url for url in elsewhere if not re.match(r"http://127\.0\.0\.1:|data:", url)] == []


def say(page, text):
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")


def answers(page):
    return page.locator("article.assistant div")


def finished(page):
    playwright.expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_a_person_can_chat_with_the_keyboard_alone(worker, page):
    page.goto(worker.address)
    playwright.expect(page.get_by_role("heading", name="tiny")).to_be_visible()
    page.get_by_text("Settings").focus()
    for key in ("Enter", "Tab", "Tab", "Tab", "5"):  # down to the number of tokens
        page.keyboard.press(key)
    say(page, "abc")
    finished(page)
    first = answers(page).first.inner_text()
    assert first
    assert page.locator("article.user div").inner_text() == "abc"
    page.keyboard.type("d")  # the focus is back in the box
    page.keyboard.press("Enter")
    finished(page)
    assert answers(page).count() == 2


def test_text_that_looks_like_markup_is_text(worker, page):
    page.goto(worker.address)
    say(page, "<img src=x onerror=alert(1)>")
    finished(page)
    assert page.locator("article img").count() == 0
    assert "<img" in page.locator("article.user div").inner_text()


def test_stop_ends_the_answer_and_keeps_what_there_is(serving, page, slow, cancelled):
    worker = serving()
    page.goto(worker.address)
    slow(6)  # passes, and the model waits
    say(page, "abc")
    playwright.expect(answers(page).first).not_to_be_empty()
    page.get_by_role("button", name="Stop").click()
    finished(page)
    assert 0 < len(answers(page).first.inner_text()) <= 6
    assert cancelled.wait(PATIENCE_S)
    slow()
    until(lambda: not worker.service.worker.open_jobs)
    assert 'finish="cancelled"} 1.0' in worker.http.get("/metrics").text


def test_settings_reach_the_worker(worker, page):
    sent = []
    page.on("request", lambda request: sent.append(request.post_data_json or {}))
    page.goto(worker.address)
    page.get_by_text("Settings").click()
    page.get_by_label("System prompt").fill("be")
    page.get_by_label("Tokens at most").fill("3")
    page.get_by_label("Temperature").fill("0")
    say(page, "abc")
    finished(page)
    body = sent[-1]
    assert body["messages"][0] == {"role": "system", "content": "be"}
    assert body["max_tokens"] == 3
    assert body["temperature"] == 0
    page.get_by_role("button", name="Clear").click()
    assert answers(page).count() == 0


def test_an_error_is_shown_and_the_message_can_be_sent_again(worker, page):
    page.goto(worker.address)
    page.get_by_text("Settings").click()
    page.get_by_label("Tokens at most").fill("9999")
    say(page, "abc")
    finished(page)
    assert "at most 48" in page.locator("article.error div").inner_text()
    assert page.get_by_role("textbox", name="Message").input_value() == "abc"


def test_a_worker_with_a_key_wants_it_on_the_page_too(serving, page):
    worker = serving(app_options={"api_key": "s3cret"})
    page.goto(worker.address)
    say(page, "abc")
    finished(page)
    assert "key" in page.locator("article.error div").inner_text()
    page.get_by_text("Settings").click()
    page.get_by_label("Key of this worker").fill("s3cret")
    page.get_by_role("textbox", name="Message").click()
    page.keyboard.press("Enter")
    finished(page)
    assert answers(page).count() == 1


def test_it_fits_a_phone(worker, browser):
    context = browser.new_context(viewport={"width": 360, "height": 640}, has_touch=True)
    page = context.new_page()
    page.goto(worker.address)
    say(page, "abcdefghijklmnopqrstuvwxyz" * 8)
    finished(page)
    width = page.evaluate("document.documentElement.scrollWidth")
    for name in ("Send", "Stop", "Clear"):
        box = page.get_by_role("button", name=name).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
    context.close()
    assert width <= 360


def test_the_description_page_lists_the_routes(worker, page):
    page.goto(f"{worker.address}/docs")
    playwright.expect(page.get_by_text("POST /v1/chat/completions")).to_be_visible()


@pytest.mark.skipif(not SCREENSHOT, reason="BITNET_TEST_SCREENSHOT names no file to write")
def test_write_the_screenshot_of_the_documentation(test_models, page):
    model = test_models / "SmolLM2-135M-Instruct.Q4_1.gguf"
    with listening(model, name=model.stem) as worker:
        page.goto(worker.address)
        page.get_by_text("Settings").click()
        page.get_by_label("Tokens at most").fill("48")
        page.get_by_label("Temperature").fill("0")
        page.get_by_text("Settings").click()
        say(page, "Why is the sky blue?")
        finished(page)
        page.screenshot(path=SCREENSHOT)
