"""Implement pytest's hooks.

Every project with the plugin installed imports this module at start, so it must stay fast: `late`
imports modules that need pydantic only once there is a suite, marker or result.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mlperf.core.addons import OptionGroup
from pytest_mlperf.plugin._unchanged import import_unchanged
from pytest_mlperf.plugin.addons import ADDONS, AddOnError, AddOns, addons_of
from pytest_mlperf.plugin.options import (
    OPTION_NAMES,
    RUN_OF_BENCHMARK,
    SESSION,
    SUFFIX,
    add_options,
    read_options,
    run_id,
    unknown_option,
)

if TYPE_CHECKING:
    from pytest_mlperf.plugin.fixture import Mlperf
    from pytest_mlperf.plugin.session import MlperfSession

import_unchanged()

RERUN = "rerun"
"""Outcome of a report of pytest-rerunfailures whose test runs again."""

REPORTS = "mlperf-reports"
"""Name by which pytest's plugin manager knows the reader of reports."""


def late(module: str) -> Any:
    """Import and return the module `pytest_mlperf.plugin.NAME`, only once it is needed."""
    return import_module(f"pytest_mlperf.plugin.{module}")


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    addons = AddOns()
    addons.load(pluginmanager.is_blocked)
    pluginmanager.register(addons, ADDONS)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    import_unchanged()
    addons: AddOns = pluginmanager.getplugin(ADDONS)
    addons.declare(lambda: OptionGroup(OPTION_NAMES))
    add_options(parser, addons.options)


