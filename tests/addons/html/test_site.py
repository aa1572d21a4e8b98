"""The site of a store: drawn, searched and read aloud, and inert whatever its names hold."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from pytest_mlperf.addons.html.site import site_cases, write_site
from pytest_mlperf.addons.html.site import write as write_store
from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.history import (
    CaseHistory,
    LatestVerdict,
    histories_of,
    latest_of,
)
from pytest_mlperf.stores.database import opened
from tests.addons.html.browser import PHONE, WIDE, Browser, Opened
from tests.addons.html.made import HOSTILE, history, hostile
from tests.reports import verdicts
from tests.reports.verdicts import result, session

pytest.importorskip("jinja2", reason="the site needs pytest-mlperf[html]")
pytest.importorskip("vl_convert", reason="the site needs pytest-mlperf[html]")

SIZES = pytest.mark.parametrize("size", [WIDE, PHONE], ids=["desktop", "phone"])
SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])


def latest(history: CaseHistory) -> LatestVerdict:
    case, point = history.series.case, history.points[-1]
    return LatestVerdict(
        test=f"suites/{case.workload}.mlperf.toml::test_performance[{case.id}]",
        case=case.id,
        kind=Kind.PERFORMANCE,
        profile="quick",
        workload=case.workload,
        accelerator=case.accelerator,
        metric="throughput",
        outcome=point.outcome,
        failed=point.failed,
        headline="samples/s +0.1 %",
        run=point.run,
        started=point.started,
    )


def write(folder: Path, *histories: CaseHistory, **about: str) -> Path:
    cases = site_cases([latest(one) for one in histories], lambda _: histories)
    write_site(cases, folder, "results.db", **about)
    return folder / "index.html"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return write(tmp_path / "site", history("steady"), history("fallen", drop=0.05))


def case_page(index: Path, name: str) -> Path:
    (page,) = [file for file in index.parent.glob("case-*") if f"<h1>{name}-" in file.read_text()]
    return page


def drawn(opened: Opened) -> None:
    for plot in opened.page.query_selector_all(".plot"):
        opened.page.wait_for_function("plot => plot.dataset.drawn", arg=plot, timeout=20_000)
        assert plot.get_attribute("data-drawn") == "yes"


def asked_elsewhere(opened: Opened, index: Path) -> list[str]:
    """Return the page's console messages, and its requests outside of its own folder."""
    own_request = f"asked for {index.parent.as_uri()}/"
    return [text for text in opened.messages if not text.startswith(own_request)]


def test_the_first_page_lists_failures_and_changes(index: Path) -> None:
    """A case has its sessions."""
    text = index.read_text("utf-8")
    assert text.index("fallen-Offline") < text.index("steady-Offline")
    assert text.count('<span class="chip fail">worse</span>') == 1
    assert "samples/s −4." in text or "samples/s −5." in text
    assert "power_limit_w 700" in text
    assert "Result not verified by MLCommons Association." in text
    text = case_page(index, "fallen").read_text("utf-8")
    assert "trtllm 1.1.0" in text
    assert '"accepted":[10]' in text
    assert "% from here on" in text


def test_every_page_names_the_project_and_what_it_was_made_of(tmp_path: Path) -> None:
    about = {"project": "my-models", "made": "2026-11-30 04:12 UTC", "commit": "9d0e77a1b2c3"}
    index = write(tmp_path / "site", history("steady"), **about)

    for page in (index, case_page(index, "steady")):
        text = page.read_text("utf-8")
        assert "All cases of my-models" in text
        assert all(value in text for value in (*about.values(), "results.db"))


