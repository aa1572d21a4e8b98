"""The manifest of a plan: every test that must report, wherever it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_mlperf.core.case import Kind
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.ranges import Count
from pytest_mlperf.stores.foreign import as_document, read_foreign, shape_of

SCHEMA = 1
"""Version of the manifest that `pytest-mlperf plan --format json` prints."""

KIND = "pytest-mlperf plan"
"""What the document says it is."""


CURE = "make one: pytest-mlperf plan --format json"


@dataclass(frozen=True, kw_only=True)
class PlannedTest:
    """One test that must report.

    Attributes:
        test: Pytest's node id.
        kind: Which test of its case.
        case: Id of the case.
        accelerator: What it runs on.
        pairs: Gated pairs of case and metric that it adds to those judged together.
    """

    test: str
    kind: Kind
    case: str
    accelerator: str
    pairs: Count = 0


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A plan, as far as those need it that run or join its parts.

    Attributes:
        schema: Version of the document.
        kind: `KIND`.
        tests: Every test, in the order of the suites.
    """

    schema: int
    kind: str
    tests: tuple[PlannedTest, ...]

    @property
    def pairs(self) -> int:
        """Gated pairs of all tests."""
        return sum(one.pairs for one in self.tests)


_SHAPE = shape_of(Manifest)


def read_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        MlperfError: It is absent, damaged, too large, no manifest, or of a newer schema.
    """
    raw = read_foreign(path, "manifest of a plan")
    if not isinstance(raw, dict) or raw.get("kind") != KIND:
        raise MlperfError(f"{path}: not a manifest of a plan; {CURE}")
    return as_document(path, raw, "manifest of a plan", _SHAPE, SCHEMA, CURE)
