"""Write ``docs/reference/*.md`` from the code; with ``--check``, fail when a page is not current.

Run it as ``inv docs`` or ``inv docs --check``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bitnet import settings
from bitnet.errors import EXIT_CODES
from bitnet.tasks import load
from bitnet.tasks.declare import Option, Task

FOLDER = Path(__file__).parent / "reference"
NOTICE = "<!-- Written by `inv docs` from the code; edit the code instead. -->"


def pages() -> dict[str, str]:
    """Text of every reference page by file name."""
    return {
        "commands.md": commands(),
        "environment.md": environment(),
        "exit-codes.md": exit_codes(),
    }


def commands() -> str:
    """Every command with its options."""
    collection = load()
    names = sorted(collection.task_names)
    parts = [
        "# Commands",
        NOTICE,
        "In a checkout `inv COMMAND`, when installed `bitnet COMMAND` or `python -m bitnet "
        "COMMAND`: the same commands, the same options. Results go to stdout, everything else to "
        "stderr.",
        "\n".join(f"- [`{n}`](#{_anchor(n)}): {_summary(collection[n])}" for n in names),
    ]
    parts += [_command(name, collection[name]) for name in names]
    return "\n\n".join(parts) + "\n"


def environment() -> str:
    """Every environment variable the project reads."""
    rows = [
        [
            ", ".join(f"`{name}`" for name in setting.names),
            _default(setting),
            _capitalised(setting.help) + (" Never shown in any output." if setting.secret else ""),
        ]
        for setting in settings.ALL
    ]
    intro = (
        "Read when a command runs, never before. Of several names in a row the first one that is "
        "set wins; a switch is on when any of its names is. Switches are on with `1`, `true`, "
        "`yes`, `on` and off with `0`, `false`, `no`, `off` or an empty value; anything else is an "
        "error that names the variable (exit code 2). "
        "Proxies and certificates are found through `HTTPS_PROXY`, `NO_PROXY` and "
        "`REQUESTS_CA_BUNDLE`."
    )
    table = _table(["Variable", "Default", "Meaning"], rows)
    return f"# Environment variables\n\n{NOTICE}\n\n{intro}\n\n{table}\n"


def exit_codes() -> str:
    """What every exit code means."""
    table = _table(["Code", "Meaning"], [[str(code), text] for code, text in EXIT_CODES.items()])
    intro = "The same for every command; `inv exit-codes --json` prints them for programs."
    return f"# Exit codes\n\n{NOTICE}\n\n{intro}\n\n{table}\n"


def stale() -> list[str]:
    """Names of pages that differ from what the code says."""
    wanted = pages()
    present = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    return sorted(name for name, text in wanted.items() if present.get(name) != text)


def _command(name: str, command: Task) -> str:
    options = [entry for entry in command.get_arguments() if isinstance(entry, Option)]
    words = " ".join(["[--options]", *(o.in_usage() for o in options if o.positional)])
    lines = (command.__doc__ or "").strip().splitlines()
    text = "\n".join(line.removeprefix("    ") for line in lines)
    shown = [option for option in options if not option.hidden]
    rows = [[f"`{option.spelled()}`", option.described()] for option in shown]
    table = _table(["Option", "Meaning"], rows)
    if hidden := [f"`{option.spelled()}`" for option in options if option.hidden]:
        table += f"\n\nSettings that are taken here too: {', '.join(hidden)}."
    return f"## {name}\n\n{text}\n\n```\ninv {name} {words}\n```\n\n{table}"


def _summary(command: Task) -> str:
    return (command.__doc__ or "").strip().splitlines()[0]


def _anchor(heading: str) -> str:
    return heading.replace(".", "")


def _default(setting: settings.Setting[object]) -> str:
    if setting.default in (None, ""):
        return "not set"
    if isinstance(setting.default, bool):
        return "on" if setting.default else "off"
    shown = f"{setting.default:g}" if isinstance(setting.default, float) else setting.default
    return f"`{shown}`"


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` say which ones are not current."""
    if "--check" in arguments:
        names = stale()
        if names:
            print(f"not current: {', '.join(names)}; run: inv docs", file=sys.stderr)
        return 1 if names else 0
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
