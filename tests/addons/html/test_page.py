"""The page as a file: closed to the outside, small, and honest in its first words."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import sys
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_mlperf.addons.html import _page as headline
from pytest_mlperf.addons.html._cases import figures_of
from pytest_mlperf.addons.html._page import TRACES, render
from pytest_mlperf.addons.html.model import Percentiles, RunFiles, grouped
from pytest_mlperf.addons.html.report import page_of, sessions_of
from pytest_mlperf.core.errors import EnvironmentFault
from pytest_mlperf.core.results import UNVERIFIED_LABEL, Absent, Results
from pytest_mlperf.core.verdict import Confirmation, InterleavedRuns, Outcome
from pytest_mlperf.reports.formats import ReportedSession, make_report
from pytest_mlperf.stores.database import opened
from tests.addons.html.made import HOSTILE, against, hostile, many, record
from tests.reports import verdicts
from tests.reports.verdicts import result, run, session

pytest.importorskip("jinja2", reason="the HTML report needs pytest-mlperf[html]")
pytest.importorskip("vl_convert", reason="the HTML report needs pytest-mlperf[html]")


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the content of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self.found.append((f"/{tag}", {}))

    def handle_data(self, data: str) -> None:
        tag = self.found[-1][0] if self.found else ""
        if tag in self.inside:
            self.inside[tag][-1] += data


def data_of(page: str) -> dict[str, Any]:
    """Return the data that the page's script reads."""
    data: dict[str, Any] = json.loads(Elements(page).inside["script"][0])
    return data


def test_the_policy_names_exactly_what_stands_in_the_page() -> None:
    """Nothing is loaded, and hostile texts come through as text, not as markup."""
    results, run_files = hostile()
    text = render(results, run_files)
    page, data = Elements(text), data_of(text)
    (policy,) = [a["content"] for t, a in page.found if t == "meta" and "http-equiv" in a]
    assert policy is not None
    script = zlib.decompress(base64.b64decode(page.inside["script"][1])).decode()
    digests = {
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in (script, page.inside["script"][2], *page.inside["style"])
    }

    assert policy.startswith("default-src 'none'; ")
    assert set(re.findall(r"'sha256-[^']+'", policy)) == digests
    assert "unsafe" not in policy
    tags = {tag for tag, _ in page.found}
    attributes = {name for _, found in page.found for name in found}
    assert not tags & {"img", "svg", "iframe", "link", "object", "embed", "base"}
    assert not {name for name in attributes if name.startswith("on")}
    assert "src" not in attributes
    assert all((a["href"] or "").startswith("#") for t, a in page.found if t == "a")
    assert len(page.inside["script"]) == 3
    assert [HOSTILE[0] in identity for _, identity in data["cases"]].count(True) == 1
    whys = [why for drawn in data["drawn"] for _, why in drawn[0]["told"]]
    assert any("</script>" in why for why in whys)


def test_a_missing_library_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["jinja2", "vl_convert"]
    report = ReportedSession(results=session(), file=Path("results.json"))
    for name in rows:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(EnvironmentFault, match=r"pip install 'pytest-mlperf\[html\]'"):
                make_report("html", report)


def test_the_first_line_is_the_verdict() -> None:
    rows: list[Any] = [
        (session(result(verdicts.OK)), 0, ("good", "No drop proven in 1 test")),
        (
            session(result(verdicts.OK), result(verdicts.NO_BASELINE)),
            0,
            ("open", "No drop proven in 2 tests, 1 undecided or without a baseline"),
        ),
        (
            session(result(verdicts.DROP), result(verdicts.DROP), result(verdicts.ERROR)),
            0,
            ("fail", "Failed: 1 ERROR, 2 PERF DROP"),
        ),
        (
            session(result(verdicts.INCONCLUSIVE, failed=True)),
            0,
            ("fail", "Failed: 1 INCONCLUSIVE"),
        ),
        (session(result(verdicts.OK)), 2, ("fail", "Failed: 2 planned tests without a result")),
        (session(), 0, ("open", "Nothing was measured")),
    ]
    for results, absent, first_line in rows:
        missing = [Absent(test=f"t{n}", reason="the machine was lost") for n in range(absent)]
        assert headline.verdict(results, missing) == first_line
        page = render(results, RunFiles(), missing)
        assert page.index(first_line[1]) < page.index("<h1")
        assert page.count("the machine was lost") == absent
        assert page.count(UNVERIFIED_LABEL) == 2


