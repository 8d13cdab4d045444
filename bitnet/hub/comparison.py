"""Compare the files of a repository in the cache with the digests that the hub has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet import sources
from bitnet.base.errors import NotFound, UsageError
from bitnet.base.files import git_oid
from bitnet.base.findings import Finding
from bitnet.base.invocation import word
from bitnet.hub.repository import file_url, head
from bitnet.hub.session import HubSession

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.hub.project import Project
    from bitnet.hub.ref import Ref
    from bitnet.store import Artifact


def compare_with_hub(ref: Ref, project: Project) -> Iterator[Finding]:
    """A finding for each file of the repository *ref* in the cache, which is read whole.

    Raises:
        UsageError: *ref* is not a repository on the hub.
        NotFound: the cache has none of its files.
        BitnetError: the hub does not answer, or refuses.
    """
    if not ref.repo:
        owner = sources.PACKAGED.get(ref.packaged)
        why = f"; it is pinned to SHA-256 {owner.sha256}" if owner is not None else ""
        raise UsageError(
            f"{ref.text!r} is not a repository on the hub{why}",
            hint="`bitnet cache verify` without a name checks every file by its recorded digest",
        )
    artifacts = [
        artifact
        for artifact in project.store.index
        if (artifact.repo, artifact.revision) == (ref.repo, ref.revision)
        and artifact.kind in ("model", "tokenizer")
        and ref.file in ("", artifact.file)
    ]
    if not artifacts:
        raise NotFound(
            f"the cache has no file of {ref.repo} at {ref.revision}",
            hint="`bitnet cache list` lists what is there",
        )
    options = project.options_for(ref.repo)
    with HubSession(options, limits=project.limits) as session:
        for artifact in sorted(artifacts, key=lambda entry: entry.file):
            yield _compare(artifact, project, session)


def _compare(artifact: Artifact, project: Project, session: HubSession) -> Finding:
    again = f"bitnet download-model {artifact.repo} --file {word(artifact.file)} --force"
    path = project.store.path_of(artifact.sha256)
    if not path.is_file():
        return Finding("failed", artifact.file, "it is not in the cache any more", again)
    revision = artifact.commit or artifact.revision
    url = file_url(artifact.repo, revision, artifact.file, session.options)
    try:
        facts = head(url, session=session)
    except NotFound as error:
        return Finding.of(artifact.file, error)
    digest = project.store.digest_of(path)
    if facts.sha256 is not None and facts.sha256 != digest:
        text = f"SHA-256 {digest}, the hub has {facts.sha256} at {revision}"
    elif facts.sha256 is None and facts.git_oid is None:
        text = f"the hub names no digest of it at {revision}"
        return Finding("skipped", artifact.file, text, "compare it with another server: --base-url")
    elif facts.git_oid is not None and facts.git_oid != git_oid(path):
        text = f"git object {git_oid(path)}, the hub has {facts.git_oid} at {revision}"
    elif digest != artifact.sha256:
        text = f"SHA-256 {digest}, fetched was {artifact.sha256}"
    else:
        return Finding("ok", artifact.file, f"SHA-256 {digest} is the hub's at {revision}")
    return Finding("failed", artifact.file, text, again)
