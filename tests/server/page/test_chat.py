"""The chat page in a real browser: questions, answers, and how they end."""

import json
import time
from types import SimpleNamespace

import pytest
from server_process import serving_all, slot_of
from waiting import PATIENCE_S, until

from bitnet.runtime import scheduler
from bitnet.runtime.scheduler import Scheduler


def note(person):
    """The visible note below an answer that says how it ended."""
    return person.page.locator("article.assistant .cut:visible")


def test_a_person_can_chat_with_the_keyboard_alone(worker, person):
    person.goes_to(worker.address)
    person.expect(person.page.get_by_role("combobox", name="Model")).to_have_value("tiny")
    person.page.keyboard.type("abc")  # the focus is in the box
    person.page.keyboard.press("Shift+Enter")
    person.page.keyboard.type("d")
    person.page.keyboard.press("Enter")
    person.waits()
    assert person.answers.first.inner_text()
    assert person.questions.inner_text() == "abc\nd"
    person.page.keyboard.type("e")  # the focus is back in the box
    person.page.keyboard.press("Enter")
    person.expect(person.answers).to_have_count(2)
    person.waits()
    assert [one["content"] for one in person.sent[-1]["messages"]][::2] == ["abc\nd", "e"]
    person.page.keyboard.press("ArrowUp")  # in the empty box
    person.expect(person.page.get_by_label("Edited message")).to_be_focused()
    person.page.keyboard.press("Escape")
    person.expect(person.questions).to_have_text(["abc\nd", "e"])


def test_stop_ends_the_answer_keeps_what_there_is_and_says_so(serving, person, release, cancelled):
    worker = serving()
    person.goes_to(worker.address)
    release(6)  # run six passes, and hold the model
    person.writes("abc")
    person.expect(person.answers).not_to_be_empty()
    person.button("Stop").click()
    person.waits()
    assert 0 < len(person.answers.inner_text()) <= 6
    person.expect(note(person)).to_have_text("You stopped this answer.")
    assert cancelled.wait(PATIENCE_S)
    release()
    until(lambda: not worker.slot.open_jobs)
    assert 'finish="cancelled",model_name="tiny"} 1.0' in worker.http.get("/metrics").text


def test_escape_stops_an_answer_and_what_was_typed_meanwhile_stays(worker, person, release):
    person.goes_to(worker.address)
    release(4)  # run four passes, and hold the model
    person.writes("abc")
    person.expect(person.answers).not_to_be_empty()
    person.text.fill("next")
    person.text.press("Enter")  # does not send while an answer is written
    person.page.keyboard.press("Escape")
    person.waits()
    person.expect(person.text).to_have_value("next")
    assert len(person.sent) == 1
    release()


def test_an_answer_that_was_stopped_before_it_began_gives_the_question_back(
    worker, person, release
):
    person.goes_to(worker.address)
    person.writes("abc")
    person.expect(person.button("Stop")).to_be_visible()
    person.page.keyboard.press("Escape")
    person.waits()
    person.expect(person.text).to_have_value("abc")
    person.expect(person.questions).to_have_count(0)
    person.expect(person.conversations).to_have_count(0)
    release()


def test_an_answer_at_its_limit_says_so(worker, person):
    person.goes_to(worker.address)
    person.sets(Tokens_at_most="3")
    person.says("abc")
    person.expect(note(person)).to_contain_text("limit of tokens")
    person.expect(person.page.locator(".metrics")).to_contain_text("3 tokens")


def test_an_answer_that_was_cut_off_can_be_continued(writer, person, dictate):
    person.goes_to(writer.address)
    person.sets(Tokens_at_most="4")
    dictate("a long answer")
    person.says("abc")
    person.expect(note(person)).to_contain_text("limit of tokens")
    beginning = person.answers.inner_text()
    assert "a long answer".startswith(beginning)
    person.page.unroute("**/v1/chat/completions")
    person.button("Continue").click()
    # Four tokens of each part.
    person.expect(person.page.locator(".metrics")).to_contain_text("8 tokens")
    person.waits()
    continuation = person.sent[-1]
    assert continuation["continue_final_message"] is True
    assert [one["role"] for one in continuation["messages"]] == ["user", "assistant"]
    assert continuation["messages"][1]["content"].strip() == beginning
    person.expect(person.answers).to_have_count(1)
    assert person.answers.text_content().startswith(beginning)
    conversations = "(await (await import('/page/store.js')).open()).all()"
    (stored,) = person.page.evaluate(f"async () => await {conversations}")
    assert stored["nodes"][1]["content"].startswith(continuation["messages"][1]["content"])
    assert len(stored["nodes"]) == 2