WEAK = verdicts.metric(outcome=Outcome.OK, detectable=0.05, limit=0.03)


def test_doubts_precede_the_figures() -> None:
    rows: list[Any] = [
        (
            [result(verdicts.DROP, handicap=0.5)],
            "fail",
            "Slowed on purpose (--mlperf-handicap 50 %)",
        ),
        ([result(verdicts.DROP, pretended=True)], "fail", "only pretended"),
        ([result(verdicts.DROP, profile="quick")], "open", "Profile quick"),
        (
            [result(replace(verdicts.OK, metrics=(WEAK,)))],
            "open",
            "are too noisy to prove 1 of 1 limit: record more runs, or widen the limits.",
        ),
        (
            [result(verdicts.ACC_DROP), result(verdicts.OK)],
            "open",
            "1 of 1 accuracy gate not decided",
        ),
    ]
    certain = [text for _, text in headline.credibility_notes(session(result(verdicts.GATE_FAIL)))]
    for results, tone, words in rows:
        doubts = headline.credibility_notes(session(*results))
        assert tone in {of_text for of_text, text in doubts if words in text}
        assert words == "Profile quick" or not any(words in text for text in certain)


def test_a_drop_has_its_commands_and_a_handicapped_one_none_to_accept_it() -> None:
    """Values that are not numbers are not drawn."""
    plain = render(
        session(result(verdicts.DROP, arguments=("--mlperf-profile=quick",))), RunFiles()
    )
    slowed = render(session(result(verdicts.DROP, handicap=0.5)), RunFiles())

    words = re.sub("</?span>", "", plain)
    assert "--mlperf-profile=quick --mlperf-update=replace --mlperf-accept-regression" in words
    assert "--mlperf-update=replace" not in slowed
    assert "<h5>reproduce</h5>" in slowed
    rows = [float("nan"), float("inf"), 1e308]
    for value in rows:
        judged = replace(
            verdicts.DROP.metrics[0], change=value, low=-value, high=value, limit=value
        )
        dropped = replace(verdicts.DROP, metrics=(judged,), runs=(run(throughput=value),))
        data = data_of(render(session(result(dropped)), RunFiles()))
        (row,) = data["figures"]["forest"]["rows"]
        used = row[data["figures"]["forest"]["fields"].index("used")]
        assert used is None or math.isfinite(used)


def test_a_history_has_every_accepted_value_and_the_newest_reasons() -> None:
    kept = record(30)
    case_result = result(verdicts.DROP)
    (history,) = figures_of(
        grouped([case_result])[0], RunFiles(records={case_result.test: kept}), 200
    )

    assert history["value"] == [round(entry.new["throughput"]) for entry in kept.history]
    assert sum(int(step) for step in history["step"]) == 19_723 + sum(
        int(step) for step in history["step"][1:]
    )
    assert history["told"] == [
        [8, f"{entry.action} at {entry.commit}: {entry.reason}"] for entry in kept.history[-10:]
    ]
    assert [text for _, text in history["marks"]] == [
        "onnxruntime 1.20.0",
        "; ".join(verdicts.DROP.baseline.changed),
    ]


def test_interleaved_runs_are_drawn_in_pairs() -> None:
    """The n-th run of this build is the neighbour of the other build's n-th run."""
    judged = against()
    case_result = result(judged)

    (pairs,) = figures_of(grouped([case_result])[0], RunFiles(), 200)

    assert (pairs["plot"], pairs["value"]) == ("pairs", [])
    assert [value for _, value in pairs["now"]] == [
        one.metrics["throughput"] for one in judged.runs
    ]
    others = [one.metrics["throughput"] for one in judged.other_runs]
    assert [value for _, value in pairs["base"]] == others


def test_sessions_of_a_store_are_drawn_with_this_one_among_them(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'results.db'}"
    elsewhere = replace(verdicts.SUBJECT, identity={"gpu": "another"})
    with opened(store, write=True) as there:
        for number in range(24):
            value = 80.0 if number < 12 else 100.0
            there.add(_session(number, value + number % 3 / 10))
            there.add(_session(100 + number, 7.0, subject=elsewhere))
    newest = _session(24, 100.0)

    remembered = sessions_of(newest, store)
    (history,) = remembered[verdicts.OK.case.id]
    drawn = figures_of(grouped(newest.cases)[0], RunFiles(sessions=remembered), 200)

    assert [point.run for point in history.points] == [f"run-{n:03}" for n in range(25)]
    (figure,) = [one for one in drawn if one["plot"] == "sessions"]
    assert len(figure["rows"]) == 25
    assert re.fullmatch(r"25 sessions; \+2\d\.\d % \(.+\) from 2026-05-13 on", figure["says"])
    assert [row[5] for row in figure["rows"] if "from here on" in row[5]] == [
        "+25.0 % from here on"
    ]


