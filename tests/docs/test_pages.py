"""Files, commands and links that the pages name exist."""

import re
import shlex
from pathlib import Path

import pytest

from bitnet.commands import load
from bitnet.hub.ref import names

ROOT = Path(__file__).parents[2]
FOLDERS = (".", "cache", "training", "bitnet/shipped", "benchmarks/results")
PAGES = [
    *(ROOT / "docs").rglob("*.md"),
    *(page for folder in FOLDERS for page in (ROOT / folder).glob("*.md")),
]
DEVELOPER = {"check", "test", "native"}  # tasks of `inv` alone, whose options are not checked


def page_id(path):
    return str(path.relative_to(ROOT))


def links(page):
    """Relative targets of the links on *page*, without their fragments."""
    return re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))


def shell_lines(page):
    """Lines of the blocks of shell commands on *page*."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page):
    assert [target for target in links(page) if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_models_that_commands_name_are_known(page):
    text = "\n".join(shell_lines(page))
    # A word that looks like the name of a packaged model, and is not a part of a path.
    name = r"(?<![\w./-])(?:smollm\d|gemma-?\d|bitnet-(?!xtask))[\w-]*(?![\w./-])"
    assert set(re.findall(name, text)) <= set(names())


@pytest.mark.parametrize("page", sorted((ROOT / "docs/how-to").glob("*.md")), ids=page_id)
def test_a_how_to_begins_with_its_result_and_ends_with_what_to_do_on_failure(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    paragraphs = [part for part in text.split("\n\n") if part.strip()]
    assert paragraphs[0].startswith("# ")
    assert paragraphs[1].startswith("You get ")
    if page.stem != "troubleshooting":  # the whole page is about failures
        assert re.findall(r"^## (.*)", text, re.MULTILINE)[-1] == "If it fails"


def test_the_index_names_every_page():
    indexes = [ROOT / "docs/README.md", ROOT / "docs/adr/README.md"]
    named = {(index.parent / link).resolve() for index in indexes for link in links(index)}
    named.add(indexes[0])
    assert set((ROOT / "docs").rglob("*.md")) <= named


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_and_their_options_exist(page):
    commands = load()
    aliases_by_name = commands.task_names
    names = {word: name for name, aliases in aliases_by_name.items() for word in (name, *aliases)}
    for line in shell_lines(page):
        match = re.search(r"(?:^|[/\s])(?:inv|bitnet) ([a-z][\w.-]*)(.*)", line)
        if match is None or match[1] in DEVELOPER:
            continue
        command = match[1]
        words = shlex.split(match[2])
        dotted = ".".join([command, *words[:1]])  # `cache list` is `cache.list`
        declared = {
            name if name.startswith("-") else f"--{name}"
            for argument in commands[names.get(dotted, command)].options
            for name in argument.names
        }
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= declared, line


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_a_page_for_users_speaks_of_one_program(page):
    """Readers type ``bitnet``, in a checkout as elsewhere; ``inv`` has the developer's tasks."""
    if page.parent.name == "adr" or page.name == "CHANGELOG.md":
        return
    text = page.read_text(encoding="utf-8")
    commands = {name.partition(".")[0] for name in load().task_names}
    assert [
        name for name in re.findall(r"(?<![\w/.-])inv ([a-z][a-z-]+)", text) if name in commands
    ] == []


def test_the_map_of_rooms_matches_the_tree():
    overview = (ROOT / "docs/architecture/overview.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`bitnet/([a-z]+)/`", overview))
    assert named == {path.parent.name for path in ROOT.glob("bitnet/*/__init__.py")}


def test_decisions_are_numbered_in_order_and_listed():
    pages = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    index = (ROOT / "docs" / "adr" / "README.md").read_text(encoding="utf-8")
    for number, page in enumerate(pages, 1):
        title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert page.name.startswith(f"{number:04}-")
        assert title.startswith(f"{number}. ")
        assert f"- [{title}]({page.name})" in index
