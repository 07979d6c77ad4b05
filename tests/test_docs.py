"""What the documentation promises: its pages are up to date, its snippets and examples run."""

import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import fewtune
from fewtune.options import STRATEGY_GROUP, TuneOptions
from fewtune.pipelines.cli import parser
from fewtune.search import Knowledge, make_strategy
from tests import recorded
from tests.made import libraries

PROJECT = Path(__file__).parent.parent
PAGES = [*PROJECT.glob("docs/*.md"), *PROJECT.glob("results/*.md"), *PROJECT.glob("[CR]*.md")]


@pytest.mark.parametrize("generator", sorted(PROJECT.glob("docs/generate_*.py")))
def test_a_generated_page_is_up_to_date(generator, monkeypatch):
    monkeypatch.syspath_prepend(generator.parent)
    made = import_module(generator.stem)
    assert made.PAGE.read_text() == made.page()


def test_links_lead_somewhere_and_files_that_pages_name_exist():
    named = re.compile(r"`((?:fewtune|stages|pipelines|benchmarks|examples|docs)/[\w/]+\.\w+)`")
    for page in PAGES:
        text = page.read_text()
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#]+)\)", prose):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
        # Results and changes name what there was then.
        if page.parent.name != "results" and page.name != "CHANGELOG.md":
            for path in named.findall(text):
                assert (PROJECT / path).exists(), f"{page.name} names {path}"


def commands_of(page: Path) -> Iterator[list[str]]:
    """The words of every command that a page says to give to a shell."""
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            for together, command in itertools.groupby(words, lambda word: word != "&&"):
                if together:
                    yield list(command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_pages_can_be_given(page):
    for words in commands_of(page):
        if words[:2] == ["fewtune", "--print-completion"]:
            with pytest.raises(SystemExit, match="0"):
                parser().parse_args(words[1:])
        elif words[:1] == ["fewtune"]:
            parser().parse_args(words[1:])
        elif words[:1] == ["python"] and words[1].endswith(".py"):
            assert (PROJECT / words[1]).is_file(), words
        elif words[:1] == ["make"]:
            assert f"\n{words[1]}:" in (PROJECT / "Makefile").read_text(), words


@pytest.fixture
def own_strategy(tmp_path, monkeypatch):
    """Install the example beside its entry point, as a package of the user's would be."""
    (tmp_path / "own_strategy.py").write_text(
        (PROJECT / "examples" / "own_strategy.py").read_text()
    )
    info = tmp_path / "own_strategy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-strategy\nVersion: 1.0\n")
    line = "hill_climbing = own_strategy:HillClimbing"
    (info / "entry_points.txt").write_text(f"[{STRATEGY_GROUP}]\n{line}\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_strategy")
def test_a_strategy_of_the_users_own_is_found_and_searches():
    assert "hill_climbing" in {each.name for each in entry_points(group=STRATEGY_GROUP)}
    options = TuneOptions(strategy="hill_climbing", batch_size=8)
    strategy = make_strategy(recorded.space(), Knowledge(), options, 1)
    measured = []
    for _ in range(4):
        proposals = strategy.next_batch(8)
        measured += [proposal.point for proposal in proposals]
        strategy.learn(proposals, [recorded.times_s()[p.point] for p in proposals])
    assert len(set(measured)) == len(measured) > 16
    times_s = [recorded.times_s()[point] for point in measured]
    assert min(times_s[8:]) < min(times_s[:8])


def test_an_unknown_strategy_is_refused_by_name():
    with pytest.raises(ValueError, match="give evolutionary, "):
        TuneOptions(strategy="hill_climbing")


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """A bundle, in which the snippets of docs/deploying.md run."""
    folder = tmp_path_factory.mktemp("deployed")
    return fewtune.bundle(libraries.library(folder / "model.so"), folder / "bundle")


def deploying(language: str) -> str:
    """The first snippet of a language in docs/deploying.md."""
    page = (PROJECT / "docs" / "deploying.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)[0]


def test_the_deploying_snippet_runs(deployed):
    code = deploying("python") + "\nprint(fewtune.__file__, outputs[0].shape)"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=deployed, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == f"{deployed}/fewtune/__init__.py (64, 40)"


@pytest.mark.slow
def test_the_snippet_in_c_plus_plus_compiles_and_runs(deployed):
    (deployed / "deploy.cc").write_text(deploying("cpp"))
    page = (PROJECT / "docs/deploying.md").read_text()
    [command] = re.findall(r"```sh\n(g\+\+.*?)```", page, re.DOTALL)
    done = subprocess.run(
        ["sh", "-ec", command.replace("-O2", "-O0")], cwd=deployed, capture_output=True, text=True
    )
    assert done.stdout == "twice 3\n", done.stderr
