"""Take a run's values as baselines: performance from its results, scores from the files it wrote.

Both are data from another machine. Performance goes through `pytest-mlperf update`. Files with
scores are taken only for cases that the results say were recorded, after the loaders that the tests
use have read them, from the places that the cases' names give.
"""

from __future__ import annotations

import argparse
import glob
import shlex
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf.cli import main as pytest_mlperf
from pytest_mlperf.core.baseline import AccuracyBaseline
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.untrusted_text import clean
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.stores import accuracy_baselines as store
from pytest_mlperf.stores.results import read_results

REFUSED = 4
"""Exit code where a case is refused and the rest goes on; 1 is Python's own, of a crash."""

LARGEST = 8 * 2**20
"""Bytes of one file with scores; 24,576 samples take about 50,000 a metric."""

UNPACKED = 64 * 2**20
"""Bytes of a file with scores after unpacking."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Accepted scores of one case, as a machine recorded them.

    Attributes:
        case: Id of the case.
        new: Where its file was downloaded to.
        place: Where it belongs.
        before: What is accepted now, or None.
        after: What would be.
    """

    case: str
    new: Path
    place: Path
    before: AccuracyBaseline | None
    after: AccuracyBaseline

    def lines(self) -> Iterator[str]:
        """Yield what would change, one line a metric."""
        yield self.case
        for metric, score in self.after.scores.items():
            old = None if self.before is None else self.before.scores.get(metric)
            step = f"new {score:.6g}" if old is None else f"{old:.6g} -> {score:.6g}"
            yield f"  {metric} {step}"
        yield f"  {self.after.samples} scores -> {self.place}"

    def write(self) -> None:
        """Copy both files; scores that nothing vouches for any more go.

        Raises:
            MlperfError: They cannot be written.
        """
        store.copy(self.new, self.place)


def recorded(results: Path, only: frozenset[str]) -> list[CaseResult]:
    """Return the cases whose scores were recorded.

    Raises:
        MlperfError: The results are defective.
    """
    return [
        one
        for one in read_results(results).cases
        if one.verdict.kind == "accuracy" and one.verdict.outcome is Outcome.RECORDED
        if not (one.handicap or one.pretended)
        if not only or one.verdict.case.id in only
    ]


def found(one: CaseResult, downloaded: Path, baselines: Path) -> Scores | None:
    """Return the scores of a case; None where another scenario's test wrote them or none changed.

    Args:
        one: Its result.
        downloaded: Folder of artifacts, each a machine's whole folder of baselines: what it did
            not record lies there too, as it was checked out.
        baselines: Folder of this repository's.

    Raises:
        MlperfError: Files are too large, damaged, of another case, or twice there and not the same;
            a name of the case is a path.
    """
    case = one.verdict.case
    names = {"workload": case.workload, "engine": case.engine, "precision": case.precision}
    root = Path("open") if one.division == "open" else Path()
    place = store.path_for(root, **names)
    before = store.ACCURACY_DOCUMENT.load(baselines / place)
    machines = folders(downloaded, case.accelerator)
    there = [machine / place for machine in machines if (machine / place).is_file()]
    fresh = {path: after for path in there if (after := loaded(path)) != before}
    if len({after.scores_sha256 for after in fresh.values()}) > 1:
        raise MlperfError(f"{place}: recorded twice by {case.accelerator}, and not the same")
    for new, after in fresh.items():
        if {name: getattr(after, name) for name in names} != names:
            raise MlperfError(f"{new}: is of another case than its name")
        return Scores(case=case.id, new=new, place=baselines / place, before=before, after=after)
    return None


def folders(downloaded: Path, accelerator: str) -> list[Path]:
    """Return what machines of this kind sent; one artifact alone has no folder of its own."""
    if not any(downloaded.glob("baselines-mlperf-*")):
        return [downloaded]
    return sorted(downloaded.glob(f"baselines-mlperf-{glob.escape(accelerator)}-*"))