def test_a_whole_answer_has_neither_a_note_nor_a_button_to_continue(writer, person, dictate):
    person.goes_to(writer.address)
    dictate("a whole answer.")
    person.says("abc")
    person.expect(person.answers).to_have_text("a whole answer.")
    person.expect(note(person)).to_have_count(0)
    person.expect(person.button("Continue")).to_have_count(0)


#: A file with a fence of three backticks, so that the page needs a longer one around it.
FILE = {"name": "notes.md", "mimeType": "", "buffer": "é\n```js\na\n```\n".encode()}


def test_text_files_go_with_a_message_and_stay_with_it(worker, person):
    person.goes_to(worker.address)
    attach = person.page.get_by_label("Attach text files")
    attach.set_input_files([FILE, FILE | {"name": "b.txt", "buffer": b"\xef\xbb\xbfb"}])
    person.expect(person.page.locator("#attached li")).to_have_count(2)
    person.button("Remove b.txt").click()
    person.expect(person.page.locator("#attached li")).to_have_count(1)
    person.says("What is this?")
    expected = "notes.md:\n````\né\n```js\na\n```\n````\n\nWhat is this?"
    assert person.sent[-1]["messages"] == [{"role": "user", "content": expected}]
    person.expect(person.page.locator("#attached li")).to_have_count(0)
    person.reloads()
    person.expect(person.questions).to_have_text("What is this?")
    person.page.locator("details.file summary").click()
    person.expect(person.page.locator("details.file pre")).to_be_visible()
    person.page.get_by_role("searchbox").fill("js notes.md")
    person.expect(person.conversations).to_have_count(1)
    person.button("Edit").click()
    person.page.get_by_label("Edited message").fill("Why?")
    person.button("Send again").click()
    person.waits()
    assert person.sent[-1]["messages"][0]["content"] == expected.replace("What is this?", "Why?")


def test_a_refused_message_gives_its_files_back(worker, person):
    person.goes_to(worker.address)
    person.sets(Top_p="3")
    person.page.get_by_label("Attach text files").set_input_files([FILE])
    person.expect(person.page.locator("#attached li")).to_have_count(1)
    person.button("Send").click()  # a file alone is a message
    person.expect(person.page.get_by_role("alert")).to_contain_text("expected 0 to 1")
    person.expect(person.page.locator("#attached li")).to_have_text("notes.md×")


# Not UTF-8, a NUL, and more than the 512 kB that files may have.
@pytest.mark.parametrize("content", [b"\xff\xfe", b"a\0b", b"a" * 600_000], ids=str)
def test_a_file_that_is_not_text_or_too_large_is_refused(worker, person, content):
    person.goes_to(worker.address)
    wrong = FILE | {"name": "wrong.bin", "buffer": content}
    person.page.get_by_label("Attach text files").set_input_files([wrong])
    person.expect(person.page.get_by_role("alert")).to_contain_text("wrong.bin is not attached")
    person.expect(person.page.locator("#attached li")).to_have_count(0)


def test_an_answer_of_a_worker_that_had_to_stop_says_so(serving, person, release):
    worker = serving()
    person.goes_to(worker.address)
    release(4)
    person.writes("abc")
    person.expect(person.answers).not_to_be_empty()
    worker.slot.drain(0)
    release()
    person.expect(note(person)).to_contain_text("the worker had to stop")


def test_an_answer_beyond_the_deadline_says_so(serving, person, release, monkeypatch):
    is_late = []

    def monotonic():
        return time.monotonic() + (1000 if is_late else 0)

    clock = SimpleNamespace(monotonic=monotonic, perf_counter=time.perf_counter)
    monkeypatch.setattr(scheduler, "time", clock)
    worker = serving(deadline_s=900)
    person.goes_to(worker.address)
    release(4)
    person.writes("abc")
    person.expect(person.answers).not_to_be_empty()
    is_late.append(True)
    release()
    person.expect(note(person)).to_have_text(
        "Cut off by the worker's deadline: the answer was not ready after 900 s."
    )


def test_an_answer_that_fails_in_the_middle_says_so_and_keeps_its_text(worker, person, monkeypatch):
    step = Scheduler.step
    passes = []

    def broken(self):
        passes.append(self)
        if len(passes) > 4:
            raise ValueError("this model is broken")
        return step(self)

    monkeypatch.setattr(Scheduler, "step", broken)
    person.goes_to(worker.address)
    person.writes("abc")
    person.expect(note(person)).to_contain_text("Cut off by an error")
    person.expect(person.answers).not_to_be_empty()


