"""Declare and read the options; each has an ini setting, most also a command-line option."""

# ruff: noqa: RUF009 - each option is declared by a function that makes its field

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
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
"""Name of the plugin that marks a pytest process as one run of a benchmark, not a session."""

MAX_RUNS = 1000
"""Equal to the limit in `core.ranges`, which is not imported in a project without suites."""


def handicap(text: str) -> float:
    """Return the share of speed to remove, from 0 to below 1, of a text "50%" or "0.5"."""
    share = float(text.removesuffix("%").strip()) / (100 if text.endswith("%") else 1)
    if 1 <= share < 100 and not text.endswith("%"):
        raise MlperfError(f"{text!r} is not below 100%; did you mean '{text}%'?")
    if not 0 <= share < 1:
        raise ValueError
    return share


FAIL_ON = ("skips", "inconclusive", "provisional", "no-baseline")
"""Conditions that can fail a test besides a drop."""


def fail_on(text: str) -> frozenset[str]:
    """Parse a comma-separated list of `FAIL_ON` words, each optionally with the prefix "no:"."""
    words = text.replace(",", " ").split()
    opposites = tuple(f"no:{word}" for word in FAIL_ON)
    for word in words:
        allowed = opposites if word.startswith("no:") else FAIL_ON
        if word not in allowed:
            from pytest_mlperf.core.untrusted_text import nearest

            raise MlperfError(f"unknown word {word!r}{nearest(word, allowed)}")
    if not words or any(f"no:{word}" in words for word in words):
        raise ValueError
    return frozenset(words)


def auto_always_never(text: str) -> str:
    """Return "auto", "always" or "never"; older ini files have true (always) or false (never)."""
    as_flag = {
        **dict.fromkeys(("true", "yes", "on", "1"), "always"),
        **dict.fromkeys(("false", "no", "off", "0"), "never"),
    }
    return one_of("auto", "always", "never")(as_flag.get(text.lower(), text))


def build_to_compare(text: str) -> str:
    """Return the value of `--mlperf-against`; raise MlperfError if it names no build."""
    from pytest_mlperf.suite.environments import parse_against

    parse_against(text)
    return text


def accelerator_name(text: str) -> str:
    """Return an accelerator's name in its standard spelling."""
    from pytest_mlperf.suite.values import checked_accelerator

    return checked_accelerator(text)


class Optional(argparse.Action):
    """Parse an option with an optional value; a path after it is an argument of pytest."""

    def __call__(self, _: object, namespace: object, values: object, *_more: object) -> None:
        """Store the option's value; pass a path on to pytest instead, and store `const`."""
        text = str(values or "")
        if text and not _is_value(str(self.metavar), text):
            # argparse keeps words that no option takes here, and pytest collects them.
            vars(namespace).setdefault("_unrecognized_args", []).append(values)
            values = self.const
        setattr(namespace, self.dest, values)


def _is_value(metavar: str, text: str) -> bool:
    if text in metavar.split("|"):
        return True
    is_path = bool(set("./:") & set(text))
    if metavar == "REF":  # its values have these characters, too
        is_path = text.partition("::")[0].endswith((".py", SUFFIX))
    return not is_path and not Path(text).exists()


def _set_by(metavar: str, text: str, default: object = None, **more: Any) -> Any:
    """Return a dataclass field for an option with help `text`; `metavar`: e.g. DIR or "no|yes"."""
    if set(metavar.split("|")) <= {"DIR", "FILE"}:
        more = {"convert": Path, **more}
    return field(default=default, metadata={"option": option_of(metavar, text, default, more)})


_ini = partial(_set_by, ini_only=True)


def _switch(text: str, **more: Any) -> Any:
    return _set_by("no|yes", text, "no", bare="yes", **more)


def _seconds(text: str, default: float, *, zero: bool = False) -> Any:
    convert = checked(float, lambda seconds: 0 < seconds < 1e9 or (zero and seconds == 0))
    return _ini("SECONDS", text, default, convert=convert, beside=True)


@dataclass(frozen=True, kw_only=True)
class AddedOptions:
    """Hold the values and declarations of add-ons' options, by name."""

    values: Mapping[str, Any] = field(default_factory=dict)
    declared: Mapping[str, SessionOption] = field(default_factory=dict)

    @property
    def remote_option(self) -> str:
        """Name of the option in use that runs cases on other machines; "" if there is none."""
        return next(
            (
                name
                for name, option in self.declared.items()
                if option.elsewhere and self.values[name] != option.default
            ),
            "",
        )


