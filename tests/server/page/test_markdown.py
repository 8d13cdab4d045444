"""Markdown on the page: how it is rendered, that it is safe, and that its work is linear."""

import json
import random

import pytest

#: Renders a text at once, and streamed up to each of the cuts. ``differing`` is the first end at
#: which a stream looks different from the same text rendered at once, null if there was none.
IN_PAGE = """async ({text, cuts}) => {
    const {render, Streamed} = await import("/page/render.js");
    const box = document.createElement("div");
    for (const element of render(text)) box.append(element);
    const streamed = new Streamed();
    let differing = null;
    for (const end of cuts) {
        streamed.update(text.slice(0, end));
        const whole = new Streamed();
        whole.update(text.slice(0, end));
        if (whole.element.innerHTML !== streamed.element.innerHTML) differing ??= end;
    }
    streamed.update(text, true);
    if (streamed.element.innerHTML !== box.innerHTML) differing ??= text.length;
    const facts = (one) => [...one.attributes].map(({name, value}) => [name, value]);
    const elements = [...box.querySelectorAll("*")].map((one) => [
        one.localName, Object.fromEntries(facts(one)),
    ]);
    return {html: box.innerHTML, text: box.textContent, elements, differing};
}"""


@pytest.fixture
def rendered(worker, person):
    """A function that renders a text, at once and in parts that end at *cuts*: see IN_PAGE."""
    person.goes_to(worker.address)
    return lambda text, cuts=(): person.page.evaluate(IN_PAGE, {"text": text, "cuts": [*cuts]})


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a *b* __c__ ~~d~~", "<p>a <em>b</em> <strong>c</strong> <del>d</del></p>"),
        ("***a*** *b **c***", None),
        ("snake_case_name 2*3*4", "<p>snake_case_name 2<em>3</em>4</p>"),
        ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
        ("# A `b`\n### C #", "<h3>A <code>b</code></h3><h5>C</h5>"),
        ("`` a`b `` `*c*`", "<p><code>a`b</code> <code>*c*</code></p>"),
        ("- a\n- b\n  1. c", None),
        ("3. a\n4. b", '<ol start="3"><li><span>a</span></li><li><span>b</span></li></ol>'),
        ("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
        ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
        ("a\n---\nb", "<p>a</p><hr><p>b</p>"),
        ("\\*a\\* &lt;b&gt; &copy;", "<p>*a* &lt;b&gt; ©</p>"),
        ("a<br>b", "<p>a<br>b</p>"),
        ("<b>a</b>", "<p>&lt;b&gt;a&lt;/b&gt;</p>"),
        ("unclosed **bold and `code", "<p>unclosed **bold and `code</p>"),
    ],
)
def test_markdown_is_rendered_as_this_html_also_while_it_streams(rendered, text, html):
    # Too long for the table above, which has None for them.
    long_html = {
        "***a*** *b **c***": "<p><em><strong>a</strong></em> <em>b <strong>c</strong></em></p>",
        "- a\n- b\n  1. c": (
            "<ul><li><span>a</span></li><li><span>b</span>"
            "<ol><li><span>c</span></li></ol></li></ul>"
        ),
    }
    facts = rendered(text, range(len(text)))
    assert facts["html"] == (html or long_html[text])
    assert facts["differing"] is None


def test_tables_have_heads_and_aligned_columns(rendered):
    facts = rendered("Here:\n| a | b |\n|:--|--:|\n| `x\\|y` | **2** |\n| 3 |\n\nend")
    names = [name for name, _ in facts["elements"]]
    assert names.count("th") == 2
    assert names.count("td") == 4  # a short row is filled up
    assert ["td", {"class": "right"}] in facts["elements"]
    assert facts["text"] == "Here:abx|y23end"


