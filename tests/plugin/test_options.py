"""Options and their ini settings: what they mean, and what is refused in one line."""

from __future__ import annotations

import json
import re

import pytest

from pytest_mlperf.core import numbers as ranges
from pytest_mlperf.plugin import options as option_values
from pytest_mlperf.plugin.measuring import reproducing
from pytest_mlperf.plugin.options import Options, read_options
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
    ("requests", "yes", "yes"),
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
    return getattr(options, name.replace("-", "_"))


@pytest.mark.parametrize(("name", "text", "value"), NAMES)
def test_an_ini_setting_equals_its_option(
    pytester: pytest.Pytester, name: str, text: str, value: object
) -> None:
    by_option = read_options(pytester.parseconfig(f"--mlperf-{name}={text}"))
    pytester.makeini(f"[pytest]\nmlperf_{name.replace('-', '_')} = {text}\n")
    by_ini = read_options(pytester.parseconfig())

    assert field(by_option, name) == field(by_ini, name) == value


@pytest.mark.parametrize(("name", "text", "value"), SETTINGS)
def test_what_is_seldom_set_is_set_in_ini_files_alone(
    pytester: pytest.Pytester, name: str, text: str, value: object
) -> None:
    ini = f"mlperf_{name.replace('-', '_')}"
    by_override = read_options(pytester.parseconfig("-o", f"{ini}={text}"))
    pytester.makeini(f"[pytest]\n{ini} = {text}\n")
    by_ini = read_options(pytester.parseconfig())

    assert field(by_override, name) == field(by_ini, name) == value
    with pytest.raises(pytest.UsageError, match="unrecognized arguments"):
        pytester.parseconfig(f"--mlperf-{name}={text}")


def test_the_page_of_an_exporter_is_read_wherever_it_is_named(pytester: pytest.Pytester) -> None:
    sample = 'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{UUID="GPU-a"} 7\n'
    with exporting(page(sample)) as exporter:
        by_option = read_options(pytester.parseconfig(f"--mlperf-dcgm={exporter.url}"))
        pytester.makeini(f"[pytest]\nmlperf_dcgm = {exporter.url}\n")
        by_ini = read_options(pytester.parseconfig())

    assert by_option.dcgm == by_ini.dcgm == exporter.url
    assert by_option.metered
    assert exporter.asked == 1


@pytest.mark.parametrize(
    "text", ["skips,inconclusive", "skips inconclusive", "skips\n inconclusive"]
)
def test_what_fails_is_a_list(pytester: pytest.Pytester, text: str) -> None:
    pytester.makeini(f"[pytest]\nmlperf_fail_on = {text}\n")

    assert read_options(pytester.parseconfig()).fail_on == {"skips", "inconclusive"}
    assert read_options(pytester.parseconfig("--mlperf-fail-on=no:skips")).fail_on == {"no:skips"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("skip", "'skip' is not known; did you mean 'skips'?"),
        ("skips,no:baseline", "'no:baseline' is not known; did you mean 'no:no-baseline'?"),
        ("skips,no:skips", "'skips,no:skips' is not valid; expected WORD"),
        (",", "',' is not valid; expected WORD"),
    ],
)
def test_a_word_that_does_not_exist_is_told_with_the_one_that_is_near(
    pytester: pytest.Pytester, text: str, message: str
) -> None:
    with pytest.raises(pytest.UsageError, match=re.escape(f"--mlperf-fail-on: {message}")):
        read_options(pytester.parseconfig(f"--mlperf-fail-on={text}"))


@pytest.mark.parametrize("name", ["plan"])
def test_an_ini_setting_equals_its_flag(pytester: pytest.Pytester, name: str) -> None:
    without = read_options(pytester.parseconfig())
    by_option = read_options(pytester.parseconfig(f"--mlperf-{name}"))
    pytester.makeini(f"[pytest]\nmlperf_{name} = true\n")
    by_ini = read_options(pytester.parseconfig())

    assert (field(without, name), field(by_option, name), field(by_ini, name)) == (
        False,
        True,
        True,
    )


