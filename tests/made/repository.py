"""A git and DVC repository of its own, in which the commands of DVC and fewtune run."""

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

from fewtune.process.child_python import CHILD_PYTHON
from fewtune.stages.paths import Places

PROJECT = Path(__file__).parents[2]


class Repository:
    """A git and DVC repository with the project's pipeline and the tiny model."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self.root = root
        self.places = Places(root)
        self.python = sys.executable
        scripts = Path(sys.executable).parent
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != CHILD_PYTHON},
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(PROJECT),
            "TMPDIR": str(scratch),
            "MLFLOW_TRACKING_URI": f"sqlite:///{root / 'mlflow.db'}",
            "DVC_NO_ANALYTICS": "1",
            "DVC_GLOBAL_CONFIG_DIR": str(scratch / "dvc-global"),
            "DVC_SYSTEM_CONFIG_DIR": str(scratch / "dvc-system"),
            "DVC_SITE_CACHE_DIR": str(scratch / "dvc-site"),
            "GIT_CONFIG_GLOBAL": os.devnull,
            **{f"GIT_{who}_NAME": "test" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "test@example.org" for who in ("AUTHOR", "COMMITTER")},
        }

    def within(self, folder: str) -> "Repository":
        """The same repository, seen from a folder in it."""
        found = copy.copy(self)
        found.root, found.environment = self.root / folder, {**self.environment}
        found.places = Places(found.root)
        return found

    def run(self, *command: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        # Where a warm process is kept, it has DVC loaded, which takes two seconds.
        python = self.environment.get(CHILD_PYTHON, self.python)
        done = subprocess.run(
            [python, "-m", *command] if command[0] == "dvc" else command,
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=1200,
        )
        if code is not None:
            assert done.returncode == code, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done

    def repro(self, *arguments: str, code: int = 0) -> str:
        done = self.run("dvc", "repro", *arguments, code=code)
        return done.stdout + done.stderr

    def fewtune(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.run(self.python, "-m", "fewtune.pipelines.cli", *arguments, code=code)

    def keep_warm(self) -> None:
        """Have the warm process of this process fork what the commands start from now on."""
        warm = os.environ[CHILD_PYTHON]
        path = f"{Path(warm).parent}{os.pathsep}{self.environment['PATH']}"
        self.environment |= {CHILD_PYTHON: warm, "PATH": path}

    def set(self, key_path: str, value: object) -> None:
        yaml = YAML()
        content = yaml.load(self.places.params)
        *parents, key = key_path.split(".")
        place = content
        for parent in parents:
            place = place[parent]
        place[key] = value
        yaml.dump(content, self.places.params)

    def commit(self) -> None:
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--message", "state")


def ran(output: str) -> set[str]:
    """Stages whose command was run."""
    return set(re.findall(r"Running stage '([^']+)'", output))


def hashes(repository: Repository) -> dict[str, bytes]:
    return {
        str(path.relative_to(repository.root)): path.read_bytes()
        for path in repository.places.out.rglob("*")
        if path.is_file()
    }