@dataclass(frozen=True, kw_only=True)
class AcceptedOptions:
    """Hold the options that let `--mlperf-update` record values that it refuses by default."""

    accept_regression: Literal["no", "yes"] = _switch(
        "allow --mlperf-update=replace to record values worse than the baseline"
    )
    accept_cut: Literal["no", "yes"] = _switch(
        "record first scores even if many answers are empty or truncated at max_new_tokens",
        group="mlperf",
    )


@dataclass(frozen=True, kw_only=True)
class EnergyOptions:
    """Hold the options for sources of energy readings."""

    power: str = _ini(
        "auto|require|off",
        "judge energy efficiency (samples or tokens per joule of GPU boards): auto: if NVML reads "
        "it; require: fail if NVML does not; off: never",
        "auto",
    )
    meter: Path | None = _set_by(
        "FILE",
        "also read the log of a wall power meter (lines of time and watts, or spl.txt) for "
        "samples_per_joule_wall and tokens_per_joule_wall",
        group="mlperf",
    )
    meter_offset: float = _ini(
        "SECONDS",
        "offset of the clock of --mlperf-meter from UTC, if its log has no time zone (default 0)",
        0.0,
        convert=checked(float, lambda offset: abs(offset) < 1e9),
    )
    dcgm: str | None = _set_by(
        "URL",
        "also read the energy of a server's GPUs from a DCGM exporter, e.g. "
        "http://gpu-box:9400/metrics, for samples_per_joule_dcgm and tokens_per_joule_dcgm",
        group="mlperf",
    )
    dcgm_gpus: tuple[str, ...] = _ini(
        "GPU[,GPU...]",
        "GPUs of --mlperf-dcgm to read, by UUID or host name (default: all)",
        (),
        convert=lambda text: tuple(text.replace(",", " ").split()),
    )


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """Hold the options for tests that use pytest-benchmark's fixture."""

    judge_benchmarks: Literal["no", "yes"] = _switch(
        "judge tests that use pytest-benchmark's fixture: run each several times, each in a new "
        "process, and compare its time with a baseline in git"
    )
    benchmark_max_rise: str | None = _ini(
        "PERCENT",
        "largest rise of a benchmark's time that passes (default 5%%); the marker "
        'mlperf_benchmark(max_rise="3%%") overrides it for a test',
    )
    benchmark_metric: str = _ini(
        "median|min|mean", "statistic of a benchmark's rounds to judge (default median)", "median"
    )
    benchmark_accelerator: str = _ini(
        "NAME", "accelerator that benchmarks run on; selects their baselines (default cpu)", "cpu"
    )


