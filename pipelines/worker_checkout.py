"""A worker runs the flow in its own checkout, not in that of the deployment.

`prefect deploy` notes the folder that it was called in, unless a deployment says how its code is
found. prefect.yaml names this step, which every worker runs on its machine.
"""

from __future__ import annotations

import os
from pathlib import Path

from fewtune.pipelines.checkout.project import find_root

# Names the checkout that a worker runs in, if it is not that of its installed fewtune.
CHECKOUT = "FEWTUNE_CHECKOUT"


def worker_checkout() -> dict[str, str]:
    """Change into the worker's checkout, and return its path to Prefect.

    Returns
    -------
    found : dict of str
        ``directory``, as Prefect's own steps return it.

    Raises
    ------
    InputError
        If there is no checkout.
    """
    root = find_root(Path(os.environ.get(CHECKOUT) or Path(__file__).parent))
    os.chdir(root)
    return {"directory": str(root)}
