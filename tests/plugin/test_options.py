"""Test options and their ini settings: their effect, and refusals in one line."""

from __future__ import annotations

import json
import re

import pytest

from pytest_mlperf.core import numbers as ranges
from pytest_mlperf.plugin import options as option_values
from pytest_mlperf.plugin.measuring import reproducing
from pytest_mlperf.plugin.options import Options, read_options
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.stores.database import store_of
from pytest_mlperf.stores.results import read_results
from tests.exporters import exporting, page
from tests.plugin.project import OFFLINE, RATE, Project, last_line, near, section, spec_of

NAMES = [
    ("profile", "official", "official"),
    ("accelerator", "cpu", "cpu"),
    ("pretend", "H200", "H200"),
    ("update", "missing", "missing"),
    ("reason", "new driver", "new driver"),
    ("fail-on", "skips,no:no-baseline", {"skips", "no:no-baseline"}),
    ("max-runs", "3", 3),
    ("confirm", "never", "never"),
    ("against", "v1", "v1"),
    ("requests", "yes", "yes"),
    ("accept-cut", "yes", "yes"),
    ("accept-regression", "yes", "yes"),
    ("judge-benchmarks", "yes", "yes"),
    ("handicap", "25%", 0.25),
    ("compliance", "yes", "yes"),
    ("resume", "last", "last"),
    ("drift", "warn", "warn"),
    ("on", "ray://head:10001", "ray://head:10001"),
]
SETTINGS = [
    ("baseline-runs", "6", 6),
    ("control", "off", "off"),
    ("meter-offset", "-3600", -3600.0),
    ("dcgm-gpus", "GPU-1,GPU-2", ("GPU-1", "GPU-2")),
    ("lease-timeout", "60", 60.0),
    ("wait-idle", "5", 5.0),
    ("power", "off", "off"),
    ("warmup", "always", "always"),
    ("neighbours", "yes", "yes"),
    ("benchmark-max-rise", "3%", "3%"),
    ("benchmark-metric", "min", "min"),
    ("benchmark-accelerator", "H200", "H200"),
    ("timeout", "30", 30.0),
    ("drift-since", "2026-11-01", "2026-11-01"),
]
"""Of ini files alone."""

PATHS = ["baselines", "manifest", "meter", "runs-dir", "json", "suspects", "sign"]


def field(options: Options, name: str) -> object:
    return options.by_name[name.replace("-", "_")]


def read(pytester: pytest.Pytester, *arguments: str, ini: str = "") -> Options:
    """Return the options of a command line and an ini file, without those of the environment."""
    pytester.makeini(f"[pytest]\n{ini}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:anyio")
        return read_options(pytester.parseconfig("--rootdir", pytester.path, *arguments))


def set_by(name: str, text: str) -> tuple[str, str]:
    """Return the argument and the line of an ini file that set an option."""
    ini = f"mlperf_{name.replace('-', '_')}"
    settings = {setting for setting, *_ in SETTINGS}
    argument = f"-o{ini}={text}" if name in settings else f"--mlperf-{name}={text}"
    return argument, f"{ini} = {text}"


def refusal(pytester: pytest.Pytester, *arguments: str, ini: str = "") -> str:
    """Return the message that refuses a command line."""
    try:
        return f"accepted: {read(pytester, *arguments, ini=ini)}"
    except pytest.UsageError as error:
        return str(error)


