"""What the FID's Inception network is made of, as a plain table.

Sources: C. Szegedy et al., "Rethinking the Inception architecture for computer vision", 2016, as
TensorFlow's model of 2015-12-05 built it; FIDInception* in text_to_image/tools/fid/inception.py of
https://github.com/mlcommons/inference.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Conv:
    """A convolution without bias, then batch normalisation, then ReLU.

    Attributes:
        name: What the names of its weights begin with.
        channels: Of its output.
        kernel: Height and width.
        stride: In both directions.
        padding: Rows and columns of zeros on each side.
    """

    name: str
    channels: int
    kernel: tuple[int, int]
    stride: int
    padding: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Pool:
    """Pooling over 3 x 3 pixels.

    Attributes:
        kind: "reduce" is the maximum at stride 2; "maximum" and "average" keep the size, and do
            not count what lies beyond the edge.
    """

    kind: str


@dataclass(frozen=True, slots=True)
class Fork:
    """Paths from the same input, whose channels are put one after the other."""

    paths: tuple[Way, ...]


Way = tuple[Conv | Pool | Fork, ...]
"""Steps, one after the other."""


def conv(name: str, channels: int, height: int = 1, width: int | None = None) -> Conv:
    """Return a convolution that keeps the size; where no width is given the kernel is a square."""
    kernel = height, height if width is None else width
    padding = kernel[0] // 2, kernel[1] // 2
    return Conv(name=name, channels=channels, kernel=kernel, stride=1, padding=padding)


def shrink(name: str, channels: int, *, stride: int = 2) -> Conv:
    """Return a convolution over 3 x 3 pixels that stays within the image."""
    return Conv(name=name, channels=channels, kernel=(3, 3), stride=stride, padding=(0, 0))


def _block_a(name: str, pooled: int) -> Fork:
    return Fork(
        (
            (conv(f"{name}.branch1x1", 64),),
            (conv(f"{name}.branch5x5_1", 48), conv(f"{name}.branch5x5_2", 64, 5)),
            (
                conv(f"{name}.branch3x3dbl_1", 64),
                conv(f"{name}.branch3x3dbl_2", 96, 3),
                conv(f"{name}.branch3x3dbl_3", 96, 3),
            ),
            (Pool("average"), conv(f"{name}.branch_pool", pooled)),
        )
    )


def _block_b(name: str) -> Fork:
    return Fork(
        (
            (shrink(f"{name}.branch3x3", 384),),
            (
                conv(f"{name}.branch3x3dbl_1", 64),
                conv(f"{name}.branch3x3dbl_2", 96, 3),
                shrink(f"{name}.branch3x3dbl_3", 96),
            ),
            (Pool("reduce"),),
        )
    )


def _block_c(name: str, inner: int) -> Fork:
    return Fork(
        (
            (conv(f"{name}.branch1x1", 192),),
            (
                conv(f"{name}.branch7x7_1", inner),
                conv(f"{name}.branch7x7_2", inner, 1, 7),
                conv(f"{name}.branch7x7_3", 192, 7, 1),
            ),
            (
                conv(f"{name}.branch7x7dbl_1", inner),
                conv(f"{name}.branch7x7dbl_2", inner, 7, 1),
                conv(f"{name}.branch7x7dbl_3", inner, 1, 7),
                conv(f"{name}.branch7x7dbl_4", inner, 7, 1),
                conv(f"{name}.branch7x7dbl_5", 192, 1, 7),
            ),
            (Pool("average"), conv(f"{name}.branch_pool", 192)),
        )
    )


def _block_d(name: str) -> Fork:
    return Fork(
        (
            (conv(f"{name}.branch3x3_1", 192), shrink(f"{name}.branch3x3_2", 320)),
            (
                conv(f"{name}.branch7x7x3_1", 192),
                conv(f"{name}.branch7x7x3_2", 192, 1, 7),
                conv(f"{name}.branch7x7x3_3", 192, 7, 1),
                shrink(f"{name}.branch7x7x3_4", 192),
            ),
            (Pool("reduce"),),
        )
    )


def _block_e(name: str, pool: str) -> Fork:
    def cross(stem: str) -> Fork:
        return Fork(((conv(f"{stem}a", 384, 1, 3),), (conv(f"{stem}b", 384, 3, 1),)))

    return Fork(
        (
            (conv(f"{name}.branch1x1", 320),),
            (conv(f"{name}.branch3x3_1", 384), cross(f"{name}.branch3x3_2")),
            (
                conv(f"{name}.branch3x3dbl_1", 448),
                conv(f"{name}.branch3x3dbl_2", 384, 3),
                cross(f"{name}.branch3x3dbl_3"),
            ),
            (Pool(pool), conv(f"{name}.branch_pool", 192)),
        )
    )


NETWORK: Way = (
    shrink("Conv2d_1a_3x3", 32),
    shrink("Conv2d_2a_3x3", 32, stride=1),
    conv("Conv2d_2b_3x3", 64, 3),
    Pool("reduce"),
    conv("Conv2d_3b_1x1", 80),
    shrink("Conv2d_4a_3x3", 192, stride=1),
    Pool("reduce"),
    _block_a("Mixed_5b", 32),
    _block_a("Mixed_5c", 64),
    _block_a("Mixed_5d", 64),
    _block_b("Mixed_6a"),
    _block_c("Mixed_6b", 128),
    _block_c("Mixed_6c", 160),
    _block_c("Mixed_6d", 160),
    _block_c("Mixed_6e", 192),
    _block_d("Mixed_7a"),
    _block_e("Mixed_7b", "average"),
    # The original network pools the last block by the maximum, unlike the paper.
    _block_e("Mixed_7c", "maximum"),
)


def shapes(way: Way, channels: int) -> tuple[dict[str, tuple[int, ...]], int]:
    """Return name and shape of every weight on a way, and the channels of its output."""
    found: dict[str, tuple[int, ...]] = {}
    for step in way:
        if isinstance(step, Conv):
            found[f"{step.name}.conv.weight"] = (step.channels, channels, *step.kernel)
            for part in ("weight", "bias", "running_mean", "running_var"):
                found[f"{step.name}.bn.{part}"] = (step.channels,)
            channels = step.channels
        elif isinstance(step, Fork):
            parts = [shapes(path, channels) for path in step.paths]
            channels = sum(width for _, width in parts)
            for part_shapes, _ in parts:
                found |= part_shapes
    return found, channels
