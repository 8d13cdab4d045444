"""Every environment variable that the project reads, most of them as settings.

A setting is a callable: ``settings.offline()`` reads its variables and returns the present value.
Variables of the system, such as COLUMNS, have functions. No variable is read at import.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bitnet.base.errors import BitnetError, UsageError
from bitnet.base.files import open_file
from bitnet.base.setting_values import (
    parse_addresses,
    parse_boolean,
    parse_choice,
    parse_drill,
    parse_rate,
    parse_seconds,
    parse_size,
    parse_whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MAX_CONNECTIONS = 64
MAX_THREADS = 1024  # more would only take time to start and wait for each other

# User and password of an address, up to its @; also of one without a scheme.
_LOGIN = re.compile(r"(?<=//)[^/?#\s]*@|(?<![^\s,])[^/?#\s]*:[^/?#\s]*@")
# In a text that is not an address: a slash that is not escaped may be a part of the password.
_LOGIN_IN_ANY_TEXT = re.compile(r"(?<=//)[^\s,]*@|(?<![^\s,])[^/?#\s]*:[^\s,]*@")

ALL: list[Setting[Any]] = []  # filled by the definitions below, in this order


def _user_path(text: str) -> Path:
    """The path *text* with ``~`` replaced: a shell does that, but not the reader of an env file."""
    return expand_home(Path(text))


def _model_name(text: str) -> str:
    """The path, name or address of a model in *text*, with ``~`` at its beginning replaced."""
    return str(_user_path(text)) if text.startswith("~") else text


@dataclass(eq=False)
class Setting(Generic[T]):
    """One environment variable.

    If several of its names are set, the first one counts; a boolean is true if one of them is on.
    *parse* raises ``ValueError`` with the values it expects. The *default* is used when no variable
    is set; an empty one counts as unset, unless *keep_empty* is on. A *borrowed* name belongs to
    other programs: a value that is not valid here may be valid there, and counts as unset.
    """

    variables: str  # its names in order of precedence
    parse: Callable[[str], T]
    default: T
    help: str
    secret: bool = False  # its value is never in any output
    keep_empty: bool = False  # an empty variable counts as set
    borrowed: str = ""  # one of its names

    def __post_init__(self) -> None:
        ALL.append(self)

    @property
    def names(self) -> list[str]:
        """Its names in order of precedence."""
        return self.variables.split()

    def __call__(self) -> T:
        """The present value."""
        chosen = self._choose()
        return self.default if chosen is None else chosen[1]

    def variable(self) -> str | None:
        """Name of the variable that the present value comes from; None: it is the default."""
        chosen = self._choose()
        return None if chosen is None else chosen[0]

    def value_of(self, name: str) -> T | None:
        """Value of the variable *name*, one of its names; None: it is not set."""
        text = os.environ.get(name)
        if text is None or (text == "" and not self.keep_empty):
            return None
        try:
            return self.parse(text)
        except ValueError as error:
            if name == self.borrowed:
                return None
            safe_text = "a value that is not valid"
            if not self.secret:
                safe_text = repr(without_login(text, is_valid=False))
            raise UsageError(
                f"environment variable {name} is {safe_text}: {error}",
                hint=f"unset {name}, or set it to a valid value: {self.help}",
            ) from None

    def _choose(self) -> tuple[str, T] | None:
        """Name and value of the variable that counts; None: none is set."""
        values: list[tuple[str, T]] = []
        for name in self.names:
            value = self.value_of(name)
            if value is not None:
                values.append((name, value))
        if isinstance(self.default, bool):
            switched_on = [entry for entry in values if entry[1]]
            values = switched_on or values
        return values[0] if values else None


_flag = partial(Setting[bool], parse=parse_boolean, default=False)
_text = partial(Setting[str], parse=str.strip, default="")
_path = partial(Setting[Path | None], parse=_user_path, default=None)
_secret = partial(
    Setting[str | None], parse=lambda text: text.strip() or None, default=None, secret=True
)
_time = partial(Setting[float], parse=parse_seconds)
# 0: do not wait.
_wait = partial(Setting[float], parse=partial(parse_seconds, allow_zero=True))

cache_dir_override = _path(
    "BITNET_CACHE_DIR",
    help="cache folder; default: $XDG_CACHE_HOME/bitnet, otherwise ~/.cache/bitnet",
)
offline = _flag(
    "BITNET_OFFLINE HF_HUB_OFFLINE TRANSFORMERS_OFFLINE",
    help="1: never open a connection; everything must come from disk",
)
hf_token = _secret(
    "HF_TOKEN HUGGING_FACE_HUB_TOKEN",
    help="access token for gated models; sent to the hub's own host only",
)
hf_token_path = _path(
    "HF_TOKEN_PATH",
    help="file with the access token, when HF_TOKEN is not set; else token below HF_HOME",
)
hf_endpoint = Setting(
    "HF_ENDPOINT",
    parse=parse_addresses,
    default="https://huggingface.co",
    help="address of the hub or of a mirror that speaks its protocol",
)
hf_hub_cache = _path(
    "HF_HUB_CACHE HUGGINGFACE_HUB_CACHE",
    help="cache of huggingface_hub, read (never written) for models and tokenizers; default: hub "
    "below HF_HOME",
)
hf_home = _path(
    "HF_HOME",
    help="folder of Hugging Face's tools; default: $XDG_CACHE_HOME/huggingface, otherwise "
    "~/.cache/huggingface",
)
download_timeout = _time(
    "BITNET_DOWNLOAD_TIMEOUT",
    default=300.0,
    help="seconds a download may go without progress before it fails",
)
stall_timeout = _time(
    "BITNET_STALL_TIMEOUT", default=30.0, help="seconds of silence before a connection is replaced"
)
lock_timeout = _wait(
    "BITNET_LOCK_TIMEOUT",
    default=600.0,
    help="seconds to wait for a process that fetches the same file",
)
retry_after_max = _wait(
    "BITNET_RETRY_AFTER_MAX", default=3600.0, help="longest wait in seconds a server may ask for"
)
connections = Setting(
    "BITNET_CONNECTIONS",
    parse=partial(parse_whole_number, most=MAX_CONNECTIONS),
    default=0,
    help="parallel connections; 0: one, and 4 above 64 MB where one is slow and ranges work",
)
limit_rate = Setting(
    "BITNET_LIMIT_RATE",
    parse=parse_rate,
    default=0.0,
    help="bytes per second of all connections together, such as 500k or 10M; 0: no limit",
)
hub_hosts: Setting[tuple[str, ...]] = Setting(
    "BITNET_HUB_HOSTS",
    parse=lambda text: tuple(filter(None, (host.strip().lower() for host in text.split(",")))),
    default=(),
    help="further hosts of the hub, separated by commas; they get the access token, too",
)
simulate_network_error = Setting(
    "BITNET_SIMULATE_NETWORK_ERROR",
    parse=parse_drill,
    default=None,
    help="fault drill: 1, or a list such as timeout:2,503,reset@1MB,429:3",
)
strict_tokenizers = Setting(
    "BITNET_STRICT_TOKENIZERS",
    parse=parse_boolean,
    default=None,
    keep_empty=True,
    help="1: refuse a mock tokenizer even with --allow-mock; 0: a vocabulary mismatch only warns",
)
allow_mock = _flag("BITNET_ALLOW_MOCK", help="1: same as --allow-mock")
deterministic = _flag(
    "BITNET_DETERMINISTIC",
    help="1: seed 42 unless another one is given, and greedy unless a temperature is given; "
    "0: random seeds. Logits have the same bits either way",
)
seed = Setting(
    "BITNET_SEED",
    parse=parse_whole_number,
    default=None,
    help="random seed of commands and requests that set none",
)
force_cpu = _flag("BITNET_FORCE_CPU", help="1: use the CPU even if there is a GPU")
api_key = _secret("BITNET_API_KEY", help="key that clients of `bitnet serve` must send")
gguf = _text("BITNET_GGUF", parse=_model_name, help="model of commands that name none")
editor = _text("VISUAL EDITOR", help="editor that `!edit` opens in `chat`")
history = _path(
    "BITNET_HISTORY",
    help="file with the lines typed in `chat`, such as /dev/null; else "
    "$XDG_STATE_HOME/bitnet/history, else ~/.local/state/bitnet/history",
)
presets = _path(
    "BITNET_PRESETS",
    help="file with the presets that `create` writes; else $XDG_CONFIG_HOME/bitnet/presets.toml, "
    "else ~/.config/bitnet/presets.toml",
)
backend = Setting(
    "BITNET_BACKEND",
    parse=partial(parse_choice, choices=("auto", "native", "reference")),
    default="auto",
    help="auto, native (an error if the compiled module is missing) or reference (NumPy)",
)
threads = Setting(
    "BITNET_THREADS RAYON_NUM_THREADS",
    borrowed="RAYON_NUM_THREADS",
    parse=partial(parse_whole_number, most=MAX_THREADS),
    default=0,
    help="compute threads; 0: one per core, within the quota of a container",
)
bitnet_cpp_dir = _path(
    "BITNET_CPP_DIR", help="folder where bitnet.cpp was built, for `crossval --against bitnet.cpp`"
)
ternary_layout = Setting(
    "BITNET_TERNARY_LAYOUT",
    parse=partial(parse_choice, choices=("auto", "2bit", "dense")),
    default="auto",
    help="ternary weights in memory: auto (by instruction set), 2bit or dense (1.6 bits)",
)
experts = Setting(
    "BITNET_EXPERTS",
    parse=partial(parse_choice, choices=("auto", "copied", "mapped")),
    default="auto",
    help="weights of experts: copied for speed, mapped (multiplied where they are in the file), or "
    "auto (copied if the copy fits in memory)",
)
prompt_cache_size = Setting(
    "BITNET_PROMPT_CACHE_SIZE",
    parse=parse_size,
    default=8e9,
    help="most bytes that the states behind prompts take in the cache, such as 500M or 8G; 0: none "
    "is kept",
)
log = Setting(
    "BITNET_LOG RUST_LOG",
    borrowed="RUST_LOG",
    parse=str,
    default="",
    help="log filter: debug, or area=level pairs such as bitnet_tokenizers::download=info",
)
debug = _flag("BITNET_DEBUG", help="1: show tracebacks of internal errors")
step_summary = _path(
    "GITHUB_STEP_SUMMARY",
    help="file that reports are appended to; GitHub Actions sets it and shows it with the job",
)
otel_endpoint = _text(
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT OTEL_EXPORTER_OTLP_ENDPOINT",
    help="OpenTelemetry collector that a worker sends traces to over HTTP, with the extra "
    "otel; other variables of OpenTelemetry configure it",
)
no_color = _flag("NO_COLOR", parse=bool, help="any value: no bold text on the terminal")


def presets_file() -> Path | None:
    """File with the presets, which need not exist; None: this user has no home folder for it."""
    return presets() or _user_file("XDG_CONFIG_HOME", ".config", "presets.toml")


def history_file() -> Path | None:
    """File with the lines typed in earlier sessions; None: this user has no home folder for it."""
    return history() or _user_file("XDG_STATE_HOME", ".local/state", "history")


def _user_file(variable: str, default: str, name: str) -> Path | None:
    """The file *name* of this program in the folder that the environment *variable* names.

    If the variable is not an absolute path, the folder is *default* in the home folder; None if
    the home folder is unknown.
    """
    folder = Path(os.environ.get(variable, ""))
    if not folder.is_absolute():
        try:
            folder = Path.home() / default
        except RuntimeError:
            return None
    return folder / "bitnet" / name


def check() -> None:
    """Refuse an environment in which the value of a setting is not valid."""
    for setting in ALL:
        setting()


def as_set(setting: Setting[Any]) -> tuple[str, str] | None:
    """Variable that the value of *setting* comes from, and the variable's text for a message.

    A secret is masked. None: no variable of *setting* is set.
    """
    name = setting.variable()
    if name is None:
        return None
    text = os.environ[name]
    return name, "(set, not shown)" if setting.secret else repr(without_login(text))


def without_login(text: str, *, is_valid: bool = True) -> str:
    """*text* with user and password of each address in it replaced by ``***``.

    Where the text *is_valid*, an ``@`` behind the host belongs to the path.
    """
    return (_LOGIN if is_valid else _LOGIN_IN_ANY_TEXT).sub("***@", text)


def dumb_terminal() -> bool:
    """True if TERM says that the terminal does not understand escape sequences."""
    return os.environ.get("TERM") == "dumb"


def terminal_columns() -> int:
    """Columns by the variable COLUMNS, which overrides the terminal's own number; 0: not set."""
    try:
        return max(0, int(os.environ.get("COLUMNS", "")))
    except ValueError:
        return 0


