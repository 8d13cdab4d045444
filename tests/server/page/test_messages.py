"""Messages of the page: empty ones, their files, and what is said of them."""

import pytest


@pytest.mark.parametrize(
    ("text", "shown", "note"),
    [
        ("<", "<", ""),
        ("<think>so</think>", "", "The answer is empty."),
        ("<think>so</think>yes", "yes", ""),
    ],
)
def test_an_answer_that_has_ended_is_shown_and_an_empty_one_says_so(
    writer, person, dictate, text, shown, note
):
    person.goes_to(writer.address)
    dictate(text)
    person.says("abc")
    person.expect(person.answers.last).to_have_text(shown)
    assert person.page.locator("article.assistant .cut").inner_text() == note


def test_files_behind_one_that_is_refused_are_attached(worker, person):
    person.goes_to(worker.address)
    contents = {"a.bin": b"\xff", "b.txt": b"b" * 600_000, "c.txt": b"c"}
    files = [{"name": n, "mimeType": "", "buffer": content} for n, content in contents.items()]
    person.page.get_by_label("Attach text files").set_input_files(files)
    person.expect(person.page.locator("#attached li")).to_have_text(["c.txt×"])
    alert = person.page.get_by_role("alert")
    person.expect(alert).to_contain_text("a.bin is not attached")
    person.expect(alert).to_contain_text("b.txt is not attached")


def test_only_what_is_new_in_a_continued_answer_is_said(worker, person):
    person.goes_to(worker.address)
    said = person.page.evaluate(
        """async () => {
            const {Speech} = await import("/page/speech.js");
            const region = document.createElement("div");
            const speech = new Speech(region);
            speech.begin("One. Two.");
            speech.update("One. Two. Three.", true);
            speech.begin("One.\\n```\\ncode");
            speech.update("One.\\n```\\ncode\\nmore\\n```\\nEnd.", true);
            return [...region.children].map((one) => one.textContent);
        }"""
    )
    assert said == ["Three.", "End."]


def test_a_browser_that_keeps_nothing_and_a_worker_with_a_key_are_both_said(serving, person):
    worker = serving(app_options={"api_key": "s3cret"})
    person.page.add_init_script("delete window.indexedDB; window.indexedDB = undefined;")
    person.goes_to(worker.address)
    person.expect(person.page.get_by_role("alert")).to_contain_text("wants a key")
    person.expect(person.page.get_by_role("alert")).to_contain_text("keeps nothing")


def test_an_open_editor_stays_when_another_conversation_is_deleted(worker, person):
    person.goes_to(worker.address)
    person.says("abc")
    person.button("New chat").click()
    person.says("d")
    person.button("Edit").click()
    person.page.get_by_label("Edited message").fill("changed")
    person.does("Delete", "abc")
    person.expect(person.conversations).to_have_text(["d"])
    person.expect(person.page.get_by_label("Edited message")).to_have_value("changed")