def test_a_worker_that_cannot_be_reached_is_reported_and_the_text_returns_to_the_box(
    worker, person
):
    person.goes_to(worker.address)
    person.page.route("**/v1/chat/completions", lambda route: route.abort())
    person.says("abc")
    person.expect(person.page.get_by_role("alert")).to_contain_text("cannot be reached")
    person.expect(person.text).to_have_value("abc")
    person.page.unroute("**/v1/chat/completions")
    person.text.press("Enter")
    person.expect(person.answers).not_to_be_empty()
    person.waits()
    person.expect(person.page.get_by_role("alert")).to_have_count(0)


def test_a_refused_message_is_reported_and_can_be_sent_again(worker, person):
    person.goes_to(worker.address)
    person.says("first")
    person.sets(Top_p="3")
    person.says("abc")
    person.expect(person.page.get_by_role("alert")).to_contain_text("expected 0 to 1")
    person.expect(person.text).to_have_value("abc")
    person.expect(person.questions).to_have_text(["first"])
    person.reloads()  # and nothing else was kept
    person.expect(person.questions).to_have_text(["first"])
    person.expect(person.text).to_have_value("abc")


def test_regenerate_keeps_the_first_answer_beside_the_new_one(writer, person, dictate):
    person.goes_to(writer.address)
    dictate("one")
    person.says("abc")
    dictate("two")
    person.button("Regenerate").click()
    person.expect(person.answers).to_have_text(["two"])
    person.waits()
    assert len(person.sent[-1]["messages"]) == 1
    person.button("Previous version").click()
    person.expect(person.answers).to_have_text(["one"])
    person.reloads()
    person.expect(person.answers).to_have_text(["one"])
    person.button("Next version").click()
    person.expect(person.answers).to_have_text(["two"])


def test_a_question_can_be_edited_and_sent_again(writer, person, dictate):
    person.goes_to(writer.address)
    dictate("one")
    person.says("first")
    person.says("second")
    person.button("Edit").first.click()
    dictate("two")
    person.page.get_by_label("Edited message").fill("changed")
    person.button("Send again").click()
    person.expect(person.answers).to_have_text(["two"])
    person.waits()
    person.expect(person.questions).to_have_text(["changed"])
    assert person.sent[-1]["messages"] == [{"role": "user", "content": "changed"}]
    person.button("Previous version").click()
    person.expect(person.questions).to_have_text(["first", "second"])


def test_an_edited_question_that_is_refused_is_still_in_its_box(writer, person, dictate):
    person.goes_to(writer.address)
    dictate("one")
    person.says("first")
    person.sets(Top_p="3")
    person.button("Edit").click()
    person.page.get_by_label("Edited message").fill("changed")
    person.page.get_by_label("Edited message").press("Enter")
    person.expect(person.page.get_by_role("alert")).to_contain_text("expected 0 to 1")
    person.expect(person.page.get_by_label("Edited message")).to_have_value("changed")
    person.expect(person.answers).to_have_text(["one"])


def test_settings_reach_the_worker_and_numbers_outlive_the_page(worker, person):
    person.goes_to(worker.address)
    person.sets(
        System_prompt="be",
        Tokens_at_most="3",
        Temperature="0",
        Top_k="5",
        Min_p="0.1",
        Stop_at="x\ny",
    )
    person.says("abc")
    body = person.sent[-1]
    assert body["messages"][0] == {"role": "system", "content": "be"}
    expected = {"max_tokens": 3, "temperature": 0, "top_k": 5, "min_p": 0.1, "stop": ["x", "y"]}
    assert expected.items() <= body.items()
    # Fields that are empty are not sent.
    assert not {"top_p", "seed", "repetition_penalty"} & body.keys()
    person.reloads()
    person.says("d")
    assert expected.items() <= person.sent[-1].items()
    assert person.sent[-1]["messages"][0]["content"] == "be"
    person.button("Settings").click()
    person.button("Defaults").click()
    person.page.keyboard.press("Escape")  # closes the drawer
    person.says("e")
    assert person.sent[-1].keys() == {
        "model",
        "messages",
        "temperature",
        "stream",
        "stream_options",
    }
    assert person.sent[-1]["temperature"] == 0.7  # the default of the page


def test_the_model_that_is_picked_is_asked(serving, person):
    worker = serving(name="some-model")
    person.goes_to(worker.address)
    person.expect(person.page.get_by_role("combobox", name="Model")).to_have_value("some-model")
    person.says("abc")
    assert person.sent[-1]["model"] == "some-model"
    person.expect(person.page.locator("article.assistant h2")).to_have_text("some-model")


