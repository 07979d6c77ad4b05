"""The benchmark of latency by seconds: what a tuning takes over of another one."""

import os

from benchmarks import anytime


def test_kernels_of_later_steps_are_not_taken_over(tmp_path):
    base, kernels = tmp_path / "final", tmp_path / "final" / anytime.KERNELS
    for second, step in enumerate(("import", "predict"), 1):
        for file in (base / step / "found.json", base / "keys" / step, kernels / f"{step}.o"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(step)
            os.utime(file, (second, second))
    assert anytime.first_library_s(base) == 1.0
    anytime.begin_from(base, tmp_path / "full", ("import",))
    taken = sorted(p.name for p in (tmp_path / "full").rglob("*") if p.is_file())
    assert taken == ["found.json", "import", "import.o"]