@pytest.mark.process
def test_a_site_of_a_store_names_the_repository_it_is_made_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside git it names the folder."""
    store = f"sqlite:///{tmp_path / 'results.db'}"
    with opened(store, write=True) as there:
        there.add(session(result(verdicts.OK)))
    project = tmp_path / "my-models"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))

    write_store(store, tmp_path / "outside")
    for command in (
        "init --quiet",
        "-c user.name=x -c user.email=x@y.z commit --quiet --allow-empty -m x",
    ):
        subprocess.run(["git", *command.split()], check=True)
    write_store(store, tmp_path / "inside")

    outside, inside = (
        (tmp_path / name / "index.html").read_text() for name in ("outside", "inside")
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
    )
    assert "All cases of my-models" in outside
    assert "All cases of my-models" in inside
    assert "<dd>outside git</dd>" in outside
    assert f"<dd>{commit.stdout.strip()}</dd>" in inside
    assert re.search(r"<dt>made</dt><dd>\d{4}-\d\d-\d\d \d\d:\d\d UTC</dd>", inside)


def test_cases_come_before_machines_and_changes_are_folded(tmp_path: Path) -> None:
    """Without a change of level there is one sentence below the table."""
    changed = write(tmp_path / "a", history("fallen", drop=0.05)).read_text("utf-8")
    steady = write(tmp_path / "b", history("steady")).read_text("utf-8")

    assert '<details class="figure" id="drifts">' in changed
    assert 'id="drifts"' not in steady
    assert steady.index("</table>") < steady.index("No change of level is proven.")
    for text in (changed, steady):
        assert text.index('id="cases"') < text.index('id="machines"')


def test_a_row_has_the_change_against_the_baseline(tmp_path: Path) -> None:
    """Without a baseline it is empty."""
    fallen = history("fallen", drop=0.05)
    point = fallen.points[-1]
    alone = history("alone", sessions=1)
    alone = replace(alone, points=[alone.points[0]._replace(baseline=None)])
    text = write(tmp_path / "site", fallen, alone).read_text("utf-8")

    assert point.baseline
    share = point.value / point.baseline - 1
    assert f'data-sort="{share}">{-100 * share:.1f} % slower</td>' in text
    assert '<td class="value num" data-sort=""></td>' in text


def test_one_session_has_no_line_and_no_plot(tmp_path: Path) -> None:
    index = write(tmp_path / "site", history("new", sessions=1), history("known", sessions=2))

    cells = re.findall(r'<td class="line"[^>]*>(.*?)</td>', index.read_text("utf-8"))
    assert sorted(map(len, cells)) == [0, 2]
    for name, plots in (("new", 0), ("known", 1)):
        text = case_page(index, name).read_text("utf-8")
        assert text.count('class="plot"') == plots
        assert ("One session: it has no history yet." in text) is (plots == 0)
        assert text.count("<tbody>") == 1


def test_pages_have_readable_names_and_a_digest_only_on_a_clash() -> None:
    """No two pages have a name that is equal on a disk that ignores case."""
    names = ["resnet50-Offline", "a b", "a/b", "A-B", "日本", "", "x" * 500, "x" * 501, "../.."]
    verdicts_of = [replace(latest(history("x")), case=name) for name in names]
    files = {case.name: case.file for case in site_cases(verdicts_of, lambda _: [])}

    assert files["resnet50-Offline"] == "case-resnet50-Offline.html"
    assert len({file.lower() for file in files.values()}) == len(names)
    assert all(re.fullmatch(r"case-[A-Za-z0-9._-]+\.html", file) for file in files.values())
    assert max(map(len, files.values())) < 200


def test_an_older_site_is_replaced_whole(index: Path) -> None:
    write(index.parent, history("steady"))

    assert len([*index.parent.glob("case-*")]) == 1
    assert [file.name for file in index.parent.parent.iterdir()] == ["site"]


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", "utf-8")

    with pytest.raises(MlperfError, match="was not written by --format site; name another folder"):
        write(tmp_path, history("steady"))

    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_thousand_cases_stay_below_a_megabyte_a_page(tmp_path: Path) -> None:
    histories = [history(f"a-workload-with-a-long-name-{n}", sessions=8) for n in range(1001)]

    index = write(tmp_path / "site", *histories)

    pages = [*index.parent.iterdir()]
    assert len([*index.parent.glob("case-*.html")]) == 1001
    assert (index.parent / "index-2.html").exists()
    assert max(file.stat().st_size for file in pages) < 1_000_000


@pytest.mark.process
@pytest.mark.nightly
@SCHEMES
@SIZES
def test_every_page_is_drawn_without_a_word_in_the_console(
    size: tuple[int, int], scheme: Literal["light", "dark"], index: Path, browser: Browser
) -> None:
    for page in (index, case_page(index, "fallen")):
        with browser.opened(page, size=size, scheme=scheme) as opened:
            drawn(opened)

            assert asked_elsewhere(opened, index) == []
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= size[0]


@pytest.mark.process
@pytest.mark.nightly
@SCHEMES
@SIZES
def test_axe_finds_nothing_serious(
    size: tuple[int, int], scheme: Literal["light", "dark"], index: Path, browser: Browser
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for page in (index, case_page(index, "fallen")):
        with browser.opened(page, size=size, scheme=scheme) as opened:
            drawn(opened)
            violations = axe.Axe().run(opened.page).response["violations"]

        serious = {
            one["id"]: [node["html"][:200] for node in one["nodes"][:3]]
            for one in violations
            if one["impact"] in {"serious", "critical"}
        }
        assert serious == {}


@pytest.mark.process
@pytest.mark.nightly
def test_the_search_leaves_cases_with_all_words(index: Path, browser: Browser) -> None:
    with browser.opened(index) as opened:
        opened.page.fill("#text", "drop FALLEN")

        assert opened.page.inner_text("#count") == "1 of 2 cases"
        rows = opened.page.query_selector_all(".cases tbody tr:not([hidden])")
        assert ["fallen" in row.inner_text() for row in rows] == [True]


@pytest.mark.process
@pytest.mark.nightly
def test_filters_and_order_are_chosen_in_the_table(tmp_path: Path, browser: Browser) -> None:
    """Numbers are in order as numbers; rows without a value stay last."""
    alone = history("alone", sessions=1)
    alone = replace(alone, points=[alone.points[0]._replace(baseline=None)])
    histories = [history("a", drop=0.05), history("b", drop=0.3), history("c"), alone]
    with browser.opened(write(tmp_path / "site", *histories)) as opened:
        page = opened.page

        def cases() -> list[str]:
            rows = page.query_selector_all(".cases tbody tr:not([hidden])")
            return [row.inner_text().split("-")[0] for row in rows]

        assert set(cases()) == {"a", "b", "c", "alone"}
        page.click("text=vs baseline")
        assert cases() == ["b", "a", "c", "alone"]
        page.click("text=vs baseline")
        assert cases() == ["c", "a", "b", "alone"]
        assert page.get_attribute("th[aria-sort]", "aria-sort") == "descending"
        page.select_option("#model", "b")
        assert cases() == ["b"]
        assert page.inner_text("#count") == "1 of 4 cases"
        page.select_option("#model", "")
        page.select_option("#accelerator", "H200")
        assert len(cases()) == 4


@pytest.mark.process
@pytest.mark.nightly
def test_the_colours_that_were_chosen_stay_on_the_next_page(index: Path, browser: Browser) -> None:
    with browser.opened(index) as opened:
        opened.page.click("#theme")
        opened.page.click(".cases a")
        opened.page.wait_for_selector(".plot[data-drawn]")

        ground = "getComputedStyle(document.body).backgroundColor"
        assert opened.page.evaluate(ground) == "rgb(20, 23, 26)"


@pytest.mark.process
@pytest.mark.nightly
def test_hostile_names_are_shown_and_do_nothing(tmp_path: Path, browser: Browser) -> None:
    results, _ = hostile()
    sessions = [replace(results, run=f"{text}{n}") for n, text in enumerate(HOSTILE)]
    every = histories_of(sessions)
    cases = site_cases([*latest_of(results)], lambda metric: [h for h in every if metric])
    write_site(cases, tmp_path / "site", HOSTILE[0])
    index = tmp_path / "site" / "index.html"

    for page in (index, tmp_path / "site" / cases[0].file):
        with browser.opened(page) as opened:
            drawn(opened)

            assert opened.page.title().endswith("pytest-mlperf")
            assert opened.page.query_selector("img, svg[onload]") is None
            assert asked_elsewhere(opened, index) == []
