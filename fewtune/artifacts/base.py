"""The base of all artifacts: written whole or not at all, read with clear errors."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from fewtune.errors import InputError
from fewtune.util.files import canonical_json, write_text


class Part(BaseModel):
    """A piece of an artifact; files of other versions may have further fields."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Artifact(Part):
    """One file between two stages."""

    file_name: ClassVar[str]

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the artifact from ``directory``.

        Raises
        ------
        InputError
            If the file is missing or is not what this version writes.
        """
        path = directory / cls.file_name
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise InputError(f"{path} is missing: run the stage that writes it") from None
        except (IsADirectoryError, NotADirectoryError) as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; remove it") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(step) for step in first["loc"])
            raise InputError(
                f"{path}: {place + ': ' if place else ''}{first['msg']}; run its stage again"
            ) from None

    def write(self, directory: Path) -> None:
        """Write the artifact into ``directory``, whole or not at all."""
        write_text(directory / self.file_name, canonical_json(self.model_dump(mode="json")))
