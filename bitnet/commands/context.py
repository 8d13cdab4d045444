"""Shared by commands: common options, opening a model, reading and writing text.

:meth:`Context.model` finds the file that MODEL means, for every command.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from bitnet.base import settings, terminal
from bitnet.base.errors import TokenizerNotFound, UsageError, from_os_error
from bitnet.base.files import read_bytes
from bitnet.base.options import CacheOptions, option
from bitnet.base.progress import show_when_slow
from bitnet.base.quantities import human_size
from bitnet.base.tables import show
from bitnet.commands.declare import Output
from bitnet.hub.fetch_options import FetchOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.hub.orders import Obtained
    from bitnet.hub.project import Project
    from bitnet.hub.repo_models import RepoModel
    from bitnet.runtime.answer import Answer
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.model_options import ModelOptions
    from bitnet.tokenizer import Tokenizer

# Options of several commands.
PRE = option("", "pre-tokenizer name to use instead of the GGUF file's", metavar="NAME")
VERIFY = option(False, "read existing files again instead of trusting size, time and inode")
FORCE = option(False, "replace a file of another kind that is there")
IGNORE_KEY = option(
    [], "key of the model to treat as if it were not there; may be repeated", metavar="KEY"
)
PROMPT_CACHE = option(
    "auto",
    "where to keep what was computed of long prompts, so that the same beginning is not computed "
    "again after a restart: auto, in the cache; off, nowhere; or a folder",
    metavar="auto|off|DIR",
    section="Cache",
)
CHECKED_TOKENIZER = option(
    "",
    "tokenizer file or folder to check; default: the one that would be used",
    metavar="PATH",
    needs_text=True,
)

Opened = TypeVar("Opened")
DEFAULT_MODEL = "smollm2-135m"
MOST_LINES = 1000  # of the history


def model_option(help="", default=None, *, metavar="PATH|NAME", formerly=(), needs_text=False):
    """The option MODEL, whose value may also come without ``--model``."""
    help = help or "GGUF file, folder with config.json, or name of a model"
    details = {"metavar": metavar, "formerly": formerly, "needs_text": needs_text}
    return option(default, help, positional=True, **details)


@dataclass(frozen=True)
class Context:
    """Groups of options that commands pass on unchanged."""

    fetch: FetchOptions = field(default_factory=FetchOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    output: Output = field(default_factory=Output)

    def project(self, folder: Path = Path(), **options: Any) -> Project:
        """The project in *folder*, with the cache and the network options of this command.

        The *options* are ``force``, ``update`` and ``rehash`` of :class:`Project`.
        """
        from bitnet.hub.project import Project

        project = Project(folder, self.cache.root, self.fetch, pick=ask)
        return replace(project, progress=self.output.progress, **options)

    def model(self, named: str | Path, *, fetch: bool = False) -> Path:
        """The file or folder that MODEL means, in every command; see :mod:`bitnet.hub.ref`.

        With *fetch*, a missing model is fetched into the cache.
        """
        from bitnet.provision import locate

        announce = partial(show, stream=sys.stderr)
        return locate(str(named), self.project, fetch=fetch, announce=announce)


def provide_pins(project: Project, *, skip_gated: bool = False) -> list[Obtained]:
    """The files that the lock file of *project* pins, each at its place, fetched if missing."""
    from bitnet.hub.orders import order_from_lock
    from bitnet.hub.provide import provide
    from bitnet.tokenizer.tokenizer_json import check_vocabulary

    orders = [order_from_lock(entry, project, check=check_vocabulary) for entry in project.pins()]
    return provide(orders, project, skip_gated=skip_gated)


def ask(repo: str, models: list[RepoModel]) -> RepoModel | None:
    """The one of *models* that the user chooses on the terminal; None without a terminal."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    print(f"{repo} has {len(models)} models:", file=sys.stderr)
    for number, choice in enumerate(models, 1):
        print(f"{number:>3}{choice.line()}", file=sys.stderr)
    print("which one? (number, or nothing to leave) ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip()
    if answer.isascii() and answer.isdecimal() and 1 <= int(answer) <= len(models):
        return models[int(answer) - 1]
    raise UsageError(
        f"none of the {len(models)} models of {repo} was chosen",
        hint=f"name one: 'hf:{repo}:{models[0].name}'",
    )


def say(text: str, *, stream: TextIO | None = None) -> None:
    """Write one line to stderr, or to *stream*; a failure to write it is ignored.

    The result of the command is worth more than the line.
    """
    with suppress(OSError):
        show(text, stream=stream or sys.stderr)


def write(piece: str) -> bool:
    """Write *piece*, text of a model, to stdout; return True if some of it had to be escaped."""
    coding = sys.stdout.encoding or "utf-8"
    print(piece.encode(coding, "backslashreplace").decode(coding), end="", flush=True)
    return terminal.lacks(piece, sys.stdout)


@cache
def say_escaped() -> None:
    """Explain on stderr, once per process, why the text of a model has escapes."""
    say(
        f"Note: this locale writes {sys.stdout.encoding}, which lacks some characters of the text: "
        "they are escaped, as \\u00e9. All of them: set PYTHONUTF8=1, or add --json"
    )


def decode_text(text: str, option: str) -> str:
    """*text* from the command line or the terminal, decoded as UTF-8; errors call it *option*."""
    text = terminal.argument(text)
    if terminal.has_bytes(text):
        hint = "convert it first, for example with: iconv -t utf-8"
        raise UsageError(f"{option} is not UTF-8", hint=hint)
    return text


def read_text(file: str, *, whole: bool = False, errors: str = "strict") -> str:
    """The text in *file*, or on stdin if it is ``-``.

    Unless *whole*, a byte order mark and the last newline are removed. *errors* is how bytes that
    are not UTF-8 are decoded in a *whole* text; otherwise they are refused.
    """
    name = "stdin" if file == "-" else file
    try:
        raw = sys.stdin.buffer.read() if file == "-" else read_bytes(Path(file))
    except OSError as error:
        raise from_os_error(error, name) from error
    if whole:
        return decode(raw, name, errors=errors)
    return _without_newline(decode(raw, name, "utf-8-sig"))


def with_piped_text(text: str | None, option: str) -> str | None:
    """Piped text followed by *text*, the value of *option*; None without either."""
    own = None if text is None else decode_text(text, option)
    raw = b""
    if sys.stdin is not None and not sys.stdin.isatty():
        with suppress(OSError):  # a stdin that was closed, or cannot be read, holds no text
            raw = sys.stdin.buffer.read()
    if not raw:
        return own
    piped = _without_newline(decode(raw, "stdin", "utf-8-sig"))
    return piped if own is None else f"{piped}\n{own}"


def decode(
    raw: bytes, name: str, encoding: str = "utf-8", *, errors: str = "strict", start: int = 0
) -> str:
    """The text in *raw*, which must be UTF-8.

    For the error message, *raw* comes from *name* and begins at its byte *start*.
    """
    try:
        return raw.decode(encoding, errors)
    except UnicodeDecodeError as error:
        start += len(raw) - len(error.object)  # without a byte order mark
        byte = f"byte {error.object[error.start]:#04x} at position {start + error.start:,}"
        hint = "convert it first, for example with: iconv -f latin1 -t utf-8"
        raise UsageError(f"{name} is not UTF-8: {byte}", hint=hint) from None


def _without_newline(text: str) -> str:
    """*text* without a line feed, and then a carriage return, at its end."""
    return text.removesuffix("\n").removesuffix("\r")


def open_model(
    options: ModelOptions, common: Context, *, prompt_cache: str = "off"
) -> LanguageModel:
    """The model and tokenizer that *options* name, downloaded if *options* allow it.

    *prompt_cache* is the value of :data:`PROMPT_CACHE`.
    """
    checkpoint = open_with_unnamed_adapters(options, common)
    return load_model(options, common, checkpoint, prompt_cache=prompt_cache)


def open_with_unnamed_adapters(options: ModelOptions, common: Context) -> Checkpoint:
    """The open checkpoint that *options* name, whose adapters must have no names."""
    for name in _adapters_of(options)[1]:
        raise UsageError(
            f"--lora {name}=...: requests to `serve` choose an adapter by its name",
            hint="leave the name out to run the model with it",
        )
    return open_file(options, common)


def open_file(options: ModelOptions, common: Context) -> Checkpoint:
    """The open checkpoint that *options* name, by default DEFAULT_MODEL."""
    from bitnet.formats.containers import open_checkpoint

    layout = options.i2_s_layout
    keys = options.ignore_key
    checkpoint = open_checkpoint(model_path(options, common), i2_s_layout=layout, ignore_keys=keys)
    checkpoint = replace(checkpoint, kv_type=options.kv_type)
    return _adapt(checkpoint, _adapters_of(options)[0])


def _adapters_of(options: ModelOptions) -> tuple[list[Any], dict[str, Any]]:
    """Adapters of every answer, and those that requests choose, by name.

    Without --lora, their module is not imported.
    """
    if not options.lora:
        return [], {}
    from bitnet.models.adapted import split_adapters

    return split_adapters(options.lora)


def _adapt(checkpoint: Checkpoint, adapters: list[Any]) -> Checkpoint:
    """*checkpoint* with *adapters*; without any, their module is not imported."""
    if not adapters:
        return checkpoint
    from bitnet.models.adapted import with_adapters

    return with_adapters(checkpoint, adapters)


def load_model(
    options: ModelOptions, common: Context, checkpoint: Checkpoint, *, prompt_cache: str = "off"
) -> LanguageModel:
    """The open *checkpoint* with its tokenizer, which is downloaded if *options* allow it.

    *prompt_cache* is the value of :data:`PROMPT_CACHE`.
    """
    from bitnet.cache.prompts import choose_folder
    from bitnet.runtime.language_model import load_checkpoint

    if options.features or options.no_default_features:
        features = options.features or "none"
        say(f"Note: --features chooses nothing here (asked for: {features}); the device is the CPU")
    always, by_name = _adapters_of(options)
    without_adapters = replace(options, lora=[])
    draft = None
    if options.draft_model:
        draft = open_file(replace(without_adapters, model=options.draft_model), common)
    base = open_file(without_adapters, common) if by_name else checkpoint
    adapted = {
        name: _adapt(base, [*always, named_adapter]) for name, named_adapter in by_name.items()
    }

    def attempt(tokenizer: Path | None) -> LanguageModel:
        return load_checkpoint(
            checkpoint,
            tokenizer=tokenizer,
            pre=options.pre or None,
            context=options.context,
            threads=options.threads,
            allow_mock=options.allow_mock,
            exact_head=options.exact_head,
            draft=draft,
            lock_memory=options.lock_memory,
            adapted=adapted,
            prompt_folder=choose_folder(prompt_cache, common.cache.root),
        )

    activity = "reading and arranging its weights"
    with show_when_slow(f"Loading {checkpoint.path.name}", activity, mode=common.output.progress):
        model = _with_tokenizer(attempt, checkpoint, options, common)
    if options.chat_template:
        use_template(model.tokenizer, options.chat_template)
    return model


def use_template(tokenizer: Tokenizer, file: str) -> None:
    """Have *tokenizer* use the chat template in *file* instead of all of its own."""
    tokenizer.chat_template = read_text(file)
    tokenizer.named_templates = {}
    tokenizer.chat_template_source = file


def model_path(options: ModelOptions, common: Context) -> Path:
    """Path of the model named in *options*, by default DEFAULT_MODEL, which is downloaded."""
    named = options.model or settings.gguf()
    return common.model(named or DEFAULT_MODEL, fetch=options.auto_download or not named)


def open_tokenizer(options: ModelOptions, common: Context) -> tuple[Path, Tokenizer]:
    """Path of the model named in *options*, and its tokenizer; weights are not read."""
    from bitnet.tokenizer import resolve_tokenizer

    path = model_path(options, common)

    def attempt(tokenizer: Path | None) -> Tokenizer:
        pre = options.pre or None
        mock = options.allow_mock
        return resolve_tokenizer(path, tokenizer, pre=pre, allow_mock=mock)

    return path, _with_tokenizer(attempt, path, options, common)


def _with_tokenizer(
    attempt: Callable[[Path | None], Opened],
    model: Path | Checkpoint,
    options: ModelOptions,
    common: Context,
) -> Opened:
    """Result of *attempt* with the tokenizer of *model*, fetched if *options* allow."""
    try:
        return attempt(_locate_tokenizer(options.tokenizer, common))
    except TokenizerNotFound:
        if options.tokenizer or not options.auto_download:
            raise
        from bitnet.provision import SmartTokenizerDownload
        from bitnet.tokenizer import TokenizerDiscovery, TokenizerStrategy

        match TokenizerDiscovery(model).discover_tokenizer_strategy():
            case TokenizerStrategy.NeedsDownload(info):
                say(f"Downloading tokenizer for repo: {info.repo}")
                downloader = SmartTokenizerDownload(common.cache.root, options=common.fetch)
                return attempt(downloader.download_tokenizer_sync(info))
        raise


def _locate_tokenizer(named: str, common: Context) -> Path | None:
    """The tokenizer that --tokenizer names; naming an address is consent to download it."""
    if not named:
        return None  # without the imports below, which take 20 MB and 0.2 s
    from bitnet.hub.models import locate_tokenizer
    from bitnet.hub.ref import parse
    from bitnet.tokenizer.from_files import TOKENIZER_FILES, order_names
    from bitnet.tokenizer.load import load_spec
    from bitnet.tokenizer.side_files import SIDE_FILES

    remote = parse(named)
    if not (remote.repo or remote.url):
        return Path(named)
    return locate_tokenizer(
        remote,
        common.project(common.cache.root),
        names=TOKENIZER_FILES,
        beside=("merges.txt", *SIDE_FILES),
        check=load_spec,
        order_names=order_names,
    )


def summary(answer: Answer) -> str:
    """Metrics of *answer*, the last line of a command."""
    rate = f", {answer.decode_tokens_per_s:.1f} tok/s" if answer.tokens > 1 else ""
    sequence = answer.sequence
    reused = f" ({sequence.reused_tokens} reused)" if sequence.reused_tokens else ""
    drafts = f" ({sequence.accepted} of {sequence.drafted} drafted)" if sequence.drafted else ""
    return (
        f"load {answer.load_s:.2f} s | prompt {answer.prompt_tokens} tokens{reused}, "
        f"{answer.prefill_tokens_per_s:.1f} tok/s | {answer.tokens} tokens{drafts}{rate} | "
        f"{human_size(answer.peak_memory_bytes)} | {answer.backend}"
    )


@contextmanager
def recall_lines():
    """Let ``input`` edit lines and recall those of the history file; then append the new lines.

    Without readline or a usable history file, lines of earlier sessions are not recalled.
    """
    try:
        import readline
    except ImportError:  # Windows has none
        yield
        return
    path = settings.history_file()
    # Python has this function only with a library that clears its history.
    if path is None or not hasattr(readline, "clear_history"):
        yield
        return
    readline.clear_history()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        readline.read_history_file(path)
    before = readline.get_current_history_length()
    try:
        yield
    finally:
        readline.set_history_length(MOST_LINES)
        with suppress(OSError):
            _save_history(readline, path, before)


def _save_history(readline, path, before):
    """Add the lines after the first *before* to the history file *path*, and keep those in it.

    Another session may have added lines meanwhile.
    """
    length = readline.get_current_history_length()
    if hasattr(readline, "append_history_file"):
        readline.append_history_file(length - before, path)
        return
    # Libedit, the library of macOS, writes whole files: read this one again.
    added = [readline.get_history_item(number) for number in range(before + 1, length + 1)]
    readline.clear_history()
    with suppress(OSError):  # libedit refuses an empty file
        readline.read_history_file(path)
    for line in added:
        readline.add_history(line)
    readline.write_history_file(path)


def edit_text():
    """The text that the user writes in ``$VISUAL`` or ``$EDITOR``."""
    editor = settings.editor()
    if not editor:
        raise UsageError("!edit needs an editor", hint="export EDITOR=nano")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "message.md"
        try:
            path.touch()
            subprocess.run([*shlex.split(editor), str(path)], check=True)
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise UsageError(f"!edit: {editor} failed: {error}", hint="set $EDITOR") from None
    if not text.strip():
        raise UsageError("!edit: the message is empty", hint="save the file before you leave")
    return text
