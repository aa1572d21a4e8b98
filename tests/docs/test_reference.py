"""Nothing that a user can write, call or read stays undocumented."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.verdict import SEVERITY, Outcome
from pytest_mlperf.registry import Group
from pytest_mlperf.reports.formats import formats
from tests.docs.pages import DOCS, ROOT, SITE_PAGES

GROUPS = get_args(Group)


def ids(page: str, reference: Any) -> set[str]:
    """Return the ids of names and the headings of a page of the reference."""
    text = reference().expand((DOCS / f"reference-{page}.md").read_text("utf-8"))
    return {*re.findall(r"\{#([\w-]+)\}", text), *re.findall(r"^## ([\w-]+)$", text, re.MULTILINE)}


def test_every_key_of_a_suite_is_explained_once_and_on_its_page(reference: Any) -> None:
    """In its schema, else in the reference's own words; no word is of a key that is gone."""
    keys = reference("suite").every_key()
    words = reference("words")
    silent = set(reference("suite").undescribed())

    assert [key.path for key in keys if not key.text] == []
    assert set(words.KEYS) == silent
    assert set(words.TABLES) == {key.table for key in keys}
    assert len(keys) > 100
    assert {key.anchor for key in keys} - ids("suite", reference) == set()


def test_every_option_and_argument_is_explained_on_its_page(reference: Any) -> None:
    options = reference("options").options()
    assert [option.name for option in options if not option.text] == []
    assert {option.anchor for option in options} - ids("options", reference) == set()
    assert len(options) > 20
    commands = reference("commands")
    arguments = [
        (name, action)
        for name, parser in commands.parsers().items()
        for action in commands.arguments(parser)
    ]
    ids_on_page = ids("commands", reference)
    assert [f"{name} {action.dest}" for name, action in arguments if not action.help] == []
    assert {commands.anchor(*argument) for argument in arguments} - ids_on_page == set()
    assert set(commands.parsers()) - ids_on_page == set()


