"""List files that changed in git since a baseline's commit, and whether runs loaded them."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.core.job import Job, MeasuredCase
from pytest_mlperf.core.untrusted_text import some
from pytest_mlperf.run.project import CHANGED_MARK, files_since
from pytest_mlperf.run.worker.model_files import path_texts


def tree_changes(
    policy: Policy, commit: str | None, job: MeasuredCase, suite: Path, imported: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return lines on changes since a baseline's commit, and lines on changes that are unknown."""
    if commit is None:
        return [], []
    loaded = {os.path.realpath(path) for path in (*imported, str(suite), *_named(job, suite))}
    recorded = [policy.baselines] if policy.baselines else []
    files = files_since(policy.root, commit.removesuffix(CHANGED_MARK), loaded, recorded)
    if files is None:
        return [], [f"files: not compared, this clone lacks commit {commit}"]
    if commit != commit.removesuffix(CHANGED_MARK):
        return [], [
            f"files: not compared, the baseline was recorded with uncommitted changes ({commit})"
        ]
    changed, new = files
    groups: dict[str, list[Path]] = {"files.loaded": [], "files.other": []}
    for file in changed:
        places = map(str, (file.resolve(), *file.resolve().parents))
        groups["files.other" if loaded.isdisjoint(places) else "files.loaded"].append(file)
    lines = [
        f"{key} {len(group)} in git since {commit}: {some([*map(policy.shown, group)])}"
        for key, group in groups.items()
        if group
    ]
    if new is None:
        return lines, ["files: not compared, git cannot list them"]
    unknown = f"files that are not in git and may have changed: {some([*map(policy.shown, new)])}"
    return lines, [unknown] if new else []


def _named(job: MeasuredCase, suite: Path) -> Iterator[str]:
    """Yield the files and folders that a case names, except parent folders of its suite."""
    if not isinstance(job, Job):
        return
    factories = [job.engine, job.dataset, *filter(None, [job.scoring.scorer])]
    for text in path_texts([job.model, *(factory.options for factory in factories)]):
        with contextlib.suppress(OSError, ValueError):  # most texts are no path
            path = (suite.parent / text).resolve(strict=True)
            if not suite.resolve().is_relative_to(path):
                yield str(path)
            if path.is_file():  # such as model.onnx.data of model.onnx
                yield from map(str, path.parent.glob(f"{glob.escape(path.name)}[._]*"))
    for factory in factories:
        with contextlib.suppress(Exception, SystemExit):  # importing a package runs its code
            spec = find_spec(factory.target.partition(":")[0])
            yield from filter(None, [spec and spec.origin])
