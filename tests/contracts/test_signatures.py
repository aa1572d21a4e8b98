"""What a package accepts and offers is read from its text, and its text is never run."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path

import pytest

from tests.contracts.signatures import Missing, Source
from tests.refusals import unrefused

MODULE = """
raise SystemExit("this must not run")
from typing import overload
from .base import Base as Parent, Alias
from . import base

def plain(a, /, b: int = 2, *rest, c, d="x", **more): ...

class Child(Parent):
    __slots__ = ("slot",)
    own: list[int] = field(default_factory=list)
    shared: ClassVar[int] = 0
    _hidden: int = 1
    if sys.version_info > (3, 11):
        new: int = 1
    else:
        old: int = 2
    try:
        tried: int = 3
    except ImportError:
        failed: int = 4

    def __init__(self, x, *, y=1):
        self.x = x
        self.nested.deep = 1

    @staticmethod
    def static(first): ...

    @overload
    def twice(self, wrong): ...
    @overload
    def twice(self, wronger): ...
    async def twice(self, right=None): ...

    @property
    def seen(self): ...

Other = Child
Circle = Circle2
Circle2 = Circle
"""

BASE = """
from pydantic import BaseModel
from .missing import Nothing
class Grand(BaseModel, Generic[T]):
    oldest: int
class Base(Grand[int]):
    own: str = ""
    elder: Optional[int] = None
    def inherited(self, z): ...
class Alias: ...
"""


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    """Return a package in a folder, and as a wheel."""
    files = {"package/__init__.py": "", "package/module.py": MODULE, "package/base.py": BASE}
    wheel = tmp_path / "package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text, "utf-8")
    return [Source.open(tmp_path), Source.open(wheel)]


FILE = "package/module.py"


def test_parameters_fields_and_attributes_are_found_in_bases_aliases_and_imports(
    sources: list[Source],
) -> None:
    expected = {
        "plain": ["a", "b", "rest", "c", "d", "more"],
        "Child.__init__": ["x", "y"],
        "Child.static": ["first"],
        "Child.twice": ["right"],
        "Child.inherited": ["z"],
        "Other.inherited": ["z"],
        "Parent.inherited": ["z"],
    }
    fields = ["oldest", "own", "elder", "new", "old", "tried", "failed"]
    for source in sources:
        assert {name: source.parameters(FILE, name) for name in expected} == expected
        assert source.fields(FILE, "Child") == fields
        attributes = source.attributes(FILE, "Child")
        assert attributes >= {"inherited", "oldest", "own", "seen", "shared", "slot", "twice", "x"}
        assert "deep" not in attributes


def test_missing_names_and_files_are_reported(tmp_path: Path, sources: list[Source]) -> None:
    rows = [
        ("absent", "package/module.py has no function absent"),
        ("Child.absent", "package/module.py has no Child.absent"),
        ("Nobody.method", "package/module.py has no class Nobody"),
        ("Circle.method", "has no class|names"),
    ]
    for source in sources:
        assert unrefused(partial(source.parameters, FILE), Missing, rows) == []
        with pytest.raises(Missing, match=r"has no package/other\.py"):
            source.text("package/other.py")
    with pytest.raises(Missing, match="neither a folder nor a wheel or zip file"):
        Source.open(tmp_path / "nothing")
