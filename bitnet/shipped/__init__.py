"""Models that are part of this package: installed with it, and usable without a download.

They are files of the package itself, so clearing a cache does not remove them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bitnet.base.errors import NotFound
from bitnet.base.invocation import reinstall_command

__all__ = ["SHIPPED", "ShippedModel"]


@dataclass(frozen=True)
class ShippedModel:
    """A model file of this package; a card ``<id>.md`` lies beside it.

    Attributes:
        id: its name on the command line.
        sha256: digest of the file.
        size: bytes of the file.
        licence: SPDX name of its licence.
        family: architecture, as GGUF files name it.
    """

    id: str
    sha256: str
    size: int
    licence: str
    family: str

    @property
    def file(self) -> str:
        """Name of the file."""
        return f"{self.id}.gguf"

    @property
    def path(self) -> Path:
        """Path of the file."""
        path = Path(__file__).parent / self.file
        if not path.is_file():
            raise NotFound(
                f"{path} is missing from this package",
                hint=f"install it again: {reinstall_command()}",
            )
        return path


SHIPPED = {
    model.id: model
    for model in (
        ShippedModel(
            id="bitnet-tiny",
            sha256="67922587611075660043a5cc9976b845367ffa9470c8c3215571ba7e422b2254",
            size=1_571_520,
            licence="CC0-1.0",
            family="bitnet-b1.58",
        ),
    )
}
