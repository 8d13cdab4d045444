"""Conversations outlive the page, and can be found, named, taken elsewhere and deleted."""

import json

from waiting import PATIENCE_S


def test_a_conversation_survives_a_reload(writer, person, dictate):
    person.goes_to(writer.address)
    dictate("**one**")
    person.says("first")
    person.text.fill("not sent")
    person.reloads()
    person.expect(person.questions).to_have_text(["first"])
    person.expect(person.answers.locator("strong")).to_have_text("one")
    person.expect(person.text).to_have_value("not sent")
    person.says("second")
    assert [one["content"] for one in person.sent[-1]["messages"]] == ["first", "**one**", "second"]


def test_a_page_that_was_closed_in_the_middle_says_so(worker, person, release):
    person.goes_to(worker.address)
    release(4)  # run four passes, and hold the model
    person.writes("abc")
    person.expect(person.answers).not_to_be_empty()
    person.expect(person.conversations).to_have_text(["abc"])  # it is kept
    person.reloads()
    person.expect(person.questions).to_have_text(["abc"])
    person.expect(person.page.locator(".cut:visible")).to_contain_text("page was closed")
    release()


def test_conversations_are_kept_apart(writer, person, dictate):
    person.goes_to(writer.address)
    dictate("one")
    person.says("first")
    person.button("New chat").click()
    person.expect(person.questions).to_have_count(0)
    dictate("two")
    person.says("second")
    assert person.sent[-1]["messages"] == [{"role": "user", "content": "second"}]
    person.expect(person.conversations).to_have_text(["second", "first"])
    person.conversations.nth(1).click()
    person.expect(person.answers).to_have_text(["one"])
    person.expect(person.page.get_by_role("heading", level=1)).to_have_text("first")
    person.reloads()
    person.expect(person.answers).to_have_text(["one"])


def test_an_answer_is_written_on_while_another_conversation_is_read(
    writer, person, dictate, release
):
    person.goes_to(writer.address)
    dictate("one two three")
    release(6)
    person.writes("first")
    person.expect(person.answers).not_to_be_empty()
    person.button("New chat").click()
    person.expect(person.answers).to_have_count(0)
    release()
    person.waits()
    person.expect(person.questions).to_have_count(0)
    person.conversations.first.click()
    person.expect(person.answers).to_have_text(["one two three"])


def test_a_message_to_another_conversation_waits_and_says_so(writer, person, dictate, release):
    person.goes_to(writer.address)
    dictate("one two three")
    release(6)
    person.writes("first")
    person.expect(person.answers).not_to_be_empty()
    person.button("New chat").click()
    person.expect(person.button("Stop")).to_have_count(0)

    person.text.press("Escape")  # stops nothing: the answer is not shown
    person.writes("second")
    person.expect(person.page.get_by_role("alert")).to_contain_text("in another conversation")
    person.expect(person.text).to_have_value("second")
    release()
    person.conversations.first.click()
    person.expect(person.answers).to_have_text(["one two three"])


def test_a_conversation_can_be_named(worker, person):
    person.goes_to(worker.address)
    person.says("abc")
    person.does("Rename", "abc")
    person.page.get_by_label("New name").fill("About letters")
    person.page.get_by_label("New name").press("Enter")
    person.expect(person.conversations).to_have_text(["About letters"])
    person.expect(person.page.get_by_role("heading", level=1)).to_have_text("About letters")
    person.does("Rename", "About letters")
    person.page.get_by_label("New name").fill("nothing")
    person.page.get_by_label("New name").press("Escape")
    person.expect(person.conversations).to_have_text(["About letters"])
    person.reloads()
    person.expect(person.page.get_by_role("heading", level=1)).to_have_text("About letters")


def test_search_looks_at_names_and_messages(writer, person, dictate):
    person.goes_to(writer.address)
    dictate("the sea is blue")
    person.says("first")
    person.button("New chat").click()
    dictate("grass")
    person.says("second")
    search = person.page.get_by_role("searchbox")
    search.fill("blue SEA")
    person.expect(person.conversations).to_have_text(["first"])
    person.expect(person.page.get_by_text("1 of 2 found")).to_be_visible()
    search.fill("sec")
    person.expect(person.conversations).to_have_text(["second"])
    search.fill("nowhere")
    person.expect(person.page.get_by_text("0 of 2 found")).to_be_visible()
    search.fill("")
    person.expect(person.conversations).to_have_count(2)


