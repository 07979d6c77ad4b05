"""The page of one model: whole in one file, whatever its names and figures are."""

import re
from html.parser import HTMLParser

import pytest

from fewtune.artifacts import Curve
from fewtune.report.page import Page
from fewtune.report.tables import Result
from fewtune.util.table import Table
from tests.made import results as made

pytestmark = pytest.mark.slow  # matplotlib


class Elements(HTMLParser):
    """Counts elements, and keeps what they refer to and say."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.said: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [v for k, v in attrs if k in ("src", "href", "xlink:href") and v]

    def handle_data(self, data):
        self.said.append(data)


def result(strategy: str, latency_ms: float, **changes: object) -> Result:
    report = made.benchmark("<net>", strategy, latency_ms).model_copy(update=changes)
    return Result(report, made.metrics(latency_ms), made.comparison("<net>"))


def test_a_page_holds_everything_and_asks_the_network_for_nothing():
    results = [result("selective", 50.0, disturbed="busy & loud"), result("full", 40.0)]
    earlier = Table(["measured", "latency ms"], [["2026-11-21", "51.0"]])
    curves = {"selective": made.curve(), "oneshot": Curve()}
    text = Page(results, curves, b"PNG", earlier).html()
    page = Elements(text)
    assert all(each.startswith(("data:", "#")) for each in page.references)
    assert not re.search(r"url\((?!#)|@import|<script", text)
    # The curve; the overlap is a picture.
    assert (page.tags.count("svg"), page.tags.count("img")) == (1, 1)
    said = " ".join(page.said)
    for expected in ("<net>", "busy & loud", "conv2d_1", "51.0", "Measured on Test CPU", "25.0"):
        assert expected in said
    assert "oneshot" not in said
    ids = re.findall(r'\bid="([^"]+)"', text)
    referred = {*re.findall(r"url\(#([^)]+)\)", text), *re.findall(r'href="#([^"]+)"', text)}
    assert referred
    assert all(ids.count(each) == 1 for each in referred)