def _session(number: int, value: float, **changes: Any) -> Results:
    judged = verdicts.metric("throughput", Outcome.OK, now=value, baseline=90.0)
    case_verdict = replace(verdicts.OK, metrics=(judged,), **changes)
    started = f"2026-05-{1 + number % 100:02}T06:00:00+00:00"
    return replace(session(result(case_verdict)), run=f"run-{number:03}", started=started)


def test_a_store_that_cannot_be_read_costs_the_sessions_alone(tmp_path: Path) -> None:
    (tmp_path / "results.db").write_text("no database", "utf-8")

    page = page_of(
        session(result(verdicts.OK)), tmp_path / "r.json", store=str(tmp_path / "results.db")
    )

    assert "not read: " in page
    assert "They need a store with earlier sessions" in page


def test_latencies_have_the_limits_that_they_must_keep() -> None:
    judged = verdicts.metric("latency_p99", Outcome.OK, now=0.06, baseline=0.05, limit=0.1)
    served = replace(
        verdicts.OK,
        case=verdicts.SERVER,
        metrics=(judged,),
        runs=(run(throughput=9.0, latency_p50=0.02, latency_p90=0.03, latency_p99=0.06),),
    )
    case_result = result(served)
    logged = Percentiles(timed="latency", points=[(0.5, 0.02)], limit_s=0.1, limit_share=0.99)
    by_name = {
        name: figures_of(grouped([case_result])[0], beside, 200)[-1]["rows"]
        for name, beside in {
            "results alone": RunFiles(),
            "with logs": RunFiles(percentiles={case_result.test: [logged]}),
        }.items()
    }

    limit = ["limit", "99 %", 2.0, 55.0, "55 ms", "+10 % of the baseline"]
    assert by_name["results alone"] == [
        ["now", "50 %", 0.301, 20.0, "20 ms", ""],
        ["now", "90 %", 1.0, 30.0, "30 ms", ""],
        ["now", "99 %", 2.0, 60.0, "60 ms", ""],
        limit,
    ]
    assert by_name["with logs"] == [
        ["now", "50 %", 0.301, 20.0, "20 ms", ""],
        ["limit", "99 %", 2.0, 100.0, "100 ms", "LoadGen's limit"],
        limit,
    ]


def test_figures_over_time_are_left_out_where_the_page_would_be_too_large() -> None:
    results, records = many(40, 1)
    moments = [(n / 7, n / 9, n / 3, n) for n in range(1, 2500)]
    page = render(results, RunFiles(moments=dict.fromkeys(records, moments)))
    data = data_of(page)
    kept = [any(one["plot"] == "moments" for one in drawn) for drawn in data["drawn"]]

    assert kept == sorted(kept, reverse=True)
    assert 0 < sum(kept) < 40
    assert f"Left out for {40 - sum(kept)} cases" in page
    assert len(json.dumps(data["drawn"])) < 2 * TRACES


def test_a_page_that_would_be_too_large_is_cut_and_says_so() -> None:
    """Older history goes first, then cases; those that failed stay longest."""
    results, records = many(110, 60)
    run_files = RunFiles(records=records)
    whole = render(results, run_files)
    shorter = render(results, run_files, max_bytes=len(whole.encode()) - 1)
    shortest = render(results, run_files, max_bytes=1000)

    for page, points, listed in ((whole, 60, 110), (shorter, 50, 110), (shortest, 2, 100)):
        data = data_of(page)
        assert {len(drawn[0]["value"]) for drawn in data["drawn"]} == {points}
        assert len(data["cases"]) == listed
        assert ("Older history" in page) == (points < 60)
        assert ("10 cases that are fine" in page) == (listed < 110)
        assert page.count('class="case fail"') == 11


