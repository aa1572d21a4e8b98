"""Test the page in a real browser: it is drawn, filtered and accessible, and requests nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_mlperf.addons.html._page import render
from pytest_mlperf.addons.html.model import RunFiles
from pytest_mlperf.core.results import Results
from tests.addons.html.browser import PHONE, WIDE, Browser, Opened
from tests.addons.html.made import HOSTILE, everything, hostile, many
from tests.reports.test_precisions import RESULTS as PRECISIONS
from tests.reports.verdicts import session

pytestmark = [pytest.mark.process, pytest.mark.nightly]

pytest.importorskip("jinja2", reason="the HTML report needs pytest-mlperf[html]")
pytest.importorskip("vl_convert", reason="the HTML report needs pytest-mlperf[html]")

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a session's page and return the file."""

    def made(results: Results, run_files: RunFiles | None = None) -> Path:
        file = tmp_path / "report.html"
        file.write_text(render(results, run_files or RunFiles()), "utf-8")
        return file

    return made


def label(opened: Opened, number: int) -> str:
    heading: str = opened.page.inner_text(f"#case-{number} h3")
    return heading


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["desktop", "phone"])
def test_every_plot_is_drawn_without_a_word_in_the_console(
    size: tuple[int, int], scheme: Literal["light", "dark"], write: Write, browser: Browser
) -> None:
    """Nor is anything asked of a network, nor wider than the window."""
    with browser.opened(write(*everything()), size=size, scheme=scheme) as opened:
        opened.unfold()
        cases = opened.page.query_selector_all("details.case")
        for number in range(len(cases)):
            opened.open_case(number)
        drawn = opened.page.evaluate("report.figures.map(one => one.view.data('rows').length)")
        kinds = opened.page.evaluate("report.drawn.flat().map(one => one.plot)")

        assert opened.messages == []
        assert min(drawn) > 0
        assert set(kinds) == {
            *("curve", "history", "latency", "moments", "pairs", "power", "rates", "sessions")
        }
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_nothing_is_drawn_before_it_is_seen(write: Write, browser: Browser) -> None:
    """A session without a case is a page."""
    with browser.opened(write(*everything())) as opened:
        folded = opened.page.query_selector("details.figure:not([open]) .plot")
        assert folded.get_attribute("data-drawn") is None
        assert opened.page.query_selector("details.case .plot") is None
    with browser.opened(write(session())) as opened:
        assert opened.page.inner_text("h1") == "Nothing was measured"
        assert opened.messages == []


def test_verdicts_can_be_read_without_scripts(write: Write, browser: Browser) -> None:
    results, _ = many(12, 2)
    with browser.opened(write(results), scripts=False) as opened:
        page = opened.page
        page.click("#case-0 summary")

        assert page.inner_text("h1") == "Failed: 2 PERF DROP"
        assert "samples/s" in page.inner_text("#case-0 table")
        assert "Plots need JavaScript" in page.inner_text("#plots")
        assert not page.is_visible("#filters")


def test_a_table_has_the_figures_of_its_plot(write: Write, browser: Browser) -> None:
    """Every text and number of a table is one of its plot's data, row by row."""
    with browser.opened(write(*everything())) as opened:
        opened.unfold()
        tables = opened.tables(opened.page.query_selector("#plots"))
        plots = opened.page.evaluate(
            "report.figures.map(one => ({columns: Object.entries(one.columns),"
            " rows: one.view.data('rows')}))"
        )
        assert len(tables) == len(plots) >= 7
        for (head, *rows), plot in zip(tables, plots, strict=True):
            assert head == [title for _, title in plot["columns"]]
            assert len(set(head)) == len(head)
            assert len(rows) == len(plot["rows"])
            for cells, drawn in zip(rows, plot["rows"], strict=True):
                assert cells == [_text(drawn, field) for field, _ in plot["columns"]]


def _text(drawn: dict[str, Any], field: str) -> str:
    value = drawn["metric" if field == "row" else field]
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    number = int(value) if float(value).is_integer() else value
    return f"{number:,}".replace(",", " ").replace("-", "−")


def test_the_table_of_precisions_says_which_score_it_is(write: Write, browser: Browser) -> None:
    with browser.opened(write(PRECISIONS)) as opened:
        opened.unfold()
        ((head, *rows),) = opened.tables(opened.page.query_selector("[data-figure=precisions]"))

        cells = [dict(zip(head, row, strict=True)) for row in rows]
        assert [(one["score of"], one["score"]) for one in cells] == [
            ("top1", "100.000 %"),
            ("top1", "99.079 %"),
        ]


