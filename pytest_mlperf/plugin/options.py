"""The options: all are ini settings, and all but the seldom used options of the command line."""

# ruff: noqa: RUF009 - each option is declared by a function that makes its field

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_mlperf.core.addons import SessionOption, checked, one_of, option_of
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.plugin.addons import addons_of

SUFFIX = ".mlperf.toml"

SESSION: pytest.StashKey[Any] = pytest.StashKey()
RUN_ID: pytest.StashKey[str] = pytest.StashKey()

RUN_OF_BENCHMARK = "mlperf-benchmark-run"
"""A plugin of this name runs one test for a session that judges it, and no session of its own."""

MAX_RUNS = 1000
"""As `core.ranges` has it, which is not loaded in a project without suites."""


def handicap(text: str) -> float:
    """Return a share of speed: "50%" or 0.5."""
    share = float(text.removesuffix("%").strip()) / (100 if text.endswith("%") else 1)
    if not 0 <= share < 1:
        raise ValueError
    return share


def _is_time(seconds: float) -> bool:
    """Whether a wait ends: more overflows the system calls."""
    return 0 < seconds < 1e9


FAIL_ON = ("skips", "inconclusive", "provisional", "no-baseline")
"""What can fail besides a drop."""


class UnknownWord(ValueError):
    """A word of a list that is none of those that are known."""

    def __init__(self, word: str, words: Collection[str]) -> None:
        super().__init__(word)
        self.word, self.words = word, words


def fail_on(text: str) -> frozenset[str]:
    """Return words of `FAIL_ON`, each as it stands or behind "no:", from a list with commas."""
    words = text.replace(",", " ").split()
    opposites = tuple(f"no:{word}" for word in FAIL_ON)
    for word in words:
        allowed = opposites if word.startswith("no:") else FAIL_ON
        if word not in allowed:
            raise UnknownWord(word, allowed)
    if not words or any(f"no:{word}" in words for word in words):
        raise ValueError
    return frozenset(words)


def auto_always_never(text: str) -> str:
    """Return one of three words; an ini file may still say what pytest takes for a flag."""
    as_flag = {
        **dict.fromkeys(("true", "yes", "on", "1"), "always"),
        **dict.fromkeys(("false", "no", "off", "0"), "never"),
    }
    return one_of("auto", "always", "never")(as_flag.get(text.lower(), text))


class Optional(argparse.Action):
    """An option that may stand without a value, also before a file: `--mlperf-confirm suites`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Take the value; what names a file or folder is none, and goes to pytest's arguments."""
        del parser, option_string
        word = str(values) in str(self.metavar).split("|")
        if values and not word and Path(str(values).partition("::")[0]).exists():
            # Where argparse keeps what no option takes, and pytest finds files to collect.
            vars(namespace).setdefault("_unrecognized_args", []).append(values)
            values = self.const
        setattr(namespace, self.dest, values)


def _set_by(metavar: str, text: str, default: object = None, **more: Any) -> Any:
    """Declare a field's option; without `convert` it takes a word of several, else any text."""
    return field(default=default, metadata={"option": option_of(metavar, text, default, more)})


