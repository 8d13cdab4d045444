"""The page on phones, its scrolling, its colours, and what screen readers get."""

import pytest
from waiting import until

PHONE = {"width": 390, "height": 844}
LONG = "supercalifragilistic" * 12
OUTSIDE = """(width) => [...document.querySelectorAll("body *")]
    .filter((one) => one.checkVisibility({visibilityProperty: true}) && !one.closest(".unseen"))
    .filter((one) => !one.parentElement.closest("pre, .table"))
    .map((one) => [one.tagName + "#" + one.id + "." + one.className, one.getBoundingClientRect()])
    .filter(([, box]) => box.width && (box.left < -0.5 || box.right > width + 0.5))
    .map(([name]) => name)"""
SCROLLED = """() => {
    const talk = document.getElementById("talk");
    return talk.scrollHeight - talk.scrollTop - talk.clientHeight;
}"""


def outside(person):
    assert person.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    return person.page.evaluate(OUTSIDE, PHONE["width"])


def imported(person, *texts):
    """Have a conversation with answers of these texts."""
    person.page.evaluate(
        """async (texts) => {
            const tree = await import("/page/tree.js");
            const one = tree.create("");
            for (const content of texts) {
                const asked = tree.add(one, one.leaf, {role: "user", content: "q " + content});
                tree.add(one, asked.id, {role: "assistant", content, model: "tiny", end: "stop"});
            }
            const {open} = await import("/page/store.js");
            await (await open()).put(one);
            location.hash = one.id;
        }""",
        list(texts),
    )
    person.expect(person.answers).to_have_count(len(texts))


def test_nothing_overflows_or_is_hidden_on_a_phone(worker, person):
    person.page.set_viewport_size(PHONE)
    person.goes_to(worker.address)
    columns = "|" + LONG[:40] + "|" + "b|" * 12 + "\n" + "|-" * 13 + "|"
    imported(person, LONG, f"```py\n{LONG}\n```", columns, f"# {LONG}\n- > {LONG}", f"`{LONG}`")
    assert outside(person) == []
    boxes = {name: person.button(name).bounding_box() for name in ("Send", "Settings")}
    boxes["text"] = person.text.bounding_box()
    assert boxes["text"]["width"] > 250
    assert all(box["x"] + box["width"] <= PHONE["width"] for box in boxes.values())
    assert all(box["height"] >= 38 for box in boxes.values())  # for a finger
    person.button("Settings").click()
    person.expect(person.page.get_by_label("System prompt")).to_be_visible()
    assert outside(person) == []
    person.button("Close").click()
    person.button("Edit").first.click()
    assert outside(person) == []


def test_the_list_of_conversations_opens_over_the_page_on_a_phone(worker, person):
    person.page.set_viewport_size(PHONE)
    person.goes_to(worker.address)
    imported(person, "a", "b")
    person.expect(person.button("New chat")).to_be_hidden()
    person.button("Conversations").click()
    person.button("Actions: q a").click()
    person.expect(person.button("Delete: q a")).to_be_visible()
    assert outside(person) == []
    person.page.keyboard.press("Escape")
    person.expect(person.button("Delete: q a")).to_be_hidden()
    person.expect(person.button("New chat")).to_be_visible()
    person.page.keyboard.press("Escape")
    person.expect(person.button("New chat")).to_be_hidden()
    person.button("Conversations").click()
    person.button("New chat").click()
    person.expect(person.button("New chat")).to_be_hidden()
    person.expect(person.answers).to_have_count(0)


@pytest.mark.parametrize("size", [PHONE, {"width": 1000, "height": 700}], ids=["phone", "desktop"])
def test_the_box_grows_with_its_text_and_shrinks_again(worker, person, size):
    person.page.set_viewport_size(size)
    person.goes_to(worker.address)
    one = person.text.bounding_box()["height"]
    person.text.fill("a\nb\nc\nd")
    four = person.text.bounding_box()["height"]
    assert 2.5 * one < four < 4 * one
    assert person.text.evaluate("(box) => box.scrollHeight <= box.clientHeight")
    person.text.fill("a\n" * 200)
    assert person.text.bounding_box()["height"] <= 0.4 * size["height"] + 1
    person.expect(person.button("Send")).to_be_in_viewport(ratio=1)
    person.text.fill("")
    assert person.text.bounding_box()["height"] == one