def test_every_run_is_a_dot_beside_those_of_the_baseline(write: Write, browser: Browser) -> None:
    """How far each is from the baseline's mean; the runs are those of the case's history."""
    results, records = many(2, 3)
    with browser.opened(write(results, RunFiles(records=records))) as opened:
        opened.unfold()
        ((_, *rows),) = opened.tables(opened.page.query_selector("[data-figure=strip]"))

        current_values = [float(row[5].replace("−", "-")) for row in rows if row[2] == "now"]
        assert current_values == pytest.approx([0.938, 0.939, 1.003, 1.004], abs=0.0011)
        assert [row[2] for row in rows].count("baseline") == 16


def test_a_cases_history_is_told_in_words(write: Write, browser: Browser) -> None:
    """The newest baselines with their reasons, the runs of the last one and those of now."""
    results, records = many(1, 30)
    with browser.opened(write(results, RunFiles(records=records))) as opened:
        (history,) = opened.tables(opened.open_case(0))
        (kept,) = records.values()

        accepted = [row for row in history if row[1] == "accepted"]
        assert [row[0] for row in accepted[:-1]] == [e.date for e in kept.history[:-1]]
        assert [float(row[2].replace(" ", "")) for row in accepted] == [
            pytest.approx(entry.new["throughput"], abs=0.51) for entry in kept.history
        ]
        assert [row[4] for row in accepted] == [""] * 20 + [
            f"{entry.action} at {entry.commit}: {entry.reason}" for entry in kept.history[20:]
        ]
        assert [row[1] for row in history].count("baseline run") == 8
        assert [row[1] for row in history].count("run now") == 2
        assert [row[4] for row in history if row[1] == "version"] == [
            "onnxruntime 1.20.0",
            "engine.version 1.20.0 → 1.20.1",
        ]


def counted(page: Any, text: str) -> None:
    """Wait until the page shows this count of cases."""
    page.wait_for_function(
        "said => document.getElementById('count').textContent === said", arg=text
    )


@pytest.mark.parametrize(
    ("field", "value", "count"),
    [
        ("text", "llama2 h200", 7),
        ("text", "RESNET50.mlperf.toml", 20),
        ("text", "exceeded", 12),
        ("text", "nothing is called so", 0),
        ("verdict", "PERF DROP", 12),
        ("workload", "bert-99", 20),
        ("accelerator", "H200", 24),
    ],
)
def test_filters_leave_matching_cases(
    field: str, value: str, count: int, write: Write, browser: Browser
) -> None:
    results, _ = many(120, 2)
    with browser.opened(write(results)) as opened:
        page = opened.page
        if field == "text":
            page.fill("#text", value)
        else:
            page.select_option(f"#{field}", value)
        counted(page, f"{count} of 120 cases")
        rows = page.evaluate("report.figures[0].rows().length")
        left, none = len(opened.visible_cases()), page.is_visible("#none")
        page.click("button[type=reset]")
        counted(page, "120 cases")

        assert (left, rows, none) == (count, count, count == 0)
        assert len(opened.visible_cases()) == 120


def test_filters_are_worked_with_the_keyboard_alone(write: Write, browser: Browser) -> None:
    results, _ = many(12, 2)
    with browser.opened(write(results)) as opened:
        page = opened.page
        page.keyboard.press("Tab")
        skip = page.evaluate("document.activeElement.textContent")
        page.focus("#text")
        page.keyboard.type("bert-99")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        where = page.evaluate("document.activeElement.id")
        counted(page, "2 of 12 cases")
        page.focus("details.case:not([hidden]) summary")
        page.keyboard.press("Enter")

        assert skip == "Skip to the cases"
        assert where == "workload"
        assert page.query_selector("details.case[open] .test") is not None


def test_a_failure_leads_to_its_case(write: Write, browser: Browser) -> None:
    """The button changes the colours."""
    results, _ = many(12, 2)
    with browser.opened(write(results)) as opened:
        page = opened.page
        page.select_option("#verdict", "ok")
        counted(page, "10 of 12 cases")
        page.click("#failed a")
        page.wait_for_selector("#case-0[open]", state="visible")
        assert page.inner_text("#failed a") == label(opened, 0)
    results, _ = many(2, 2)
    with browser.opened(write(results)) as opened:
        ground = "getComputedStyle(document.body).backgroundColor"
        colour_at_start = opened.page.evaluate(ground)
        opened.page.click("#theme")
        assert (colour_at_start, opened.page.evaluate(ground)) == (
            "rgb(255, 255, 255)",
            "rgb(20, 23, 26)",
        )