@pytest.mark.parametrize(
    ("given", "ini", "value"),
    [
        ([], "", "auto"),
        (["--mlperf-confirm"], "", "always"),
        (["--mlperf-confirm", "."], "", "always"),
        (["--mlperf-confirm", "never", "."], "", "never"),
        ([], "true", "always"),
        ([], "false", "never"),
        ([], "Yes", "always"),
        ([], "0", "never"),
        (["--mlperf-confirm=auto"], "never", "auto"),
    ],
)
def test_confirm_may_stand_without_a_value(
    pytester: pytest.Pytester, given: list[str], ini: str, value: str
) -> None:
    """As the flag that it was, also before a file or folder to collect, and in an ini file."""
    pytester.makeini(f"[pytest]\n{f'mlperf_confirm = {ini}' if ini else ''}\n")

    config = pytester.parseconfig(*given)

    assert read_options(config).confirm == value
    assert config.args == ["."] if "." in given else config.args == [str(pytester.path)]


def test_what_confirm_does_not_know_is_refused_in_one_line(pytester: pytest.Pytester) -> None:
    for given in ("nevre", ""):
        wrong = rf"'{given}' is not valid; expected auto\|always"
        with pytest.raises(pytest.UsageError, match=wrong):
            read_options(pytester.parseconfig(f"--mlperf-confirm={given}"))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--mlperf-confirm", "suites"], ("--mlperf-confirm",)),
        (["--mlperf-confirm", "never", "suites"], ("--mlperf-confirm", "never")),
        (["--mlperf-confirm=always"], ("--mlperf-confirm=always",)),
        (["--mlperf-max-runs", "3", "suites"], ("--mlperf-max-runs", "3")),
        (["--mlperf-judge-benchmarks", "tests"], ("--mlperf-judge-benchmarks",)),
        (["--mlperf-fail-on", "skips", "suites"], ("--mlperf-fail-on", "skips")),
        (["-o", "mlperf_control=off", "suites"], ("-o", "mlperf_control=off")),
        (["-omlperf_control=off", "-o", "addopts="], ("-o", "mlperf_control=off")),
        (["--override-ini=mlperf_max_runs=3"], ("-o", "mlperf_max_runs=3")),
        (
            ["-o", "mlperf_update=replace", "-o", "mlperf_reason=x", "-oconsole_output_style=none"],
            (),
        ),
    ],
)
def test_a_reproduction_keeps_the_value_of_an_option_and_no_file(
    given: list[str], kept: tuple[str, ...]
) -> None:
    assert reproducing(given) == kept


def test_every_option_is_covered_here() -> None:
    covered = {name for name, *_ in NAMES} | {name for name, *_ in SETTINGS} | set(PATHS)
    covered |= {"plan", "report", "dcgm", "store"}

    assert {name.replace("-", "_") for name in covered} == set(Options.__dataclass_fields__)


@pytest.mark.parametrize(
    ("text", "file"),
    [("sqlite", ".mlperf/results.db"), ("a.db", "a.db"), ("sqlite:///a.db", "a.db")],
)
def test_a_store_in_a_file_starts_at_the_ini_file(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, text: str, file: str
) -> None:
    pytester.makeini(f"[pytest]\nmlperf_store = {text}\n")
    monkeypatch.chdir(pytester.mkdir("below"))

    options = read_options(pytester.parseconfig("--rootdir", pytester.path))

    assert options.store == str(pytester.path / file)


def test_the_command_line_wins_over_the_ini_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmlperf_max_runs = 3\nmlperf_handicap = 50%\n")

    options = read_options(pytester.parseconfig("--mlperf-max-runs=4"))

    assert (options.max_runs, options.handicap) == (4, 0.5)


