"""Check that data sets, scorers and builders fulfil the contracts in `core.extension`."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import pickle
import reprlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from math import fsum, isclose
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_mlperf import hookspecs, registry
from pytest_mlperf.core.addons import OptionGroup
from pytest_mlperf.core.errors import MlperfError, RunError, SuiteError, UnavailableError
from pytest_mlperf.core.extension import Builder, Dataset, Scorer, Scores, own_length
from pytest_mlperf.core.job import Expected
from pytest_mlperf.run import score as scoring
from pytest_mlperf.run.checkpoints.build import PICKLES
from pytest_mlperf.run.worker import samples as data_sets
from pytest_mlperf.run.worker.conversations import conversations

SLOW_IMPORTS = frozenset(
    {
        *("PIL", "cv2", "diffusers", "evaluate", "huggingface_hub", "jax", "mlperf_loadgen"),
        *("nltk", "numpy", "onnx", "onnxruntime", "pandas", "pyarrow", "pycocotools", "rapidfuzz"),
        *("safetensors", "scipy", "sklearn", "tensorflow", "tensorrt_llm", "tokenizers", "torch"),
        *("torchvision", "transformers", "tritonclient", "vllm"),
    }
)
"""Libraries with slow imports; no module that pytest itself imports may import them."""


def demand(holds: bool, problem: str, cure: str) -> None:
    if not holds:
        raise AssertionError(f"{problem}: {cure}")


def demand_error(
    kind: type[Exception], call: Callable[[], object], problem: str, cure: str
) -> None:
    """Raise AssertionError with `problem` and `cure` unless a call raises this kind of error."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{problem}: {cure}")


def check_factory(
    group: registry.Group, factory: Callable[..., Any], options: Mapping[str, Any]
) -> bool:
    """Check an extension's options and import; return whether it has an entry point."""
    subject = f"{group[:-1]} {name_of(factory)}"
    registry.check_call(subject, factory, options)
    demand_error(
        SuiteError,
        lambda: registry.check_call(subject, factory, {**options, "no_such_option": 1}),
        f"{subject}: it takes any keyword, so a misspelt option of a suite passes unseen",
        "name the options in __init__",
    )
    target = target_of(factory)
    module = target.partition(":")[0]
    if target not in {entry.value for entry in registry.registered(group).values()}:
        return False
    slow = imported(subject, module) & {*SLOW_IMPORTS, *getattr(factory, "libraries", ())}
    demand(
        not slow,
        f"{subject}: importing {module} imports {', '.join(sorted(slow))}",
        "pytest imports this module in every project; import libraries where they are used, as in "
        "__enter__",
    )
    return True


def imported(subject: str, module: str) -> set[str]:
    """Return the modules that are loaded if only this module is imported."""
    code = "import sys, importlib; importlib.import_module(sys.argv[1]); print(*sys.modules)"
    process = python(code, module)
    demand(process.returncode == 0, f"{subject} cannot be imported alone", process.stderr[-500:])
    return set(process.stdout.split())