def drawn_as(plot: str, outcomes: dict[str, Outcome], scenario: Any, **values: Any) -> Any:
    """Return the figure of a run with these metrics, of which some are judged at 0.1 or 100."""
    base = {"rates": 0.1, "curve": 100.0}[plot]
    judged = tuple(
        verdicts.metric(
            *(name, outcome),
            now=values[name],
            baseline=base,
            change=values[name] / base - 1,
            low=-0.1,
            high=0.1,
            limit=0.05,
        )
        for name, outcome in outcomes.items()
    )
    case = replace(verdicts.OK.case, scenario=scenario)
    case_result = result(replace(verdicts.OK, case=case, metrics=judged, runs=(run(**values),)))
    drawn = figures_of(grouped([case_result])[0], RunFiles(), 200)
    (figure,) = [figure for figure in drawn if figure["plot"] == plot]
    return figure


def test_an_open_loop_is_drawn_over_its_rates() -> None:
    values = {"ttft_p50@0.5": 0.1, "ttft_p50@4": 0.11}
    curve = drawn_as("rates", dict.fromkeys(values, Outcome.OK), "OpenLoop", **values)

    assert curve["unit"] == "p50 TTFT, milliseconds"
    assert curve["rows"] == [
        ["now", 0.5, 0.5, 100.0, 90.0, 110.0, "good", "ok +0.0 %", 1],
        ["now", 4, 4, 110.0, 90.0, 110.0, "good", "ok +10.0 %", 1],
    ]


def test_a_curve_has_steps_over_the_points_that_no_other_beats() -> None:
    outcomes = {"tokens_per_second@1": Outcome.OK, "tokens_per_second@8": Outcome.PERF_DROP}
    values = {"tokens_per_second@1": 100.0, "tps_per_user@1": 50.0}
    values |= {"tokens_per_second@8": 90.0, "tps_per_user@8": 40.0}
    curve = drawn_as("curve", outcomes, "Offline", **values)

    assert curve["title"] == "tokens/s, all users together and each user"
    assert curve["rows"] == [
        ["now", 1, 50.0, 100.0, 90.0, 110.0, "good", "ok +0.0 %", 1],
        ["now", 8, 40.0, 90.0, 90.0, 110.0, "fail", "PERF DROP −10.0 %", 0],
    ]


def test_environments_that_read_alike_are_one_with_a_count() -> None:
    """What differs between their cases has all its values."""
    weights = ("a" * 8, "b" * 8)
    case_results = []
    for number, digest in enumerate((*weights, weights[0])):
        fingerprint = {**verdicts.SUBJECT.fingerprint, "engine.weights_sha256": digest}
        case_verdict = replace(
            verdicts.OK,
            case=replace(verdicts.CASE, workload=f"w{number}"),
            subject=replace(verdicts.SUBJECT, fingerprint=fingerprint),
        )
        case_results.append(result(case_verdict))

    page = render(session(*case_results), RunFiles())

    assert page.count('class="environment"') == 1
    assert "ecc True: 3 cases" in page
    assert f"<dt>engine.weights_sha256</dt><dd>{', '.join(weights)}</dd>" in page
    assert page.count('href="#environment-1"') == 3


def test_interleaved_and_repeated_runs_count_as_time() -> None:
    turns = InterleavedRuns(state=Confirmation.PROVEN, pairs=11, runs=22)
    again = replace(run(3), invalid=(verdicts.TOO_SHORT,))
    case_verdict = replace(verdicts.DROP, interleaved=turns, invalid_runs=(again,))

    facts = dict(headline.session_facts(session(result(case_verdict))))

    assert facts["took"] == "3 min 20 s, 25 runs, 22 of them interleaved"
    assert (
        dict(headline.session_facts(session(result(verdicts.DROP))))["took"] == "3 min 20 s, 2 runs"
    )


def test_numbers_of_a_table_are_right_aligned() -> None:
    page = render(session(result(verdicts.DROP)), RunFiles())

    assert '<td class="num">24,118</td><td class="num">22,598</td>' in page
    assert "<td>samples/s</td>" in page


def test_the_scripts_are_made_once_and_an_invalid_text_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that cannot be written costs time alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = Mock(return_value="text")
    monkeypatch.setattr("vl_convert.javascript_bundle", made)
    bundled = headline.bundled.__wrapped__
    folder = tmp_path / "pytest-mlperf"

    assert [bundled() for _ in range(3)] == ["text"] * 3
    (file,) = folder.iterdir()
    assert (made.call_count, file.suffix) == (1, ".js")
    for content in (b"", b"\xff\xfe"):
        file.write_bytes(content)
        assert (bundled(), file.read_text("utf-8")) == ("text", "text")
    shutil.rmtree(folder)
    folder.touch()
    made.reset_mock()
    assert [bundled() for _ in range(2)] == ["text"] * 2
    assert made.call_count == 2