#: Waits for the page's own transactions: those that begin later end later.
SETTLED = """async () => {
  const opened = indexedDB.open("bitnet", 1);
  await new Promise((resolve) => { opened.onsuccess = resolve; });
  for (let turn = 0; turn < 20; turn += 1) {
    const transaction = opened.result.transaction("conversations", "readwrite");
    transaction.objectStore("conversations").get("none");
    await new Promise((resolve) => { transaction.oncomplete = resolve; });
  }
  opened.result.close();
}"""


def test_the_focus_stays_in_a_field_to_which_the_user_has_gone(worker, person):
    person.goes_to(worker.address)
    person.says("abc")
    search = person.page.get_by_role("searchbox")
    click_and_leave = "(button) => { button.click(); document.getElementById('search').focus(); }"
    person.button("New chat").evaluate(click_and_leave)
    person.page.evaluate(SETTLED)
    person.expect(person.questions).to_have_count(0)
    person.expect(search).to_be_focused()

    person.does("Rename", "abc")
    person.page.get_by_label("New name").fill("letters")
    search.focus()
    person.page.evaluate(SETTLED)
    person.expect(person.conversations).to_have_text(["letters"])
    person.expect(search).to_be_focused()

    person.button("Actions: letters").click()
    person.button("Delete: letters").evaluate(click_and_leave)
    person.page.evaluate(SETTLED)
    person.expect(person.button("Undo")).to_be_visible()
    person.expect(search).to_be_focused()


def test_the_search_steps_through_the_messages_it_found_in_every_version(writer, person, dictate):
    person.goes_to(writer.address)
    dictate("the sea is **blue**")
    person.says("first")
    dictate("no water")
    person.button("Regenerate").click()
    person.expect(person.answers).to_have_text(["no water"])
    person.waits()
    dictate("the sea again")
    person.says("second")
    person.button("New chat").click()
    search = person.page.get_by_role("searchbox")
    search.fill("SEA")
    person.conversations.first.click()  # shows the first one, which is in another version
    person.expect(person.answers).to_have_text(["the sea is blue"])
    person.expect(person.page.get_by_text("Message 1 of 2")).to_be_visible()
    marked = "[...CSS.highlights.get('found')].map((range) => range.toString())"
    assert person.page.evaluate(marked) == ["sea"]
    search.press("Enter")
    person.expect(person.page.get_by_text("Message 2 of 2")).to_be_visible()
    person.expect(person.answers).to_have_text(["no water", "the sea again"])
    person.button("Previous message found").click()
    person.expect(person.answers).to_have_text(["the sea is blue"])
    search.fill("")
    person.expect(person.page.locator("#places")).to_be_hidden()
    assert person.page.evaluate("CSS.highlights.size") == 0


def save_as(person, name):
    """Name and text of the file that the menu item *name* of the only conversation saves."""
    with person.page.expect_download() as waiting:
        person.page.get_by_role("button", name="Actions:").click()
        person.page.get_by_role("button", name=f"{name}:").click()
    return waiting.value.suggested_filename, waiting.value.path().read_text()


def test_what_is_exported_can_be_read_and_imported(writer, person, dictate):
    person.goes_to(writer.address)
    person.sets(System_prompt="be kind")
    dictate("one")
    person.says("first")
    dictate("two")
    person.button("Regenerate").click()
    person.expect(person.answers).to_have_text(["two"])
    person.waits()
    name, text = save_as(person, "Markdown")
    assert name == "first.md"
    assert text == "# first\n\n**System prompt**\n\nbe kind\n\n## You\n\nfirst\n\n## tiny\n\ntwo\n"
    name, text = save_as(person, "JSON")
    assert name == "first.json"
    nodes = json.loads(text)["conversation"]["nodes"]
    assert [(one["role"], one["content"]) for one in nodes] == [
        ("user", "first"),
        ("assistant", "one"),
        ("assistant", "two"),
    ]
    file = {"name": name, "mimeType": "application/json", "buffer": text.encode()}
    person.page.get_by_label("Import").set_input_files(file)
    person.expect(person.conversations).to_have_count(2)
    person.expect(person.answers).to_have_text(["two"])
    person.button("Previous version").click()
    person.expect(person.answers).to_have_text(["one"])
    person.button("Settings").click()
    person.expect(person.page.get_by_label("System prompt")).to_have_value("be kind")


def test_a_file_without_a_conversation_is_refused(worker, person):
    person.goes_to(worker.address)
    node = {"id": 1, "parent": 7, "role": "user", "content": "x"}
    head = {"format": "bitnet-conversation", "version": 1}
    for content, reason in (
        ("{", "not JSON"),
        ("[]", "no conversation"),
        ('{"format": "other"}', "no conversation"),
        (json.dumps(head | {"conversation": {"nodes": [node]}}), "Message 1 of this file"),
    ):
        file = {"name": "a.json", "mimeType": "application/json", "buffer": content.encode()}
        person.page.get_by_label("Import").set_input_files(file)
        person.expect(person.page.get_by_role("alert")).to_contain_text(reason)
    person.expect(person.conversations).to_have_count(0)


