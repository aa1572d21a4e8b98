"""The engine answers every sample once and rightly, and refuses what it cannot do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pytest_mlperf import RunError, SuiteError, UnavailableError
from pytest_mlperf.testing import RecordingSink, check_engine

from mlperf_numpy.engine import KnnEngine
from mlperf_numpy.make_model import write_model
from mlperf_numpy.search import KnownImages
from mlperf_numpy.shapes import ShapesDataset

COUNT = 256
Build = Callable[..., KnnEngine]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "knn.npz"
    write_model(path, count=1024)
    return path


@pytest.fixture
def build(model: Path) -> Build:
    def one(**options: object) -> KnnEngine:
        given = {"model": str(model), "precision": "fp32", **options}
        return KnnEngine(dataset=ShapesDataset(count=COUNT), **given)

    return one


def answers(model: Path, **options: object) -> list[int]:
    """Return the classes of all images, from an engine that keeps its contract."""
    precision = str(options.pop("precision", "fp32"))
    by_index = check_engine(
        KnnEngine,
        ShapesDataset(count=COUNT),
        model=str(model),
        precision=precision,
        options=options,
        samples=COUNT,
    )
    return [int.from_bytes(by_index[index], "little") for index in range(COUNT)]


def share_right(model: Path) -> float:
    data = ShapesDataset(count=COUNT)
    right = [one == data.reference(index) for index, one in enumerate(answers(model))]
    return sum(right) / COUNT


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 1}, {"batch_size": 7, "threads": 3}, {"precision": "fp64"}],
    ids=["single", "threads", "fp64"],
)
def test_answers_do_not_depend_on_how_they_are_computed(
    model: Path, options: dict[str, object]
) -> None:
    assert answers(model, **options) == answers(model, batch_size=COUNT)


@pytest.mark.parametrize("neighbours", [1, 3, 9])
def test_answers_are_those_of_a_plain_search(neighbours: int) -> None:
    random = np.random.default_rng(3)
    images = random.integers(16, size=(50, 6))
    classes = random.integers(4, size=50)
    others = random.integers(16, size=(20, 6))
    known = KnownImages(images, classes, neighbours, "float32")

    expected = []
    for other in others:
        nearest = sorted(range(50), key=lambda place: (((images[place] - other) ** 2).sum(), place))
        votes = [classes[place] for place in nearest[:neighbours]]
        expected.append(max(range(4), key=votes.count))

    assert known.classes_of(known.prepare(list(others))).tolist() == expected


def test_most_answers_are_right_and_damage_shows(model: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "damaged.npz", count=1024, damaged=0.6)

    assert share_right(model) > 0.8
    assert share_right(tmp_path / "damaged.npz") < 0.5


def test_what_breaks_in_a_thread_ends_the_run(build: Build) -> None:
    sink = RecordingSink([1])
    with build() as engine:
        engine.load_samples([0])
        engine.submit([1], [200], sink)  # never loaded
        sink.wait_for_end()

    assert isinstance(sink.error, KeyError)


def test_describe_is_text_and_names_the_weights(build: Build) -> None:
    with build() as engine:
        said = engine.describe()

    assert {"numpy", "blas", "weights_sha256"} <= set(said)
    assert all(isinstance(value, str) for value in said.values())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"precision": "int4"}, "int4"),
        ({"neighbours": 0}, "neighbours=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"threads": 0}, "threads=0"),
        ({"model": None}, "write model"),
    ],
)
def test_options_that_cannot_be_are_refused(
    build: Build, options: dict[str, object], says: str
) -> None:
    with pytest.raises(SuiteError, match=says):
        build(**options)


def test_a_model_that_is_not_there_says_how_to_make_it(build: Build) -> None:
    with pytest.raises(UnavailableError, match="make_model"):
        build(model="nowhere.npz")


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"images": np.zeros((9, 256))}, "no array 'classes'"),
        ({"images": np.zeros((9, 256)), "classes": np.zeros(8, int)}, "shape"),
        ({"images": np.full((9, 256), 16), "classes": np.zeros(9, int)}, "from 0 to 15"),
        ({"images": np.zeros((2, 256)), "classes": np.zeros(2, int)}, "neighbours=5"),
    ],
    ids=["missing", "shape", "range", "few"],
)
def test_a_model_that_is_wrong_is_refused_when_loaded(
    build: Build, tmp_path: Path, arrays: dict[str, np.ndarray], says: str
) -> None:
    np.savez(tmp_path / "wrong.npz", **arrays)
    with pytest.raises(RunError, match=says), build(model=str(tmp_path / "wrong.npz")):
        pass


def test_images_of_another_size_are_refused(build: Build, tmp_path: Path) -> None:
    np.savez(tmp_path / "small.npz", images=np.zeros((9, 64)), classes=np.zeros(9, int))
    with (
        build(model=str(tmp_path / "small.npz")) as engine,
        pytest.raises(RunError, match="256 pixels"),
    ):
        engine.load_samples(range(4))
