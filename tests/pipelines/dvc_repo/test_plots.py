"""DVC's plots of a curve without points."""

import json

from dvc.render.converter.vega import get_datapoints

from fewtune.artifacts import Curve


def test_the_curve_of_a_strategy_that_measures_nothing_can_be_drawn(tmp_path):
    nothing = Curve(points=[])
    nothing.write(tmp_path)
    assert get_datapoints(json.loads((tmp_path / Curve.file_name).read_text())) == []
    assert Curve.read(tmp_path) == nothing