def test_scrolling_up_is_respected_while_an_answer_comes(writer, person, dictated, slow):
    person.page.set_viewport_size({"width": 900, "height": 400})
    person.goes_to(writer.address)
    imported(person, "a\n" * 40)
    dictated("b\n" * 12 + "end")
    slow(8)
    person.writes("abc")
    person.expect(person.answers.nth(1)).to_contain_text("b")
    until(lambda: person.page.evaluate(SCROLLED) < 2)
    person.page.locator("#talk").evaluate("(talk) => { talk.scrollTop = 100; }")
    person.expect(person.button("↓ Latest")).to_be_visible()
    slow(8)
    slow()
    person.waits()
    assert person.page.locator("#talk").evaluate("(talk) => talk.scrollTop") == 100
    person.button("↓ Latest").click()
    until(lambda: person.page.evaluate(SCROLLED) < 2)
    person.expect(person.button("↓ Latest")).to_be_hidden()
    dictated("c\n" * 12 + "end")
    person.says("d")
    assert person.page.evaluate(SCROLLED) < 2  # and is followed again


def test_a_screen_reader_hears_sentences(writer, person, dictated, slow):
    person.goes_to(writer.address)
    person.page.evaluate(
        """() => {
            window.heard = [];
            new MutationObserver((changes) => {
                for (const change of changes)
                    for (const node of change.addedNodes) window.heard.push(node.textContent);
            }).observe(document.getElementById("speech"), {childList: true});
        }"""
    )
    speech = person.page.locator("#speech")
    person.expect(speech).to_have_attribute("aria-live", "polite")
    person.expect(person.page.get_by_role("log")).to_have_attribute("aria-live", "off")
    dictated("**one** two. three\n```py\nx = 1\n```\n| a | b |\nend")
    slow(13)
    person.writes("abc")
    person.expect(person.answers).to_contain_text("one two")
    assert person.page.evaluate("window.heard") in ([], ["one two."])
    slow()
    person.waits()
    person.expect(speech).to_contain_text("End of the answer.")
    assert person.page.evaluate("window.heard") == [
        "one two.",
        "three",
        "Code.",
        "a   b",
        "end",
        "End of the answer.",
    ]


def test_a_cut_answer_is_heard_to_be_cut(worker, person):
    person.goes_to(worker.address)
    person.sets(Tokens_at_most="3")
    person.says("abc")
    person.expect(person.page.locator("#speech")).to_contain_text("limit of tokens")


