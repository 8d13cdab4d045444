"""Write ``docs/reference/*.md`` from the code; with ``--check``, fail when a page is not current.

Run it as ``inv docs`` or ``inv docs --check``.
"""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitnet.base import settings
from bitnet.base.errors import EXIT_CODES
from bitnet.commands import load
from bitnet.commands.declare import GROUPS, Task
from bitnet.commands.program import summary
from bitnet.families import config_json
from bitnet.families.family import Family, families, of_gguf, of_model_type
from bitnet.families.keys import COMMON
from bitnet.families.refused import kind_of, list_refused
from bitnet.families.rope import PARAMETERS
from bitnet.runtime import request
from bitnet.runtime import request_checks as checks
from bitnet.wire.fields import DIALECTS, NAMES, schemas_by_name
from bitnet.wire.routes import COMPUTED, ROUTES
from bitnet.wire.schemas import IGNORED, REFUSED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from invoke.collection import Collection

    from bitnet.families.keys import Rule
    from bitnet.wire.schemas import Schema

FOLDER = Path(__file__).parent / "reference"
MEASURED = Path(__file__).parents[1] / "benchmarks" / "results" / "sensitivity.json"
# Examples that are not run as blocks of the page, and what runs them.
NOT_RUN = {
    "classify": "it needs a classifier; tests/commands/test_score_tasks.py makes one",
    "rank": "it needs a model that ranks; tests/commands/test_score_tasks.py makes one",
    "ci-lint": "the linters come from a package index; tests/commands/test_ci_tasks.py has them",
    "serve": "it serves until it is stopped; tests/server/test_serve_task.py stops it",
}
NOTICE = "<!-- Written by `inv docs` from the code; edit the code instead. -->"


def pages() -> dict[str, str]:
    """Text of every reference page by file name."""
    return {
        "commands.md": commands(),
        "environment.md": environment(),
        "exit-codes.md": exit_codes(),
        "models.md": models(),
        "requests.md": requests(),
        "sensitivity.md": sensitivity(),
    }


def commands() -> str:
    """Every command with its options."""
    collection = load()
    names = sorted(collection.task_names, key=lambda name: collection[name].command_words)
    parts = [
        "# Commands",
        NOTICE,
        "In a checkout `inv COMMAND`, when installed `bitnet COMMAND` or `python -m bitnet "
        "COMMAND`: the same commands, the same options. Results go to stdout, everything else to "
        "stderr.",
        *(_group(group, names, collection) for group in GROUPS),
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
        "error that names the variable (exit code 2). Of the variables of other programs, "
        "`RAYON_NUM_THREADS` and `RUST_LOG`, a value that is not understood is ignored. "
        "Proxies and certificates are found through `HTTPS_PROXY`, `NO_PROXY` and "
        "`REQUESTS_CA_BUNDLE`."
    )
    table = _table(["Variable", "Default", "Meaning"], rows)
    return f"# Environment variables\n\n{NOTICE}\n\n{intro}\n\n{table}\n"


def exit_codes() -> str:
    """The meaning of every exit code."""
    table = _table(["Code", "Meaning"], [[str(code), text] for code, text in EXIT_CODES.items()])
    intro = "The same for every command; `bitnet exit-codes --json` prints them for programs."
    models = """\
What is not a model at all (a page, random bytes, an empty file) ends with 13 wherever a model is
taken, `verify` included; nothing at the path, or a folder without a model, ends with 19. A damaged
model gets its verdict from `verify`, 15, and is refused with 13 elsewhere. For `health`, a file
that is not a model and a damaged model are both a model that failed, 15."""
    return f"# Exit codes\n\n{NOTICE}\n\n{intro}\n\n{table}\n\n{models}\n"


def _bounds(low: float | None, high: float | None) -> str:
    """The numbers from *low* to *high* in words; empty without *low*."""
    if low is None:
        return ""
    if not high:
        return f"{low:g} on"
    most = f"{high:,}" if type(high) is int else f"{high:g}"
    return f"{low:g} to {most}"


