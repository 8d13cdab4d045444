"""``[mirrors]`` in ``bitnet.toml``: servers by repository.

    [mirrors]
    default = "https://hub.example.org"
    "meta-llama/Meta-Llama-3-8B" = "https://models.example.org/approved"

A server named here must speak the hub's protocol. ``--base-url`` wins over the file, a repository
over ``default``, and ``default`` over ``HF_ENDPOINT``. Of a list of addresses, each is the fallback
of those before it. A project is not the user: the access token does not go to a server named here.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base import settings, trust
from bitnet.base.errors import UsageError, from_os_error

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.hub.options import FetchOptions

__all__ = ["NAME", "mirrors", "with_mirror"]

NAME = "bitnet.toml"


def mirrors(folder: Path) -> dict[str, str]:
    """The table in *folder*'s ``bitnet.toml``, several addresses with commas between them.

    Raises:
        UsageError: the file is not TOML, or an address is invalid.
    """
    path = folder / NAME
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise from_os_error(error, path) from error
    except ValueError as error:  # both TOML and UTF-8 errors
        raise UsageError(f"{path} is not valid TOML: {error}", hint="correct it") from error
    table = document.get("mirrors", {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: 'mirrors' is not a table", hint="write it as [mirrors]")
    found: dict[str, str] = {}
    for repo, value in table.items():
        addresses = value if isinstance(value, list) else [value]
        found[repo] = ",".join(_address(address, repo, path) for address in addresses)
    return found


def _address(text: object, repo: str, path: Path) -> str:
    try:
        return trust.address(text if isinstance(text, str) else "")
    except ValueError:
        shown = settings.without_login(str(text))
        raise UsageError(
            f"{path}: mirror of {repo!r} is {shown!r}, expected an address",
            hint=f'"{repo}" = "https://hub.example.org"',
        ) from None


def with_mirror(options: FetchOptions, repo: str, folder: Path) -> FetchOptions:
    """*options* with the server that *folder*'s file names for *repo*."""
    if options.base_url:
        return options
    table = mirrors(folder)
    address = table.get(repo, table.get("default", ""))
    if not address:
        return options
    return replace(options, base_url=address, user_endpoint=options.endpoint)
