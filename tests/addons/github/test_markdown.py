"""Markdown for GitHub: the verdict first, nothing of foreign text acts, limits are kept."""

from __future__ import annotations

import re
from dataclasses import replace
from inspect import signature
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_mlperf.addons.github import comment, markdown
from pytest_mlperf.addons.github.comment import MARKER
from pytest_mlperf.addons.github.markdown import code
from pytest_mlperf.core.results import UNVERIFIED_LABEL, Absent, CaseResult
from pytest_mlperf.core.untrusted_text import markdown_text
from pytest_mlperf.core.verdict import Outcome
from tests.reports import verdicts
from tests.reports.verdicts import (
    CASE,
    DROP,
    OK,
    TOO_SHORT,
    reported,
    result,
    run,
    session,
    verdict,
)

GONE = [Absent(test="s.mlperf.toml::test_performance[x]", reason="the runner was lost")]
HOSTILE = "</details><script>alert(1)</script> @everyone #1 | **x** [a](javascript:b)\n::error::"

COMMENT = f"""\
{MARKER}
**mlperf: failed: 1 PERF DROP**

2 tests: 1 PERF DROP, 1 ok; 3 min 20 s of measuring at commit 9d0e77a1b2c3

### What failed

**No recorded difference \\(engine, weights, options, data\\)** (1 test)

- **PERF DROP** samples/s −6.3 % \\(−6.9 to −5.7 %\\); limit −3 % exceeded: 24,118 → \
22,598 samples/s, 6.3 % slower (`resnet50-Offline-ort-fp16-H200`)
  - reproduce: `pytest "suites/rn.mlperf.toml::test_performance[resnet50-Offline-ort-fp16-H200]"`


### Not ok

| case | test | verdict | metric | baseline | now | vs base | interval | limit |
"""


def commented(*results: CaseResult, **fields: Any) -> str:
    return comment.report(reported(session(*results), **fields))


def summary(*results: CaseResult, **fields: Any) -> str:
    return markdown.report(reported(session(*results), **fields))


def many(outcome: CaseResult, count: int) -> list[CaseResult]:
    return [
        replace(
            outcome,
            verdict=replace(outcome.verdict, case=replace(CASE, workload=f"w{number:04}")),
        )
        for number in range(count)
    ]


def test_the_comment_begins_with_the_verdict_and_folds_what_is_ok() -> None:
    unexplained = replace(DROP, baseline=replace(DROP.baseline, changed=()))
    text = commented(result(unexplained), result(OK))

    assert text.startswith(COMMENT)
    rows = [line for line in text.splitlines() if line.startswith("| resnet50")]
    assert len(rows) == 2
    assert text.index("<details>") < text.index(rows[1]) < text.index("</details>")
    assert "PERF DROP" in rows[0]
    options = '--mlperf-update=replace --mlperf-accept-regression --mlperf-reason "why"'
    assert f"`pytest suites/rn.mlperf.toml {options}`" in text
    assert text.endswith(f"\n{UNVERIFIED_LABEL}\n")


def test_a_comment_names_the_strongest_cause_once_for_the_tests_that_share_it() -> None:
    changed = replace(
        DROP,
        baseline=replace(
            DROP.baseline, changed=("engine.version 1 → 2", "files.other 1 in git: a.py")
        ),
    )
    shared = many(result(changed), 5)

    comment_text = commented(*shared, result(OK))

    section = comment_text.partition("### What failed\n\n")[2].partition("\n\n\n")[0]
    assert section.startswith(
        "**Likely: engine.version 1 → 2 since the baseline** (5 tests)\n\n- **P"
    )
    assert [section.count(text) for text in ("**Likely", "- **PERF DROP**", "reproduce")] == [
        1,
        5,
        5,
    ]
    unexplained = result(replace(DROP, baseline=replace(DROP.baseline, changed=())))
    assert "Likely" not in commented(unexplained, result(OK))
    mixed = commented(result(verdicts.ERROR), *many(result(changed), 30))
    assert mixed.index("**Likely: engine.version") < mixed.index("**No common cause** (1 test)")
    assert "- and 20 more, listed below\n" in mixed


def test_a_table_has_the_baseline_and_a_sentence_only_in_its_notes() -> None:
    """For scores the baseline is the one of the paired comparison."""
    rows: list[Any] = [
        (DROP, "samples/s", "24,118", ""),
        (verdicts.ACC_DROP, "rouge1", "44.391", ""),
        (verdicts.GATE_FAIL, "top1", "", ""),
        (verdicts.INVALID, "", "", verdicts.INVALID.headline),
    ]
    text = summary(*(result(one) for one, *_ in rows))
    head, _, *table = text.partition("### Every test\n\n")[2].partition("\n\n")[0].splitlines()
    names = [name.strip() for name in head.strip("|").split("|")]
    assert names[-1] == "note"
    for (case_result, *expected), line in zip(rows, table, strict=True):
        cells = dict(zip(names, (cell.strip() for cell in line.strip("|").split("|")), strict=True))
        assert cells["verdict"] == case_result.outcome
        assert [cells[name] for name in ("metric", "baseline", "note")] == expected
    assert "| note |" not in summary(result(DROP))


def test_a_repeated_run_is_noted() -> None:
    again = replace(OK, invalid_runs=(replace(run(1), invalid=(TOO_SHORT,)),))
    sentence = "`: 1 run INVALID, measured again: LoadGen: the run was too short\n"

    assert sentence in commented(result(again))
    assert sentence in summary(result(again))
    assert "easured again" not in summary(result(OK))