def requests() -> str:
    """The fields of a request, with their names in each dialect."""
    rows = []
    for field, names in NAMES.items():
        dialect = next(each for each, name in zip(DIALECTS, names, strict=True) if name)
        (schema,) = schemas_by_name(dialect, field).values()
        bounds = _bounds(schema.get("minimum"), schema.get("maximum"))
        kind = schema.get("type") or " or ".join(each["type"] for each in schema["anyOf"])
        rows.append([f"`{field}`", kind, bounds, *(f"`{name}`" if name else "" for name in names)])
    parts = [
        "# Fields of a request",
        NOTICE,
        "A request has these fields at every door: bodies over HTTP, rows of a batch, options of a "
        "command. A dialect without a name for a field does not have it; a field that a door does "
        "not know is refused.",
        _table(["field", "type", "bounds", *DIALECTS], rows),
        "## Fields of each address",
        "A field takes effect, is refused by its name unless it is empty, or cannot change an "
        "answer: then it is accepted, and named in the header `bitnet-ignored` of the reply and "
        "once in the events of the server. Some depend on the model: an effort or a budget of "
        "reasoning takes effect with models that reason, and is named in the header for others.",
        _table(["address", "takes effect", "refused", "cannot change an answer"], _addresses()),
        f"Everywhere a request has at most {request.MAX_MESSAGES:,} messages, {request.MAX_STOPS} "
        f"stop texts and {request.MAX_BIASES:,} biases; a schema or a regular expression at most "
        f"{checks.MAX_GRAMMAR:,} characters, {checks.MAX_PROPERTIES:,} properties, "
        f"{checks.MAX_REFERENCES} definitions referred to and {checks.MAX_REPEATS:,} repetitions "
        f"in patterns. Values are nested at most {checks.MAX_DEPTH} deep. Texts are UTF-8 without "
        "NUL.",
    ]
    return "\n\n".join(parts) + "\n"


def _addresses() -> list[list[str]]:
    """A row for each address that takes a body: names of its fields by what becomes of them.

    They are done, refused, or without effect on an answer.
    """
    rows = []
    for path, form in (ROUTES | COMPUTED).items():
        refused = [name for name, schema in form.fields.items() if REFUSED in schema]
        ignored = [*_ignored_names(form.fields)]
        done = [name for name in form.fields if name not in {*refused, *ignored}]
        rows.append([f"`{path}`", *map(_names, (done, refused, ignored))])
    return rows


def _ignored_names(fields: Mapping[str, Schema], before: str = "") -> Iterator[str]:
    """Names of those of *fields*, and of the fields in them, that cannot change an answer.

    *before* is the path of the field that has *fields*, with a dot at its end.
    """
    for name, schema in fields.items():
        if schema.get(IGNORED):
            yield before + name
            continue
        for each in (schema, *schema.get("anyOf", ())):
            inner = each.get("items", each)
            yield from _ignored_names(inner.get("properties", {}), f"{before}{name}.")


def _architectures() -> Iterator[list[str]]:
    """A row for each architecture: where it is read, or why it is refused."""
    names = {name for family in families() for name in (*family.architectures, *family.model_types)}
    for name in sorted(names | set(list_refused())):
        of_file = of_gguf(name)
        of_folder = of_model_type(name)
        if of_file is None and of_folder is None:
            yield [f"`{name}`", "", "", "", kind_of(name)]
            continue
        family = of_file or of_folder
        is_in_llama_cpp = family is not None and family.llama_cpp is not None
        marks = (of_folder is not None, of_file is not None, is_in_llama_cpp)
        why = kind_of(name, is_folder=True) if of_folder is None else ""
        yield [f"`{name}`", *("yes" if mark else "" for mark in marks), why]


def models() -> str:
    """Every family, and what becomes of every key of a model."""
    rope = [[f"`{kind}`", _names(keys)] for kind, keys in PARAMETERS.items()]
    parts = [
        "# Models",
        NOTICE,
        "A model is computed exactly or refused by name. Each key of a model is *read*, *neutral* "
        "with the values that change nothing, or refused with its name, its value and a hint. In a "
        "`config.json`, keys mean what transformers makes of them; in a GGUF file, what llama.cpp "
        "does. `--ignore-key KEY` computes as if a key were not there; it may be repeated. Every "
        "command that runs, checks or converts a model takes it, and names the keys under "
        "`ignored_keys` with `--json`, as `/v1/models` does; `convert` leaves them out of the "
        "file. "
        "`attest`, `plan` and `doctor` do not take it: they describe the file as it is.",
        "## Families",
        _table(
            ["Family", "GGUF", "`model_type`, or class in `architectures`"],
            [
                [f.title, _names(f.architectures), _names(f.model_types + f.classes)]
                for f in families()
            ],
        ),
        "\n\n".join(_family(family) for family in families()),
        "## Architectures",
        "What becomes of the names that llama.cpp or transformers has for a model of text. "
        "`convert` writes a GGUF file of every folder that is read, and names an engine that "
        "would compute it otherwise. An encoder with a decoder (T5) does not fit: a program "
        "is one decoder with caches of its own positions.",
        _table(
            ["`general.architecture` or `model_type`", "Folder", "GGUF", "In llama.cpp", "Refused"],
            list(_architectures()),
        ),
        "## Keys of `config.json`",
        "Read for every family:",
        _rules(config_json.READ),
        "These change what some family computes. Where the family's own table does not read one, "
        "it must have a value that changes nothing:",
        _rules(config_json.CHANGES),
        "What is in neither table and what transformers does not read for the family is not read "
        "here. Below `rope_parameters` and `quantization_config` every key must be known:",
        _table(["`rope_type`", "Keys"], rope),
        "`rope_theta`, `rope_type` and `type` may stand everywhere, `partial_rotary_factor` where "
        "a family rotates part of a head.",
        _rules(config_json.QUANTIZATION),
        "## Keys of GGUF files",
        "Below the name of the architecture; every other key there is refused.",
        _rules(COMMON),
        "## Extended contexts",
        "`longrope` (Phi-3.5, Phi-4-mini) has two lists of frequency factors. A prompt within the "
        "original context uses the short list, a longer prompt the long one, whatever the size of "
        "the cache. An answer that leaves the original context is run again from its first token "
        "with the long list, once, and continues from there; a token's logits are always those of "
        "a prompt of its length. A prefix shared by two prompts is reused if both are on one side "
        "of the border.",
        "`dynamic` raises the base beyond the context length: a prompt by its length, every token "
        "of the answer behind it by its own position, as transformers does. `--context` may be "
        "larger than the context length for these models only. Positions beyond it are not reused.",
    ]
    return "\n\n".join(parts) + "\n"


