"""What a package accepts and offers is read from its text, and its text is never run."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.contracts.signatures import Missing, Source

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


@pytest.fixture(params=["folder", "wheel"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    files = {"package/__init__.py": "", "package/module.py": MODULE, "package/base.py": BASE}
    if request.param == "wheel":
        place = tmp_path / "package-1.0-py3-none-any.whl"
        with zipfile.ZipFile(place, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        return Source.open(place)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    return Source.open(tmp_path)


FILE = "package/module.py"


def test_parameters_are_found_in_functions_bases_aliases_and_imports(source: Source) -> None:
    expected = {
        "plain": ["a", "b", "rest", "c", "d", "more"],
        "Child.__init__": ["x", "y"],
        "Child.static": ["first"],
        "Child.twice": ["right"],
        "Child.inherited": ["z"],
        "Other.inherited": ["z"],
        "Parent.inherited": ["z"],
    }

    assert {name: source.parameters(FILE, name) for name in expected} == expected


def test_fields_are_the_public_annotated_ones_those_of_bases_first(source: Source) -> None:
    assert source.fields(FILE, "Child") == [
        "oldest", "own", "elder", "new", "old", "tried", "failed",
    ]  # fmt: skip


def test_attributes_are_all_that_an_instance_has(source: Source) -> None:
    attributes = source.attributes(FILE, "Child")

    assert attributes >= {"inherited", "oldest", "own", "seen", "shared", "slot", "twice", "x"}
    assert "deep" not in attributes


def test_missing_names_and_files_are_reported(tmp_path: Path, source: Source) -> None:
    for name, sentence in (
        ("absent", "package/module.py has no function absent"),
        ("Child.absent", "package/module.py has no Child.absent"),
        ("Nobody.method", "package/module.py has no class Nobody"),
        ("Circle.method", "has no class|names"),
    ):
        with pytest.raises(Missing, match=sentence):
            source.parameters(FILE, name)
    with pytest.raises(Missing, match="neither a folder nor a wheel or zip file"):
        Source.open(tmp_path / "nothing")
    with pytest.raises(Missing, match=r"has no package/other\.py"):
        source.text("package/other.py")