def test_facts_are_listed_once_for_the_tests_of_a_case() -> None:
    facts = {"cost <b>": "3 USD", "owner": HOSTILE}
    both = [replace(result(one), facts=facts) for one in (OK, DROP)]

    section = summary(*both).partition("### Facts\n\n")[2].partition("\n\n")[0]

    first, second = section.splitlines()
    assert first == f"- `{CASE.id}`: cost &lt;b&gt;: 3 USD"
    assert second == f"- `{CASE.id}`: {markdown_text(f'owner: {HOSTILE}')}"
    assert "### Facts" not in summary(replace(both[0], facts={}))


def test_the_first_line_has_the_deciding_outcome() -> None:
    """The summary says why and shows every test."""
    rows: list[Any] = [
        ([], [], "mlperf: nothing was measured"),
        ([result(OK)], [], "mlperf: no drop proven in 1 test"),
        ([result(DROP)], GONE, "mlperf: failed: 1 PERF DROP, 1 planned test without a result"),
        ([result(OK)], GONE, "mlperf: failed: 1 planned test without a result"),
        (
            [result(verdict(Outcome.NO_BASELINE, "no record of this machine"))],
            [],
            "mlperf: no drop proven in 1 test, 1 undecided or without a baseline",
        ),
    ]
    for results, absent, first in rows:
        assert commented(*results, absent=absent).splitlines()[1] == f"**{first}**"
        assert summary(*results, absent=absent).splitlines()[0] == f"## {first}"
    text = summary(result(DROP), result(OK), absent=GONE)
    assert (
        "- **PERF DROP** samples/s −6.3 % \\(−6.9 to −5.7 %\\); limit −3 % exceeded: "
        "24,118 → 22,598 samples/s, 6.3 % slower (`resnet50-" in text
    )
    assert "  - changed: engine.version 1.20.0 → 1.20.1" in text
    assert "- `s.mlperf.toml::test_performance[x]`: the runner was lost" in text
    assert text.count("\n| resnet50") == 2


def test_foreign_text_is_words_and_nothing_else() -> None:
    """No HTML, no markup, no mention, no new cell, no new line; links are plain https."""
    escaped_text = markdown_text(HOSTILE)
    assert not set("<>@\n") & set(escaped_text)
    assert escaped_text.startswith(
        "&lt;/details&gt;&lt;script&gt;alert\\(1\\)&lt;/script&gt; &#64;every"
    )
    assert "\\|" in escaped_text
    bad = replace(DROP, headline=HOSTILE, notes=(HOSTILE,), case=replace(CASE, engine=HOSTILE))
    for text in (commented(result(bad))), summary(result(bad)):
        outside = re.sub(r"(`+).*?\1", "", text)  # code is shown as it stands
        assert "<script>" not in outside
        assert "@everyone" not in outside
        assert "](javascript" not in outside
    rows = [
        ("https://github.com/o/r/actions/runs/1", True),
        ("javascript:alert(1)", False),
        ("https://x.y/a)[b](c", False),
        (None, False),
    ]
    for url, there in rows:
        text = commented(result(OK), arguments={"run_url": url})
        assert ("Details: [the run](" in text) is there


@given(text=st.text(max_size=60))
def test_code_cannot_be_left(text: str) -> None:
    """Whatever backticks it holds: no run of them is as long as the fence."""
    markdown = code(text)

    opening, *inside, closing = re.findall("`+", markdown)
    assert markdown.startswith(opening)
    assert markdown.endswith(closing)
    assert opening == closing
    assert all(len(run) < len(opening) for run in inside)
    assert "\n" not in markdown


def test_a_comment_and_a_summary_never_exceed_their_limits() -> None:
    """What was cut is counted."""
    for count in (1, 400, 2000):
        text = commented(*many(result(DROP), count), *many(result(OK), count))
        assert len(text.encode()) <= 65_536
        assert text.endswith(f"\n{UNVERIFIED_LABEL}\n")
        assert text.count("<details>") == text.count("</details>")
        assert ("left out because of GitHub's size limit: see the artifact." in text) is (count > 1)
    of_many = session(*many(result(DROP), 100))

    assert len(markdown.report(reported(of_many)).encode()) > 30_000
    assert len(markdown.report(reported(of_many), limit=20_000).encode()) <= 20_000
    assert signature(markdown.report).parameters["limit"].default == 1_048_576


def test_provisional_outcomes_are_counted_apart_with_their_remedy() -> None:
    """Once for all cases alike; what failed says it with the failure."""
    others = [
        replace(verdicts.PROVISIONAL_OK, case=replace(verdicts.CASE, engine=f"e{n}"))
        for n in range(4)
    ]
    passed = session(*(result(one) for one in [*others, verdicts.NO_BASELINE]))
    missing = "baseline has 1 of 4 days: run the baseline's build with "

    comment_text = comment.report(reported(passed))

    assert (
        "no drop proven in 5 tests, 4 provisional, 1 undecided or without a baseline"
        in comment_text
    )
    assert comment_text.count(missing) == comment_text.count(f"\n- 4 cases: {missing}") == 1
    failed = summary(result(verdicts.PROVISIONAL_DROP))
    assert "failed: 1 PROVISIONAL" in failed
    assert "\n  - 4 days of baseline do not show the day-to-day" in failed
    assert "### Provisional" not in failed
