"""Find stored sessions and cases by name, and the noise calibrated for a machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pytest_mlperf.bench.case import nearest_baselines
from pytest_mlperf.bench.policy import calibrated_rule, rule_for
from pytest_mlperf.cli.arguments import STORE
from pytest_mlperf.core.baseline import Property
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError
from pytest_mlperf.core.numbers import percent
from pytest_mlperf.core.results import Results
from pytest_mlperf.core.untrusted_text import some, spelling_hint, visible
from pytest_mlperf.judge.rule_r import RuleR
from pytest_mlperf.run.project import git_text, ignored_in_git
from pytest_mlperf.stores.foreign import content_of
from pytest_mlperf.stores.results import TITLE, digest_of, read_results
from pytest_mlperf.stores.sessions import Sessions
from pytest_mlperf.stores.signatures import verified


def folder_in(runs_dir: Path, *parts: str) -> Path:
    """Create a folder below the runs folder; raise EnvironmentFault if that fails."""
    folder = runs_dir.joinpath(*parts)
    try:
        ignored_in_git(runs_dir)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{error.strerror}; name another folder: --runs-dir DIR"
        raise EnvironmentFault(f"{folder} cannot be written: {reason}") from None
    return folder


def results_path(text: str | None, runs_dir: Path, cases: Sequence[str] = ()) -> Path:
    """Return the results file that argument RESULTS names, or by default the newest session's.

    Args:
        cases: Names of cases; sessions with all of them are preferred.
    """
    if text is not None:
        return results_file(text, runs_dir) or Path(text)
    files = Sessions(runs_dir).files
    if not files:
        raise MlperfError(
            f"no results in {runs_dir}/runs; measure first (pytest suites), or run this command in "
            "pytest's root folder"
        )
    having = (file for file in files if all(matching(name, _ids(file)) for name in cases))
    return next(having, files[0]) if cases else files[0]


def _ids(file: Path) -> list[str]:
    try:
        return [result.verdict.case.id for result in read_results(file).cases]
    except MlperfError:
        return []


def results_file(text: str, runs_dir: Path) -> Path | None:
    """Return the results file for a path or the first characters of a session id, or None."""
    path = Path(text)
    if path.is_file():
        return path
    if (path / "results.json").is_file():
        return path / "results.json"
    if not re.fullmatch(r"[0-9][0-9A-Za-z-]*", text):
        return None
    files = sorted((runs_dir / "runs").glob(f"{text}*/results.json"))
    if len(files) > 1:
        names = ", ".join(file.parent.name for file in files)
        raise MlperfError(f"{len(files)} sessions match {text!r}: {names}; write more of the id")
    return files[0] if files else None


MAX_LISTED_CASES = 5


def matching(name: str, ids: Iterable[str]) -> list[str]:
    """Return the case with this id or test id, else all cases whose id contains `name`."""
    cases = list(dict.fromkeys(ids))
    test = re.search(r"\[(.+)\]$", name)
    exact = test[1] if test else name
    if exact in cases:
        return [exact]
    return [] if test else [case for case in cases if name.lower() in case.lower()]


def case_named(name: str, ids: Iterable[str], where: str = "") -> str:
    """Return the one case that a case id, a test id, or a part of a case id matches.

    Args:
        where: Location of the cases, for messages: " in r.json".

    Raises:
        MlperfError: Several cases match, or none.
    """
    cases = list(dict.fromkeys(ids))
    fitting = matching(name, cases)
    if len(fitting) == 1:
        return fitting[0]
    raise not_one_case(name, cases, where)


def not_one_case(name: str, cases: Sequence[str], where: str = "") -> MlperfError:
    """Create the error for a `name` that fits none or several of `cases` (in the place `where`)."""
    fitting = matching(name, cases)
    listed = visible(some(fitting or list(dict.fromkeys(cases)), MAX_LISTED_CASES))
    if fitting:
        matches = f" match {name!r}" if name else ", name one"
        return MlperfError(f"{len(fitting)} cases{where}{matches}: {listed}")
    hint = spelling_hint(name, cases) or f"; known: {listed or 'none'}"
    return MlperfError(f"no case {name!r}{where}{hint}")


def verified_results(path: Path, signers_file: Path | None) -> tuple[Results, list[str]]:
    """Read results; with a file of allowed signers verify them, and return notes on the signer."""
    if signers_file is None:
        return read_results(path), []
    content = content_of(path, TITLE)  # once: the bytes that were signed are those that are used
    signer = verified(path, content, signers_file)
    results = read_results(path, content)
    for case in results.cases:
        here, then = digest_of(Path(case.suite)), case.rests_on.get(case.suite)
        if here and here != then:
            raise MlperfError(
                f"{path}: {case.test} was measured with another version of {case.suite}; check "
                "out the measured version, or measure again"
            )
    return results, [f"{path}: signed by {signer}"]


BASELINES = Path("baselines")


def rule_here(
    roots: Iterable[Path], accelerator: str, identity: Mapping[str, Property]
) -> tuple[RuleR, str]:
    """Return rule R with a machine's noise, by the first calibration in `roots`, and its source."""
    usual = rule_for(accelerator)
    for root in roots:
        rule, words = calibrated_rule(root, accelerator, identity, usual.max_runs)
        if words:
            return rule, words
    return usual, default_noise_text(usual)


def default_noise_text(rule: RuleR) -> str:
    """Return the text that default noise is used, because the machine is not calibrated."""
    return f"default noise, {percent(rule.prior_sd)} per run: this machine is not calibrated"


def calibrated_roots(
    folder: Path | None, suites: Iterable[Path], results: Iterable[Path]
) -> list[Path]:
    """Return folders that may hold calibrations: `folder`, else near suites, results or in git."""
    if folder:
        return [folder]
    tracked = git_text("ls-files", "-z", "--", ":(top,glob)**/baselines/calibration/*.json")
    roots = [*map(nearest_baselines, suites), BASELINES.resolve()]
    roots += [parent / BASELINES for file in results for parent in file.resolve().parents]
    roots += [Path(name).resolve().parents[1] for name in tracked.split("\0") if name]
    return list(dict.fromkeys(roots))


def store_here(url: str) -> str:
    """Return the database URL of `--store`; "" if it is the default and does not exist yet."""
    return url if url != str(STORE) or STORE.exists() else ""
