"""Paths of a suite: every variable that is unset, the nearest name, and files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mlperf.core.errors import SuiteError, UnavailableError
from pytest_mlperf.stores.foreign import POINTER
from pytest_mlperf.suite.places import expand, expand_variables, resolve_path

POINTED = POINTER + b"\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n"

TOML = (
    'schema = 1\n[workload]\nmodel = "m"\n[workload.dataset]\nuse = "x"\npath = "d"\nvocab = "v"\n'
)
MODEL, DATA = ("workload", "model"), ("workload", "dataset", "path")


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MLPERF_A", "MLPERF_B"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "s.mlperf.toml"
    file.write_text(TOML, "utf-8")
    for folder in ("bert/data/squad", "models"):
        (tmp_path / folder).mkdir(parents=True)
    return file


def missing(suite: Path, where: tuple[str | int, ...], text: str) -> str:
    """Return the message about a path, without the file of the suite."""
    with pytest.raises(UnavailableError) as caught:
        resolve_path(suite, where, text)
    return str(caught.value).removeprefix(f"{suite}:")


def test_all_unset_variables_of_a_line_are_named(
    suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of options at the line of the first; an empty one is not set."""
    assert missing(suite, MODEL, "${MLPERF_A}/x/${MLPERF_B}/${MLPERF_A}") == (
        "3: ${MLPERF_A} and ${MLPERF_B} are not set; set them so that "
        "${MLPERF_A}/x/${MLPERF_B}/${MLPERF_A} is the model, e.g. export MLPERF_A=/path/to/it "
        "MLPERF_B=/path/to/it"
    )
    options = {"use": "fine", "vocab": "${MLPERF_B}/v", "more": [{"deep": "${MLPERF_A}"}]}
    with pytest.raises(UnavailableError) as caught:
        expand_variables(suite, ("workload", "dataset"), options)
    assert str(caught.value) == (
        f"{suite}:7: dataset: ${{MLPERF_B}} and ${{MLPERF_A}} are not set; export MLPERF_B=... "
        "MLPERF_A=..."
    )
    monkeypatch.setenv("MLPERF_A", "")
    assert missing(suite, DATA, "${MLPERF_A}/d") == (
        "6: ${MLPERF_A} is not set; set it so that ${MLPERF_A}/d is the dataset, e.g. export "
        "MLPERF_A=/path/to/it"
    )
    with pytest.raises(SuiteError, match=r"^\$\{MLPERF_A\} is not set; export MLPERF_A=\.\.\.$"):
        expand({"x": "${MLPERF_A}"})


def test_a_missing_path_is_reported_with_the_nearest_existing_one(
    suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLPERF_A", str(suite.parent / "bert"))
    monkeypatch.setenv("MLPERF_B", str(suite.parent / "brt"))
    none_is_near = "correct the path, or put the file there"
    for text, advice in (
        ("bert/data/sqad", "did you mean bert/data/squad?"),
        ("./bert/dta/squad", "did you mean bert/data/squad?"),
        ("bert/dta/nothing", "did you mean bert/data?"),
        ("brt", "did you mean bert?"),
        ("zzz/data", none_is_near),
        ("s.mlperf.toml/inside", "did you mean s.mlperf.toml?"),
        ("${MLPERF_A}/data/sqad", "did you mean ${MLPERF_A}/data/squad?"),
        ("${MLPERF_B}", none_is_near),
    ):
        head, _, nearest = missing(suite, DATA, text).rpartition("); ")
        assert head.startswith(f"6: the dataset {text} is not here (looked at {suite.parent}/")
        assert nearest == advice


def test_a_model_that_is_empty_or_a_pointer_is_not_here(suite: Path) -> None:
    """A file that only speaks of pointers is itself, a folder without weights its engine's."""
    empty, pointer = suite.parent / "empty.onnx", suite.parent / "pointer.onnx"
    empty.touch()
    pointer.write_bytes(POINTED)
    assert (
        missing(suite, MODEL, "empty.onnx") == f"3: {empty} is empty (0 bytes); download it again"
    )
    assert missing(suite, MODEL, "pointer.onnx") == (
        f"3: {pointer} is a Git LFS pointer, not the file itself; run: git lfs pull"
    )
    assert missing(suite, DATA, "pointer.onnx") == (
        f"6: {pointer} is a Git LFS pointer, not the file itself; run: git lfs pull"
    )
    file = suite.parent / "long.onnx"
    file.write_bytes(POINTED + bytes(2000))
    assert resolve_path(suite, MODEL, "long.onnx") == str(file)
    (suite.parent / "models" / "notes.txt").touch()
    assert resolve_path(suite, MODEL, "models") == str(suite.parent / "models")


@pytest.mark.parametrize("folder", ["models", "models/unet"])
def test_a_folder_is_a_model_if_one_file_of_weights_in_it_is(suite: Path, folder: str) -> None:
    inside = suite.parent / folder
    inside.mkdir(exist_ok=True)
    (inside / "config.json").write_text("{}")
    (inside / "pytorch_model.bin").write_bytes(POINTED)

    assert missing(suite, MODEL, "models") == (
        f"3: {inside / 'pytorch_model.bin'} is a Git LFS pointer, not the file itself; run: git "
        "lfs pull"
    )
    (inside / "model.safetensors").write_bytes(b"weights")
    assert resolve_path(suite, MODEL, "models") == str(suite.parent / "models")


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer.model", "vocab.txt", "merges.txt", "config.json"]
)
def test_a_tokenizer_or_configuration_that_is_a_pointer_is_not_here(suite: Path, name: str) -> None:
    folder = suite.parent / "models"
    for other in ("added_tokens.json", "model.safetensors", "generation_config.json"):
        (folder / other).write_bytes(b"{}")
    (folder / "vocab.json").touch()  # an empty file is its reader's
    (folder / "notes.md").write_bytes(POINTED)
    assert resolve_path(suite, MODEL, "models") == str(folder)
    (folder / name).write_bytes(POINTED)
    message = missing(suite, MODEL, "models")
    assert message.endswith(f"{name} is a Git LFS pointer, not the file itself; run: git lfs pull")