def test_every_entry_point_and_every_option_of_it_is_explained_on_the_page(reference: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = {
        name.removeprefix("pytest_mlperf."): set(entries)
        for name, entries in project["entry-points"].items()
        if name.startswith("pytest_mlperf.")
    }
    forms = groups.pop("calibration")
    assert groups.pop("commands") <= set(reference("commands").parsers())
    assert groups.pop("formats") <= set(formats())
    groups.pop("addons")  # their options and commands are on those pages
    judged = (DOCS / "judge.md").read_text("utf-8")
    assert [name for name in groups.pop("readers") if f"`{name}`" not in judged] == []
    extensions = reference("extensions")
    own_extensions = [extension for group in GROUPS for extension in extensions.own(group)]
    options = [(extension, option) for extension in own_extensions for option in extension.options]
    page = reference().expand((DOCS / "reference-extensions.md").read_text("utf-8"))

    assert {
        group: {one.name for one in own_extensions if one.group == group} for group in GROUPS
    } == groups
    assert [group for group in groups if f"pytest_mlperf.{group}" not in page] == []
    assert [form for form in forms if f"`{form}`" not in page] == []
    assert [extension.name for extension in own_extensions if not extension.declaration.about] == []
    assert [f"{one.name}.{option.name}" for one, option in options if not option.text] == []
    assert {extensions.anchor(*pair) for pair in options} - ids("extensions", reference) == set()


def test_every_metric_and_score_is_explained_and_on_its_page(reference: Any) -> None:
    """`Scores(lower=frozenset({...}))` in the code says which are better when lower."""
    metrics, words = reference("metrics"), reference("words")
    assert set(words.METRICS) == set(METRICS)
    assert set(metrics.score_words()) == set(metrics.scores())
    assert {metrics.anchor(name) for name in METRICS} - ids("metrics", reference) == set()
    code = "".join(
        file.read_text("utf-8") for file in (ROOT / "pytest_mlperf/adapters/scorers").rglob("*.py")
    )
    lower = set(re.findall(r'"(\w+)"', "".join(re.findall(r"lower=frozenset\((.*?)\)", code))))

    described = {
        name for name, (_, better, _) in metrics.score_words().items() if better == "lower"
    }
    assert described == lower != set()


def test_every_outcome_is_explained_and_on_its_page(reference: Any) -> None:
    """Whether the test fails, passes, or passes and is counted apart."""
    outcomes, words = reference("outcomes"), reference("words")
    assert set(words.OUTCOMES) == set(map(str, Outcome)) == set(map(str, SEVERITY))
    assert {outcomes.anchor(o) for o in Outcome} - ids("outcomes", reference) == set()
    page = (DOCS / "outcomes.md").read_text("utf-8")
    result_by_outcome = dict(re.findall(r"^\| ([\w ]+) \| (passes|fails)", page, re.MULTILINE))
    apart = set(re.findall(r"^\| ([\w ]+) \| passes, counted apart", page, re.MULTILINE))
    assert {word for word, says in result_by_outcome.items() if says == "fails"} == {
        str(outcome) for outcome in Outcome if outcome.fails
    }
    assert apart == set(map(str, reference("outcomes").COUNTED_APART))


def test_every_field_of_a_file_is_explained(reference: Any) -> None:
    for part in ("results", "performance", "accuracy"):
        text = getattr(reference("documents"), f"{part}_markdown")()
        assert re.findall(r"^\| \[`(\w+)`\]\{[^}]*\} \|  \|$", text, re.MULTILINE) == []
        assert text.count("\n| [`") > 10


@pytest.mark.slow
def test_every_environment_variable_is_explained(
    reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only modules that read an environment or assign a constant text are parsed."""
    environment = reference("environment")
    relevant = re.compile(r"environ|^[A-Z][A-Z_0-9, ]* = \(?\"[A-Z]", re.MULTILINE)
    files = [
        file
        for file in environment.PACKAGE.rglob("*.py")
        if relevant.search(file.read_text("utf-8"))
    ]
    monkeypatch.setattr(environment, "PACKAGE", SimpleNamespace(rglob=lambda _: files))

    assert set(reference("words").ENVIRONMENT) == set(environment.found.__wrapped__())


def test_variables_of_suites_scripts_and_tests_are_on_the_page() -> None:
    page = (DOCS / "reference-environment.md").read_text("utf-8")
    # The code's: in the generated part.
    page += " PYTEST_MLPERF_BUILDS PYTEST_MLPERF_FLEET PYTEST_MLPERF_LEASES PYTEST_MLPERF_TREE"
    places = [*(ROOT / "suites").rglob("*.toml"), *(ROOT / ".github").rglob("*.yml")]
    places += [ROOT / "Makefile", ROOT / "pytest_mlperf/addons/fleet/slurm.sh"]
    tests = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]
    named = {
        name
        for file in places
        for name in re.findall(r"\$\{?((?:PYTEST_)?MLPERF_[A-Z_]+)", file.read_text("utf-8"))
    }
    named |= {
        name
        for file in tests
        for name in re.findall(r"\bPYTEST_MLPERF_[A-Z_]+\b", file.read_text("utf-8"))
    }

    assert {name for name in named if not re.search(rf"\b{name}\b", page)} == set()
    assert "MLPERF_MODELS" in named


def test_variables_are_found_where_they_are_read(reference: Any) -> None:
    expected = {
        'os.environ.get("A_B")': {"A_B"},
        'os.environ["A_B"]': {"A_B"},
        'os.environ["A_B"] = "1"': set(),
        '"A_B" in environ': {"A_B"},
        "environ.get(name)": set(),
        'table.get("A_B")': set(),
    }

    read = reference("environment").read
    assert {code: set(read(ast.parse(code))) for code in expected} == expected


def test_every_part_is_on_one_page(reference: Any) -> None:
    """A fence is replaced by it."""
    part_counts = Counter(
        name for page in SITE_PAGES for name in reference().parts_of(page.read_text("utf-8"))
    )
    assert part_counts == Counter(list(reference().PARTS))
    page = "before\n\n```{generated} gated-metrics\nhere stands\n```\n\nafter\n"
    expanded = reference().expand(page)
    assert "here stands" not in expanded
    assert expanded.startswith("before\n\n| scenario | gated |")
    assert expanded.endswith("\n\nafter\n")
    with pytest.raises(KeyError, match="no-such-part"):
        reference().expand("```{generated} no-such-part\n```")


def test_every_junit_property_is_on_the_page() -> None:
    """The names that the code gives, with METRIC and of samples or tokens in their places."""
    code = (ROOT / "pytest_mlperf/reports/for_pytest.py").read_text("utf-8")
    page = (DOCS / "reference-files.md").read_text("utf-8")
    names = set(re.findall(r'"(mlperf\.[a-z_.{}]+)"', code))
    properties_on_page = {name.replace("{metric.metric}", "METRIC") for name in names}
    properties_on_page |= {f"mlperf.{of}_per_usd" for of in ("samples", "tokens")}

    assert {
        name for name in properties_on_page if "{" not in name and f"`{name}`" not in page
    } == set()
    assert "mlperf.METRIC.change" in properties_on_page
