"""The process that asks pip where it finds wheels, see :mod:`bitnet.hub.wheels`.

``pip install --dry-run`` downloads each wheel up to pip 25.0, and its report leaves out logins. So
pip's own command reads the index here, with the user's whole configuration of pip, and writes the
answer to a file: for each requirement the address of the wheel with the login for it, its SHA-256,
and the proxies and certificates for the server. Nothing is downloaded.

This uses pip's internal modules, which may change: if the exit status is :data:`OTHER_PIP`, the
caller asks ``pip install --dry-run`` after all. The script imports nothing of this package. It
works with pip 23.2 to 26.3.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

OTHER_PIP = 86  # exit status: pip is not as it is expected here
REFUSED_BY_PROXY = "407 Proxy Authentication Required"  # in an error of pip


def main(words: list[str]) -> int:
    """Write a report of the wheels that pip finds; return pip's exit status.

    *words* are the path of the report, then options of pip and requirements.
    """
    report, *arguments = words
    try:
        from pip._internal.commands.download import DownloadCommand
    except ImportError as error:
        sys.stdout.write(f"{error}\n")
        return OTHER_PIP

    class Find(DownloadCommand):
        """``pip download`` that finds wheels and does not fetch them."""

        def run(self, options: Any, args: list[str]) -> int:
            """Exit status; a package that is missing raises one of pip's own errors."""
            try:
                facts = _find(self, options, args)
            except (ImportError, AttributeError, TypeError, LookupError) as error:
                sys.stdout.write(f"{type(error).__name__}: {error}\n")
                return OTHER_PIP
            Path(report).write_text(json.dumps(facts), encoding="utf-8")
            return 0

    status: int = Find("download", "", isolated=False).main(arguments)
    return status


def _find(command: Any, options: Any, requirements: list[str]) -> list[dict[str, Any]]:
    """Facts of the wheel of each of *requirements*, in order."""
    from pip._internal.req.constructors import install_req_from_line

    _refuse_once()
    session = command.get_default_session(options)
    finder = command._build_package_finder(options=options, session=session)
    facts = []
    for requirement in requirements:
        candidate = finder.find_requirement(install_req_from_line(requirement), upgrade=False)
        link = candidate.link
        url, user, password = session.auth._get_url_and_credentials(link.url_without_fragment)
        # A private attribute: ``hash_name`` and ``hash`` only give one digest of several.
        hashes = dict(getattr(link, "_hashes", None) or {link.hash_name: link.hash})
        # pip has such an adapter for the hosts of --trusted-host.
        is_insecure = type(session.get_adapter(url)).__name__.startswith("Insecure")
        facts.append(
            {
                "requirement": requirement,
                "url": _with_login(url, user, password),
                "sha256": hashes.get("sha256"),
                "verify": False if is_insecure else session.verify,
                "certificate": session.cert,
                "proxies": dict(session.proxies),
                "uses_environment": session.trust_env,
            }
        )
    return facts


def _refuse_once() -> None:
    """Make a request fail at once if a proxy refuses the login.

    pip would try the same password six times, which locks some accounts.
    """
    urllib3: Any = import_module("pip._vendor.urllib3")
    increment = urllib3.Retry.increment

    def increment_unless_refused(retries: Any, *args: Any, **options: Any) -> Any:
        error = options.get("error")
        if error is not None and REFUSED_BY_PROXY in str(error):
            raise error
        return increment(retries, *args, **options)

    urllib3.Retry.increment = increment_unless_refused


def _with_login(url: str, user: str | None, password: str | None) -> str:
    """*url* with the login of *user* in it, if there is one."""
    if user is None:
        return url
    parts = urlsplit(url)
    login = f"{quote(user, safe='')}:{quote(password or '', safe='')}"
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc}"))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