def test_an_ini_setting_equals_its_option(pytester: pytest.Pytester) -> None:
    rows = [*NAMES, *SETTINGS]
    values: dict[str, tuple[object, object]] = {}
    for alone in (False, True):  # what is slowed, pretended or compared records nothing
        names = [name for name, *_ in rows if (name == "update") is alone]
        texts = [set_by(name, text) for name, text, _ in rows if name in names]
        by_option = read(pytester, *(argument for argument, _ in texts))
        by_ini = read(pytester, ini="\n".join(ini for _, ini in texts))
        values |= {name: (field(by_option, name), field(by_ini, name)) for name in names}

    assert values == {name: (value, value) for name, _, value in rows}
    unknown = [f"--mlperf-{name}={text}" for name, text, _ in SETTINGS]
    with pytest.raises(pytest.UsageError, match="unrecognized arguments") as refused:
        pytester.parseconfig(*unknown)
    assert [argument for argument in unknown if argument not in str(refused.value)] == []
    assert read(pytester, "--mlperf-accelerator=8xh100").accelerator == "8xH100"
    # The command line wins over the ini file.
    both = read(pytester, "--mlperf-max-runs=4", ini="mlperf_max_runs = 3\nmlperf_handicap = 50%")
    assert (both.max_runs, both.handicap) == (4, 0.5)
    plans = read(pytester), read(pytester, "--mlperf-plan"), read(pytester, ini="mlperf_plan = 1")
    assert [options.plan for options in plans] == [False, True, True]


def test_the_page_of_an_exporter_is_read_wherever_it_is_named(pytester: pytest.Pytester) -> None:
    sample = 'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{UUID="GPU-a"} 7\n'
    with exporting(page(sample)) as exporter:
        by_option = read(pytester, f"--mlperf-dcgm={exporter.url}")
        by_ini = read(pytester, ini=f"mlperf_dcgm = {exporter.url}")

    assert by_option.energy.dcgm == by_ini.energy.dcgm == exporter.url
    assert by_option.metered
    assert exporter.requests == 1


def test_fail_on_takes_a_list(pytester: pytest.Pytester) -> None:
    for text in ("skips,inconclusive", "skips inconclusive", "skips\n inconclusive"):
        ini = f"mlperf_fail_on = {text}"
        assert read(pytester, ini=ini).fail_on == {"skips", "inconclusive"}
        assert read(pytester, "--mlperf-fail-on=no:skips", ini=ini).fail_on == {"no:skips"}


def test_confirm_may_stand_without_a_value(pytester: pytest.Pytester) -> None:
    """As the flag that it was, also before a file or folder to collect, and in an ini file."""
    rows: list[tuple[list[str], str, str]] = [
        ([], "", "auto"),
        (["--mlperf-confirm"], "", "always"),
        (["--mlperf-confirm", "."], "", "always"),
        (["--mlperf-confirm", "never", "."], "", "never"),
        ([], "true", "always"),
        ([], "false", "never"),
        ([], "Yes", "always"),
        ([], "0", "never"),
        (["--mlperf-confirm=auto"], "never", "auto"),
    ]
    read_rows = []
    for arguments, ini, _ in rows:
        pytester.makeini(f"[pytest]\n{f'mlperf_confirm = {ini}' if ini else ''}\n")
        config = pytester.parseconfig(*arguments)
        read_rows.append((arguments, ini, read_options(config).confirm))
        assert config.args == ["."] if "." in arguments else config.args == [str(pytester.path)]

    assert read_rows == rows


def test_update_takes_a_word_or_none_before_a_path(pytester: pytest.Pytester) -> None:
    """A path with the name of a word is written as ./replace."""
    reason = "--mlperf-reason=x"
    pytester.mkdir("replace")
    rows: list[tuple[list[str], str | None, list[str]]] = [
        ([], None, [str(pytester.path)]),
        (["--mlperf-update"], "missing", [str(pytester.path)]),
        (["--mlperf-update", "."], "missing", ["."]),
        (["--mlperf-update", "gone.mlperf.toml"], "missing", ["gone.mlperf.toml"]),
        (["--mlperf-update", "./replace"], "missing", ["./replace"]),
        (["--mlperf-update", "replace", reason, "."], "replace", ["."]),
        (["--mlperf-update=replace", reason, "."], "replace", ["."]),
        (["--mlperf-update=append", reason], "append", [str(pytester.path)]),
    ]
    for arguments, word, paths in rows:
        config = pytester.parseconfig("--rootdir", pytester.path, *arguments)
        assert (read_options(config).update, config.args) == (word, paths)

    expected = "--mlperf-update: 'always' is not valid; expected missing|append|replace: "
    for arguments in (["--mlperf-update=always"], ["--mlperf-update", "always"]):
        assert refusal(pytester, *arguments).startswith(expected)
    assert refusal(pytester, ini="mlperf_update = always").startswith(expected)


