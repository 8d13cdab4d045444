"""Follow hints: run a command that fails, the command in its hint, and the first command again.

A door is a way to start the program: ``inv`` in a checkout, a wheel in an environment, ``uv tool``,
pipx. As a program, this follows every hint of :mod:`hint_cases` in one door; it runs with the
Python in which the program is installed:

    python tests/support/following.py --program bitnet [--only WORDS] [--network]
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from hint_case import Case
from hint_cases import CASES
from hint_pages import EXTRAS
from hint_setups import MODEL
from hub_server import HubServer
from tiny_models import tiny_gguf

LONGEST_S = 1200  # of a command, on a machine with much else to do
# The command to install something: in the hint of an error, or in the warning of a server.
INSTALLS = re.compile(r"(?:^hint: |is missing: )(.*?)(?:, or .*)?$", re.MULTILINE)
TIMED_OUT = 124  # exit code of the program `timeout` after it has interrupted a server
# An expression in the braces of an f-string, which may have braces itself.
PLACEHOLDER = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
# What follows a command in a message.
END = r"(?=[,;)`]|$| or |\.$| >)"


def pattern_of(written, program):
    """Pattern for the command *written* in the source, as *program* prints it.

    Its first group is the command without the name of the program.
    """
    words = "[^,;`\n]*?".join(map(re.escape, PLACEHOLDER.split(written)))
    return re.compile(rf"(?<![\w./-]){re.escape(program)} ({words}){END}", re.MULTILINE)


class Place:
    """A folder, an environment and a hub for one case."""

    def __init__(self, folder: Path, program: str, hub: HubServer, cache: Path) -> None:
        self.folder = folder
        self.program = program
        self.hub = hub
        for name in ("home", "work", "work/models"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.work = folder / "work"
        if checkout := os.environ.get("BITNET_CHECKOUT"):  # where ``inv`` is understood
            (self.work / "tasks.py").symlink_to(Path(checkout) / "tasks.py")
        own = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        package_settings = {
            name: text
            for name, text in os.environ.items()
            if name.startswith(("PIP", "UV_", "SSL_", "REQUESTS_"))
        }
        self.env = own | package_settings | {
            "HOME": str(folder / "home"),
            "HF_ENDPOINT": hub.url,
            "BITNET_CACHE_DIR": str(cache),
            "LC_ALL": "C.UTF-8",
        }  # fmt: skip

    def run(self, line, **more):
        """As :meth:`run_printed`, with the door's program for ``bitnet`` in *line*."""
        line = re.sub(r"(?<![\w./-])bitnet ", lambda _: f"{self.program} ", line)
        return self.run_printed(line, **more)

    def run_printed(self, line, *, stdin="", terminal=False, **more):
        """Exit code and output of the shell's *line*, which names the program as the door does."""
        ends = os.openpty() if terminal else ()
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", line],
                cwd=self.work,
                env=self.env | more,
                text=True,
                capture_output=True,
                timeout=LONGEST_S,
                **({"stdin": ends[1]} if terminal else {"input": stdin}),
            )
        finally:
            for end in ends:
                os.close(end)
        return SimpleNamespace(code=done.returncode, text=done.stderr + "\n" + done.stdout)

    def must(self, line, **more):
        """Run *line*, which prepares a case and must succeed, and return as :meth:`run`."""
        done = self.run(line, **more)
        if done.code:
            raise AssertionError(f"{line} ended with {done.code}:\n{done.text}")
        return done


def follow(case: Case, place: Place) -> str:
    """Problem with *case* in *place*; empty if its hint helps."""
    if case.setup is not None:
        case.setup(place)
    more = {"stdin": case.stdin, "terminal": case.terminal}
    line = case.fails.format(cdn=place.hub.cdn_url)
    failed = place.run(line, **more, **case.env)
    if (failed.code == 0) != case.succeeds:
        return f"{line} ended with {failed.code}:\n{failed.text}"
    if "Traceback" in failed.text or "internal error" in failed.text:
        return f"{line}:\n{failed.text}"
    hint = pattern_of(case.hint, place.program).search(failed.text)
    if hint is None:
        return f"{line} printed no hint like {case.hint!r}:\n{failed.text}"
    words = hint[1].strip()
    for name, text in case.fill.items():
        words = words.replace(name, text)
    if case.between is not None:
        case.between(place)
    command = f"{place.program} {words}{case.into}"
    followed = place.run_printed(command, stdin=case.answer)
    if followed.code not in case.ends or "internal error" in followed.text:
        return f"{line}\n-> {command} ended with {followed.code}:\n{followed.text}"
    if case.then != "works":
        return ""
    again = place.run(line, **more)  # without the variables of the case, which the hint unsets
    if again.code:
        return f"{line}\n-> {command}\n-> again {again.code}:\n{again.text}"
    return ""


def follow_in(case: Case, program: str, cache: Path | None = None) -> str:
    """As :func:`follow`, in a folder of its own with a hub of its own."""
    with tempfile.TemporaryDirectory() as name, HubServer() as hub:
        folder = Path(name).resolve()
        return follow(case, Place(folder, program, hub, cache or folder / "cache"))


def follow_extra(extra: str, program: str, cache: Path | None = None) -> str:
    """Problem with the hint to install *extra*: missing, failing or of no help; empty if none."""
    with tempfile.TemporaryDirectory() as name, HubServer() as hub:
        folder = Path(name).resolve()
        place = Place(folder, program, hub, cache or folder / "cache")
        tiny_gguf(place.work / MODEL)
        followed: list[str] = []
        while True:
            tried = place.run(EXTRAS[extra])
            hint = INSTALLS.search(tried.text)
            if tried.code in (0, TIMED_OUT) and hint is None:
                break
            if hint is None or hint[1] in followed:
                return f"{EXTRAS[extra]} ended with {tried.code}:\n{tried.text}"
            followed.append(hint[1])  # one extra may be missing after the other
            done = place.run_printed(hint[1])
            if done.code:
                return f"{hint[1]} ended with {done.code}:\n{done.text}"
        return "" if followed else f"nothing is missing for {EXTRAS[extra]}"


def main():
    """Follow the hints, print the problems, and exit with 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="bitnet")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--network", action="store_true", help="also those that need an index")
    parser.add_argument("--extras", default="", help="names of extras, instead of the cases")
    options = parser.parse_args()
    is_inv = options.program == "inv"
    here = [
        case
        for case in CASES
        if case.network <= options.network and not (is_inv and case.is_before_tasks)
    ]
    chosen = [(case.name, follow_in, case) for case in here if options.only in case.name]
    if options.extras:
        chosen = [(extra, follow_extra, extra) for extra in options.extras.split(",")]
    program = shlex.quote(options.program)
    # Installations of packages run one after the other.
    with ThreadPoolExecutor(1 if options.extras else max(2, os.cpu_count() or 1)) as pool:
        problems = list(pool.map(lambda row: row[1](row[2], program), chosen))
    wrong = [f"{row[0]}: {text}" for row, text in zip(chosen, problems, strict=True) if text]
    print("".join(f"{text}\n\n" for text in wrong), end="", file=sys.stderr)
    print(f"{program}: {len(chosen) - len(wrong)} of {len(chosen)} hints help")
    sys.exit(bool(wrong) or not chosen)


if __name__ == "__main__":
    main()