def accuracy(parsed: argparse.Namespace) -> list[Scores]:
    """Return what would be taken, each file once: no hardware is part of its name.

    Raises:
        MlperfError: A file is defective, or two machines recorded different scores for one.
    """
    taken: dict[Path, Scores] = {}
    for one in recorded(parsed.results, frozenset(parsed.select)):
        scores = found(one, parsed.recorded, parsed.baselines)
        if scores is None:
            continue
        other = taken.setdefault(scores.place, scores)
        if other.after.scores_sha256 != scores.after.scores_sha256:
            raise MlperfError(
                f"{scores.place}: {other.case} and {scores.case} recorded different scores: "
                "select one of them"
            )
    return list(taken.values())


def loaded(path: Path) -> AccuracyBaseline:
    """Return an accuracy baseline whose scores can be read.

    Raises:
        MlperfError: One of its two files is missing, damaged or too large.
    """
    if path.is_file() and path.stat().st_size > LARGEST:
        raise MlperfError(f"{path}: larger than {LARGEST >> 20} MiB")
    scores = store.scores_path(path)
    if scores.is_file() and scores.stat().st_size > LARGEST:
        raise MlperfError(f"{scores}: larger than {LARGEST >> 20} MiB")
    if scores.is_file():
        try:
            with zipfile.ZipFile(scores) as archive:
                size = sum(member.file_size for member in archive.infolist())
        except zipfile.BadZipFile:
            raise MlperfError(f"{scores}: is damaged") from None
        if size > UNPACKED:
            raise MlperfError(f"{scores}: unpacks to more than {UNPACKED >> 20} MiB")
    both = store.load(path)
    if both is None:
        raise MlperfError(f"{path}: is gone")
    return both[0]


def performance(parsed: argparse.Namespace, known: frozenset[str]) -> int:
    """Run `pytest-mlperf update` on the results, here: its 1 is a refusal, a crash an exception."""
    command = ["update", "--no-runs", "--baselines", str(parsed.baselines)]
    for option, cases in (("--case", parsed.select), ("--accept-regression", parsed.accept)):
        command += [word for case in cases if case in known for word in (option, case)]
    if parsed.write:
        command += ["--write", "--reason", parsed.reason]
    code = pytest_mlperf([*command, "--", str(parsed.results)])
    return REFUSED if code == 1 else code


def main() -> int:
    """Print what would change, and change it with --write.

    Returns:
        0, REFUSED, or 2 where nothing can be taken.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--recorded", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--baselines", type=Path, default=Path("baselines"), metavar="FOLDER")
    parser.add_argument("--select", type=shlex.split, default=[], metavar="CASES")
    parser.add_argument("--accept", type=shlex.split, default=[], metavar="CASES")
    parser.add_argument("--reason", default="")
    parser.add_argument("--write", action="store_true")
    parsed = parser.parse_args()
    try:
        return accept(parsed)
    except MlperfError as error:
        print(clean(str(error)), file=sys.stderr)
        return 2


def accept(parsed: argparse.Namespace) -> int:
    """Take performance, then scores.

    Raises:
        MlperfError: A file is defective, or a case is unknown.
    """
    cases = read_results(parsed.results).cases
    every = frozenset(one.verdict.case.id for one in cases)
    for name in (*parsed.select, *parsed.accept):
        if name not in every:
            raise MlperfError(f"no case {name!r} in these results")
    measured = frozenset(o.verdict.case.id for o in cases if o.verdict.kind == "performance")
    code = 0
    if measured and (not parsed.select or measured & set(parsed.select)):
        code = performance(parsed, measured)
        if code not in (0, REFUSED):
            return code
    for scores in accuracy(parsed):
        for line in scores.lines():
            print(clean(line))
        if parsed.write:
            scores.write()
    return code


if __name__ == "__main__":
    sys.exit(main())