def test_of_several_models_the_one_that_is_picked_answers_also_after_a_reload(model_path, person):
    sources = [slot_of(model_path, name) for name in ("tiny", "other")]
    with serving_all(sources, loaded=False) as worker:
        person.goes_to(worker.address)
        picker = person.page.get_by_role("combobox", name="Model")
        person.expect(picker.get_by_role("option")).to_have_text(["tiny", "other"])
        person.expect(picker).to_have_value("tiny")
        picker.select_option("other")
        person.reloads()
        person.expect(picker).to_have_value("other")
        person.says("abc")
        assert person.sent[-1]["model"] == "other"
        person.expect(person.page.locator("article.assistant h2")).to_have_text("other")
        states = worker.http.get("/health/ready").json()["models"]
        assert states == {"tiny": "unloaded", "other": "loaded"}


def test_a_worker_that_was_started_with_another_model_is_asked_for_its_models(serving, person):
    worker = serving(keys={"llama.context_length": 1024}, strict_names=True)
    outdated = {"data": [{"id": "gone"}]}
    person.page.route("**/v1/models", lambda route: route.fulfill(json=outdated))
    person.goes_to(worker.address)
    person.page.unroute("**/v1/models")
    person.says("abc")
    person.expect(person.page.get_by_role("alert")).to_contain_text("no model 'gone'")
    person.expect(person.page.get_by_role("combobox", name="Model")).to_have_value("tiny")
    person.text.press("Enter")
    person.expect(person.answers).not_to_be_empty()
    person.waits()


def test_an_answer_names_the_model_that_wrote_it(worker, person):
    outdated = {"data": [{"id": "gone"}]}
    person.page.route("**/v1/models", lambda route: route.fulfill(json=outdated))
    person.goes_to(worker.address)
    person.page.unroute("**/v1/models")
    person.says("abc")
    article = person.page.locator("article.assistant")
    person.expect(article.get_by_role("heading", level=2)).to_have_text("tiny")
    person.expect(person.page.get_by_role("combobox", name="Model")).to_have_value("tiny")
    person.reloads()
    person.expect(article.get_by_role("heading", level=2)).to_have_text("tiny")


def test_a_worker_with_a_key_wants_it_on_the_page_too(serving, person):
    worker = serving(keys={"llama.context_length": 1024}, app_options={"api_key": "s3cret"})
    person.goes_to(worker.address)
    person.expect(person.page.get_by_role("alert")).to_contain_text("wants a key")
    person.says("abc")
    person.expect(person.page.get_by_role("alert")).to_contain_text("key")
    person.sets(Key_of_this_worker="s3cret")
    person.expect(person.page.get_by_role("combobox", name="Model")).to_have_value("tiny")
    person.text.press("Enter")
    person.expect(person.answers).not_to_be_empty()
    person.waits()
    person.reloads()  # of the same tab
    person.says("d")
    person.expect(person.answers).to_have_count(2)


def test_reasoning_within_the_text_is_folded_away(writer, person, dictate):
    person.goes_to(writer.address)
    dictate("<think>so</think>yes")
    person.says("abc")
    person.expect(person.answers.nth(1)).to_have_text("yes")
    person.expect(person.answers.nth(0)).to_be_hidden()
    person.page.get_by_text("Thinking").click()
    person.expect(person.answers.nth(0)).to_have_text("so")


def test_reasoning_in_a_field_of_its_own_is_folded_away_and_not_sent_again(writer, person):
    deltas = [{"reasoning_content": "so "}, {"reasoning_content": "on"}, {"content": "yes"}]
    chunks = [{"choices": [{"delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    person.goes_to(writer.address)
    person.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )
    person.says("abc")
    person.expect(person.answers.nth(1)).to_have_text("yes")
    person.expect(person.answers.nth(0)).to_be_hidden()
    person.page.get_by_text("Thinking").click()
    person.expect(person.answers.nth(0)).to_have_text("so on")
    person.reloads()
    person.expect(person.answers.nth(1)).to_have_text("yes")
    person.says("d")
    person.expect(person.answers).to_have_count(4)
    assert [message["content"] for message in person.sent[-1]["messages"]] == ["abc", "yes", "d"]


def test_the_description_page_lists_the_routes(worker, person):
    person.page.goto(f"{worker.address}/docs")
    person.expect(person.page.get_by_text("POST /v1/chat/completions")).to_be_visible()


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_browser_refuses_to_make_markup_from_text(worker, person, path):
    person.page.goto(worker.address + path)
    refused = person.page.evaluate(
        """() => {
            try { document.body.innerHTML = "<b>x</b>"; } catch (error) { return error.name; }
        }"""
    )
    assert refused == "TypeError"
    assert "TrustedHTML" in person.problems.pop()