@dataclass(frozen=True, kw_only=True)
class AddedOptions:
    """The options of add-ons.

    Attributes:
        values: Each by its name.
        declared: How each is set.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    declared: Mapping[str, SessionOption] = field(default_factory=dict)

    @property
    def elsewhere(self) -> str:
        """The name of the option that lets cases run on other machines, or "" without one."""
        return next(
            (
                name
                for name, option in self.declared.items()
                if option.elsewhere and self.values[name] != option.default
            ),
            "",
        )


@dataclass(frozen=True, kw_only=True)
class EnergyOptions:
    """Sources of energy readings."""

    power: str = _set_by(
        "auto|require|off",
        "judge efficiency (samples or tokens per joule of GPU boards) where NVML reads it, fail "
        "where it does not, or leave it out",
        "auto",
        ini_only=True,
    )
    meter: Path | None = _set_by(
        "FILE",
        "also read a wall meter's log, of lines with time and watts or an spl.txt: gives "
        "samples_per_joule_wall and tokens_per_joule_wall",
        convert=Path,
    )
    meter_offset: float = _set_by(
        "SECONDS",
        "how far the clock of --mlperf-meter is ahead of UTC, where it writes no zone (default 0)",
        0.0,
        convert=checked(float, lambda offset: abs(offset) < 1e9),
        ini_only=True,
    )
    dcgm: str | None = _set_by(
        "URL",
        "also read the GPUs of a server through a DCGM exporter's page, as "
        "http://gpu-box:9400/metrics: gives samples_per_joule_dcgm and tokens_per_joule_dcgm",
    )
    dcgm_gpus: tuple[str, ...] = _set_by(
        "GPU[,GPU...]",
        "which GPUs of --mlperf-dcgm count, by UUID or name of their host (default: all)",
        (),
        convert=lambda text: tuple(text.replace(",", " ").split()),
        ini_only=True,
    )


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """How tests with pytest-benchmark's fixture are judged."""

    judge_benchmarks: Literal["no", "yes"] = _set_by(
        "no|yes",
        "judge tests with pytest-benchmark's fixture as cases are judged: each run is a process of "
        "its own, and its time is compared with a baseline in git",
        "no",
        bare="yes",
    )
    benchmark_max_rise: str | None = _set_by(
        "PERCENT",
        "how far a benchmark's time may rise (default 5%%); a test's own marker "
        'mlperf_benchmark(max_rise="3%%") comes first',
        convert=str,
        ini_only=True,
    )
    benchmark_metric: str = _set_by(
        "median|min|mean",
        "which of a benchmark's times is judged, of all its rounds (default median)",
        "median",
        ini_only=True,
    )
    benchmark_accelerator: str = _set_by(
        "NAME",
        "what benchmarks run on, and whose baselines they have (default cpu)",
        "cpu",
        convert=str,
        ini_only=True,
    )


@dataclass(frozen=True, kw_only=True)
class ConditionOptions:
    """Waits and preparations of a run."""

    control: str = _set_by(
        "auto|off",
        "measure the machine by a short fixed benchmark before each run, and watch who else uses "
        "it: on one that differs from the baseline's or is busy, a drop is INVALID; or do not",
        "auto",
        ini_only=True,
    )
    warmup: Literal["auto", "always", "never"] = _set_by(
        "auto|always|never",
        "before the first run on an accelerator in a session make one that does not count, of at "
        "most 60 s, so that no run is the first one: on GPUs (auto, the default), everywhere, or "
        "never",
        "auto",
        ini_only=True,
    )
    timeout: float = _set_by(
        "SECONDS",
        "kill a run that makes no progress for so long (default 900); loading counts",
        900.0,
        convert=checked(float, _is_time),
        ini_only=True,
        beside=True,
    )
    lease_timeout: float = _set_by(
        "SECONDS",
        "longest wait for an accelerator that another process measures on (default 21600)",
        21_600.0,
        convert=checked(float, _is_time),
        ini_only=True,
        beside=True,
    )
    wait_idle: float = _set_by(
        "SECONDS",
        "longest wait in a session until no other process uses the processor, before timed runs "
        "(default 15; 0: none)",
        15.0,
        convert=checked(float, lambda seconds: seconds == 0 or _is_time(seconds)),
        ini_only=True,
        beside=True,
    )


