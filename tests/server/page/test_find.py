"""The messages that a search found belong to the conversation that is shown."""

#: The store of the page, in the page.
STORE = "(await (await import('/page/store.js')).open())"


def found(person, words):
    """Search for *words*; the buttons that step through the messages it found."""
    person.page.get_by_role("searchbox").fill(words)
    return person.page.locator("#places")


def test_a_new_chat_has_no_messages_that_were_found_in_another_one(writer, person, dictate):
    person.goes_to(writer.address)
    dictate("one")
    person.says("abc")
    places = found(person, "abc")
    person.expect(places).to_be_visible()
    person.button("New chat").click()
    person.expect(person.questions).to_have_count(0)
    person.expect(places).to_be_hidden()
    person.page.get_by_role("searchbox").press("Enter")  # steps through nothing
    person.says("hi")
    person.expect(person.questions).to_have_text(["hi"])
    stored = person.page.evaluate(f"async () => await {STORE}.all()")
    parents = [[node["parent"] for node in one["nodes"]] for one in stored]
    assert parents == [[None, 1], [None, 1]]


def test_what_was_found_follows_the_conversation_that_is_shown(writer, person, dictate):
    person.goes_to(writer.address)
    dictate("one")
    person.says("abc")
    first = person.page.url
    person.button("New chat").click()
    person.says("abc abc")
    places = found(person, "abc")
    person.expect(places).to_contain_text("In 1 message here")
    person.page.evaluate("(address) => { location.href = address; }", first)
    person.expect(person.questions).to_have_text(["abc"])
    person.button("Next message found").click()
    person.expect(places).to_contain_text("Message 1 of 1")
    person.expect(person.questions).to_have_text(["abc"])
    person.does("Delete", "abc")
    person.expect(person.questions).to_have_count(0)
    person.expect(places).to_be_hidden()


def test_what_was_found_follows_what_another_tab_writes_and_the_place_stays(
    writer, person, dictate
):
    person.goes_to(writer.address)
    dictate("abc")
    person.says("abc")
    reader = type(person)(person.page.context.new_page())
    reader.goes_to(person.page.url)
    places = found(reader, "abc")
    reader.button("Next message found").click()
    reader.button("Next message found").click()
    reader.expect(places).to_contain_text("Message 2 of 2")
    person.says("abc too")
    reader.expect(places).to_contain_text("Message 2 of 4")
    marked = "[...CSS.highlights.get('found')].filter((range) => range.toString()).length"
    assert reader.page.evaluate(marked) == 4
    reader.button("Next message found").click()
    reader.expect(places).to_contain_text("Message 3 of 4")
    reader.expect(reader.questions).to_have_count(2)
    assert reader.problems == []


def test_a_question_that_was_given_back_is_not_found_any_more(writer, person, dictate):
    person.goes_to(writer.address)
    dictate("one")
    person.says("first")
    places = found(person, "abc")
    person.page.route("**/v1/chat/completions", lambda route: route.abort())
    person.says("abc")
    person.expect(person.text).to_have_value("abc")
    person.expect(places).to_be_hidden()
    person.expect(person.questions).to_have_text(["first"])


def test_a_message_of_another_conversation_cannot_be_selected(worker, person):
    person.goes_to(worker.address)
    refused = person.page.evaluate(
        """async () => {
            const {add, create, select} = await import("/page/tree.js");
            const [one, other] = [create(""), create("")];
            const node = add(one, null, {role: "user", content: "a"});
            try { select(other, node); } catch (error) { return [error.message, other.leaf]; }
        }"""
    )
    assert refused == ["Message 1 is not in this conversation", None]


def test_a_kept_conversation_whose_messages_follow_in_a_circle_is_shown(worker, person):
    person.goes_to(worker.address)
    shown = person.page.evaluate(
        """async () => {
            const {create, path, select} = await import("/page/tree.js");
            const one = create("");
            one.nodes.push({id: 1, parent: 2, role: "user"}, {id: 2, parent: 1, role: "assistant"});
            one.next = 3;
            one.leaf = 2;
            const first = path(one).map((node) => node.id);
            select(one, one.nodes[0]);
            return [first, path(one).map((node) => node.id)];
        }"""
    )
    assert shown == [[1, 2], [2, 1]]