@pytest.mark.parametrize("name", PATHS)
def test_a_relative_path_starts_at_the_ini_file_or_at_the_working_folder(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    below = pytester.mkdir("below")
    pytester.makeini(f"[pytest]\nmlperf_{name.replace('-', '_')} = here\n")
    monkeypatch.chdir(below)
    text = {"meter": "time,watts\n"}.get(name, '{"kind": "none"}')  # these are looked at
    for path in (pytester.path / "here", below / "there", pytester.path / "x"):
        path.write_text(text, "utf-8")

    by_ini = read_options(pytester.parseconfig("--rootdir", pytester.path))
    by_option = read_options(pytester.parseconfig(f"--mlperf-{name}=there"))
    absolute = read_options(pytester.parseconfig(f"--mlperf-{name}={pytester.path}/x"))

    assert field(by_ini, name) == pytester.path / "here"
    assert field(by_option, name) == below / "there"
    assert field(absolute, name) == pytester.path / "x"


@pytest.mark.parametrize("place", ["option", "ini"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("profile", "fast"),
        ("update", "always"),
        ("baseline-runs", "0"),
        ("baseline-runs", "many"),
        ("fail-on", "maybe"),
        ("max-runs", "1"),
        ("power", "on"),
        ("handicap", "100%"),
        ("handicap", "-1%"),
        ("handicap", "half"),
        ("handicap", "nan"),
        ("timeout", "0"),
        ("timeout", "nan"),
        ("timeout", "inf"),
        ("timeout", "1min"),
        ("lease-timeout", "-5"),
        ("on", "ray"),
        ("on", "ray://head"),
    ],
)
def test_a_bad_value_is_one_line_with_the_value_and_what_would_be_valid(
    project: Project, name: str, text: str, place: str
) -> None:
    ini = f"mlperf_{name.replace('-', '_')}"
    setting = name in {each for each, *_ in SETTINGS}
    option = ["-o", f"{ini}={text}"] if setting else [f"--mlperf-{name}={text}"]
    arguments = option if place == "option" else []
    if place == "ini":
        project.pytester.makeini(f"[pytest]\n{ini} = {text}\n")

    result = project.run(*arguments)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = filter(None, result.errlines)
    assert line.startswith(f"ERROR: {ini if setting else f'--mlperf-{name}'}: {text!r} is not ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("--mlperf-update=missing", "--mlperf-handicap=50%"),
            "--mlperf-update with --mlperf-handicap: such a run is never recorded",
        ),
        (
            ("--mlperf-update=missing", "--mlperf-pretend=H200"),
            "--mlperf-update with --mlperf-pretend: such a run is never recorded",
        ),
        (
            ("-n2", "--mlperf-on=head:6379"),
            "--mlperf-on with -n: one of them can distribute; leave -n away",
        ),
        (
            ("--mlperf-update=replace",),
            '--mlperf-update=replace needs --mlperf-reason "why this value is accepted"',
        ),
        (
            ("--mlperf-update=append",),
            '--mlperf-update=append needs --mlperf-reason "why this value is accepted"',
        ),
    ],
)
def test_options_that_exclude_or_need_each_other_are_refused(
    project: Project, arguments: tuple[str, ...], line: str
) -> None:
    result = project.run(*arguments)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [text for text in result.errlines if text] == [f"ERROR: {line}"]


def test_help_lists_every_option_and_markers_the_marker(project: Project) -> None:
    options = project.run("--help").stdout.str()
    markers = project.run("--markers").stdout.str()

    for name in Options.__dataclass_fields__:
        given = name not in {each.replace("-", "_") for each, *_ in SETTINGS}
        assert (f"  --mlperf-{name.replace('_', '-')}" in options) is given
        assert f"  mlperf_{name} (" in options
    fields = "workload, scenario, engine, precision, accelerator, power_limit_w, kind, round"
    assert f"@pytest.mark.mlperf({fields})" in markers


# --- plan ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_a_plan_lists_the_chosen_cases_and_runs_nothing(
    project: Project, distribution: list[str]
) -> None:
    stream = '[[scenarios]]\nname = "SingleStream"\nmin_duration = "2min"\n'
    project.suite(top1=100.0, scenarios=OFFLINE + stream)

    result = project.run_process("suites", "--mlperf-plan", *distribution)

    assert result.ret == pytest.ExitCode.OK
    offline, stream = (line for line in section(result) if line.startswith("first-"))
    assert offline.split()[0] == "first-Offline-null-fp32-cpu"
    assert stream.split()[:1] == ["first-SingleStream-null-fp32-cpu"]
    assert re.search(r"\b2 min\b.*\b10 min\b.*\baccuracy, performance$", stream)
    assert any(line.startswith("2 cases: 2 min") for line in section(result))
    assert not (project.path / ".mlperf").exists()


def test_a_plan_runs_no_test_of_the_project_either(project: Project) -> None:
    project.pytester.makepyfile("def test_own(): open('ran', 'w')")

    result = project.run("--mlperf-plan")

    assert result.ret == pytest.ExitCode.OK
    assert not (project.path / "ran").exists()


def test_a_plan_of_a_broken_suite_is_no_success(project: Project) -> None:
    project.suite().write_text("schema = 2\n", "utf-8")

    result = project.run("suites", "--mlperf-plan")

    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_plan_is_of_every_accelerator(project: Project) -> None:
    project.suite(accelerators=["cpu", "H200", "8xH100"])

    result = project.run("suites", "--mlperf-plan")

    assert result.ret == pytest.ExitCode.OK
    lines = section(result)
    assert [line.split()[0] for line in lines if line.startswith("first-")] == [
        "first-Offline-null-fp32-cpu",
        "first-Offline-null-fp32-H200",
        "first-Offline-null-fp32-8xH100",
    ]
    planned = "2 tests planned, accelerator not here: 8xH100 (1), H200 (1); here: cpu ("
    assert lines[0].startswith(planned)


