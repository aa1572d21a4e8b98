"""Resume an interrupted session: report its verdicts without measuring again."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from email.parser import HeaderParser
from functools import cache
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path

import pytest

from pytest_mlperf.core.case import Case, Kind, path_part
from pytest_mlperf.core.errors import MlperfError, RunError
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.hardware.machine import Machine
from pytest_mlperf.plugin.options import Options, settings_of
from pytest_mlperf.run.builds import commit_named
from pytest_mlperf.run.project import changes_digest, ignored_in_git
from pytest_mlperf.stores import journal
from pytest_mlperf.stores.atomic import WriteMessages
from pytest_mlperf.stores.journal import Begun, Journal
from pytest_mlperf.stores.results import digest_of
from pytest_mlperf.suite.environments import parse_against

UNDONE_OUTCOMES = {Outcome.ERROR, Outcome.INVALID}
MAX_LISTED = 3


class SessionProgress:
    """Write a session's results to a journal; read the results of a session that is resumed."""

    def __init__(self, options: Options, folder: Path, root: Path, commit: str | None) -> None:
        self._options, self._folder, self._root = options, folder, root
        self._commit = commit
        self._journal: Journal | None = None
        self._before: Mapping[str, CaseResult] = {}
        self.resumes = ""
        self._broken = False

    def take_over(self, machine_with: Callable[[set[str]], Machine]) -> None:
        """Load the results of an interrupted session.

        Args:
            machine_with: Returns this machine, detected for a set of accelerators.

        Raises:
            pytest.UsageError: The session is missing, still runs or differs in settings.
        """
        runs = self._folder.parent
        try:
            name = self._options.resume
            run = journal.newest(runs, self._folder.name) if name == "last" else name
            if run is None:
                raise MlperfError(
                    f"no interrupted session in {runs}; start without --mlperf-resume"
                )
            path_part("session", str(run))
            with journal.interrupted_journal(runs / str(run)) as file:
                begun, results = journal.read(runs / str(run))
                accelerators = {one.verdict.case.accelerator for one in results.values()}
                self._require_equal(begun, results, machine_with(accelerators))
                self._before = {t: one for t, one in results.items() if _is_done(one)}
                self.resumes = begun.run
                ignored_in_git(self._options.runs_dir)
                self._begin()
                file.unlink()
        except (MlperfError, OSError) as error:
            raise pytest.UsageError(f"--mlperf-resume: {error}") from None

    def load_resumed(self) -> None:
        """Read the results of the session that is resumed; called in xdist workers."""
        begun, self._before = journal.read(self._folder)
        self.resumes = begun.resumes

    def kept(self, test: str, case: Case, kind: Kind) -> CaseResult | None:
        """Return a test's result for `case` in the interrupted session; None if it has none."""
        result = self._before.get(test)
        if result is None or (result.verdict.case, result.verdict.kind) != (case, kind):
            return None
        note = f"result of the interrupted session {self.resumes}, not measured again"
        notes = tuple(dict.fromkeys((note, *result.verdict.notes)))
        return replace(result, verdict=replace(result.verdict, notes=notes))

    def add_result(self, result: CaseResult, keeping: WriteMessages) -> None:
        """Add a test's result to the journal; `keeping` collects the error if that fails."""
        if self._broken:
            return
        if not keeping.try_write("the journal of the session", lambda: self._add(result)):
            self._broken = True  # once is enough: the results themselves are written at the end

    def end(self, *, over: bool) -> None:
        """Close the journal; delete it if the session ran all its tests (`over`)."""
        if self._journal:
            self._journal.close(remove=over)
            self._journal = None

    def _add(self, result: CaseResult) -> None:
        if self._before.get(result.test) is None or self._journal is None:
            (self._journal or self._begin()).add(result)

    def _begin(self) -> Journal:
        begun = Begun(run=self._folder.name, resumes=self.resumes, settings=self._settings())
        self._journal = Journal(self._folder, begun, self._before.values())
        return self._journal

    def _settings(self) -> dict[str, str]:
        """Return options, commit and package versions; a resumed session must have the same."""
        # Once imported, setuptools puts the copies that it brings behind all others.
        installed = _packages(tuple(place for place in sys.path if Path(place).name != "_vendor"))
        recorded = [self._options.baselines] if self._options.baselines else []
        changed = changes_digest(self._root, recorded) if self._commit else ""
        return {
            **settings_of(self._options),
            "commit": self._commit or "none",
            **self._other_commit(),
            **({"changed files": changed} if changed else {}),
            **{f"package {name}": installed[name] for name in sorted(installed) if name},
        }

    def _other_commit(self) -> dict[str, str]:
        table = parse_against(self._options.against) if self._options.against else None
        if table is None or table.git is None:
            return {}
        with contextlib.suppress(RunError):
            return {"commit of --mlperf-against": commit_named(self._root, table.git)}
        return {}

    def _require_equal(
        self, begun: Begun, results: Mapping[str, CaseResult], machine: Machine
    ) -> None:
        differing = [
            f"{name} was {begun.settings.get(name, 'not set')}, is {ours.get(name, 'not set')}"
            for ours in (self._settings(),)
            for name in dict.fromkeys((*begun.settings, *ours))
            if begun.settings.get(name) != ours.get(name)
        ]
        # Of a file that several results rest on, the last word counts.
        rests_on = dict(chain.from_iterable(one.rests_on.items() for one in results.values()))
        differing += [
            f"{file} was changed"
            for file, digest in rests_on.items()
            if digest_of(self._root / file) != digest
        ]
        # On a cluster it is no machine of the nodes', whose identity a verdict names.
        for result in () if self._options.distributed else results.values():
            if (subject := result.verdict.subject) and not result.pretended:
                here = machine.with_identity(subject.identity).identity(
                    result.verdict.case.accelerator
                )
                differing += [
                    f"{name} of the machine was {subject.identity[name]}, is {here[name]}"
                    for name in subject.identity.keys() & here.keys()
                    if subject.identity[name] != here[name]
                ]
        if differing := list(dict.fromkeys(differing)):
            more = (
                f", and {len(differing) - MAX_LISTED} more differ" if differing[MAX_LISTED:] else ""
            )
            raise MlperfError(
                f"session {begun.run} cannot be resumed: "
                f"{'; '.join(differing[:MAX_LISTED])}{more}; "
                "restore that, or start without --mlperf-resume"
            )


def _is_done(result: CaseResult) -> bool:
    verdict = result.verdict
    return verdict.outcome not in UNDONE_OUTCOMES and not any(
        m.interrupted for m in verdict.metrics
    )


@cache
def _packages(places: tuple[str, ...]) -> dict[str, str]:
    packages: dict[str, str] = {}
    for distribution in distributions(path=list(places)):
        # Not `name` and `version`: each parses the whole description of the package again.
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
        headers = HeaderParser().parsestr(text.partition("\n\n")[0])
        packages.setdefault(str(headers["Name"] or ""), str(headers["Version"]))
    return packages
