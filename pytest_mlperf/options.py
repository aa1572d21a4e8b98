"""The command line options, each also an ini setting of the same name without dashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

MOST_RUNS = 1000
"""As `core.ranges` has it, which is not loaded in a project without suites."""


@dataclass(frozen=True)
class _Option:
    """One option; `convert` turns its text into a value and raises ValueError with a reason."""

    name: str
    convert: Callable[[str], object]
    default: object
    metavar: str
    help: str
    is_path: bool = False


def _handicap(text: str) -> float:
    share = float(text.removesuffix("%").strip()) / (100 if text.endswith("%") else 1)
    if not 0 <= share < 1:
        raise ValueError
    return share


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _max_runs(text: str) -> int:
    if not 2 <= int(text) <= MOST_RUNS:
        raise ValueError
    return int(text)


def _seconds(text: str) -> float:
    if not 0 < float(text) < 1e9:  # nan never ends a wait, more overflows the system calls
        raise ValueError
    return float(text)


def _finite(text: str) -> float:
    if not abs(float(text)) < 1e9:
        raise ValueError
    return float(text)


def _one_of(*words: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return convert


_OPTIONS: tuple[_Option, ...] = (
    _Option(
        "profile",
        _one_of("quick", "official"),
        None,
        "quick|official",
        "run every suite in this profile instead of its own",
    ),
    _Option(
        "accelerator",
        str,
        None,
        "NAME",
        'require this accelerator ("H200", "8xH100", "cpu") and run its cases only; '
        "not here: exit 3 before any test (CI should always pass it)",
    ),
    _Option(
        "pretend",
        str,
        None,
        "NAME",
        "act as if this accelerator were here, for plans and tests; nothing is ever recorded",
    ),
    _Option(
        "baselines",
        str,
        None,
        "DIR",
        "folder of the baselines (default: the nearest baselines/ above the suite)",
        is_path=True,
    ),
    _Option(
        "update",
        _one_of("missing", "append", "replace"),
        None,
        "missing|append|replace",
        "record baselines: only absent ones, a further session, or anew (needs --mlperf-reason)",
    ),
    _Option(
        "baseline-runs", _count, 8, "N", "runs of a recorded baseline (default 8; gates from 5)"
    ),
    _Option("reason", str, None, "TEXT", "why a baseline is recorded; kept in its history"),
    _Option(
        "no-baseline",
        _one_of("auto", "pass", "fail"),
        "auto",
        "auto|pass|fail",
        "a case without a baseline of this machine passes, or fails (auto: fails under CI on named "
        "accelerators, passes on a CPU)",
    ),
    _Option(
        "inconclusive",
        _one_of("pass", "fail"),
        "pass",
        "pass|fail",
        "a case without enough evidence after the last run passes, or fails",
    ),
    _Option(
        "max-runs",
        _max_runs,
        5,
        "N",
        f"most performance runs of a case, from 2 to {MOST_RUNS} (default 5); no change is failed "
        "at most 1%% of the time, a drop of the limit is passed at most 5%%",
    ),
    _Option(
        "power",
        _one_of("auto", "require", "off"),
        "auto",
        "auto|require|off",
        "judge efficiency (samples or tokens per joule of GPU boards) where NVML reads it, fail "
        "where it does not, or leave it out",
    ),
    _Option(
        "meter",
        str,
        None,
        "FILE",
        "also read a wall meter's log, of lines with time and watts or an spl.txt: gives "
        "samples_per_joule_wall and tokens_per_joule_wall",
        is_path=True,
    ),
    _Option(
        "meter-offset",
        _finite,
        0.0,
        "SECONDS",
        "how far the meter's clock is ahead of UTC, where it writes no zone (default 0)",
    ),
    _Option(
        "control",
        _one_of("auto", "off"),
        "auto",
        "auto|off",
        "measure the machine by a short fixed benchmark before each run: a drop on a machine that "
        "differs from the baseline's is INVALID, or do not",
    ),
    _Option(
        "runs-dir",
        str,
        ".mlperf",
        "DIR",
        "folder of results and logs (default .mlperf)",
        is_path=True,
    ),
    _Option(
        "handicap",
        _handicap,
        0.0,
        "50%",
        "slow every engine: work takes 1/(1-0.5) times as long, to see a failure before one is "
        "needed; nothing is recorded",
    ),
    _Option(
        "timeout",
        _seconds,
        900.0,
        "SECONDS",
        "kill a run that makes no progress for so long (default 900); loading counts",
    ),
    _Option(
        "lease-timeout",
        _seconds,
        21_600.0,
        "SECONDS",
        "longest wait for an accelerator that another process measures on (default 21600)",
    ),
    _Option(
        "manifest",
        str,
        None,
        "FILE",
        "this session is a part of a plan (pytest-mlperf plan --format json): its drops are judged "
        "among all that the plan holds; pytest-mlperf merge joins the parts",
        is_path=True,
    ),
    _Option("json", str, None, "FILE", "also write the results to FILE", is_path=True),
)

_FLAGS = (
    ("strict", "a missing model or data set fails instead of being skipped (as under CI)"),
    (
        "confirm",
        "measure a drop again in turns with the build of its baseline, which the suite's "
        "baseline_engine names; the verdict says which evidence decided",
    ),
    ("plan", "list the cases and the time they need, measure nothing"),
)


def add_options(parser: pytest.Parser) -> None:
    """Register every option and its ini setting."""
    group = parser.getgroup("mlperf", "MLPerf inference tests (pytest-mlperf)")
    for option in _OPTIONS:
        group.addoption(
            f"--mlperf-{option.name}", metavar=option.metavar, default=None, help=option.help
        )
        parser.addini(_ini(option.name), option.help.replace("%%", "%"), default=None)
    for name, text in _FLAGS:
        group.addoption(f"--mlperf-{name}", action="store_true", default=None, help=text)
        parser.addini(_ini(name), text, type="bool", default=False)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Every option, read once. See `pytest --help` for their meaning."""

    profile: str | None
    accelerator: str | None
    pretend: str | None
    baselines: Path | None
    update: str | None
    baseline_runs: int
    reason: str | None
    no_baseline: str
    inconclusive: str
    max_runs: int
    power: str
    control: str
    meter: Path | None
    meter_offset: float
    runs_dir: Path
    handicap: float
    timeout: float
    lease_timeout: float
    manifest: Path | None
    json: Path | None
    strict: bool
    confirm: bool
    plan: bool