def cache_dir() -> Path:
    """The present cache folder; it need not exist."""
    if (override := cache_dir_override()) is not None:
        return override.absolute()
    if sys.platform == "win32":  # pragma: no cover
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) / "bitnet" if local else Path.home() / "AppData/Local/bitnet"
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():  # the XDG specification: relative paths must be ignored
        return xdg / "bitnet"
    try:
        return Path.home() / ".cache/bitnet"
    except RuntimeError:
        raise UsageError(
            "this user has no home folder for a cache",
            hint="set BITNET_CACHE_DIR to a folder that can be written to",
        ) from None


def expand_home(path: Path) -> Path:
    """*path* with ``~`` replaced; unchanged if that user's home folder is unknown."""
    try:
        return path.expanduser()
    except RuntimeError:
        return path


# The places of huggingface_hub 2.4 (its constants.py), which also replaces ~ and $NAME in each. One
# difference: an empty variable counts as unset here, and means the working folder there.


def hugging_face_home() -> Path:
    """Folder of Hugging Face's tools."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return _expand(hf_home() or caches / "huggingface")


def hugging_face_cache() -> Path:
    """Cache of huggingface_hub, with a folder for each repository."""
    return _expand(hf_hub_cache() or hugging_face_home() / "hub")


def hugging_face_token_path() -> Path:
    """File with the access token that ``hf auth login`` wrote."""
    return _expand(hf_token_path() or hugging_face_home() / "token")


def _expand(path: Path) -> Path:
    """*path* with ``~``, ``$NAME`` and ``${NAME}`` replaced; an unset NAME stays as it is."""
    return Path(os.path.expandvars(expand_home(path)))


def access_token() -> str | None:
    """The hub's access token: ``HF_TOKEN``, else the one that ``hf auth login`` stored.

    None: there is no file with one, or it cannot be read.
    """
    if (token := hf_token()) is not None:
        return token
    try:
        with open_file(hugging_face_token_path()) as file:
            text = file.read().decode("ascii").strip()
    except (BitnetError, OSError, ValueError):  # BitnetError: a device, such as /dev/null
        return None
    return text if text and text.isprintable() and " " not in text else None


def token_origin() -> str:
    """Name of the variable, or path of the file, in which :func:`access_token` finds the token."""
    return hf_token.variable() or str(hugging_face_token_path())


def environment_without(*settings: Setting[Any]) -> dict[str, str]:
    """The environment of this process without the variables of *settings*."""
    left_out = {name for setting in settings for name in setting.names}
    return {name: text for name, text in os.environ.items() if name not in left_out}


def child_environment(**changes: str) -> dict[str, str]:
    """The environment for a child process: this one's without its secrets, with *changes*."""
    return environment_without(*(setting for setting in ALL if setting.secret)) | changes


def protect_children() -> None:
    """Keep Python in child processes from importing files of the working folder (from 3.11 on)."""
    os.environ.setdefault("PYTHONSAFEPATH", "1")