def test_a_conversation_can_be_deleted_and_had_back(worker, person):
    person.goes_to(worker.address)
    person.says("abc")
    person.does("Delete", "abc")
    person.expect(person.conversations).to_have_count(0)
    person.expect(person.answers).to_have_count(0)
    person.expect(person.button("Undo")).to_be_focused()
    person.button("Undo").click()
    person.expect(person.conversations).to_have_text(["abc"])
    person.expect(person.answers).to_have_count(1)
    person.does("Delete", "abc")
    person.expect(person.conversations).to_have_count(0)
    person.reloads()
    person.expect(person.conversations).to_have_count(0)
    person.expect(person.questions).to_have_count(0)


def test_a_conversation_that_is_being_answered_stays_deleted(worker, person, release, cancelled):
    person.goes_to(worker.address)
    release(4)
    person.writes("abc")
    person.expect(person.answers).not_to_be_empty()
    person.does("Delete", "abc")
    person.waits()
    person.expect(person.button("Undo")).to_be_visible()
    assert cancelled.wait(PATIENCE_S)
    release()
    person.reloads()
    person.expect(person.conversations).to_have_count(0)


def test_all_conversations_can_be_deleted(worker, person):
    person.goes_to(worker.address)
    person.says("abc")
    person.button("New chat").click()
    person.says("d")
    person.page.once("dialog", lambda dialog: dialog.accept())
    person.button("Settings").click()
    person.button("Delete all conversations").click()
    person.expect(person.conversations).to_have_count(0)
    person.reloads()
    person.expect(person.conversations).to_have_count(0)


def test_another_tab_sees_what_changes(worker, person):
    person.goes_to(worker.address)
    person.says("abc")
    second_tab = type(person)(person.page.context.new_page())
    second_tab.goes_to(person.page.url)
    second_tab.expect(second_tab.answers).to_have_count(1)
    person.says("d")
    second_tab.expect(second_tab.questions).to_have_text(["abc", "d"])
    second_tab.does("Delete", "abc")
    person.expect(person.questions).to_have_count(0)
    person.expect(person.conversations).to_have_count(0)
    assert second_tab.problems == []


def test_a_tab_does_not_keep_what_another_one_deleted_with_all_conversations(worker, person):
    person.goes_to(worker.address)
    person.says("abc")
    second_tab = type(person)(person.page.context.new_page())
    second_tab.goes_to(worker.address)
    second_tab.page.once("dialog", lambda dialog: dialog.accept())
    second_tab.button("Settings").click()
    second_tab.button("Delete all conversations").click()
    person.expect(person.questions).to_have_count(0)
    person.says("d")
    person.expect(person.questions).to_have_text(["d"])
    person.expect(second_tab.conversations).to_have_text(["d"])
    assert second_tab.problems == []


def test_a_tab_that_is_read_stays_where_it_is_while_another_one_writes(writer, person, dictate):
    person.page.set_viewport_size({"width": 900, "height": 300})
    person.goes_to(writer.address)
    dictate("a\n" * 18 + "b")
    person.says("abc")
    reader = type(person)(person.page.context.new_page())
    reader.page.set_viewport_size({"width": 900, "height": 300})
    reader.goes_to(person.page.url)
    reader.expect(reader.answers).to_have_count(1)
    reader.page.locator("#talk").evaluate("(talk) => { talk.scrollTop = 50; }")
    reader.expect(reader.button("↓ Latest")).to_be_visible()
    person.says("d")
    reader.expect(reader.answers).to_have_count(2)
    assert reader.page.locator("#talk").evaluate("(talk) => talk.scrollTop") == 50


def test_a_browser_that_keeps_nothing_says_so(worker, person):
    person.page.add_init_script("delete window.indexedDB; window.indexedDB = undefined;")
    person.goes_to(worker.address)
    person.expect(person.page.get_by_role("alert")).to_contain_text("keeps nothing")
    person.says("abc")
    person.expect(person.conversations).to_have_text(["abc"])
    person.expect(person.answers).to_have_count(1)


def test_a_database_that_was_closed_is_opened_again(worker, person):
    person.goes_to(worker.address)
    person.says("abc")
    person.page.evaluate(
        """() => new Promise((resolve, reject) => {
            const asked = indexedDB.deleteDatabase("bitnet"); // closes that of the page
            asked.onsuccess = resolve;
            asked.onblocked = reject;
        })"""
    )
    person.says("d")
    person.expect(person.answers).to_have_count(2)
    person.expect(person.conversations).to_have_text(["abc"])
    person.reloads()
    person.expect(person.questions).to_have_text(["abc", "d"])