def contrast(one, other):
    def light(colour):
        parts = [int(part) / 255 for part in colour[4:-1].split(",")]
        lines = [
            part / 12.92 if part <= 0.04 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return 0.2126 * lines[0] + 0.7152 * lines[1] + 0.0722 * lines[2] + 0.05

    pair = sorted((light(one), light(other)))
    return pair[1] / pair[0]


COLOURS = """() => [...document.querySelectorAll(
    "h1, h2, p, button, .said, .markdown *, .quiet, a, .open, textarea, select, figcaption span"
)].filter((one) => one.checkVisibility() && one.textContent.trim()).map((one) => {
    let behind = one;
    while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)" && behind.parentElement)
        behind = behind.parentElement;
    const back = getComputedStyle(behind).backgroundColor;
    return [one.outerHTML.slice(0, 80), getComputedStyle(one).color, back];
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(worker, person, scheme):
    person.page.emulate_media(color_scheme=scheme)
    person.goes_to(worker.address)
    imported(
        person, "a [b](https://e.org) `c`\n\n> d\n\n```py\ndef a(): # b\n  '1' + 2\n```\n|a|\n|-|"
    )
    found = person.page.evaluate(COLOURS)
    assert len(found) > 20
    faint = [row for row in found if contrast(row[1], row[2]) < 4.5]  # WCAG 2.2, AA
    assert faint == []
    page = person.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (contrast(page, "rgb(0, 0, 0)") > 10) == (scheme == "light")


PLACEHOLDERS = """() => [...document.querySelectorAll("[placeholder]")].map((one) => {
    const {color, opacity} = getComputedStyle(one, "::placeholder");
    return [one.id, color, getComputedStyle(one).backgroundColor, opacity];
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_placeholders_can_be_read_in_light_and_dark(worker, person, scheme):
    person.page.emulate_media(color_scheme=scheme)
    person.goes_to(worker.address)
    person.button("Settings").click()
    found = person.page.evaluate(PLACEHOLDERS)
    assert {name for name, *_ in found} == {"search", "text", "max_tokens", "seed"}
    for name, colour, behind, opacity in found:
        assert (contrast(colour, behind) >= 4.5, opacity) == (True, "1"), name


@pytest.mark.parametrize("wish", ["reduce", "no-preference"])
def test_nothing_moves_for_people_who_do_not_want_it(worker, person, slow, wish):
    person.page.emulate_media(reduced_motion=wish)
    person.goes_to(worker.address)
    slow(4)
    person.writes("abc")
    person.expect(person.page.locator("article[aria-busy=true] .markdown p")).not_to_be_empty()
    moving = person.page.evaluate("document.getAnimations().length")
    assert (moving == 0) == (wish == "reduce")
    slow()
    person.waits()
    assert person.page.evaluate("document.getAnimations().length") == 0


def test_everything_can_be_reached_with_the_keyboard(worker, person):
    person.goes_to(worker.address)
    imported(person, "```py\na\n```")
    seen = []
    person.page.evaluate("document.activeElement.blur()")
    for _ in range(40):
        person.page.keyboard.press("Tab")
        name = person.page.evaluate(
            "document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText"
        )
        outline = person.page.evaluate(
            "getComputedStyle(document.activeElement.closest('.button') ?? document.activeElement)"
            ".outlineStyle"
        )
        if name and person.page.evaluate("document.activeElement !== document.body"):
            assert outline == "solid", name
            seen.append(name)
    for name in (
        "New chat", "Search conversations", "q py", "Actions: q py", "Model", "Settings",
        "Copy message", "Edit", "Copy code", "Code, py",
        "Copy answer", "Regenerate", "Message", "Send",
    ):  # fmt: skip
        assert name in seen, (name, seen)


def test_the_menu_of_a_conversation_works_from_the_keyboard(worker, person):
    person.goes_to(worker.address)
    imported(person, "a")
    person.button("Actions: q a").focus()
    person.page.keyboard.press("Enter")
    for action in ("Rename", "Markdown", "JSON", "Delete"):
        person.page.keyboard.press("Tab")
        person.expect(person.button(f"{action}: q a")).to_be_focused()
    person.page.keyboard.press("Escape")
    person.expect(person.button("Actions: q a")).to_be_focused()


def test_an_empty_conversation_offers_examples(worker, person):
    person.goes_to(worker.address)
    examples = person.page.get_by_role("region", name="Examples").get_by_role("button")
    person.expect(examples).to_have_count(3)
    first = examples.first.inner_text()
    examples.first.click()
    person.expect(person.text).to_have_value(first)
    person.expect(person.text).to_be_focused()
    assert person.sent == [], "an example is only written into the box"


def test_titles_have_no_signs_of_markdown(worker, person):
    person.goes_to(worker.address)
    for text, title in (
        ("## **Bold** `code`", "Bold code"),
        ("- [a link](http://x)", "a link"),
        ("2 * 3 * 4 and snake_case_name", "2 * 3 * 4 and snake_case_name"),
        ("***", "***"),
    ):
        person.button("New chat").click()
        person.says(text)
        person.expect(person.page.get_by_role("heading", level=1)).to_have_text(title)


def test_the_drawer_keeps_the_focus_and_gives_it_back(worker, person):
    person.goes_to(worker.address)
    person.button("Settings").focus()
    person.page.keyboard.press("Enter")
    for _ in range(30):
        person.page.keyboard.press("Tab")
        assert person.page.evaluate(
            "document.activeElement === document.body"
            " || Boolean(document.activeElement.closest('dialog'))"
        )
    person.page.keyboard.press("Escape")
    person.expect(person.button("Settings")).to_be_focused()