def pytest_load_initial_conftests(early_config: pytest.Config, args: Sequence[str]) -> None:
    addons = addons_of(early_config)
    unknown, like = unknown_option(args, addons.options)
    if unknown and (like or addons.errors):
        # It may be an option of the broken add-on, which pytest alone does not name.
        hint = [f"did you mean {like}?"] if like else []
        raise pytest.UsageError("; ".join([f"unknown option {unknown}", *hint, *addons.errors]))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "mlperf(workload, scenario, engine, precision, accelerator, power_limit_w, kind, round): "
        "a measured case; select with -m \"mlperf(scenario='Offline')\"",
    )
    config.addinivalue_line(
        "markers",
        "mlperf_benchmark(max_rise, metric, accelerator, precision): options of a test with "
        "pytest-benchmark for --mlperf-judge-benchmarks",
    )
    if read_options(config).plan and hasattr(config.option, "dist"):
        config.option.dist = "no"  # a plan runs nothing, so there is nothing to distribute
    config.pluginmanager.register(_Reports(config), REPORTS)


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if config.pluginmanager.hasplugin(RUN_OF_BENCHMARK):
        return
    options = read_options(config)
    judges = options.benchmarks.judge_benchmarks == "yes"
    if judges and not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError(
            "--mlperf-judge-benchmarks needs pytest-benchmark, which is not installed or is off; "
            "try: pip install 'pytest-mlperf[benchmark]'"
        )
    if addons_of(config).errors and names_suites(config):
        late("session_end").refuse_broken_addons(addons_of(config))
    if options.accelerator:
        session_of(config).selection.require_accelerator()
    if options.resume and not options.plan:
        state = session_of(config)
        if state.is_worker:
            state.progress.load_resumed()
        else:
            state.progress.take_over(state.selection.look_for)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if not file_path.name.endswith(SUFFIX):
        collector: pytest.Collector | None = None
        try:
            addons = addons_of(parent.config)
            collector = addons.first("mlperf_collect_file", path=file_path, parent=parent)
        except AddOnError:
            session_of(parent.config)  # which ends once all is collected
        return collector
    suite: pytest.Collector | None = late("collect").collect_suite(file_path, parent)
    return suite


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    is_folder = isinstance(collector, pytest.Directory) and report.passed
    if is_folder and any(collector.path.glob(f"*{SUFFIX}")):
        report.result = [*report.result, *late("collect").unread_suites(collector)]
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__ == "pytest_mlperf.plugin.checks":
        late("collect").parametrize(metafunc)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    options = read_options(config)
    if options.benchmarks.judge_benchmarks == "yes":
        state = session_of(config)
        state.unjudged = late("benchmarks").take_over(config, items, options)
    if late_session(config):
        late("collect").select(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not late_session(pyfuncitem.config) or late("report_json").PLANNED not in pyfuncitem.stash:
        return None
    from pytest_mlperf.core.case import Kind

    judge: Any = pyfuncitem.funcargs["mlperf"]
    judge.judge(pyfuncitem.stash[late("report_json").PLANNED], Kind.PERFORMANCE).check()
    return True


@pytest.hookimpl(tryfirst=True)  # before pytest prints what was collected
def pytest_collection_finish(session: pytest.Session) -> None:
    if state := late_session(session.config):
        if state.addons.errors:
            late("session_end").refuse_broken_addons(state.addons)
        state.planned_items(session.items)


def pytest_report_collectionfinish(
    config: pytest.Config, items: Sequence[pytest.Item]
) -> list[str]:
    state = late_session(config)
    if not state:
        return []
    markers = {re.split(r"[(:]", line)[0].strip() for line in config.getini("markers")}
    width = config.get_terminal_writer().fullwidth
    return [
        *state.live.estimate(),
        *late("collect").gaps(items, width),
        *late("collect").misspelt(config.option.markexpr, markers),
    ]


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    options = read_options(session.config)
    if options.plan or session.config.option.collectonly:
        return True if options.plan else None
    addons, state = addons_of(session.config), late_session(session.config)
    if options.distributed:
        state = session_of(session.config)
    if state is None:
        return None
    ran: bool | None = None
    try:
        named = {"session": session, "plan": state, "options": options.by_name}
        ran = addons.first("mlperf_runtestloop", **named)
        reports: _Reports | None = session.config.pluginmanager.getplugin(REPORTS)
        if ran and session.items and not (reports and reports.any_seen):
            raise AddOnError("an add-on took over the tests of this session, but ran none")
    except AddOnError as error:
        addons.errors[str(error)] = None
        late("session_end").refuse_broken_addons(addons)
    return ran


@pytest.fixture
def mlperf(request: pytest.FixtureRequest) -> Mlperf:
    """Measure an engine under LoadGen and judge it: see docs/python.md."""
    fixture: Mlperf = late("fixture").Mlperf(session_of(request.config), request)
    return fixture


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if late_session(item.config) and call.when == "call":
        late("report_json").attach(item, report, call.excinfo and call.excinfo.value)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    others = hasattr(report, "wasxfail") or report.outcome == RERUN
    if not hasattr(report, "mlperf") or others:
        return None
    status: tuple[str, str, tuple[str, dict[str, bool]]] = late("report_json").status(report)
    return status


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if state := late_session(config):
        late("session_end").summarise(state, terminalreporter)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if state := late_session(session.config):
        late("session_end").finish(state, session)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["mlperf_run"] = run_id(node.config)
    node.workerinput["mlperf_columns"] = node.config.get_terminal_writer().fullwidth


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # A worker that crashed has no output.
    if notices := getattr(node, "workeroutput", {}).get("mlperf_notices"):
        session_of(node.config).copy_notices(notices)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "load" or not names_suites(config):
        return None
    return late("xdist").CaseScheduling(config, log)


def names_suites(config: pytest.Config) -> bool:
    """Check whether the paths on the command line or in `testpaths` contain a suite."""
    if config.args_source is config.ArgsSource.INVOCATION_DIR:
        return False
    paths = [config.invocation_params.dir / argument.split("::")[0] for argument in config.args]
    return any(path.name.endswith(SUFFIX) or any(path.rglob(f"*{SUFFIX}")) for path in paths)


class _Reports:
    """Handle the reports of all tests, also in the xdist controller, which collects nothing."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._session: pytest.Session | None = None
        self.any_seen = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        self._session, stopped = session, True
        try:
            result = yield
            stopped = False
        finally:
            if (state := late_session(self._config)) and state.holds:
                state.deferral_plugin.conclude(session, stopped=stopped)
        return result

    @pytest.hookimpl(trylast=True, specname="pytest_runtest_logreport")
    def stop_workers(self, report: pytest.TestReport) -> None:
        if report.failed and (state := late_session(self._config)) and state.holds:
            state.deferral_plugin.stop(self._session)

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        if late_session(self._config) and isinstance(excinfo.value, KeyboardInterrupt):
            self._config.add_cleanup(
                import_module("pytest_mlperf.processes").end_on_next_interrupt()
            )

    # Around pytest's own wrapper, which prints the failures first.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None, object, object]:
        if state := late_session(self._config):
            late("session_end").fold_failures(state, terminalreporter)
        return (yield)

    # Before the terminal shows it: what a user has seen is kept, also when Ctrl-C follows at once.
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.any_seen = True
        if report.outcome == RERUN:
            return  # the test runs again: its last report counts
        if hasattr(report, "mlperf"):
            session_of(self._config).record(report)
        elif hasattr(report, "mlperf_line") and hasattr(report, "node"):  # in the controller
            session_of(self._config).live.tell(report.mlperf_line)
        elif report.skipped and SUFFIX in report.nodeid and isinstance(report.longrepr, tuple):
            session_of(self._config).skipped[report.nodeid] = report.longrepr[2]


def late_session(config: pytest.Config) -> MlperfSession | None:
    """Return this plugin's session state; None if pytest found no suite, marker or result."""
    return config.stash.get(SESSION, None)


def session_of(config: pytest.Config) -> MlperfSession:
    """Return this plugin's session state; create it on the first call."""
    state: MlperfSession = late("session").session_state(config)
    return state
