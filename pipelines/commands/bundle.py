"""What `fewtune bundle` does."""

from __future__ import annotations

import argparse
from pathlib import Path

from fewtune.deploy.bundle import LIBRARY
from fewtune.deploy.bundle import bundle as write_bundle
from fewtune.errors import InputError
from fewtune.pipelines.checkout.project import find_root
from fewtune.pipelines.commands.show import shown, tell
from fewtune.stages.paths import Places


def bundle(options: argparse.Namespace) -> int:
    """Write a bundle of a result's library, or of a library."""
    library = Path(options.model)
    if library.suffix != Path(LIBRARY).suffix:
        library = Places(find_root()).compiled(options.model, options.strategy) / LIBRARY
        if not library.is_file():
            raise InputError(
                f"{shown(library)} is missing: make it with `fewtune run {options.model} "
                f"--strategy {options.strategy}`"
            )
    name = Path(options.model).name.removesuffix(Path(LIBRARY).suffix)
    written = write_bundle(library, options.to or f"{name}-bundle")
    tell(f"wrote {shown(written)}")
    return 0
