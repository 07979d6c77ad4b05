"""Tables from artifacts."""

from dataclasses import replace

import pytest

from fewtune.artifacts import Metrics
from fewtune.report.tables import (
    Result,
    belongs,
    comparison_table,
    distinct_comparisons,
    disturbed_lines,
    results_table,
)
from fewtune.util.table import number
from tests.made import results as made


def results() -> list[Result]:
    return [
        Result(made.benchmark("net", "selective"), made.metrics(), made.comparison("net")),
        Result(made.benchmark("net", "full", 40.0), made.metrics(40.0, made.FULL_TUNING_S)),
    ]


def comparison_shown(found, **wide):
    return comparison_table([each.comparison for each in found], **{"wide": False, **wide})


def records(table):
    return [dict(zip(table.headings, row, strict=True)) for row in table.rows]


def test_the_results_table_has_a_row_per_result():
    table = results_table(results(), wide=True)
    selective, full = records(table)
    assert selective["model"] == "net"
    assert selective["tuning s"] == "250"
    assert (selective["latency ms"], selective["± %"]) == ("50.0", "10")
    assert selective["p10 - p90 ms"] == "45.0 - 55.0"
    assert selective["x over onnxruntime"] == "0.90"
    assert selective["% of peak"] == "66.7"
    assert (selective["used time %"], selective["achieved %"]) == ("25.0", "80.0")
    assert (full["used time %"], full["achieved %"]) == ("-", "-")
    assert selective["tuned/tasks"] == "5/30"
    assert selective["max rel. error"] == "2.5e-06"


@pytest.mark.parametrize("show", [results_table, comparison_shown])
def test_tables_fit_80_columns_unless_they_are_to_be_wide(show):
    named = [
        Result(
            made.benchmark("squeezenet_v1_1", strategy).model_copy(update={"disturbed": "busy"}),
            made.metrics(12345.6, 12345.6).model_copy(update={"tuning_stolen_pct": 7.5}),
            made.comparison("squeezenet_v1_1"),
        )
        for strategy in ("selective", "full")
    ]
    assert max(map(len, show(named).text().splitlines())) <= 80
    assert max(map(len, show(named, wide=True).text().splitlines())) > 80
    assert "12346, disturbed" in results_table(named).text()
    assert "Disturbed: squeezenet_v1_1 full: busy." in disturbed_lines(named)
    assert "Disturbed: tuning of squeezenet_v1_1 full: " in "".join(disturbed_lines(named))


def test_the_comparison_table_ends_in_means():
    compared = [
        made.comparison("a", used=20.0, achieved=90.0),
        made.comparison("b", used=80.0, achieved=160.0),
    ]
    rows = records(comparison_table(compared))
    assert [row["model"] for row in rows[:2]] == ["a", "b"]
    means = {row["model"].split(" (")[0]: row for row in rows[2:]}
    assert means["arithmetic mean"]["used time %"] == "50.0"
    assert means["geometric mean"]["used time %"] == "40.0"
    assert means["geometric mean"]["achieved perf %"] == "120.0"
    assert means["worst"]["used time %"] == "80.0"
    assert means["worst"]["achieved perf %"] == "90.0"
    # 45 ms over 40 ms, times 0.9 and 1.6.
    assert [row["x over onnxruntime"] for row in rows[:2]] == ["1.01", "1.80"]
    assert means["geometric mean"]["x over onnxruntime"] == "1.35"
    assert means["worst"]["x over onnxruntime"] == "1.01"


def test_metrics_without_a_figure_are_read_back(tmp_path):
    metrics = made.metrics().model_copy(update={"peak_gflops": None, "peak_pct": None})
    metrics.write(tmp_path)
    assert "null" not in (tmp_path / Metrics.file_name).read_text()
    assert Metrics.read(tmp_path) == metrics
    assert "peak_pct" not in metrics.figures()


def test_a_comparison_of_earlier_results_is_not_shown():
    comparison = made.comparison("net")
    selective = Result(made.benchmark("net", "selective"), made.metrics())
    full = Result(made.benchmark("net", "full"), made.metrics(40.0, made.FULL_TUNING_S))
    assert belongs(comparison, selective, full)
    assert not belongs(comparison, replace(selective, metrics=made.metrics(tuning_s=251.0)), full)
    assert not belongs(comparison, selective, None)
    # Compiled anew, at the same cost of tuning, it is another library.
    libraries = comparison.model_copy(update={"library_sha256": {"selective": "a", "full": "b"}})
    for digest, is_same in (("a", True), ("c", False)):
        built = selective.benchmark.model_copy(update={"library_sha256": digest})
        other = full.benchmark.model_copy(update={"library_sha256": "b"})
        pair = replace(selective, benchmark=built), replace(full, benchmark=other)
        assert belongs(libraries, *pair) == is_same
    assert distinct_comparisons(results()) == [comparison]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (1010.3, "1010"),
        (44.14, "44.1"),
        (0.9123, "0.912"),
        (0.000123, "0.000123"),
        (12345.6, "12346"),
    ],
)
def test_numbers_keep_three_figures(value, text):
    assert number(value) == text
