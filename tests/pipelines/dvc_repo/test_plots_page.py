"""The page of `dvc plots show` that works without a network: its scripts are in the checkout."""

import json
import re
from pathlib import Path

from dvc.render.converter.vega import get_datapoints

from fewtune.artifacts import Curve

PROJECT = Path(__file__).parents[3]
FOLDER = ".fewtune/vega"


def test_each_script_of_the_page_is_fetched_as_documented():
    page = (PROJECT / ".dvc" / "plots" / "offline.html").read_text()
    scripts = re.findall(r'<script src="([^"]+)"', page)
    fetched = re.search(rf"npm install --prefix {FOLDER} (.+)", _documented())
    assert fetched is not None
    packages = [each.partition("@")[0] for each in fetched[1].split()]
    assert scripts == [f"../{FOLDER}/node_modules/{name}/build/{name}.min.js" for name in packages]
    # Anything else that a browser would load.
    assert not re.search(r"(src|href)=\"(https?:)?//|@import|url\(", page)


def test_the_curve_of_a_strategy_that_measures_nothing_can_be_drawn(tmp_path):
    nothing = Curve(points=[])
    nothing.write(tmp_path)
    assert get_datapoints(json.loads((tmp_path / Curve.file_name).read_text())) == []
    assert Curve.read(tmp_path) == nothing


def test_what_is_fetched_stays_out_of_git():
    assert "/.fewtune/" in (PROJECT / ".gitignore").read_text().splitlines()


def _documented() -> str:
    return (PROJECT / "docs" / "pipelines.md").read_text()