def test_a_database_of_a_newer_page_is_reported_and_the_page_goes_on(worker, person):
    person.goes_to(worker.address)
    person.says("abc")
    person.page.evaluate(
        """() => new Promise((resolve, reject) => {
            const asked = indexedDB.open("bitnet", 2);
            asked.onsuccess = resolve;
            asked.onblocked = reject;
        })"""
    )
    alert = person.page.get_by_role("alert")
    person.says("d")
    person.expect(person.answers).to_have_count(2)
    person.expect(alert).to_contain_text("does not keep the conversation: The requested version")
    person.does("Delete", "abc")
    person.expect(alert).to_contain_text("does not delete conversations")
    person.expect(person.questions).to_have_text(["abc", "d"])
    person.does("Rename", "abc")
    person.page.get_by_label("New name").fill("letters")
    person.page.get_by_label("New name").press("Enter")
    person.button("New chat").click()
    person.expect(person.questions).to_have_count(0)
    person.says("e")
    person.expect(person.answers).to_have_count(1)
    person.expect(alert).to_contain_text("does not keep the conversation")


def test_a_conversation_keeps_its_new_name_while_it_is_answered_and_another_one_is_read(
    writer, person, dictate, release
):
    person.goes_to(writer.address)
    dictate("one two three")
    release(6)
    person.writes("first")
    person.expect(person.answers).not_to_be_empty()
    person.button("New chat").click()
    person.expect(person.answers).to_have_count(0)
    person.does("Rename", "first")
    person.page.get_by_label("New name").fill("letters")
    person.page.get_by_label("New name").press("Enter")
    person.expect(person.conversations).to_have_text(["letters"])
    release()
    person.expect(person.page.locator("body:not([data-busy])")).to_be_attached()
    person.page.evaluate(SETTLED)
    person.reloads()
    person.expect(person.conversations).to_have_text(["letters"])


def test_a_new_name_for_a_conversation_that_another_tab_deleted_is_refused(worker, person):
    person.goes_to(worker.address)
    person.says("abc")
    person.button("New chat").click()
    person.does("Rename", "abc")
    person.page.get_by_label("New name").fill("letters")
    other = type(person)(person.page.context.new_page())
    other.goes_to(worker.address)
    other.does("Delete", "abc")
    other.expect(other.button("Undo")).to_be_visible()
    person.page.get_by_label("New name").press("Enter")
    person.expect(person.page.get_by_role("alert")).to_contain_text("deleted in another tab")
    person.expect(person.conversations).to_have_count(0)
    assert other.problems == []


def test_a_deletion_during_an_answer_can_be_undone_with_what_was_written(
    writer, person, dictate, release
):
    person.goes_to(writer.address)
    dictate("one two three")
    release(6)
    person.writes("first")
    person.expect(person.answers).to_contain_text("one")
    assert '"content": "one' in save_as(person, "JSON")[1]
    person.does("Delete", "first")
    release()
    person.expect(person.questions).to_have_count(0)
    person.button("Undo").click()
    person.expect(person.answers).to_contain_text("one")
    person.expect(person.page.locator(".cut:visible")).to_have_text("You stopped this answer.")


def test_a_regeneration_that_fails_while_another_conversation_is_read_hides_no_answer(
    writer, person, dictate
):
    person.goes_to(writer.address)
    dictate("one")
    person.says("first")
    held = []
    person.page.unroute("**/v1/chat/completions")
    person.page.route("**/v1/chat/completions", lambda route: held.append(route))
    person.button("Regenerate").click()
    person.expect(person.button("Stop")).to_be_visible()
    person.button("New chat").click()
    person.expect(person.questions).to_have_count(0)
    held[0].abort()
    person.expect(person.page.locator("body:not([data-busy])")).to_be_attached()
    person.conversations.first.click()
    person.expect(person.answers).to_have_text(["one"])


def test_a_name_that_is_being_typed_stays_when_the_list_changes(writer, person, dictate, release):
    person.goes_to(writer.address)
    dictate("one two three")
    release(6)
    person.writes("first")
    person.expect(person.answers).to_contain_text("one")
    person.does("Rename", "first")
    field = person.page.get_by_label("New name")
    field.fill("letters")
    release()
    person.expect(person.answers).to_have_text("one two three")
    person.waits()
    person.page.evaluate(SETTLED)
    person.expect(field).to_be_focused()
    person.expect(field).to_have_value("letters")
    field.press("Enter")
    person.expect(person.conversations).to_have_text(["letters"])
