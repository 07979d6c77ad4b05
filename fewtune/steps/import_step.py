"""The first steps of `fewtune.tune`, in a module that loads little: the rest loads meanwhile."""

from __future__ import annotations

from pathlib import Path

from fewtune.artifacts import Fingerprint
from fewtune.model.import_apart import import_apart
from fewtune.model.import_options import ImportOptions
from fewtune.steps.kept_steps import KeptSteps

NAME = "model"


def import_step(
    steps: KeptSteps, folder: Path, fingerprint: Fingerprint, options: ImportOptions
) -> None:
    """Write the fingerprint and import the model that is registered below ``folder``.

    Parameters
    ----------
    steps : KeptSteps
        Steps that were done before are not repeated.
    folder : Path
        The result's folder.
    fingerprint : Fingerprint
    options : ImportOptions

    Raises
    ------
    InputError, MachineError, VerificationError
        As `import_apart` does.
    """
    steps.run("fingerprint", None, folder / "fingerprint", fingerprint.write)
    steps.run(
        "import",
        options,
        folder / "import",
        lambda scratch: import_apart(
            NAME,
            folder / "models",
            fingerprint.target,
            fingerprint.threads,
            options,
            scratch,
        ),
    )
