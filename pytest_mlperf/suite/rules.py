"""Check that a suite's extensions are installed and accept its options."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from math import prod
from typing import Any, get_args

from pytest_mlperf import registry
from pytest_mlperf.core.case import PRECISION_NAMES, Phase, Scenario
from pytest_mlperf.core.errors import MlperfError, SuiteError
from pytest_mlperf.core.extension import Builder
from pytest_mlperf.core.untrusted_text import nearest, quoted, spelling_hint
from pytest_mlperf.hardware.machine import detect, split
from pytest_mlperf.hardware.specs import known_classes
from pytest_mlperf.suite import tables
from pytest_mlperf.suite.model import Suite
from pytest_mlperf.suite.places import expand, unset_in
from pytest_mlperf.suite.tables import EngineEntry
from pytest_mlperf.suite.trial import ABSENT, first_wrong_path, try_engine, wrong_values
from pytest_mlperf.suite.values import Defect, KeyPath, under, whole_class


def accelerator_defects(suite: Suite) -> Iterator[Defect]:
    """Yield a defect for each accelerator unknown to the package, the suite and this machine."""
    classes = {*known_classes().values(), *suite.accelerators}
    for index, entry in enumerate(suite.engines):
        for kind in dict.fromkeys(split(name)[1] for name in entry.accelerators):
            if not classes & {kind, whole_class(kind)} and kind not in detect(gpus=True).classes:
                hint = spelling_hint(kind, sorted(classes))
                yield (
                    ("engines", index, "accelerators"),
                    f"unknown accelerator {kind!r}{f'{hint} Else' if hint else ';'} declare it "
                    f"with a table [accelerators.{whole_class(kind)}], which may be empty",
                )


def source_defects(suite: Suite) -> Iterator[Defect]:
    """Yield extensions that are not installed, and options that they do not accept."""
    scorer = suite.workload.scorer
    for key, dataset in dict(
        suite.data_of(s, p) for s in suite.scenarios for p in get_args(Phase)
    ).items():
        options = dataset.options if dataset.path is None else {**dataset.options, "path": ""}
        refused = [*_table_errors("datasets", dataset.use, options)]
        yield from under(key, refused or _dataset_defects(dataset))
    if scorer:
        yield from under(
            ("workload", "scorer"), _table_errors("scorers", scorer.use, scorer.options)
        )
    elif suite.rules and suite.rules.scorer:
        use = suite.rules.scorer
        for _, message in _table_errors("scorers", use, {}):
            cure = f'set it in [workload]: scorer = {{ use = "{use}", OPTION = ... }}'
            yield ("workload",), f"{message}; {cure}"
    for index, entry in enumerate(suite.engines):
        defects = (_entry_defects(suite, entry, name) for name in dict.fromkeys(entry.accelerators))
        yield from under(("engines", index), dict.fromkeys(chain.from_iterable(defects)))
    yield from _reference_defects(suite)


def _table_errors(
    group: registry.Group,
    use: str,
    options: Mapping[str, Any],
    key_of: Callable[[Iterable[str]], KeyPath] | None = None,
) -> Iterator[Defect]:
    """Yield (key path in its table, message) for each error in an extension's name and options.

    `key_of` returns the key path of the first option, among those given, that the suite sets.
    """
    key_of = key_of or partial(first_wrong_path, options=options)
    try:
        registry.target(group, use)
    except SuiteError as error:
        yield ("use",), str(error)
        return
    try:
        registry.check_options(group, use, options)
    except SuiteError as error:
        yield key_of(error.options), str(error)
        return
    set_options = {name: value for name, value in options.items() if not unset_in(value)}
    for name, message in wrong_values(group, use, set_options).items():
        yield key_of([name]), message


def _dataset_defects(source: tables.DatasetSource) -> Iterator[Defect]:
    look, options = registry.file_finder(source.use), source.options
    if look is None or unset_in(options):
        return
    path = {} if source.path is None else {"path": ABSENT}
    try:
        look(**options, **path)
    except SuiteError as error:
        yield first_wrong_path(error.options, options), str(error)
    except Exception:  # missing files are reported as a skip, all else by the worker
        return


def _entry_defects(suite: Suite, entry: EngineEntry, accelerator: str) -> Iterator[Defect]:
    options = entry.options_on(accelerator)
    refused = list(_table_errors("engines", entry.use, options, partial(entry.key_of, accelerator)))
    yield from refused
    if refused:
        return
    try:
        options = expand(options)  # an unset variable of data or scorers is reported as a skip
    except SuiteError as error:
        yield entry.key_of(accelerator, ()), str(error)
        return
    path = suite.workload.model if entry.model is None else entry.model
    model = None if path is None else ABSENT
    try:
        try_engine(entry.use, options=options, model=model, precision=entry.precision)
    except SuiteError as error:
        yield entry.key_of(accelerator, error.options), str(error)
        return
    except MlperfError:  # missing files are reported as a skip
        pass
    precisions = registry.class_attribute("engines", entry.use, "precisions") or ()
    words = dict.fromkeys([*PRECISION_NAMES, *precisions])
    if entry.use in registry.registered("engines") and entry.precision not in words:
        yield (
            ("precision",),
            f"unknown precision {entry.precision!r}{nearest(entry.precision, words)}",
        )
    if entry.baseline_engine is not None and options.get("url") and registry.is_client(entry.use):
        yield (
            ("baseline_engine",),
            "both builds would use the same server (option url): remove baseline_engine, start a "
            "server for each build, and compare two engine entries: pytest-mlperf turns --help",
        )
    yield from _harness_defects(suite, entry)
    scored = suite.workload.scorer or (suite.rules and suite.rules.scorer)
    if not scored and not registry.is_timed(entry.use):
        yield ("use",), f"{entry.use} has no speed, only answers; add a scorer to [workload]"
    yield from _gpu_defects(entry, accelerator, options)
    alone = [each.name for each in suite.scenarios if each.name.answers_one_at_a_time]
    if alone and entry.replicas_on(accelerator) > 1 and split(accelerator)[1] != "cpu":
        yield (
            ("accelerators",),
            f'{alone[0]} sends one query at a time, so only one replica on "{accelerator}" works '
            "and the other GPUs are idle: measure it in a separate suite with one process",
        )


def _harness_defects(suite: Suite, entry: EngineEntry) -> Iterator[Defect]:
    if not (harness := registry.harness(entry.use)):
        return
    if not tables.title_of(entry) and "client" not in entry.options:
        yield (
            ("use",),
            f"{entry.use} needs a Python in which the client of {harness} is installed: add, for "
            'example, python = "~/venvs/endpoints/bin/python"',
        )
    if others := [each.name for each in suite.scenarios if each.name != Scenario.CONCURRENCY]:
        yield (
            ("use",),
            f"{entry.use} measures only Concurrency, and this suite has {', '.join(others)}: "
            "write a separate suite",
        )
    if entry.baseline_engine is not None:
        yield ("baseline_engine",), f"{entry.use} measures a running server; remove baseline_engine"


def _gpu_defects(
    entry: EngineEntry, accelerator: str, options: Mapping[str, Any]
) -> Iterator[Defect]:
    replicas, override = entry.replicas_on(accelerator), entry.on.get(accelerator)
    written = ("on", accelerator, "replicas") if override and override.replicas else ("replicas",)
    if (
        replicas > 1 or "all" in (entry.replicas, override and override.replicas)
    ) and registry.is_client(entry.use):
        yield (
            written,
            f"engine {entry.use!r} is a client of a server with its own replicas; remove replicas",
        )
        return
    option, device = registry.device_option(entry.use, options) or ("", "")
    if wrong := _wrong_device(accelerator, replicas, option, device):
        yield entry.key_of(accelerator, [option]), wrong
    elif split(accelerator)[1] != "cpu":
        yield from _count_defects(entry, accelerator, options, written)


def _wrong_device(accelerator: str, replicas: int, option: str, device: str) -> str:
    kind, _, number = device.partition(":")
    count, name = split(accelerator)
    per_replica = max(1, count // replicas)
    if kind == "cuda" and name == "cpu":
        return f'{option} selects a GPU: name the GPU in accelerators, not "cpu"'
    if kind == "cpu" and name != "cpu":
        value = '["cuda"]' if option == "providers" else '"cuda"'
        return (
            f'{option} selects the CPU, and the GPUs of "{accelerator}" would be idle; set '
            f"options = {{ {option} = {value} }}"
        )
    if kind == "cuda" and number.isdecimal() and int(number) >= per_replica:
        limit = f"GPU {per_replica - 1} is the last" if per_replica > 1 else "there is only GPU 0"
        return (
            f'{option} selects GPU {number}, but each process of "{accelerator}" numbers its '
            f"GPUs from 0, and {limit}"
        )
    return ""


def _count_defects(
    entry: EngineEntry, accelerator: str, options: Mapping[str, Any], written: KeyPath
) -> Iterator[Defect]:
    replicas, sizes = entry.replicas_on(accelerator), registry.parallelism(entry.use, options)
    for name, size in (sizes or {}).items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            message = f"{name} = {quoted(size)} is not a whole number of at least 1"
            yield entry.key_of(accelerator, name.split(".")), message
            return
    if sizes is None:
        wrong = _wrong_replicas(accelerator, replicas)
    else:
        wrong = _wrong_product(accelerator, replicas, sizes)
    if wrong:
        yield written if replicas > 1 and not sizes else ("accelerators",), wrong


def _wrong_product(accelerator: str, replicas: int, sizes: Mapping[str, int]) -> str:
    count, _ = split(accelerator)
    per_replica = prod(sizes.values())
    used = replicas * per_replica
    if used == count:
        return ""
    factors = {"replicas": replicas, **sizes}
    product = " x ".join(f"{name} = {size}" for name, size in factors.items())
    remedies = [f"replicas = {count // per_replica}"] if count % per_replica == 0 else []
    if sizes and count % replicas == 0:
        remedies.append(f"{next(iter(sizes))} so that the product is {count}")
    remedies.append("accelerators to the number that is used")
    return (
        f'{product} use {used} GPU{"s" * (used != 1)}, but "{accelerator}" has {count}: speed and '
        f"energy are those of all of them; set {', or '.join(remedies)}"
    )


def _wrong_replicas(accelerator: str, replicas: int) -> str:
    count, _ = split(accelerator)
    if count % replicas == 0:
        return ""
    fitting = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
    return (
        f'{replicas} replicas cannot equally share "{accelerator}": write {fitting}, or '
        '"all" for one on each GPU'
    )


def _reference_defects(suite: Suite) -> Iterator[Defect]:
    workload, rules = suite.workload, suite.rules
    use = workload.scorer.use if workload.scorer else rules.scorer if rules else ""
    metrics = registry.metrics(use) if use and workload.reference else None
    for name in workload.reference or {}:
        if metrics is not None and name not in metrics:
            message = f"scorer {use!r} gives no {name!r}{nearest(name, metrics)}"
            yield ("workload", "reference", name), message


def build_defects(suite: Suite) -> Iterator[Defect]:
    """Yield builders that are not installed, and options that they do not accept."""
    for index, entry in enumerate(suite.engines):
        if entry.build is not None:
            yield from under(("engines", index, "build"), _defects(suite, entry, entry.build))


def _defects(suite: Suite, entry: EngineEntry, step: tables.BuildStep) -> Iterator[Defect]:
    if entry.model is None and suite.workload.model is None:
        yield (), "no model to quantise; set workload.model to the model's folder"
    refused = list(_table_errors("builders", step.use, {**step.options, "recipe": step.recipe}))
    yield from refused
    if refused:
        return
    if isinstance(source := step.calibration, tables.CalibrationSource):
        path = {} if source.path is None else {"path": ABSENT}
        defects = _table_errors("datasets", source.use, {**source.options, **path})
        yield from under(("calibration",), defects)
    builder = yield from _checked_builder(step)
    if builder is not None:
        yield from _fit(entry, step, builder)


def _checked_builder(step: tables.BuildStep) -> Generator[Defect, None, Builder | None]:
    """Create a registered builder, or yield the errors in its options and return None."""
    entry, options = registry.registered("builders").get(step.use), step.options
    if entry is None or unset_in(options):
        return None
    try:
        built: Any = registry.resolve(entry.value)(recipe=step.recipe, **expand(options))
    except SuiteError as error:
        yield first_wrong_path(error.options, (*options, "recipe")), str(error)
        return None
    except MlperfError:  # missing files are reported by the first run
        return None
    return built if isinstance(built, Builder) else None


def _fit(entry: EngineEntry, step: tables.BuildStep, builder: Builder) -> Iterator[Defect]:
    if builder.precision not in {None, entry.precision}:
        yield (
            ("recipe",),
            f"recipe = {step.recipe!r} makes weights of {builder.precision}: write precision = "
            f'"{builder.precision}" in the engine entry, not "{entry.precision}"',
        )
    elif message := _load_error(entry.use, step, builder):
        yield ("recipe",), message
    if builder.calibrates and step.calibration is None:
        yield (
            ("recipe",),
            f"recipe = {step.recipe!r} needs samples: write calibration = 64 for 64 samples "
            'of the workload\'s data set, or calibration = { use = "...", path = "..." }',
        )
    if not builder.calibrates and step.calibration is not None:
        yield ("calibration",), f"recipe = {step.recipe!r} uses no samples: remove it"


def _load_error(use: str, step: tables.BuildStep, builder: Builder) -> str:
    """Return a message if engine `use` states that it cannot load the built checkpoint, else ""."""
    if not builder.format or _can_load(use, builder):
        return ""
    others = [
        name for name in registry.registered("engines") if _can_load(name, builder, stated=True)
    ]
    loads = f"engines that load it: {', '.join(sorted(others))}" if others else "none here does"
    return (
        f"engine {use!r} does not load what builder {step.use!r} makes by recipe = "
        f"{step.recipe!r} ({builder.format}, {builder.precision}); {loads}"
    )


def _can_load(use: str, builder: Builder, *, stated: bool = False) -> bool:
    """Return whether an engine loads a builder's format; if it lists no formats, not `stated`."""
    formats = registry.class_attribute("engines", use, "checkpoints")
    return not stated if formats is None else builder.precision in formats.get(builder.format, ())
