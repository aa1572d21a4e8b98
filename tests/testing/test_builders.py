"""Test that `check_builder` passes a correct builder, and detects each defect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pytest_mlperf import Builder, SuiteError
from pytest_mlperf.testing import check_builder


class Right(Builder):
    """Copy the weights, and report them as changed."""

    distributions: ClassVar[tuple[str, ...]] = ("pytest",)

    def __init__(self, *, recipe: str, group_size: int = 32) -> None:
        if recipe not in {"plain", "fitted"}:
            raise SuiteError(f"recipe = {recipe!r} is not one of plain, fitted")
        self.precision = "int8"
        self.calibrates = recipe == "fitted"
        self.group_size = group_size

    def build(
        self,
        source: Path,
        target: Path,
        prompts: Sequence[Sequence[int]],
        progress: Callable[[int, int, str], None],
    ) -> Mapping[str, str]:
        progress(1, 2, "layers")
        (target / "config.json").write_text("{}")
        (target / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
        progress(2, 2, "layers")
        return {"quantisation": "int8 weights"}


class WritesNothing(Right):
    def build(self, source: Path, target: Path, *rest: Any) -> Mapping[str, str]:
        return {}


def writing(path: str) -> type[Builder]:
    """Return a builder that also writes a file there, below source or target."""

    class Writing(Right):
        def build(self, source: Path, target: Path, *rest: Any) -> Mapping[str, str]:
            root, _, name = path.partition("/")
            ({"source": source, "target": target}[root] / name).write_bytes(b"")
            return super().build(source, target, *rest)

    return Writing


class TakesAnyRecipe(Right):
    def __init__(self, *, recipe: str) -> None:
        super().__init__(recipe="plain")


class CountsTooFar(Right):
    def build(
        self, source: Path, target: Path, prompts: Any, progress: Callable[[int, int, str], None]
    ) -> Mapping[str, str]:
        progress(3, 2, "layers")
        return super().build(source, target, prompts, progress)


class ReturnsNumbers(Right):
    def build(self, source: Path, target: Path, *rest: Any) -> Any:
        return {**super().build(source, target, *rest), "layers": 2}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(16))
    return folder


def test_a_right_builder_passes_and_describes_its_output(source: Path) -> None:
    """A recipe that looks at samples needs some; without a source nothing is built."""
    facts = check_builder(Right, recipe="plain", options={"group_size": 16}, source=source)
    assert facts == {"quantisation": "int8 weights"}
    check_builder(Right, recipe="fitted", source=source, prompts=[[1, 2]])
    with pytest.raises(AssertionError, match="calibrates = True, and 0 prompts were given"):
        check_builder(Right, recipe="fitted", source=source)
    assert check_builder(WritesNothing, recipe="plain") == {}


WRONG: list[tuple[type[Builder], str]] = [
    (TakesAnyRecipe, "it takes recipe = 'no-such-recipe': raise SuiteError in __init__"),
    (type("Unnamed", (Right,), {"distributions": ()}), "distributions is empty: name the packages"),
    (writing("target/weights.bin"), r"wrote weights\.bin, which can carry code: write safetensors"),
    (writing("source/cache.json"), r"changed files of .+: write into target alone"),
    (WritesNothing, "wrote nothing: write config.json and safetensors"),
    (CountsTooFar, "progress.. was given .+: pass the number done, the total"),
    (ReturnsNumbers, "returned .+'layers': 2.+: return a dict of strings"),
]


def test_a_wrong_builder_is_found(tmp_path: Path) -> None:
    for number, (builder, problem) in enumerate(WRONG):
        source = tmp_path / str(number)
        source.mkdir()
        (source / "model.safetensors").write_bytes(bytes(16))
        with pytest.raises(AssertionError, match=problem) as caught:
            check_builder(builder, recipe="plain", source=source)
        assert str(caught.value).startswith(f"builder {builder.__qualname__}: ")