@dataclass(frozen=True, kw_only=True)
class ConditionOptions:
    """Hold the options for the conditions of a run: checks, warm-ups, waits and time limits."""

    control: str = _ini(
        "auto|off",
        "auto: before each run, check the machine with a short fixed benchmark, and watch other "
        "processes; a drop on a busy or different machine is INVALID; off: no checks",
        "auto",
    )
    warmup: Literal["auto", "always", "never"] = _ini(
        "auto|always|never",
        "warm up each accelerator before its first run of a session, for at most 60 s: only GPUs "
        "(auto, the default), always, or never",
        "auto",
    )
    timeout: float = _seconds(
        "kill a run that makes no progress for this long, loading included (default 900)", 900.0
    )
    lease_timeout: float = _seconds(
        "longest wait for an accelerator in use by another measurement (default 21600)", 21_600.0
    )
    wait_idle: float = _seconds(
        "longest wait per session for an idle CPU before timed runs (default 15; 0: no wait)",
        15.0,
        zero=True,
    )


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the plugin's options: `max_runs` is `--mlperf-max-runs` or ini key `mlperf_max_runs`."""

    profile: Literal["quick", "official"] | None = _set_by(
        "quick|official", "run every suite in this profile instead of its own", group="mlperf"
    )
    accelerator: str | None = _set_by(
        "NAME",
        'run only cases on this accelerator ("H200", "8xH100", "cpu"); exit 3 if the machine '
        "lacks it. Set it in every CI job",
        convert=accelerator_name,
        group="ci",
    )
    pretend: str | None = _set_by(
        "NAME",
        "pretend that this machine has this accelerator, to try plans; nothing is recorded",
        convert=accelerator_name,
        group="ci",
    )
    baselines: Path | None = _set_by(
        "DIR", "folder of the baselines (default: the nearest baselines/ above the suite)"
    )
    update: Literal["missing", "append", "replace"] | None = _set_by(
        "missing|append|replace",
        "record baselines. missing (the default without a value): new baselines, and sessions of "
        "the same build on further days, until a baseline has four days; append: a further session "
        "of any commit; replace: new values. append and replace need --mlperf-reason",
        bare="missing",
    )
    baseline_runs: int = _ini(
        "N",
        "runs of a recorded baseline (default 8; failures need 5)",
        8,
        convert=checked(int, lambda runs: runs >= 1),
    )
    reason: str | None = _set_by("TEXT", "why a baseline is recorded; stored in it", beside=True)
    fail_on: frozenset[str] = _set_by(
        "WORD[,WORD...]",
        "more conditions that fail a test. skips: model or data set missing (default in CI); "
        "inconclusive: INCONCLUSIVE, SUSPECT or PROVISIONAL after the last run; provisional: a "
        "PROVISIONAL drop from a baseline of 4 days already on its first day, not only on its "
        "second; no-baseline: none for this machine (default in CI for named accelerators). "
        "no:WORD disables a condition, even in CI",
        frozenset(),
        convert=fail_on,
        group="ci",
    )
    max_runs: int = _set_by(
        "N",
        f"maximum performance runs of a case, 2 to {MAX_RUNS} (default 5); false alarms stay at "
        "most 1%%, missed drops as large as the limit at most 5%%",
        5,
        convert=checked(int, lambda runs: 2 <= runs <= MAX_RUNS),
    )
    accepted: AcceptedOptions = AcceptedOptions()
    energy: EnergyOptions = EnergyOptions()
    conditions: ConditionOptions = ConditionOptions()
    confirm: Literal["auto", "always", "never"] = _set_by(
        "auto|always|never",
        "confirm a drop by interleaved runs of the baseline's build, if the suite defines "
        "baseline_engine. auto (default): PROVISIONAL drops, and drops and PROVISIONAL ok from a "
        "baseline of fewer than 4 days; always (also without a value): all drops and PROVISIONAL "
        "ok; never",
        "auto",
        convert=auto_always_never,
        bare="always",
    )
    against: str | None = _set_by(
        "REF",
        "judge against another build, measured now in runs interleaved with this one, in place of "
        "a stored baseline: git:REF or REF, pip:NAME==VERSION, python:PATH or command:WORDS; "
        "without a value the merge base with the target branch",
        convert=build_to_compare,
        bare="merge-base",
    )
    runs_dir: Path = _set_by(
        "DIR", "folder of results and logs (default .mlperf)", ".mlperf", beside=True, group="ci"
    )
    requests: Literal["no", "yes"] = _switch(
        "log each request of Concurrency and OpenLoop in the run's folder (requests.jsonl.gz): "
        "times, tokens, why it ended; without prompts and answers",
        group="mlperf",
    )
    compliance: Literal["no", "yes"] = _switch(
        "also run the compliance tests of a closed submission (TEST01, TEST04, TEST06 and others), "
        "one run each",
        group="mlperf",
    )
    handicap: float = _set_by(
        "PERCENT",
        "slow every engine down, from 0%% to below 100%%, to see a failure (50%%: work takes twice "
        "as long); nothing is recorded",
        0.0,
        convert=handicap,
    )
    benchmarks: BenchmarkOptions = BenchmarkOptions()
    neighbours: Literal["no", "yes"] = _ini(
        "no|yes",
        "yes: cases may run on several GPUs of this machine at the same time (-n 4, or several "
        "runners); they have separate baselines, never compared with those of a host in exclusive "
        "use",
        "no",
    )
    manifest: Path | None = _set_by(
        "FILE",
        "judge this session as part of a plan (from pytest-mlperf plan --format json), with "
        "correction for multiple comparisons over the plan; pytest-mlperf merge combines parts",
        group="ci",
    )
    suspects: Path | None = _set_by(
        "FILE|DIR",
        "results of the last session, or a folder of results: measure SUSPECT cases first and "
        "judge them alone; fail a PROVISIONAL drop that an earlier day had too. Not needed if "
        "sessions share --mlperf-runs-dir",
        beside=True,
        group="ci",
    )
    json: Path | None = _set_by("FILE", "also write the results to FILE", beside=True, group="ci")
    resume: str | None = _set_by(
        "last|RUN",
        "continue an interrupted session, the last one or one by its id, without repeating "
        "finished tests; options, code and machine must be the same",
        convert=str,
        bare="last",
        beside=True,
    )
    plan: bool = False
    report: tuple[tuple[str, Path], ...] = ()
    added: AddedOptions = AddedOptions()

    @property
    def distributed(self) -> bool:
        """Whether an add-on runs the cases on other machines."""
        return bool(self.added.remote_option) and not self.plan

    @property
    def by_name(self) -> Mapping[str, Any]:
        """Values of all options, including those of add-ons, for add-ons' hooks."""
        groups = [self, *(getattr(self, group) for group in _GROUPS)]
        values = {name: value for group in groups for name, value in vars(group).items()}
        return {**{name: values[name] for name in _OPTIONS}, **self.added.values}

    @property
    def metered(self) -> bool:
        """Whether energy is read from other sources than this machine's GPUs."""
        return bool(self.energy.meter or self.energy.dcgm)