@dataclass(frozen=True, kw_only=True)
class Options:
    """Every option, read once; `--mlperf-max-runs` and `mlperf_max_runs` set `max_runs`."""

    profile: Literal["quick", "official"] | None = _set_by(
        "quick|official", "run every suite in this profile instead of its own"
    )
    accelerator: str | None = _set_by(
        "NAME",
        'require this accelerator ("H200", "8xH100", "cpu") and run its cases only; '
        "not here: exit 3 before any test (CI should always pass it)",
    )
    pretend: str | None = _set_by(
        "NAME",
        "act as if this accelerator were here, for plans and tests; nothing is ever recorded",
    )
    baselines: Path | None = _set_by(
        "DIR",
        "folder of the baselines (default: the nearest baselines/ above the suite)",
        convert=Path,
    )
    update: Literal["missing", "append", "replace"] | None = _set_by(
        "missing|append|replace",
        "record baselines: what is missing (all of it, or a further session of the same build, up "
        "to four days), a further session whatever the commit, or anew (both need --mlperf-reason)",
    )
    baseline_runs: int = _set_by(
        "N",
        "runs of a recorded baseline (default 8; gates from 5)",
        8,
        convert=checked(int, lambda runs: runs >= 1),
        ini_only=True,
    )
    reason: str | None = _set_by(
        "TEXT", "why a baseline is recorded; kept in its history", beside=True
    )
    accept_cut: Literal["no", "yes"] = _set_by(
        "no|yes",
        "record first scores though many answers are empty or cut at max_new_tokens; the baseline "
        "keeps how many",
        "no",
        bare="yes",
    )
    fail_on: frozenset[str] = _set_by(
        "WORD[,WORD...]",
        "what fails besides drops and errors: skips (a model or data set is not here; always under "
        "CI), inconclusive (a case without enough evidence after the last run: INCONCLUSIVE, "
        "SUSPECT, PROVISIONAL), provisional (a PROVISIONAL drop from a baseline of 4 days, on the "
        "first day; without it, on the second day in a row), "
        "no-baseline (a case without a baseline of this machine; on named accelerators always "
        "under CI); no:WORD does not, not even under CI",
        frozenset(),
        convert=fail_on,
    )
    max_runs: int = _set_by(
        "N",
        f"most performance runs of a case, from 2 to {MAX_RUNS} (default 5); unchanged code is "
        "red at most 1%% of the time, a drop of the limit is passed at most 5%%",
        5,
        convert=checked(int, lambda runs: 2 <= runs <= MAX_RUNS),
    )
    energy: EnergyOptions = EnergyOptions()
    conditions: ConditionOptions = ConditionOptions()
    confirm: Literal["auto", "always", "never"] = _set_by(
        "auto|always|never",
        "measure a drop again in turns with the build of its baseline, where that can be had "
        "(baseline_engine in the suite): a PROVISIONAL one and one from a baseline of fewer than 4 "
        "days (auto, the default), every one (always, also without a value), or none; with "
        "baseline_engine a PROVISIONAL ok from so few days as well, or always",
        "auto",
        convert=auto_always_never,
        bare="always",
    )
    runs_dir: Path = _set_by(
        "DIR", "folder of results and logs (default .mlperf)", ".mlperf", convert=Path, beside=True
    )
    requests: Literal["no", "yes"] = _set_by(
        "no|yes",
        "also keep a record of each request of Concurrency and OpenLoop, as requests.jsonl.gz in "
        "the run's folder: times, tokens, why it ended; never what was asked or answered",
        "no",
        bare="yes",
    )
    compliance: Literal["no", "yes"] = _set_by(
        "no|yes",
        "also make MLPerf's compliance tests (TEST01, TEST04, TEST06 and others), one run each, "
        "where the round asks a closed submission for them",
        "no",
        bare="yes",
    )
    handicap: float = _set_by(
        "50%",
        "slow every engine: work takes 1/(1-0.5) times as long, to see a failure before one is "
        "needed; nothing is recorded",
        0.0,
        convert=handicap,
    )
    benchmarks: BenchmarkOptions = BenchmarkOptions()
    neighbours: Literal["no", "yes"] = _set_by(
        "no|yes",
        "yes: cases on other GPUs of this machine may be measured at the same time, as by -n 4 on "
        "four GPUs or by several runners; their baselines are of a shared host, and never compared "
        "with those of a case that was alone",
        "no",
        ini_only=True,
    )
    manifest: Path | None = _set_by(
        "FILE",
        "this session is a part of a plan (pytest-mlperf plan --format json): its drops are judged "
        "among all that the plan holds; pytest-mlperf merge joins the parts",
        convert=Path,
    )
    suspects: Path | None = _set_by(
        "FILE|DIR",
        "results of the last session, or a folder of them: what was SUSPECT there is measured "
        "first and judged alone, and a PROVISIONAL drop that was there on an earlier day fails; "
        "sessions with the same --mlperf-runs-dir need no such file",
        convert=Path,
        beside=True,
    )
    json: Path | None = _set_by("FILE", "also write the results to FILE", convert=Path, beside=True)
    resume: str | None = _set_by(
        "last|RUN",
        "go on with a session that was interrupted, the last one or that of an id: what it decided "
        "is reported and not measured again; options, code and machine must be the same",
        convert=str,
        bare="last",
        beside=True,
    )
    plan: bool = False
    report: tuple[tuple[str, Path], ...] = ()
    added: AddedOptions = AddedOptions()

    @property
    def distributed(self) -> bool:
        """Whether an add-on runs the cases, on other machines."""
        return bool(self.added.elsewhere) and not self.plan

    @property
    def by_name(self) -> Mapping[str, Any]:
        """The value of each option, those of add-ons included, for hooks."""
        values: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            values |= vars(value) if one.name in _GROUPS else {one.name: value}
        return {**{name: values[name] for name in _OPTIONS}, **self.added.values}

    @property
    def metered(self) -> bool:
        """Whether something else than this machine's GPUs tells of an energy."""
        return bool(self.energy.meter or self.energy.dcgm)