def test_links_lead_to_the_web_and_to_mail_only(rendered):
    text = (
        "[a](https://e.org/x_(y)) <mailto:b@e.org> https://e.org/c. [d](javascript:alert(1)) "
        "[e](data:text/html,x) [f](/docs) ![g](https://e.org/g.png) [h](JAVA\tSCRIPT:x) "
        "[i](vbscript:x) [j](&#106;avascript:x) [k](file:///etc/passwd) [l](blob:x)"
    )
    facts_of_page = rendered(text)
    links = [facts for name, facts in facts_of_page["elements"] if name == "a"]
    assert [link["href"] for link in links] == [
        "https://e.org/x_(y)",
        "mailto:b@e.org",
        "https://e.org/c",
        "https://e.org/g.png",
    ]
    assert {link["rel"] for link in links} == {"noopener noreferrer nofollow"}
    assert "[d](javascript:alert(1))" in facts_of_page["text"]


@pytest.mark.parametrize(
    "text",
    ["\\(a_1 * b_2\\)", "$$x_1 * y_2$$", "$a*b*c$", "$$\nx_1 \\\\\n- 2 * 3\n$$", "\\[\n*a*\n\\]"],
)
def test_formulas_stay_as_they_are_written(rendered, text):
    found = rendered(f"{text}\n\nend")
    assert found["text"] == f"{text}end"
    assert any(facts.get("class") == "math" for _, facts in found["elements"])


def test_prices_are_not_formulas(rendered):
    assert rendered("it costs $5 and *then* $6")["html"] == (
        "<p>it costs $5 and <em>then</em> $6</p>"
    )


def test_code_is_coloured_by_its_language_and_copied_as_it_is(writer, person, dictate):
    person.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    person.goes_to(writer.address)
    code = "def a(b):\n  return 1 # 'c'"
    dictate(f"```py\n{code}\n```")
    person.says("abc")
    block = person.answers.locator("figure.code")
    person.expect(block.locator("figcaption span")).to_have_text("py")
    person.expect(block.locator(".keyword")).to_have_text(["def", "return"])
    person.expect(block.locator(".call")).to_have_text("a")
    person.expect(block.locator(".number")).to_have_text("1")
    person.expect(block.locator(".comment")).to_have_text("# 'c'")
    person.button("Copy code").click()
    person.expect(person.button("Copy code")).to_have_text("Copied")
    assert person.page.evaluate("navigator.clipboard.readText()") == code
    person.button("Copy answer").click()
    person.expect(person.button("Copy answer")).to_have_text("Copied")
    assert person.page.evaluate("navigator.clipboard.readText()") == f"```py\n{code}\n```"


def test_comments_and_texts_over_several_lines_are_coloured_to_their_end(rendered):
    code = '```py\nx = """a\nif b"""\n```\n```c\n/* a\nif b */ if\n```\n```diff\na\n+b\n```'
    spans = (
        """<span class="string">\"\"\"a\nif b\"\"\"</span>""",
        ('<span class="comment">/* a\nif b */</span> <span class="keyword">if</span>'),
    )
    html = rendered(code)["html"]
    assert all(span in html for span in spans), html
    assert '<span class="added">+b</span>' in html


def test_a_copy_that_the_browser_refuses_is_not_said_to_be_made(writer, person, dictate):
    person.page.add_init_script(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined});"
        "document.execCommand = () => false;"
    )
    person.goes_to(writer.address)
    dictate("a")
    person.says("abc")
    person.button("Copy answer").click()
    person.expect(person.button("Copy answer")).to_have_text("Not allowed")


def test_without_the_clipboard_of_secure_pages_copying_works_too(writer, person, dictate):
    person.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    person.page.add_init_script(
        "Object.defineProperty(navigator, 'clipboard', {configurable: true, value: undefined})"
    )
    person.goes_to(writer.address)
    dictate("a *b*")
    person.says("abc")
    person.button("Copy answer").click()
    person.expect(person.button("Copy answer")).to_have_text("Copied")
    person.text.press("Control+v")
    person.expect(person.text).to_have_value("a *b*")