def test_a_reproduction_keeps_the_value_of_an_option_and_no_file() -> None:
    unkept = ["-o", "mlperf_update=replace", "-o", "mlperf_reason=x", "-oconsole_output_style=none"]
    rows: list[tuple[list[str], tuple[str, ...]]] = [
        (["--mlperf-confirm", "suites"], ("--mlperf-confirm",)),
        (["--mlperf-confirm", "never", "suites"], ("--mlperf-confirm", "never")),
        (["--mlperf-confirm=always"], ("--mlperf-confirm=always",)),
        (["--mlperf-against", "v1", "suites"], ("--mlperf-against", "v1")),
        (["--mlperf-against", "tests", "suites"], ("--mlperf-against",)),
        (["--mlperf-max-runs", "3", "suites"], ("--mlperf-max-runs", "3")),
        (["--mlperf-judge-benchmarks", "tests"], ("--mlperf-judge-benchmarks",)),
        (["--mlperf-compliance", "suites"], ("--mlperf-compliance",)),
        (["--mlperf-update", "--mlperf-accept-regression", "suites"], ()),
        (["--mlperf-fail-on", "skips", "suites"], ("--mlperf-fail-on", "skips")),
        (["-o", "mlperf_control=off", "suites"], ("-o", "mlperf_control=off")),
        (["-omlperf_control=off", "-o", "addopts="], ("-o", "mlperf_control=off")),
        (["--override-ini=mlperf_max_runs=3"], ("-o", "mlperf_max_runs=3")),
        (unkept, ()),
    ]
    assert [(arguments, reproducing(arguments)) for arguments, _ in rows] == rows


def test_every_option_is_covered_here(pytester: pytest.Pytester) -> None:
    covered = {name for name, *_ in NAMES} | {name for name, *_ in SETTINGS} | set(PATHS)
    covered |= {"plan", "report", "dcgm", "store"}

    options = read(pytester)
    assert {name.replace("-", "_") for name in covered} == options.by_name.keys() | {
        "plan",
        "report",
    }


