"""Every exception that crosses a package border, with the exit code of the program.

Exit code 0 is success; ``bitnet exit-codes`` prints a table.
"""

from __future__ import annotations

import errno
import os
import re

from bitnet.base.invocation import as_started

# A shell command, whose options stay as they are, or an option outside of one: ``--name VALUE``.
_OPTION = re.compile(
    r"(?P<command>\b(?:bitnet|pip|uv|pipx|python3?|llama-[\w-]+) [^,;()\n]*)"
    r"|(?<![\w-])--(?P<name>[a-z][a-z0-9-]*)(?:[ =](?P<value>[A-Z][A-Z0-9]*\b))?"
)

EXIT_CODES = {0: "success", 1: "internal error: please report it"}  # classes below add theirs


class BitnetError(Exception):
    """Base class; the message says what failed, on what, and what was expected.

    *hint* is the command or step that helps. ``str(error)`` ends with it, with the parameters of
    Python code in place of the command line's options: ``output=DIR`` for ``--output DIR``.
    """

    exit_code: int = 1

    def __init_subclass__(cls, *, exit_code: int | None = None) -> None:
        super().__init_subclass__()
        if exit_code is not None:
            cls.exit_code = exit_code
            EXIT_CODES[exit_code] = (cls.__doc__ or "").partition("\n")[0].rstrip(".")

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        return f"{self.message}\nhint: {as_started(_for_python(self.hint))}"


def _for_python(hint: str) -> str:
    """*hint* with parameters of Python in place of options; those inside commands stay."""

    def replace_option(match: re.Match[str]) -> str:
        if match["command"]:
            return match["command"]
        return f"{match['name'].replace('-', '_')}={match['value'] or '...'}"

    return _OPTION.sub(replace_option, hint)


class UsageError(BitnetError, exit_code=2):
    """The command line, a request or a setting is wrong; nothing was done.

    *field* is the name of the wrong value, as in the message.
    """

    def __init__(self, message: str, *, hint: str = "", field: str = "") -> None:
        super().__init__(message, hint=hint)
        self.field = field


class WrongType(UsageError, TypeError):
    """A value of a type that the parameter does not take."""


class NoSpace(BitnetError, exit_code=10):
    """The disk is full or a quota is used up; bytes written so far are kept."""


class AuthError(BitnetError, exit_code=11):
    """The hub refused access: no token, a wrong one, or terms that are not accepted."""


class TokenMissing(AuthError):
    """The file needs an access token and none is set."""


class TokenInvalid(AuthError):
    """The hub does not accept the access token."""


class LicenceNotAccepted(AuthError):
    """The account behind the token has not accepted the model's terms."""


class RateLimited(BitnetError, exit_code=12):
    """The server keeps answering 429: too many requests."""


class IntegrityError(BitnetError, exit_code=13):
    """Bytes are not as expected: hash, size or format are wrong, or the file was replaced."""


class HashMismatch(IntegrityError):
    """Size or SHA-256 differs from what was pinned or announced."""


class UpstreamChanged(IntegrityError):
    """The file on the server is not the one in the lock file."""


class InvalidFormat(IntegrityError):
    """A damaged, truncated or malformed file."""


class NetworkError(BitnetError, exit_code=14):
    """No connection, a time-out, a broken transfer, or an invalid reply."""


class VerificationFailed(BitnetError, exit_code=15):
    """A check or a parity comparison failed."""


class VocabMismatch(VerificationFailed):
    """Tokenizer and model do not have the same vocabulary."""


class InferenceError(BitnetError, exit_code=16):
    """The model could not be run."""


class TooLong(InferenceError):
    """A prompt does not fit the context, or the memory for its keys and values."""


class BenchmarkError(BitnetError, exit_code=17):
    """A benchmark could not be run."""


class PermissionDenied(BitnetError, exit_code=18):
    """A file or folder is not readable or writable."""


class NotFound(BitnetError, exit_code=19):
    """A file, model, repository, revision, tokenizer or key does not exist."""


class TokenizerNotFound(NotFound):
    """No tokenizer was found that matches the model exactly."""


class Unsupported(BitnetError, exit_code=20):
    """An architecture, encoding, tokenizer or file version that is not supported."""


class CacheBusy(BitnetError, exit_code=21):
    """Another process holds the cache entry."""


class ReferenceUnavailable(BitnetError, exit_code=22):
    """The reference engine is not installed; nothing was compared."""


class Offline(BitnetError, exit_code=23):
    """The network is needed and switched off."""


class RowsFailed(BitnetError, exit_code=24):
    """Rows of a batch failed; the others are answered."""


class Interrupted(BitnetError, exit_code=130):
    """Stopped by the user or by a signal."""


def is_panic(error: BaseException) -> bool:
    """True if *error* is a panic of a library in Rust; the process can continue after it.

    Its class derives from ``BaseException``, like those of Ctrl-C and signals, but they end the
    program.
    """
    return type(error).__name__ == "PanicException"


# Values of errno, the error class for them, its hint, and its hint for a path in the cache (empty:
# the same hint).
_OS_ERRORS: tuple[tuple[set[int], type[BitnetError], str, str], ...] = (
    ({errno.ENOSPC, errno.EDQUOT, errno.EFBIG}, NoSpace,
     "free some space, or choose another disk",
     "free some space (`bitnet cache clean --dry-run` shows what of the cache can go), or choose "
     "another disk: BITNET_CACHE_DIR=DIR"),
    ({errno.EACCES, errno.EPERM, errno.EROFS}, PermissionDenied,
     "get access to it (ls -l shows who has), or choose another one",
     "choose a folder you may write to: BITNET_CACHE_DIR=DIR"),
    ({errno.ENOMEM}, InferenceError, "free some memory, or choose a smaller model", ""),
    ({errno.EISDIR}, UsageError,
     "a folder is where a file belongs: move it, or choose another", ""),
    ({errno.EEXIST}, UsageError,
     "a file is where a folder belongs: move it, or choose another", ""),
    ({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}, NotFound, "check the path",
     ""),
)  # fmt: skip


def from_os_error(
    error: OSError, path: str | os.PathLike[str], *, in_cache: bool = False
) -> BitnetError:
    """The error of this module for an operating-system error on *path*.

    The texts keep the form ``Permission denied (os error 13)``, which scripts search for. With
    *in_cache* the path is in the cache, and the hint may name another cache folder.
    """
    code = error.errno
    if code is None:  # raised by a library, not by the system
        return BitnetError(f"{str(error) or type(error).__name__}: {os.fspath(path)}")
    text = f"{os.strerror(code)} (os error {code}): {os.fspath(path)}"
    for codes, kind, hint, hint_in_cache in _OS_ERRORS:
        if code in codes:
            return kind(text, hint=(in_cache and hint_in_cache) or hint)
    return BitnetError(text)
