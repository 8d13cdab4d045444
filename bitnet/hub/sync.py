"""Provide the file of a lock file entry."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet import sources
from bitnet.errors import Unsupported
from bitnet.files import path_of
from bitnet.hub import lockfile
from bitnet.hub.package_index import PACKAGED
from bitnet.hub.packaged import provide_packaged
from bitnet.hub.provision import provide_model, provide_tokenizer

if TYPE_CHECKING:
    from bitnet.hub.lockfile import Locked
    from bitnet.hub.project import Project, Provided
    from bitnet.hub.provision import VocabularyCheck

__all__ = ["provide_locked"]


def provide_locked(locked: Locked, project: Project, *, check: VocabularyCheck) -> Provided:
    """Provide the file that a lock file entry names.

    Raises:
        UpstreamChanged: the server has another file, and an update was not requested.
        Unsupported: the entry names a tokenizer or package unknown to this version.
    """
    target = project.folder / path_of(locked.path) if locked.path is not None else None
    if locked.kind == "model":
        source = sources.model_source(locked.repo) or sources.Source(locked.repo, locked.repo)
        source = replace(
            source,
            file=locked.file,
            revision=locked.revision,
            licence=locked.licence,
            licence_url=source.licence_url or source.page,
        )
        return provide_model(source, project, target=target)
    if locked.kind == "package":
        model = PACKAGED.get(locked.repo)
        if model is not None and (project.update or model.sha256 == locked.sha256):
            return provide_packaged(model, project, target=target)
        raise Unsupported(
            f"{lockfile.NAME} pins {locked.repo} {locked.revision} with sha256 {locked.sha256}, "
            f"this version has {model.version + ' ' + model.sha256 if model else 'no such model'}",
            hint="bitnet sync --update, or use the version that wrote the lock file",
        )
    for tokenizer in sources.TOKENIZERS.values():
        if (tokenizer.repo, tokenizer.file) == (locked.repo, locked.file):
            source = replace(tokenizer, revision=locked.revision)
            return provide_tokenizer(source, project, check=check, target=target)
    raise Unsupported(
        f"{lockfile.NAME} pins the tokenizer {locked.repo}/{locked.file}, which is not registered",
        hint=f"registered: {', '.join(s.repo for s in sources.TOKENIZERS.values())}",
    )