#: Elements that Markdown may make, with the attributes that each may have.
PLAIN = "h3 h4 h5 h6 blockquote ul hr br em strong del code figcaption table thead tbody tr"
ALLOWED = {name: set() for name in PLAIN.split()} | {
    "a": {"href", "title", "target", "rel"},
    "button": {"type", "class", "aria-label"},
    "div": {"class", "tabindex", "role", "aria-label"},
    "figure": {"class"},
    "input": {"type", "disabled", "checked", "aria-label"},
    "li": {"class"},
    "ol": {"start"},
    "p": {"class"},
    "pre": {"tabindex", "role", "aria-label"},
    "span": {"class"},
    "td": {"class"},
    "th": {"class", "scope"},
}
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "[a](javascript:alert(1))",
    "![a](javascript:alert(1))",
    '[a](https://e.org/"onmouseover="alert(1))',
    "[a](https://e.org 'x\" onclick=alert(1) ')",
    '```"><script>alert(1)</script>\nx\n```',
    "`<iframe srcdoc=x>`",
    "|<script>|\n|-|\n|<style>*{}</style>|",
    "<https://e.org/<script>alert(1)</script>>",
    '<a href="javascript:alert(1)">x</a>',
    "<!-- x --><base href=//e.org>",
    "- [x] <form action=//e.org>",
    "# <meta http-equiv=refresh content=0>",
    "[__proto__](constructor) &constructor; &__proto__;",
    "```constructor\nx\n```\n```__proto__\ny\n```",
]


def check(found):
    """Check that all elements and attributes are allowed, links are safe and streams alike."""
    for name, facts in found["elements"]:
        assert facts.keys() <= ALLOWED[name], (name, facts)
        assert name != "a" or facts["href"].startswith(("https://", "http://", "mailto:"))
    assert found["differing"] is None


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text(rendered, text):
    check(rendered(text, range(len(text))))
    check(rendered(f"> - {text}\n\n1. **{text}**", range(0, 60, 7)))


def test_hostile_answers_of_a_model_are_text(writer, person, dictate):
    person.goes_to(writer.address)
    text = "<img src=x onerror=a()> **b**"
    dictate(text)
    person.says("<script>a</script>")
    person.expect(person.answers).to_have_text("<img src=x onerror=a()> b")
    person.expect(person.answers.locator("strong")).to_have_text("b")
    assert person.page.locator("main :is(img, script)").count() == 0
    person.reloads()
    person.expect(person.questions).to_have_text("<script>a</script>")
    assert person.page.locator("main :is(img, script)").count() == 0


def test_hostile_imports_are_text(worker, person):
    person.goes_to(worker.address)
    nodes = [
        {"id": 1, "parent": None, "role": "user", "content": HOSTILE[0]},
        {
            "id": 2,
            "parent": 1,
            "role": "assistant",
            "content": "\n\n".join(HOSTILE),
            "model": HOSTILE[1],
        },
    ]
    conversation = {"name": HOSTILE[1], "system": HOSTILE[0], "nodes": nodes, "leaf": 2}
    content = {"format": "bitnet-conversation", "version": 1, "conversation": conversation}
    file = {"name": "a.json", "mimeType": "", "buffer": json.dumps(content).encode()}
    person.page.get_by_label("Import").set_input_files(file)
    person.expect(person.page.locator("article.assistant h2")).to_have_text(HOSTILE[1])
    person.expect(person.conversations).to_have_text([HOSTILE[1]])
    assert person.page.locator("main :is(img, script, iframe, form, style, svg)").count() == 0