_GROUPS: Mapping[str, type[Any]] = {
    "energy": EnergyOptions,
    "benchmarks": BenchmarkOptions,
    "conditions": ConditionOptions,
}
"""Groups of options, by the field that has them."""

_OPTIONS: dict[str, SessionOption] = {
    one.name: one.metadata["option"]
    for outer in fields(Options)
    for one in (fields(_GROUPS[outer.name]) if outer.name in _GROUPS else (outer,))
    if one.metadata
}
OPTION_NAMES = frozenset({*_OPTIONS, "plan", "report"})

PLAN = "list the cases and the time they need, measure nothing"

REPORT = (
    "also write a report at the end of the session; repeatable, e.g. html=report.html, "
    "markdown=summary.md, junit=mlperf.xml (formats: pytest-mlperf report --help)"
)


def add_options(parser: pytest.Parser, added: Mapping[str, SessionOption]) -> None:
    """Register every option and its ini setting, those of add-ons last."""
    group = parser.getgroup("mlperf", "MLPerf inference tests (pytest-mlperf)")
    for name, option in {**_OPTIONS, **added}.items():
        if option.ini_only:
            parser.addini(f"mlperf_{name}", f"{option.metavar}: {option.help}", default=None)
            continue
        bare = {"action": Optional, "nargs": "?", "const": option.bare} if option.bare else {}
        group.addoption(
            _as_option(name), metavar=option.metavar, default=None, help=option.help, **bare
        )
        parser.addini(f"mlperf_{name}", option.help.replace("%%", "%"), default=None)
    group.addoption("--mlperf-plan", action="store_true", default=None, help=PLAN)
    parser.addini("mlperf_plan", PLAN, type="bool", default=False)
    group.addoption(
        "--mlperf-report", metavar="FORMAT=FILE", action="append", default=None, help=REPORT
    )
    parser.addini("mlperf_report", f"{REPORT}; one a line", type="linelist", default=[])


def settings_of(options: Options) -> dict[str, str]:
    """Return in words, by its name, each option that changes what is measured or judged."""
    values = options.by_name
    return {
        _shown(name, option): _in_words(values[name])
        for name, option in {**_OPTIONS, **options.added.declared}.items()
        if not option.beside
    }


def unknown_options(args: Iterable[str], added: Mapping[str, SessionOption]) -> list[str]:
    """Return the arguments that look like options of ours, and are none."""
    names = {_as_option(name) for name in (*OPTION_NAMES, *added)}
    words = [str(word).partition("=")[0] for word in args]
    return [word for word in words if word.startswith("--mlperf-") and word not in names]


def set_on_command_line(config: pytest.Config) -> Iterator[tuple[str, str]]:
    """Yield the options that stand on the command line, each by its name, and their texts."""
    for name, option in {**_OPTIONS, **addons_of(config).options}.items():
        if not option.ini_only and (text := config.getoption(f"mlperf_{name}")) is not None:
            yield name, str(text)


def _shown(name: str, option: SessionOption) -> str:
    return f"mlperf_{name}" if option.ini_only else _as_option(name)


def _in_words(value: object) -> str:
    if isinstance(value, (frozenset, tuple)):
        return ", ".join(sorted(map(str, value))) or "not set"
    return "not set" if value is None else str(value)


def _as_option(name: str) -> str:
    return "--mlperf-" + name.replace("_", "-")


def read_options(config: pytest.Config) -> Options:
    """Read and check all options together."""
    added = addons_of(config).options
    values = {name: _value(config, name, option) for name, option in {**_OPTIONS, **added}.items()}
    plan = bool(config.getoption("mlperf_plan")) or bool(config.getini("mlperf_plan"))
    groups = {
        field: group(**{one.name: values[one.name] for one in fields(group)})
        for field, group in _GROUPS.items()
    }
    alone = {one.name: values[one.name] for one in fields(Options) if one.metadata}
    options = Options(
        **{**alone, **groups},
        plan=plan,
        report=_reports(config),
        added=AddedOptions(values={name: values[name] for name in added}, declared=added),
    )
    _check(config, options)
    return options