def test_a_relative_path_starts_at_the_ini_file_or_at_the_working_folder(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = pytester.mkdir("below")
    monkeypatch.chdir(below)
    paths = (pytester.path / "here", below / "there", pytester.path / "x")
    failures = []
    for name in PATHS:
        text = {"meter": "time,watts\n"}.get(name, '{"kind": "none"}')  # these are looked at
        for path in paths:
            path.write_text(text, "utf-8")
        by_ini = read(pytester, ini=f"mlperf_{name.replace('-', '_')} = here")
        by_option = read(pytester, f"--mlperf-{name}=there")
        absolute = read(pytester, f"--mlperf-{name}={pytester.path}/x")
        if tuple(field(options, name) for options in (by_ini, by_option, absolute)) != paths:
            failures.append(name)
    assert failures == []

    stores = {"sqlite": ".mlperf/results.db", "a.db": "a.db", "sqlite:///a.db": "a.db"}
    assert {
        text: store_of(read(pytester, ini=f"mlperf_store = {text}").by_name) for text in stores
    } == {text: str(pytester.path / file) for text, file in stores.items()}


def test_a_bad_value_is_refused_with_the_valid_ones(
    pytester: pytest.Pytester,
) -> None:
    rows = {
        "profile": ["fast"],
        "baseline-runs": ["0", "many"],
        "max-runs": ["1"],
        "power": ["on"],
        "handicap": ["100%", "150%", "-1%", "half", "nan"],
        "timeout": ["0", "nan", "inf", "1min"],
        "lease-timeout": ["-5"],
        "wait-idle": ["-1", "nan"],
        "on": ["ray", "ray://head"],
        "confirm": ["nevre"],
        "fail-on": ["skips,no:skips", ","],
    }
    settings = {setting for setting, *_ in SETTINGS}
    failures = []
    for name, texts in rows.items():
        label = f"mlperf_{name.replace('-', '_')}" if name in settings else f"--mlperf-{name}"
        messages = [refusal(pytester, ini=set_by(name, texts[0])[1])]
        messages += [refusal(pytester, set_by(name, text)[0]) for text in texts]
        for text, message in zip([texts[0], *texts], messages, strict=True):
            if not message.startswith(f"{label}: {text!r} is not valid; expected "):
                failures.append(message)
    assert failures == []
    for text, meant in (("--mlperf-handicap=50", "'50%'"), ("--mlperf-handicp=50%", "handicap")):
        assert f"did you mean {'' if '%' in meant else '--mlperf-'}{meant}?" in refusal(
            pytester, text
        )
    empty = refusal(pytester, "--mlperf-confirm=")
    assert empty.startswith("--mlperf-confirm: '' is not valid; expected auto|always|never: ")


def test_options_that_are_unknown_or_exclude_or_need_each_other_are_refused(
    pytester: pytest.Pytester,
) -> None:
    reason = '--mlperf-reason "why this value is accepted"'
    rows = {
        "fail-on=skip": "fail-on: unknown word 'skip'; did you mean 'skips'?",
        "fail-on=skips,no:baseline": (
            "fail-on: unknown word 'no:baseline'; did you mean 'no:no-baseline'?"
        ),
        "update=missing --mlperf-handicap=50%": "update cannot record runs with "
        "--mlperf-handicap; remove one of them",
        "update=missing --mlperf-pretend=H200": "update cannot record runs with "
        "--mlperf-pretend; remove one of them",
        "update=replace": f"update=replace needs {reason}",
        "update=append": f"update=append needs {reason}",
    }
    assert {text: refusal(pytester, *f"--mlperf-{text}".split()) for text in rows} == {
        text: f"--mlperf-{message}" for text, message in rows.items()
    }


def test_a_session_that_is_refused_prints_one_line(project: Project) -> None:
    rows = {
        ("--mlperf-update=append",): "--mlperf-update=append needs --mlperf-reason *",
        ("-n2", "--mlperf-on=head:6379"): "--mlperf-on cannot be combined with -n; remove -n*",
    }
    for arguments, line in rows.items():
        result = project.run(*arguments)

        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert len([text for text in result.errlines if text]) == 1
        result.stderr.fnmatch_lines([f"ERROR: {line}"])


def test_help_lists_every_option_and_markers_the_marker(project: Project) -> None:
    options = project.run("--help").stdout.str()
    markers = project.run("--markers").stdout.str()

    for name in read(project.pytester).by_name:
        is_option = name not in {each.replace("-", "_") for each, *_ in SETTINGS}
        assert (f"  --mlperf-{name.replace('_', '-')}" in options) is is_option
        assert f"  mlperf_{name} (" in options
    fields = "workload, scenario, engine, precision, accelerator, power_limit_w, kind, round"
    assert f"@pytest.mark.mlperf({fields})" in markers


@pytest.mark.parametrize("distribution", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_a_plan_lists_the_chosen_cases_and_runs_nothing(
    project: Project, distribution: list[str]
) -> None:
    stream = '[[scenarios]]\nname = "SingleStream"\nmin_duration = "2min"\n'
    project.suite(top1=100.0, scenarios=OFFLINE + stream)
    project.pytester.makepyfile("def test_own(): open('ran', 'w')")
    run = project.run_process if distribution else project.run

    result = run("suites", "test_a_plan_lists_the_chosen_cases_and_runs_nothing.py",
                 "--mlperf-plan", *distribution)  # fmt: skip

    assert result.ret == pytest.ExitCode.OK
    offline, stream = (line for line in section(result) if line.startswith("first-"))
    assert offline.split()[0] == "first-Offline-null-fp32-cpu"
    assert stream.split()[:1] == ["first-SingleStream-null-fp32-cpu"]
    assert re.search(r"\b2 min\b.*\b10 min\b.*\baccuracy, performance$", stream)
    assert any(line.startswith("2 cases: usually 4 min") for line in section(result))
    assert not (project.path / ".mlperf").exists()
    assert not (project.path / "ran").exists()


def test_a_plan_is_of_every_accelerator_or_of_a_pretended_one(project: Project) -> None:
    project.suite(accelerators=["cpu", "H200", "8xH100"])
    absent = "accelerator not here: 8xH100 (1)"
    rows: list[tuple[tuple[str, ...], str, list[str]]] = [
        ((), f"2 tests planned, {absent}, H200 (1); here: cpu (", ["cpu", "H200", "8xH100"]),
        (
            ("--mlperf-pretend", "H200"),
            f"1 test deselected, {absent}; here: cpu (",
            ["cpu", "H200"],
        ),
    ]
    for arguments, first, accelerators in rows:
        result = project.run("suites", "--mlperf-plan", *arguments)

        assert result.ret == pytest.ExitCode.OK
        lines = section(result)
        assert lines[0].startswith(first)
        planned = [line.split()[0] for line in lines if line.startswith("first-")]
        assert planned == [f"first-Offline-null-fp32-{name}" for name in accelerators]


def test_a_plan_shows_mlperfs_own_durations_and_of_a_broken_suite_is_no_success(
    project: Project,
) -> None:
    path = project.suite()

    result = project.run("suites", "--mlperf-plan", "--mlperf-profile=official")

    (line,) = (line for line in section(result) if line.startswith("first-"))
    assert re.search(r"\b10 min\b.*\b50 min\b.*\bperformance$", line)
    path.write_text("schema = 2\n", "utf-8")
    assert project.run("suites", "--mlperf-plan").ret == pytest.ExitCode.TESTS_FAILED


def test_one_session_with_an_accelerator_a_handicap_and_paths_elsewhere(project: Project) -> None:
    """The baseline in the default folder is twice as fast: it would fail the test."""
    project.suite(accelerators=["cpu", "H200"])
    project.baseline(near(RATE))
    project.baseline(near(RATE / 2), folder="loose")

    result = project.run(
        "suites", "--mlperf-accelerator", "cpu", "--mlperf-json", "out/mine.json",
        "--mlperf-runs-dir", "elsewhere", "--mlperf-baselines", "loose",
        "--mlperf-handicap", "50%",
    )  # fmt: skip

    assert last_line(result) == "1 passed, 1 deselected"
    deselected = "1 test deselected, accelerator not here: H200 (1); here: cpu ("
    assert section(result)[0].startswith(deselected)
    written = read_results(project.path / "out/mine.json")
    (results_file,) = project.path.glob("elsewhere/runs/*/results.json")
    assert read_results(results_file) == written
    assert written.deselected == {"H200": 1}
    assert not (project.path / ".mlperf").exists()
    (case_result,) = written.cases
    assert case_result.verdict.baseline.file == "loose/cpu/quick/first/Offline.null.fp32.json"
    specs = [spec_of(file.parent) for file in project.path.glob("elsewhere/runs/*/*/spec.json")]
    assert {spec["handicap"] for spec in specs} == {0.5}


def test_a_report_that_cannot_be_written_is_exit_3(project: Project) -> None:
    """A folder of runs before anything is measured; a file of results is named at the end."""
    path = project.suite()
    project.baseline(near(RATE))

    runs = project.run("suites", "--mlperf-runs-dir", path / "runs")
    results = project.run("suites", "--mlperf-json", path / "results.json")

    assert (runs.ret, results.ret) == (3, 3)
    runs.stdout.fnmatch_lines(["!*mlperf: * cannot be written *--mlperf-runs-dir*"])
    assert last_line(results) == "1 passed"
    assert section(results)[-1].startswith(f"ERROR {path}/results.json: ")


def test_the_profile_option_overrules_every_suite(project: Project) -> None:
    project.suite()
    project.breaks()
    official = project.path / "baselines/cpu/official/first/Offline.null.fp32.json"
    official.parent.mkdir(parents=True)
    official.write_text(json.dumps({"schema": 99}), "utf-8")

    project.run("suites", "--mlperf-profile=official")

    case_result = project.cases()["performance"]
    assert case_result.profile == "official"
    assert "schema 99" in sentence(case_result.verdict.headline)


def test_as_many_runs_may_be_asked_for_as_a_results_file_holds() -> None:
    assert option_values.MAX_RUNS == ranges.MAX_RUNS