def test_hostile_names_stay_inert(write: Write, browser: Browser) -> None:
    """They stand in the page as text; none becomes an element, an attribute or a script."""
    with browser.opened(write(*hostile())) as opened:
        page = opened.page
        opened.unfold()
        for number in range(len(HOSTILE)):
            opened.open_case(number)
        opened.tables(page)
        text = page.inner_text("main")

        assert opened.messages == []
        assert page.title().startswith("Failed: 6 PERF DROP")
        assert page.query_selector("img, iframe, object, embed, [onerror], [onload], [src]") is None
        assert page.evaluate("document.scripts.length") == 4
        assert HOSTILE[0] in text
        assert HOSTILE[1] in text
        assert "{{ 7 * 7 }}" in text


def test_the_policy_lets_no_other_script_run(write: Write, browser: Browser) -> None:
    """Even if a text became markup: neither inline scripts, handlers, eval nor requests work."""
    with browser.opened(write(session())) as opened:
        page = opened.page
        with page.expect_event("requestfailed") as failed:
            page.evaluate(
                """() => {
                    const script = document.createElement('script');
                    script.textContent = 'window.ran = 1';
                    document.body.append(script);
                    const image = document.createElement('img');
                    image.setAttribute('onerror', 'window.ran = 2');
                    image.src = 'https://example.org/x.png';
                    document.body.append(image);
                }"""
            )

        assert failed.value.failure == "csp"
        assert page.evaluate("window.ran") is None
        assert any("Content Security Policy" in message for message in opened.messages)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_serious(
    size: tuple[int, int], scheme: Literal["light", "dark"], write: Write, browser: Browser
) -> None:
    """With every plot drawn, every case open and every table unfolded."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    with browser.opened(write(*everything()), size=size, scheme=scheme) as opened:
        opened.unfold()
        for number in range(6):
            opened.open_case(number)
        opened.tables(opened.page)
        violations = axe.Axe().run(opened.page).response["violations"]

        serious = {
            one["id"]: [node["html"][:200] for node in one["nodes"][:3]]
            for one in violations
            if one["impact"] in {"serious", "critical"}
        }
        assert serious == {}


def test_plots_are_drawn_before_the_page_is_printed(write: Write, browser: Browser) -> None:
    """Also those that were never scrolled into view; colours are those of white paper."""
    with browser.opened(write(*everything()), scheme="dark") as opened:
        page = opened.page
        page.evaluate(
            "document.querySelectorAll('details.figure').forEach(f => { f.open = true; })"
        )
        page.wait_for_function("() => window.vegaEmbed")
        page.evaluate("addEventListener('beforeprint', () => { window.theme = null; })")
        page.evaluate("addEventListener('afterprint', () => { window.theme = 'restored'; })")
        assert page.query_selector(".plot:not([data-drawn])") is not None
        page.pdf()

        assert page.evaluate("window.theme") == "restored"
        assert page.query_selector("details.figure .plot:not([data-drawn])") is None
        assert page.evaluate("document.documentElement.dataset.theme ?? ''") == ""
        page.emulate_media(media="print")
        chip = page.query_selector(".chip.fail")
        assert chip.evaluate("one => getComputedStyle(one).printColorAdjust") == "exact"
        ground = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(ground) == "rgb(255, 255, 255)"
        assert not page.is_visible(".copy")


def test_a_page_that_is_printed_too_early_shows_tables(write: Write, browser: Browser) -> None:
    """The plotting library takes longer to unpack than a print waits."""
    with browser.opened(write(*everything())) as opened:
        page = opened.page
        page.wait_for_function("() => window.vegaEmbed")
        page.evaluate("window.vegaEmbed = undefined; dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")

        cells = "details.figure[open] details.table.printed[open] td"
        assert page.is_visible(cells)
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.query_selector("details.table[open]") is None


def test_a_button_copies_the_command_that_repeats_a_failure(write: Write, browser: Browser) -> None:
    """Where the clipboard is refused it selects the command."""
    results, _ = many(2, 2)
    with browser.opened(write(results)) as opened:
        page = opened.page
        command = page.inner_text("#failed pre.command")
        assert command.startswith('pytest "suites/')
        page.evaluate(
            "Object.defineProperty(navigator, 'clipboard', {configurable: true, value:"
            " {writeText: async text => { window.copied = text; }}})"
        )
        page.click("#failed .copy")
        page.wait_for_function("() => window.copied")
        assert page.evaluate("window.copied") == command.strip()
        page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        page.click("#failed .copy")
        page.wait_for_function("() => getSelection().toString()")
        assert page.evaluate("getSelection().toString()").strip() == command.strip()