def sensitivity() -> str:
    """Bounds of the check of operations, and the measurements that they rest on."""
    table = json.loads(MEASURED.read_text(encoding="utf-8"))
    rows = table["measured"]
    versions = ", ".join(f"{name} {version}" for name, version in table["versions"].items())
    intro = (
        "What [`bitnet crossval`](../how-to/crossval.md#what-is-compared) sees when it computes "
        "every operation of an engine again in float64, measured with tiny models of every "
        "family: the right model, and the same with one mistake. Measured with "
        f"{versions}; `inv sensitivity` measures again, and fails where a bound has less than "
        f"{table['margin']:g} times the largest residual of a right model."
    )
    right = _table(
        ["Operation", "Residual", "Bound", "Largest of right models", "Margin", "Where"],
        list(_right_rows(rows, table["bounds"])),
    )
    wrong = _table(
        ["Mistake", "Engine", "Activations", "Models", "Fail", "Least excess", "Where"],
        list(_wrong_rows(rows)),
    )
    unseen = "\n".join(f"- {kind}: {reason}." for kind, reason in table["may_pass"].items())
    parts = [
        "# What crossval sees",
        NOTICE,
        intro,
        "## Right models",
        "*error* is the relative error of the worst position, *gain* the slope over float64's "
        "values less 1, and *mean* the mean residual of 16 positions, relative to one. "
        "The logits of transformers are measured, too: by their KL divergence from float64, the "
        "*mean* and the *worst* of all positions, and by the *stretch* of log-probabilities.",
        right,
        "## Models with one mistake",
        "*Models* counts every place of the mistake: each norm and each bias alone. The *excess* "
        "is by how many times the worst operation exceeds its bound; below 1 the mistake passes.",
        wrong,
        "Operations show each of these mistakes, but for two that may pass:",
        unseen,
        "## Every family",
        "The least margin of the right model, and the least excess of the mistakes that must fail, "
        "in any of the encodings. With llama.cpp a family may have several rows, one for each kind "
        "of scaling or of window.",
        _table(
            ["Engine", "Family", "Encodings", "Margin", "Mistakes", "Least excess"],
            list(_family_rows(rows)),
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _right_rows(
    rows: Mapping[str, Any], bounds: Mapping[str, Mapping[str, float]]
) -> Iterator[list[str]]:
    """Yield the largest residual of right models for each kind of operation and each measure."""
    for kind, bound in bounds.items():
        for measure, most in bound.items():
            residuals = [
                (*row["right"][kind][measure], title)
                for title, row in rows.items()
                if kind in row["right"]
            ]
            if residuals:
                value, where, title = max(residuals)
                margin = f"{most / value:.1f}" if value else "-"
                yield [kind, measure, f"{most:.1e}", f"{value:.1e}", margin, f"{title}, {where}"]


def _wrong_rows(rows: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row for each mistake, engine and number of bits to which activations are rounded."""
    classes: dict[tuple[str, str, str], list[Any]] = {}
    for title, row in rows.items():
        engine, _, encoding = title.partition(" ")
        rounding = {"F32": "F32", "F16": "16 bits", "BF16": "16 bits"}.get(encoding, "8 bits")
        for kind, counts in row["wrong"].items():
            classes.setdefault((kind, engine, rounding), []).append(counts)
    for (kind, engine, rounding), parts in sorted(classes.items()):
        models = sum(part["models"] for part in parts)
        fail = sum(part["fail"] for part in parts)
        times, where = min(part["least"] for part in parts)
        yield [kind, engine, rounding, f"{models:,}", f"{fail:,}", f"{times:.2g}", where]


def _family_rows(rows: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row for each family of each engine, over all encodings."""
    families: dict[tuple[str, str], list[Any]] = {}
    for title, row in rows.items():
        engine = title.partition(" ")[0]
        for name, measured in row["families"].items():
            families.setdefault((engine, name), []).append(measured)
    for (engine, name), parts in sorted(families.items()):
        margin = min(margin for margin, _, _ in parts)
        mistakes = sum(count for _, count, _ in parts)
        least = min(excess for _, _, excess in parts if excess is not None)
        yield [engine, name, str(len(parts)), f"{margin:.2g}", f"{mistakes:,}", f"{least:.2g}"]


def _family(family: Family) -> str:
    """The section of *family* on the page of models."""
    facts = [f"### {family.title}", f"Activation `{family.activation}`."]
    if isinstance(family.decoder, partial):
        facts.append(
            "Blocks: "
            + ", ".join(f"`{key}` = {value}" for key, value in family.decoder.keywords.items())
            + "."
        )
    if family.stated:
        facts.append(f"`config.json` must have {_names(family.stated.split())}.")
    if family.defaults:
        facts.append(
            "Where `config.json` is silent: "
            + ", ".join(f"`{key}` = {value}" for key, value in family.defaults.items())
            + "."
        )
    if family.tensors:
        facts.append(
            "Tensors: " + ", ".join(f"`{a}` is `{b}`" for a, b in family.tensors.items()) + "."
        )
    if family.rope_parameters:
        facts.append(
            "Below `rope_parameters`, whatever the kind of scaling: "
            + ", ".join(f"`{key}` ({note})" for key, note in family.rope_parameters.items())
            + "."
        )
    for where, rules in (("`config.json`", family.config_rules), ("GGUF", family.gguf_keys)):
        if rules:
            facts += [f"Keys of its own in {where}:", _rules(rules)]
    return "\n\n".join(facts)


def _rules(rules: Mapping[str, Rule]) -> str:
    """A list of the keys that are just read, and a table of those with more to say."""
    plain = [key for key, rule in sorted(rules.items()) if rule.is_read and not rule.note]
    special = sorted(rules.keys() - set(plain))
    rows = [[f"`{key}`", str(rules[key]), rules[key].note] for key in special]
    table = [_table(["Key", "What becomes of it", "Meaning"], rows)] if rows else []
    return "\n\n".join(([f"Read: {_names(plain)}."] if plain else []) + table)


def _names(names: Sequence[str]) -> str:
    """*names* as code, with commas between them."""
    return ", ".join(f"`{name}`" for name in names)


def stale() -> list[str]:
    """File names of pages that are missing, or differ from what the code says."""
    wanted = pages()
    present = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    return sorted(name for name, text in wanted.items() if present.get(name) != text)


def _command(name: str, command: Task) -> str:
    """The section of *command*, whose task has the name *name*: text, usage, example, options."""
    options = command.options
    words = " ".join(["[--options]", *(o.in_usage() for o in options if o.positional)])
    lines = (command.__doc__ or "").strip().splitlines()
    text = "\n".join(line.removeprefix("    ") for line in lines)
    rows = [[f"`{option.spelling()}`", option.describe()] for option in options]
    table = _table(["Option", "Meaning"], rows)
    usage = f"```\nbitnet {command.command_words} {words}\n```"
    mark = f"<!-- not run: {NOT_RUN[name]} -->\n" if name in NOT_RUN else ""
    example = f"{mark}```sh\n{command.example}\n```"
    return f"## {command.command_words}\n\n{text}\n\n{usage}\n\n{example}\n\n{table}"


def _group(group: str, names: list[str], collection: Collection) -> str:
    """A list of the commands in *group*, with links to their sections."""
    commands = (collection[name] for name in names if collection[name].group == group)
    rows = [
        f"- [`{task.command_words}`](#{task.command_words.replace(' ', '-')}): {summary(task)}"
        for task in commands
    ]
    return "\n".join([f"{group}:", "", *rows])


def _default(setting: settings.Setting[object]) -> str:
    """The default of *setting* in words."""
    if setting.default in (None, "", ()):
        return "not set"
    if isinstance(setting.default, bool):
        return "on" if setting.default else "off"
    shown = f"{setting.default:g}" if isinstance(setting.default, float) else setting.default
    return f"`{shown}`"


def _capitalised(text: str) -> str:
    """*text* as a sentence; a value at its beginning, such as ``auto,`` or ``otlp:``, stays."""
    is_value = re.match(r"[a-z]+[,:] ", text) is not None
    return f"{text if is_value else text[:1].upper() + text[1:]}."


def _table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
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