def python(code: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run code in a new Python process with the same import path and another hash seed."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "20"},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def target_of(factory: Callable[..., Any]) -> str:
    """Return "package.module:name" of a class or function, as in a suite's `use`."""
    return f"{factory.__module__}:{factory.__qualname__}"


def name_of(factory: Callable[..., Any]) -> str:
    return str(getattr(factory, "__qualname__", factory))


def serialised(value: object) -> bytes:
    """Serialise a sample to bytes that are equal for equal samples."""
    try:
        return pickle.dumps(value)
    except Exception:  # a sample may be any object of a library
        return repr(value).encode()


def check_builder(
    builder: Callable[..., Builder],
    *,
    recipe: str,
    options: Mapping[str, Any] | None = None,
    source: Path | None = None,
    prompts: Sequence[Sequence[int]] = (),
) -> Mapping[str, str]:
    """Check a builder; return the facts that it adds to the fingerprint.

    Without `source` nothing is built and no library is needed: only declarations are checked.

    Args:
        builder: Class; called as `builder(recipe=..., **options)`.
        source: Folder of a small model; its checkpoint is built in a temporary folder.
        prompts: Token ids for calibration, if the recipe calibrates.

    Raises:
        AssertionError: The builder breaks the contract; the message has the fix.
        MlperfError: The builder refuses this recipe, these options, or this machine.
    """
    settings, title = dict(options or {}), f"builder {name_of(builder)}"
    check_factory("builders", builder, {"recipe": recipe, **settings})
    demand_error(
        SuiteError,
        lambda: builder(recipe="no-such-recipe", **settings),
        f"{title}: it takes recipe = 'no-such-recipe'",
        "raise SuiteError in __init__ for an unknown recipe, so that the user learns of it "
        "before a build",
    )
    built = builder(recipe=recipe, **settings)
    demand(
        bool(built.distributions),
        f"{title}: distributions is empty",
        "name the packages whose versions affect the result; otherwise a new version does not "
        "cause a new build",
    )
    if source is None:
        return {}
    demand(
        built.calibrates == bool(prompts),
        f"{title}: recipe {recipe!r} has calibrates = {built.calibrates}, and "
        f"{len(prompts)} prompts were given",
        "pass prompts if calibrates is true, and none if it is false",
    )
    with tempfile.TemporaryDirectory() as target:
        return _check_build(built, title, source, Path(target), prompts)


def _check_build(
    built: Builder, title: str, source: Path, target: Path, prompts: Sequence[Sequence[int]]
) -> Mapping[str, str]:
    progress: list[tuple[int, int, str]] = []
    source_hashes = _contents(source)
    facts = built.build(source, target, prompts, lambda *done: progress.append(done))
    demand(
        _contents(source) == source_hashes,
        f"{title}: build() changed files of {source}",
        "write into target alone",
    )
    written = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    carries = sorted(name for name in written if name.endswith(PICKLES))
    demand(
        not carries,
        f"{title}: build() wrote {', '.join(carries)}, which can carry code",
        "write safetensors",
    )
    demand(
        "config.json" in written and any(name.endswith(".safetensors") for name in written),
        f"{title}: build() wrote {', '.join(sorted(written)) or 'nothing'}",
        "write config.json and safetensors, which engines can load",
    )
    demand(
        all(isinstance(text, str) for pair in facts.items() for text in pair),
        f"{title}: build() returned {facts!r}",
        "return a dict of strings that says how weights were quantised",
    )
    demand(
        all(0 <= done <= total for done, total, _ in progress),
        f"{title}: progress() was given {progress[:3]}",
        "pass the number done, the total and the unit: (3, 64, 'samples')",
    )
    return facts


def _contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def check_dataset(
    dataset: Callable[..., Dataset | Sequence[Any]],
    *,
    options: Mapping[str, Any] | None = None,
    samples: int = 32,
) -> Dataset:
    """Check a data set; return it.

    Two equal instances, one of them in another process, must have the same digest. A sample must
    not depend on the order of reads. If a file is missing, `look` must raise UnavailableError, and
    the constructor an error of this package.

    Args:
        samples: Maximum number of samples to read, from the first on.

    Raises:
        AssertionError: The data set breaks the contract; the message has the fix.
        MlperfError: The data set refuses these options or its files.
    """
    settings, title = dict(options or {}), f"data set {name_of(dataset)}"
    registered = check_factory("datasets", dataset, settings)
    _check_absent(dataset, settings, title)
    built = data_sets.as_dataset(dataset(**settings))
    digest = data_sets.check_digest(built.digest, Expected())
    again = data_sets.as_dataset(dataset(**settings))
    others = [again.digest] + ([_digest_elsewhere(dataset, settings)] if registered else [])
    demand(
        all(other == digest for other in others),
        f"{title}: its digest is {digest}, and {others[-1]} when it is built again",
        "make it of the samples' content alone: no addresses, no hash(), no order of sets",
    )
    count = data_sets.count(built)
    data_sets.require_same_length(built, count)
    read = range(min(samples, count))
    first = [(serialised(built.input(index)), serialised(built.reference(index))) for index in read]
    for index in reversed(read):
        demand(
            (serialised(again.input(index)), serialised(again.reference(index))) == first[index],
            f"{title}: sample {index} differs when it is read again",
            "a sample must depend on its index and the options alone, not on the order of reading",
        )
    lengths = [[own_length(data, index) for index in read] for data in (built, again)]
    groups = [data_sets.groups_of(data, read) for data in (built, again)]
    for call, values in (("group", groups), ("output_tokens", lengths)):
        demand(
            values[0] == values[1],
            f"{title}: {call}() returns another value when it is called again",
            "return a value that depends only on the sample's index",
        )
    data_sets.sizes(built, len(read))
    conversations(built, read)
    return built


def _check_absent(dataset: Callable[..., Any], options: Mapping[str, Any], title: str) -> None:
    path = options.get("path")
    if not isinstance(path, str | Path):
        return
    absent = {**options, "path": str(Path(path) / "is" / "not" / "here")}
    look = getattr(dataset, "look", None)
    if look is not None:
        look(**options)
        demand_error(
            UnavailableError,
            lambda: look(**absent),
            f"{title}: look() does not report that {absent['path']} is missing",
            "raise UnavailableError with what is missing and what to put there",
        )
    try:
        dataset(**absent)
    except MlperfError:
        return
    except Exception as error:
        kind = type(error).__name__
        raise AssertionError(
            f"{title}: it raises {kind} if {absent['path']} is missing: raise UnavailableError "
            "with what is missing and what to put there"
        ) from error


def _digest_elsewhere(dataset: Callable[..., Any], options: Mapping[str, Any]) -> str:
    code = (
        "import json, sys; from pytest_mlperf import registry; options = json.load(sys.stdin); "
        "print('digest', registry.resolve(sys.argv[1])(**options).digest)"
    )
    texts = {
        key: str(value) if isinstance(value, Path) else value for key, value in options.items()
    }
    process = python(code, target_of(dataset), stdin=json.dumps(texts))
    if process.returncode:
        raise AssertionError(
            f"data set {name_of(dataset)}: it cannot be built in another process: "
            f"{process.stderr.strip().splitlines()[-1]}"
        )
    return process.stdout.split()[-1]


ROUNDING_SLACK = 0.051
"""Rounding error of aggregates that MLPerf's scripts print with one decimal."""


def check_scorer(
    scorer: Callable[..., Scorer],
    outputs: Sequence[bytes],
    references: Sequence[Any],
    *,
    model: str | None = None,
    options: Mapping[str, Any] | None = None,
    artefacts: Sequence[Mapping[str, bytes]] | None = None,
    any_order: bool = True,
) -> Scores:
    """Check a scorer; return its scores.

    Each sample must get a finite score or None; the aggregate must be their mean or sum. Scores
    must not depend on the order of samples, references must stay unchanged, and malformed outputs
    must be scored or refused by an error of this package.

    Args:
        scorer: Class; called as `scorer(model=..., **options)`.
        outputs: Outputs of some samples, in the engine's format.
        references: References of the same samples, in the data set's format.
        artefacts: Artefacts of the same samples as engines attach them, if the scorer needs any.
        any_order: Whether scores by sample are independent of the order; False if samples share a
            score that only the first one gets, such as the parts of one text.

    Raises:
        AssertionError: The scorer breaks the contract; the message has the fix.
        MlperfError: The scorer refuses these options, outputs or references.
    """
    settings, title = dict(options or {}), f"scorer {name_of(scorer)}"
    check_factory("scorers", scorer, settings)
    reference_bytes = serialised(list(references))
    parts = [outputs, references]
    built = scorer(model=model, **settings)
    if needed := tuple(getattr(built, "artefacts", ())):
        demand(
            artefacts is not None and all({*needed} <= each.keys() for each in artefacts),
            f"{title}: it needs the artefacts {', '.join(needed)} (attribute artefacts)",
            "pass check_scorer a dict of artefacts for each sample, as an engine attaches it",
        )
        parts.append(artefacts or ())
    scores = built.score(*parts)
    demand(
        isinstance(scores, Scores),
        f"{title}: score() returned {reprlib.repr(scores)}",
        "return pytest_mlperf.Scores",
    )
    try:
        scoring.check(scores, range(len(outputs)))
    except RunError as error:
        raise AssertionError(f"{title}: {error}") from None
    demand(
        serialised(list(references)) == reference_bytes,
        f"{title}: score() changed the references",
        "copy what you change; the references belong to the data set",
    )
    _check_metrics(scores, title, getattr(scorer, "metrics", None))
    if any_order:
        _check_order(scorer(model=model, **settings), scores, parts, title)
    _check_nonsense(scorer(model=model, **settings), parts, needed, title)
    return scores


def _check_metrics(scores: Scores, title: str, declared: Collection[str] | None) -> None:
    names = set(scores.aggregate)
    demand(
        {*scores.per_sample, *scores.lower, *scores.whole, *scores.leverage} <= names,
        f"{title}: per_sample, lower, whole or leverage name a metric without an aggregate",
        f"aggregates are {', '.join(sorted(names))}",
    )
    demand(
        declared is None or names <= set(declared),
        f"{title}: it returns {', '.join(sorted(names))}; its attribute `metrics` has "
        f"{', '.join(declared or ()) or 'none'}",
        "add every metric to `metrics`, because suites are checked against it",
    )
    for name, values in scores.per_sample.items():
        counted = [value for value in values if value is not None]
        if name in scores.whole or not counted:
            continue
        total, aggregate = fsum(counted), scores.aggregate[name]
        mean = total / len(counted)
        demand(
            isclose(mean, aggregate, rel_tol=1e-3, abs_tol=ROUNDING_SLACK)
            or isclose(total, aggregate),
            f"{title}: the mean of {name} by sample is {mean:.6g}, its aggregate {aggregate:.6g}",
            "the mean of the scores by sample (of a count: the sum) must be the aggregate; if it "
            "cannot be, name the metric in whole",
        )


def _check_order(
    scorer: Scorer, scores: Scores, parts: Sequence[Sequence[Any]], title: str
) -> None:
    """Check that reversing the samples reverses their scores and changes nothing else."""
    back = scorer.score(*(list(reversed(part)) for part in parts))
    for name, values in scores.per_sample.items():
        pairs = zip(values, reversed(list(back.per_sample[name])), strict=True)
        demand(
            all(_close(one, other) for one, other in pairs),
            f"{title}: {name} by sample changes with the order of the samples",
            "score each sample by its own output and reference, in the order of the outputs",
        )
    for name, value in scores.aggregate.items():
        demand(
            _close(value, back.aggregate[name]),
            f"{title}: {name} is {value!r}, but {back.aggregate[name]!r} for reversed samples",
            "no score may depend on the order of samples",
        )


def _check_nonsense(
    scorer: Scorer, parts: Sequence[Sequence[Any]], needed: Sequence[str], title: str
) -> None:
    """Check that malformed outputs are scored, or refused by an error of this package."""
    outputs, references, *artefacts = parts
    for nonsense in (b"", b"\xff\x00\x81"):
        broken = [("output", [[nonsense, *outputs[1:]], references, *artefacts])]
        for name in needed:
            attached = [{**artefacts[0][0], name: nonsense}, *artefacts[0][1:]]
            broken.append((f"artefact {name}", [outputs, references, attached]))
        for subject, changed in broken:
            try:
                scoring.check(scorer.score(*changed), range(len(outputs)))
            except MlperfError:
                continue
            except Exception as error:
                kind = type(error).__name__
                raise AssertionError(
                    f"{title}: {kind} is raised for the {subject} {nonsense!r}: score a "
                    'malformed answer as wrong, or raise RunError("scorer", ...) that says what '
                    "is needed"
                ) from error


def _close(score: float | None, back: float | None) -> bool:
    if score is None or back is None:
        return score is back
    return isclose(score, back, rel_tol=1e-9, abs_tol=1e-9)


HOOKS = {name: spec for name, spec in vars(hookspecs).items() if name.startswith("mlperf_")}


def check_addon(addon: ModuleType) -> frozenset[str]:
    """Check the module of an add-on's entry point; return the names of its options.

    Raises:
        AssertionError: The API version differs, there is no hook, a hook or its argument is
            unknown, or the import loads a slow library.
    """
    subject = f"add-on {addon.__name__}"
    built_for = getattr(addon, "API", None)
    demand(
        built_for == hookspecs.API,
        f"{subject} has API = {built_for}",
        f"this pytest-mlperf needs API = {hookspecs.API}",
    )
    hooks = {name: hook for name, hook in vars(addon).items() if name.startswith("mlperf_")}
    advice = f"write one of {', '.join(sorted(HOOKS))}"
    demand(bool(hooks), f"{subject} has no hook", advice)
    for name, hook in hooks.items():
        demand(name in HOOKS, f"{subject}: there is no hook {name}", advice)
        allowed = inspect.signature(HOOKS[name]).parameters
        for argument in inspect.signature(hook).parameters:
            cure = f"{name} may take {', '.join(allowed)}"
            demand(argument in allowed, f"{subject}: {name} takes {argument}", cure)
    slow = SLOW_IMPORTS & imported(subject, addon.__name__)
    demand(not slow, f"{subject} imports {', '.join(sorted(slow))}", "import it inside a hook")
    group = OptionGroup()
    if declare := hooks.get("mlperf_addoptions"):
        declare(group)
    return frozenset(group.declared)