EVERYDAY = "everyday"
GROUPS: Mapping[str, str] = {
    EVERYDAY: "MLPerf inference tests (pytest-mlperf)",
    "ci": "MLPerf inference tests: CI and several machines",
    "mlperf": "MLPerf inference tests: MLPerf's rules, and energy",
}
"""Groups of options in `pytest --help`, with their headings."""

_GROUPS: Mapping[str, type[Any]] = {
    "accepted": AcceptedOptions,
    "energy": EnergyOptions,
    "benchmarks": BenchmarkOptions,
    "conditions": ConditionOptions,
}
"""Groups of options, by the field that has them."""

_OPTIONS: dict[str, SessionOption] = {
    field.name: field.metadata["option"]
    for place in fields(Options)
    for field in (fields(_GROUPS[place.name]) if place.name in _GROUPS else (place,))
    if field.metadata
}
OPTION_NAMES = frozenset({*_OPTIONS, "plan", "report"})

PLAN = "list the cases and their time; measure nothing"

REPORT = (
    "also write a report at the end of the session, e.g. html=report.html, markdown=summary.md, "
    "junit=mlperf.xml; repeatable (formats: pytest-mlperf report --help)"
)


def add_options(parser: pytest.Parser, added: Mapping[str, SessionOption]) -> None:
    """Register all options and ini settings, those of add-ons last."""
    groups = {name: parser.getgroup(f"mlperf {name}", text) for name, text in GROUPS.items()}
    group = groups[EVERYDAY]
    group.addoption("--mlperf-plan", action="store_true", default=None, help=PLAN)
    parser.addini("mlperf_plan", PLAN, type="bool", default=False)
    for name, option in {**_OPTIONS, **added}.items():
        if option.ini_only:
            text = f"{option.metavar}: {option.help}".replace("%%", "%")
            parser.addini(f"mlperf_{name}", text, default=None)
            continue
        more = dict[str, Any](metavar=option.metavar, help=option.help, default=None)
        if option.bare:
            more |= {"action": Optional, "nargs": "?", "const": option.bare}
        groups.get(option.group, group).addoption(_as_option(name), **more)
        parser.addini(f"mlperf_{name}", option.help.replace("%%", "%"), default=None)
    group.addoption(
        "--mlperf-report", metavar="FORMAT=FILE", action="append", default=None, help=REPORT
    )
    parser.addini("mlperf_report", f"{REPORT}; one per line", type="linelist", default=[])


def settings_of(options: Options) -> dict[str, str]:
    """Return options that change measurements or verdicts, as texts by name."""
    values = options.by_name
    return {
        _shown(name, option): _in_words(values[name])
        for name, option in {**_OPTIONS, **options.added.declared}.items()
        if not option.beside
    }


def unknown_option(args: Iterable[str], added: Mapping[str, SessionOption]) -> tuple[str, str]:
    """Return the first unknown option of this plugin, and a similar known one; "" if none."""
    names = {_as_option(name) for name in (*OPTION_NAMES, *added)}
    words = (str(word).partition("=")[0] for word in args)
    unknown = (word for word in words if word.startswith(PREFIX) and word not in names)
    if not (word := next(unknown, "")):
        return "", ""
    from pytest_mlperf.core.untrusted_text import closest

    plain = {name.removeprefix(PREFIX): name for name in names}
    return word, plain.get(closest(word.removeprefix(PREFIX), plain, cutoff=0.7), "")


def set_on_command_line(config: pytest.Config) -> Iterator[tuple[str, str]]:
    """Yield name and text of each option on the command line."""
    for name, option in {**_OPTIONS, **addons_of(config).options}.items():
        if not option.ini_only and (text := config.getoption(f"mlperf_{name}")) is not None:
            yield name, str(text)


def _shown(name: str, option: SessionOption) -> str:
    return f"mlperf_{name}" if option.ini_only else _as_option(name)


def _in_words(value: object) -> str:
    if isinstance(value, (frozenset, tuple)):
        return ", ".join(sorted(map(str, value))) or "not set"
    return "not set" if value is None else str(value)


