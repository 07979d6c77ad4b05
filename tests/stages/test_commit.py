"""The commit of the code that measures."""

import subprocess

from fewtune.stages.commit import commit

USER = ["-c", "user.name=t", "-c", "user.email=t@example.org"]


def test_what_using_the_software_changes_is_none_of_its_code(tmp_path):
    assert commit(tmp_path) is None
    (tmp_path / "results").mkdir()
    for name in ("params.yaml", "dvc.lock", "results/table.md", "code.py"):
        (tmp_path / name).write_text("first\n")
    for arguments in (["init", "-q"], ["add", "-A"], [*USER, "commit", "-qm", "start"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    name = commit(tmp_path)
    assert name is not None
    assert len(name) == 10
    for used in ("params.yaml", "dvc.lock", "results/table.md", "new"):
        (tmp_path / used).write_text("second\n")
    assert commit(tmp_path) == name
    (tmp_path / "code.py").write_text("second\n")
    assert commit(tmp_path) == f"{name}+"