def test_a_plan_can_pretend_an_accelerator(project: Project) -> None:
    project.suite(accelerators=["cpu", "H200", "8xH100"])

    result = project.run("suites", "--mlperf-plan", "--mlperf-pretend", "H200")

    lines = section(result)
    assert [line.split()[0] for line in lines if line.startswith("first-")] == [
        "first-Offline-null-fp32-cpu",
        "first-Offline-null-fp32-H200",
    ]
    deselected = "1 test deselected, accelerator not here: 8xH100 (1); here: cpu ("
    assert lines[0].startswith(deselected)


def test_a_plan_of_an_official_suite_shows_mlperfs_own_durations(project: Project) -> None:
    project.suite()

    result = project.run("suites", "--mlperf-plan", "--mlperf-profile=official")

    (line,) = (line for line in section(result) if line.startswith("first-"))
    assert re.search(r"\b10 min\b.*\b50 min\b.*\bperformance$", line)


# --- one run that uses several -------------------------------------------------------------------


def test_a_required_accelerator_runs_its_cases_only(project: Project) -> None:
    project.suite(accelerators=["cpu", "H200"])
    project.baseline(near(RATE))

    result = project.run(
        "suites", "--mlperf-accelerator", "cpu", "--mlperf-json", "out/mine.json",
        "--mlperf-runs-dir", "elsewhere",
    )  # fmt: skip

    assert last_line(result) == "1 passed, 1 deselected"
    deselected = "1 test deselected, accelerator not here: H200 (1); here: cpu ("
    assert section(result)[0].startswith(deselected)
    written = read_results(project.path / "out/mine.json")
    (own,) = project.path.glob("elsewhere/runs/*/results.json")
    assert read_results(own) == written
    assert written.deselected == {"H200": 1}
    assert not (project.path / ".mlperf").exists()


def test_a_runs_folder_that_cannot_be_written_is_exit_3_before_anything_is_measured(
    project: Project,
) -> None:
    path = project.suite()

    result = project.run("suites", "--mlperf-runs-dir", path / "runs")

    assert result.ret == 3
    result.stdout.fnmatch_lines(["!*mlperf: * cannot be written *--mlperf-runs-dir*"])


def test_results_that_cannot_be_kept_are_named_and_exit_3(project: Project) -> None:
    path = project.suite()
    project.baseline(near(RATE))

    result = project.run("suites", "--mlperf-json", path / "results.json")

    assert result.ret == 3
    assert last_line(result) == "1 passed"
    assert section(result)[-1].startswith(f"ERROR {path}/results.json: ")


def test_baselines_are_looked_for_where_the_option_says(project: Project) -> None:
    project.suite()
    project.baseline(near(RATE))
    project.baseline(near(RATE * 2), folder="strict")

    result = project.run("suites", "--mlperf-baselines", "strict")

    assert last_line(result) == "1 failed"
    assert project.verdicts()["performance"].baseline_file == (
        "strict/cpu/quick/first/Offline.null.fp32.json"
    )


def test_a_pretended_accelerator_is_measured_but_marked(project: Project) -> None:
    project.suite(accelerators=["H200"])

    result = project.run("suites", "--mlperf-pretend", "H200")

    assert last_line(result) == "1 no baseline"
    assert project.cases()["performance"].pretended


def test_the_handicap_reaches_the_worker(project: Project) -> None:
    project.suite()
    project.baseline(near(RATE / 2))

    project.run("suites", "--mlperf-handicap", "50%")

    assert [spec_of(folder)["handicap"] for folder in project.run_folders()] == [0.5]


def test_the_profile_option_overrules_every_suite(project: Project) -> None:
    project.suite()
    project.breaks()
    official = project.path / "baselines/cpu/official/first/Offline.null.fp32.json"
    official.parent.mkdir(parents=True)
    official.write_text(json.dumps({"schema": 99}), "utf-8")

    project.run("suites", "--mlperf-profile=official")

    found = project.cases()["performance"]
    assert found.profile == "official"
    assert "schema 99" in found.verdict.headline


def test_as_many_runs_may_be_asked_for_as_a_results_file_holds() -> None:
    assert option_values.MOST_RUNS == ranges.MOST_RUNS