PREFIX = "--mlperf-"


def _as_option(name: str) -> str:
    return PREFIX + name.replace("_", "-")


def is_value_of(name: str, text: str) -> bool:
    """Check whether `text` is the value of option `name`, which precedes it on the command line."""
    option = _OPTIONS.get(name.removeprefix(PREFIX).replace("-", "_"))
    if option is None or not option.bare:
        return bool(name)
    return _is_value(option.metavar, text)


def read_options(config: pytest.Config) -> Options:
    """Read and check all options together."""
    added = addons_of(config).options
    values: dict[str, Any] = {
        name: _value(config, name, option) for name, option in {**_OPTIONS, **added}.items()
    }
    plan = bool(config.getoption("mlperf_plan")) or bool(config.getini("mlperf_plan"))
    grouped = {
        name: group(**{field.name: values[field.name] for field in fields(group)})
        for name, group in _GROUPS.items()
    }
    alone = {field.name: values[field.name] for field in fields(Options) if field.metadata}
    options = Options(
        **{**alone, **grouped},
        plan=plan,
        report=_reports(config),
        added=AddedOptions(values={name: values[name] for name in added}, declared=added),
    )
    _check(config, options)
    return options


def _value(config: pytest.Config, name: str, option: SessionOption) -> object:
    label = _shown(name, option)
    setting, base = _setting(config, name, ini_only=option.ini_only)
    if setting is None:
        setting = option.default
    try:
        value = option.convert(setting) if isinstance(setting, str) else setting
    except MlperfError as error:
        raise pytest.UsageError(f"{label}: {error}") from None
    except Exception as error:  # an add-on's may raise anything
        if not isinstance(error, ValueError) and name in _OPTIONS:
            raise
        expected = f"{option.metavar}: {option.help}".replace("%%", "%")
        raise pytest.UsageError(f"{label}: {setting!r} is not valid; expected {expected}") from None
    return base / value if isinstance(value, Path) else value


def _setting(config: pytest.Config, name: str, *, ini_only: bool = False) -> tuple[Any, Path]:
    """Return the value of an option or ini key, and the folder to which its paths are relative."""
    if not ini_only and (setting := config.getoption(f"mlperf_{name}")) is not None:
        return setting, config.invocation_params.dir
    setting = config.getini(f"mlperf_{name}") or None
    return setting, config.inipath.parent if setting and config.inipath else config.rootpath


def _reports(config: pytest.Config) -> tuple[tuple[str, Path], ...]:
    texts, base = _setting(config, "report")
    if not texts:
        return ()
    from pytest_mlperf.reports.formats import parse_report

    files: dict[Path, str] = {}
    for words in texts:
        try:
            form, file = parse_report(words)
        except (ValueError, MlperfError) as error:
            raise pytest.UsageError(f"--mlperf-report: {error}") from None
        if (path := base / file) in files:
            raise pytest.UsageError(
                f"--mlperf-report: {files[path]} and {form} have the same file {file}"
            )
        files[path] = form
    return tuple((form, path) for path, form in files.items())


def _check(config: pytest.Config, options: Options) -> None:
    if options.reason is not None and not options.reason.strip(" ."):
        raise pytest.UsageError(
            '--mlperf-reason is empty; write --mlperf-reason "why this value is accepted"'
        )
    if options.update and (options.handicap or options.pretend):
        which = "--mlperf-handicap" if options.handicap else "--mlperf-pretend"
        raise pytest.UsageError(
            f"--mlperf-update cannot record runs with {which}; remove one of them"
        )
    if options.against and options.update:
        raise pytest.UsageError(
            "--mlperf-against and --mlperf-update cannot be combined: compare first, then accept "
            "the session: pytest-mlperf update"
        )
    if options.metered and not options.plan:
        _read_once(options)
    if options.distributed and getattr(config.option, "dist", "no") != "no":
        raise pytest.UsageError(
            f"{_as_option(options.added.remote_option)} cannot be combined with -n; remove -n"
        )
    if options.update in {"replace", "append"} and not options.reason:
        raise pytest.UsageError(
            f'--mlperf-update={options.update} needs --mlperf-reason "why this value is accepted"'
        )


def _read_once(options: Options) -> None:
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
    """Return the id of the session, equal in all xdist workers: UTC time and four hex digits."""
    from pytest_mlperf.run.project import new_id

    controllers = getattr(config, "workerinput", {}).get("mlperf_run")
    if controllers:
        return str(controllers)
    if RUN_ID not in config.stash:
        config.stash[RUN_ID] = new_id()
    return config.stash[RUN_ID]
