"""The page on phones, its scrolling, its colours, and what screen readers get."""

import pytest
from waiting import until

PHONE = {"width": 390, "height": 844}
LONG = "supercalifragilistic" * 12
#: Elements that are visible and reach beyond the width of the page, except what scrolls by itself.
OUTSIDE = """(width) => [...document.querySelectorAll("body *")]
    .filter((one) => one.checkVisibility({visibilityProperty: true}) && !one.closest(".unseen"))
    .filter((one) => !one.parentElement.closest("pre, .table"))
    .map((one) => [one.tagName + "#" + one.id + "." + one.className, one.getBoundingClientRect()])
    .filter(([, box]) => box.width && (box.left < -0.5 || box.right > width + 0.5))
    .map(([name]) => name)"""
#: Pixels from the visible part of the conversation to its end.
SCROLLED = """() => {
    const talk = document.getElementById("talk");
    return talk.scrollHeight - talk.scrollTop - talk.clientHeight;
}"""


def outside(person):
    """Elements that do not fit a phone; the page itself must not scroll sideways."""
    assert person.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    return person.page.evaluate(OUTSIDE, PHONE["width"])


def imported(person, *texts):
    """Store and open a conversation with answers of these texts, without a model."""
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
    assert all(box["height"] >= 38 for box in boxes.values())  # pixels, for a finger
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
    one_line = person.text.bounding_box()["height"]
    person.text.fill("a\nb\nc\nd")
    four_lines = person.text.bounding_box()["height"]
    # Four lines, whose space above and below is that of one.
    assert 2.5 * one_line < four_lines < 4 * one_line
    assert person.text.evaluate("(box) => box.scrollHeight <= box.clientHeight")
    person.text.fill("a\n" * 200)
    # At most 40 % of the page, as in its style, and a pixel for rounding.
    assert person.text.bounding_box()["height"] <= 0.4 * size["height"] + 1
    person.expect(person.button("Send")).to_be_in_viewport(ratio=1)
    person.text.fill("")
    assert person.text.bounding_box()["height"] == one_line


def test_scrolling_up_is_respected_while_an_answer_comes(writer, person, dictate, release):
    person.page.set_viewport_size({"width": 900, "height": 400})
    person.goes_to(writer.address)
    imported(person, "a\n" * 40)
    dictate("b\n" * 12 + "end")
    release(8)
    person.writes("abc")
    person.expect(person.answers.nth(1)).to_contain_text("b")
    until(lambda: person.page.evaluate(SCROLLED) < 2)
    person.page.locator("#talk").evaluate("(talk) => { talk.scrollTop = 100; }")
    person.expect(person.button("↓ Latest")).to_be_visible()
    release()
    person.waits()
    assert person.page.locator("#talk").evaluate("(talk) => talk.scrollTop") == 100
    person.button("↓ Latest").click()
    until(lambda: person.page.evaluate(SCROLLED) < 2)
    person.expect(person.button("↓ Latest")).to_be_hidden()
    dictate("c\n" * 12 + "end")
    person.says("d")
    assert person.page.evaluate(SCROLLED) < 2  # a new answer is followed again


def test_a_screen_reader_hears_sentences(writer, person, dictate, release):
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
    dictate("**one** two. three\n```py\nx = 1\n```\n| a | b |\nend")
    release(13)  # passes, a character each: up to the end of the first sentence
    person.writes("abc")
    person.expect(person.answers).to_contain_text("one two")
    assert person.page.evaluate("window.heard") in ([], ["one two."])
    release()
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
    """Contrast of two colours like ``rgb(0, 0, 0)``, as WCAG defines it: 1 to 21."""

    def luminance(colour):
        parts = [int(part) / 255 for part in colour[4:-1].split(",")]
        linear = [
            part / 12.92 if part <= 0.04 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    pair = sorted((luminance(one), luminance(other)))
    return pair[1] / pair[0]


#: Text on the page with its colour and the colour behind it.
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
    colours = person.page.evaluate(COLOURS)
    assert len(colours) > 20
    # Level AA of WCAG 2.2 requires 4.5.
    faint = [row for row in colours if contrast(row[1], row[2]) < 4.5]
    assert faint == []
    background = person.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (contrast(background, "rgb(0, 0, 0)") > 10) == (scheme == "light")


PLACEHOLDERS = """() => [...document.querySelectorAll("[placeholder]")].map((one) => {
    const {color, opacity} = getComputedStyle(one, "::placeholder");
    return [one.id, color, getComputedStyle(one).backgroundColor, opacity];
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_placeholders_can_be_read_in_light_and_dark(worker, person, scheme):
    person.page.emulate_media(color_scheme=scheme)
    person.goes_to(worker.address)
    person.button("Settings").click()
    placeholders = person.page.evaluate(PLACEHOLDERS)
    assert {name for name, *_ in placeholders} == {"search", "text", "max_tokens", "seed"}
    for name, colour, behind, opacity in placeholders:
        assert (contrast(colour, behind) >= 4.5, opacity) == (True, "1"), name


@pytest.mark.parametrize("wish", ["reduce", "no-preference"])
def test_nothing_moves_for_people_who_do_not_want_it(worker, person, release, wish):
    person.page.emulate_media(reduced_motion=wish)
    person.goes_to(worker.address)
    release(4)
    person.writes("abc")
    person.expect(person.page.locator("article[aria-busy=true] .markdown p")).not_to_be_empty()
    moving = person.page.evaluate("document.getAnimations().length")
    # Without the wish, a sign moves while the answer is written.
    assert (moving == 0) == (wish == "reduce")
    release()
    person.waits()
    assert person.page.evaluate("document.getAnimations().length") == 0


def test_everything_can_be_reached_with_the_keyboard(worker, person):
    person.goes_to(worker.address)
    imported(person, "```py\na\n```")
    reached = []
    person.page.evaluate("document.activeElement.blur()")
    for _ in range(40):  # more than the page has elements with a focus
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
            reached.append(name)
    for name in (
        "New chat", "Search conversations", "q py", "Actions: q py", "Model", "Settings",
        "Copy message", "Edit", "Copy code", "Code, py",
        "Copy answer", "Regenerate", "Message", "Send",
    ):  # fmt: skip
        assert name in reached, (name, reached)


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
    for _ in range(30):  # more than the drawer has elements with a focus
        person.page.keyboard.press("Tab")
        assert person.page.evaluate(
            "document.activeElement === document.body"
            " || Boolean(document.activeElement.closest('dialog'))"
        )
    person.page.keyboard.press("Escape")
    person.expect(person.button("Settings")).to_be_focused()