def read_options(config: pytest.Config) -> Options:
    """Read and check all options together.

    Raises:
        pytest.UsageError: A value is wrong, or two options exclude each other.
    """
    found: dict[str, object] = {o.name.replace("-", "_"): _value(config, o) for o in _OPTIONS}
    for name, _ in _FLAGS:
        found[name] = bool(config.getoption(f"mlperf_{name}")) or bool(config.getini(_ini(name)))
    options = Options(**found)  # type: ignore[arg-type]
    _check(options)
    return options


def _value(config: pytest.Config, option: _Option) -> object:
    given, base = config.getoption(_ini(option.name)), config.invocation_params.dir
    if given is None:
        given = config.getini(_ini(option.name)) or None
        base = config.inipath.parent if given and config.inipath else config.rootpath
    if given is None:
        given = option.default
    try:
        value = option.convert(given) if isinstance(given, str) else given
    except ValueError:
        expected = f"{option.metavar}: {option.help}".replace("%%", "%")
        raise pytest.UsageError(
            f"--mlperf-{option.name}: {given!r} is not valid; expected {expected}"
        ) from None
    return base / str(value) if option.is_path and value is not None else value


def _check(options: Options) -> None:
    if options.reason is not None and not options.reason.strip(" ."):
        raise pytest.UsageError("--mlperf-reason: write why the value is accepted; it is kept")
    if options.update and (options.handicap or options.pretend):
        which = "--mlperf-handicap" if options.handicap else "--mlperf-pretend"
        raise pytest.UsageError(f"--mlperf-update with {which}: such a run is never recorded")
    if options.meter and not options.plan:
        _check_meter(options.meter, options.meter_offset)
    if options.update in {"replace", "append"} and not options.reason:
        raise pytest.UsageError(
            f'--mlperf-update={options.update} needs --mlperf-reason "why this value is accepted"'
        )


def _check_meter(path: Path, offset_s: float) -> None:
    """Refuse a meter's file before anything is measured for it."""
    from pytest_mlperf.core.errors import MlperfError
    from pytest_mlperf.run.meter import read_meter

    try:
        read_meter(path, until_s=0.0, patience_s=0.0, local_offset_s=offset_s)
    except MlperfError as error:
        raise pytest.UsageError(f"--mlperf-meter: {error}") from None


def _ini(name: str) -> str:
    return "mlperf_" + name.replace("-", "_")