#: Pieces of Markdown, of which random texts are made.
PARTS = (
    "a", "b c", " ", "  ", "\n", "\n\n", "*", "**", "_", "~~", "`", "``", "```", "```py\n", "- ",
    "1. ", "2. ", "> ", "# ", "| a | b |\n|---|---|\n", "|", "---", "$", "$$", "\\(", "\\)", "\\[",
    "\\]", "\\", "[x](", ")", "https://e.org/", "![", "]", "<", ">", "<br>", "&amp;", "    ", "\t",
    "- [ ] ", "\n- ", "\n  - ", "\n1", ".",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_random_markdown_looks_the_same_in_whatever_parts_it_streams(rendered, seed):
    draw = random.Random(seed)
    for _ in range(60):
        text = "".join(draw.choice(PARTS) for _ in range(draw.randint(1, 40)))
        cuts = sorted(draw.randint(0, len(text)) for _ in range(draw.randint(0, 20)))
        found = rendered(text, cuts)
        assert found["differing"] is None, repr(text[: found["differing"]])
        check(found)


#: Texts whose repetition is hard for parsers that look back or ahead.
REPEATED = (
    "*", "_", "*a", "*a ", "**a ", "a** ", "*a _b ~~c ", "*a_ b* ", "~~a", "~", "***", "[", "[a](",
    "[a](b", "![", "[a](b)", "[a](b 'x", '[a](b "', "`", "`a``b", "\\(", "\\[", "\\", "$", "$$",
    "$a ", "<", "<http://", "&amp", "https://", "http://a)", "(http://a(", "> ", "- ", "1. ",
    "- a\n", "  - a\n", "- a\n\n", "\t- ", "> a\n", "|", "|a", "|\n|-|\n", "a|b\n-|-\n", "```\n",
    "~~~ `\n", "$$\n", "#", "# ", "_ _ ", "a\n", "  ", " *", "<think>",
)  # fmt: skip
#: Parses a text and speaks it, and returns the characters that ``indexOf`` went over.
WORK = """async ({unit, size, end}) => {
    const {parse, plain} = await import("/page/markdown.js");
    const {Speech} = await import("/page/speech.js");
    const text = unit.repeat(size / unit.length) + end;
    let read = 0; // characters that the engine's own search went over
    const {indexOf} = String.prototype;
    String.prototype.indexOf = function (part, start = 0) {
        const found = indexOf.call(this, part, start);
        read += (found < 0 ? this.length : found) - start;
        return found;
    };
    parse(text);
    plain(text);
    const speech = new Speech(document.createElement("div"));
    speech.update(text.slice(0, size / 2));
    speech.update(text, true);
    String.prototype.indexOf = indexOf;
    return read;
}"""


@pytest.fixture
def counted(worker, person):
    """A function for the work on a text: blocks of the page's scripts that ran, and searches."""
    profiler = person.page.context.new_cdp_session(person.page)
    profiler.send("Profiler.enable")
    profiler.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": True})
    person.goes_to(worker.address)

    def count(unit, size, end):
        profiler.send("Profiler.takePreciseCoverage")  # counts from here on
        read = person.page.evaluate(WORK, {"unit": unit, "size": size, "end": end})
        scripts = profiler.send("Profiler.takePreciseCoverage")["result"]
        return read + sum(
            block["count"]
            for script in scripts
            if "/page/" in script["url"]
            for function in script["functions"]
            for block in function["ranges"]
        )

    return count


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", ")*`$)\\)~~\"'>|"], ids=["", "ended"])
def test_twice_the_text_is_at_most_twice_the_work(counted, end):
    for unit in REPEATED:
        small, large = (counted(unit, size, end) for size in (20_000, 40_000))
        assert large > 1000, unit  # something was counted
        # Twice, with 5 % and a constant for what does not grow with the text.
        assert large < 2.1 * small + 1000, unit


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["*a* ", "[a](b", "> ", "`a", "1. ", "*a _b "])
def test_a_line_of_a_megabyte_is_shown(worker, person, unit):
    person.goes_to(worker.address)
    show = """async (text) => {
        const {render} = await import("/page/render.js");
        return render(text).map((element) => element.textContent.length);
    }"""
    (length,) = person.page.evaluate(show, unit * (1_000_000 // len(unit)))
    assert length > 400_000  # characters: marks are not shown
