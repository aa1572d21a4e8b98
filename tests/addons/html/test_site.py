"""The site of a store: drawn, searched and read aloud, and inert whatever its names hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from pytest_mlperf.addons.html.site import site_cases, write_site
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.history import (
    CaseHistory,
    LatestVerdict,
    histories_of,
    latest_of,
)
from tests.addons.html.browser import PHONE, WIDE, Browser, Opened
from tests.addons.html.made import HOSTILE, history, hostile

pytest.importorskip("jinja2", reason="the site needs pytest-mlperf[html]")
pytest.importorskip("vl_convert", reason="the site needs pytest-mlperf[html]")

SIZES = pytest.mark.parametrize("size", [WIDE, PHONE], ids=["desktop", "phone"])
SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])


def latest(one: CaseHistory) -> LatestVerdict:
    case, point = one.series.case, one.points[-1]
    return LatestVerdict(
        test=f"suites/{case.workload}.mlperf.toml::test_performance[{case.id}]",
        case=case.id,
        kind="performance",
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


def write(folder: Path, *histories: CaseHistory) -> Path:
    cases = site_cases([latest(one) for one in histories], lambda _: histories)
    write_site(cases, folder, "results.db")
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
    """Return what the page said in its console, and asked for beyond its own folder."""
    own = f"asked for {index.parent.as_uri()}/"
    return [text for text in opened.said if not text.startswith(own)]


def test_the_first_page_tells_what_failed_and_what_changed(index: Path) -> None:
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


def test_an_older_site_is_replaced_whole(index: Path) -> None:
    write(index.parent, history("steady"))

    assert len([*index.parent.glob("case-*")]) == 1
    assert [file.name for file in index.parent.parent.iterdir()] == ["site"]


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", "utf-8")

    with pytest.raises(MlperfError, match="no site of ours; name another folder"):
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
def test_the_search_leaves_what_has_all_words(index: Path, browser: Browser) -> None:
    with browser.opened(index) as opened:
        opened.page.fill("#text", "drop FALLEN")

        assert opened.page.inner_text("#count") == "1 of 2 cases"
        shown = opened.page.query_selector_all(".cases tbody tr:not([hidden])")
        assert ["fallen" in row.inner_text() for row in shown] == [True]


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