def _value(config: pytest.Config, name: str, option: SessionOption) -> object:
    shown = _shown(name, option)
    setting, base = _setting(config, name, ini_only=option.ini_only)
    if setting is None:
        setting = option.default
    try:
        value = option.convert(setting) if isinstance(setting, str) else setting
    except UnknownWord as error:
        from pytest_mlperf.core.untrusted_text import nearest

        meant = nearest(error.word, error.words)
        raise pytest.UsageError(f"{shown}: {error.word!r} is not known{meant}") from None
    except MlperfError as error:
        raise pytest.UsageError(f"{shown}: {error}") from None
    except Exception as error:  # an add-on's may raise anything
        if not isinstance(error, ValueError) and name in _OPTIONS:
            raise
        expected = f"{option.metavar}: {option.help}".replace("%%", "%")
        raise pytest.UsageError(f"{shown}: {setting!r} is not valid; expected {expected}") from None
    return base / value if isinstance(value, Path) else value


def _setting(config: pytest.Config, name: str, *, ini_only: bool = False) -> tuple[Any, Path]:
    """Return what is set by option, else by ini file, and the folder that its paths start from."""
    if not ini_only and (setting := config.getoption(f"mlperf_{name}")) is not None:
        return setting, config.invocation_params.dir
    setting = config.getini(f"mlperf_{name}") or None
    return setting, config.inipath.parent if setting and config.inipath else config.rootpath


def _reports(config: pytest.Config) -> tuple[tuple[str, Path], ...]:
    asked, base = _setting(config, "report")
    if not asked:
        return ()
    from pytest_mlperf.reports.formats import parse_report

    files: dict[Path, str] = {}
    for words in asked:
        try:
            form, file = parse_report(words)
        except (ValueError, MlperfError) as error:
            raise pytest.UsageError(f"--mlperf-report: {error}") from None
        if (path := base / file) in files:
            raise pytest.UsageError(f"--mlperf-report: {files[path]} and {form} both go to {file}")
        files[path] = form
    return tuple((form, path) for path, form in files.items())


def _check(config: pytest.Config, options: Options) -> None:
    if options.reason is not None and not options.reason.strip(" ."):
        raise pytest.UsageError("--mlperf-reason: write why the value is accepted; it is kept")
    if options.update and (options.handicap or options.pretend):
        which = "--mlperf-handicap" if options.handicap else "--mlperf-pretend"
        raise pytest.UsageError(f"--mlperf-update with {which}: such a run is never recorded")
    if options.metered and not options.plan:
        _read_once(options)
    if options.distributed and getattr(config.option, "dist", "no") != "no":
        raise pytest.UsageError(
            f"{_as_option(options.added.elsewhere)} with -n: one of them can distribute; "
            "leave -n away"
        )
    if options.update in {"replace", "append"} and not options.reason:
        raise pytest.UsageError(
            f'--mlperf-update={options.update} needs --mlperf-reason "why this value is accepted"'
        )


def _read_once(options: Options) -> None:
    """Read the files that options name: a defect in one ends the session before any test."""
    from pytest_mlperf.run.power.exporter import find_exporter
    from pytest_mlperf.run.power.figures import read_meter

    energy, name = options.energy, "meter"
    try:
        if energy.meter:
            read_meter(
                energy.meter, until_s=0.0, patience_s=0.0, local_offset_s=energy.meter_offset
            )
        if energy.dcgm:
            name = "dcgm"
            find_exporter(energy.dcgm, energy.dcgm_gpus)
    except MlperfError as error:
        raise pytest.UsageError(f"--mlperf-{name}: {error}") from None


def run_id(config: pytest.Config) -> str:
    """Return the id of this run, the same in every xdist worker: UTC time and four hex digits."""
    from pytest_mlperf.run.project import new_id

    controllers = getattr(config, "workerinput", {}).get("mlperf_run")
    if controllers:
        return str(controllers)
    if RUN_ID not in config.stash:
        config.stash[RUN_ID] = new_id()
    return config.stash[RUN_ID]
