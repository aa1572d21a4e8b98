"""The folder of a DLRM-DCNv2: sizes in config.json, tensors in safetensors files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors

from pytest_mlperf.engines.files import broken, some
from pytest_mlperf.engines.model_folder import read_json

SEED = 20_240_828
"""Of random weights, which are the same every time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Sizes of all layers; the defaults are those of MLPerf.

    Attributes:
        num_embeddings_per_feature: Rows of each embedding table.
        embedding_dim: Numbers in a row.
        hotness: Lookups of each sparse feature.
        dense_features: Dense features of a pair.
        dense_arch_layer_sizes: Outputs of the layers for dense features; the last is
            `embedding_dim`.
        dcn_num_layers: Layers of the cross net.
        dcn_low_rank_dim: Rank of its kernels.
        over_arch_layer_sizes: Outputs of the last layers; the last is 1.
    """

    num_embeddings_per_feature: tuple[int, ...] = (
        *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63),
        *(40_000_000, 3_067_956, 405_282, 10, 2_209, 11_938, 155, 4, 976),
        *(14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36),
    )
    embedding_dim: int = 128
    hotness: tuple[int, ...] = (
        *(3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1),
        *(6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1),
    )
    dense_features: int = 13
    dense_arch_layer_sizes: tuple[int, ...] = (512, 256, 128)
    dcn_num_layers: int = 3
    dcn_low_rank_dim: int = 512
    over_arch_layer_sizes: tuple[int, ...] = (1024, 1024, 512, 256, 1)

    @property
    def width(self) -> int:
        """Numbers that the cross net takes for a pair."""
        return self.embedding_dim * (1 + len(self.num_embeddings_per_feature))


def read_sizes(folder: Path) -> Sizes:
    """Read config.json; "model_type" may say "dlrm-v2".

    Raises:
        RunError: It is no JSON object, has an unknown key, or sizes that do not fit together.
    """
    file = folder / "config.json"
    given = read_json(file)
    if given.pop("model_type", "dlrm-v2") != "dlrm-v2":
        raise broken(file, 'is not of a model_type "dlrm-v2"')
    defaults = {each.name: each.default for each in dataclasses.fields(Sizes)}
    for name, value in given.items():
        if name not in defaults:
            raise broken(file, f"key {name!r} is unknown; valid are {', '.join(defaults)}")
        listed = isinstance(defaults[name], tuple)
        numbers = value if listed and isinstance(value, list) else [value]
        if isinstance(value, list) is not listed or not numbers or not _all_whole(numbers):
            kind = "a list of whole numbers" if listed else "a whole number"
            raise broken(file, f"{name} = {value!r} is not {kind} from 1 on")
    parsed: dict[str, Any] = {
        name: tuple(each) if isinstance(each, list) else each for name, each in given.items()
    }
    sizes = Sizes(**parsed)
    for wrong, what in (
        (len(sizes.hotness) != len(sizes.num_embeddings_per_feature), _features(sizes)),
        (
            sizes.dense_arch_layer_sizes[-1] != sizes.embedding_dim,
            f"the last of dense_arch_layer_sizes is {sizes.dense_arch_layer_sizes[-1]} and should "
            f"be embedding_dim = {sizes.embedding_dim}",
        ),
        (
            sizes.over_arch_layer_sizes[-1] != 1,
            f"the last of over_arch_layer_sizes is {sizes.over_arch_layer_sizes[-1]} and should "
            "be 1",
        ),
        (len(sizes.over_arch_layer_sizes) < 2, "over_arch_layer_sizes should have two or more"),
    ):
        if wrong:
            raise broken(file, what)
    return sizes


class Weights:
    """Tensors of safetensors files, mapped, by name; a "model." before a name does not count."""

    def __init__(self, folder: Path, files: Sequence[Path]) -> None:
        """List the tensors.

        Args:
            folder: Named in errors.
            files: They are closed, but stay mapped, when no tensor of theirs is left.
        """
        self._folder = folder
        self._places = {}
        with ExitStack() as opened:
            for path in files:
                file = opened.enter_context(safetensors.safe_open(path, "pt"))
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    self._places[name.removeprefix("model.")] = (path, name)

    def take(self, name: str, shape: tuple[int, ...]) -> Any:
        """Return a tensor.

        Raises:
            RunError: It is not there, has another shape, or is not of floats.
        """
        if name not in self._places:
            there = some(sorted(self._places)) or "nothing"
            raise broken(self._folder, f"the checkpoint lacks {name}; it has {there}")
        path, own = self._places[name]
        with safetensors.safe_open(path, "pt") as file:
            found = file.get_tensor(own)
        if tuple(found.shape) != shape or not found.is_floating_point():
            raise broken(
                self._folder,
                f"weights do not fit config.json: {name} is {found.dtype} {list(found.shape)} and "
                f"should be floats {list(shape)}",
            )
        return found


def _all_whole(numbers: Sequence[object]) -> bool:
    return all(type(number) is int and number >= 1 for number in numbers)


def _features(sizes: Sizes) -> str:
    return (
        f"hotness has {len(sizes.hotness)} features and num_embeddings_per_feature "
        f"{len(sizes.num_embeddings_per_feature)}; they should have as many"
    )
