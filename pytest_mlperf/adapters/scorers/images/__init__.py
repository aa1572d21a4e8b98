"""Score generated images as MLPerf's text-to-image reference does: CLIP score and FID."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pytest_mlperf import Scores, SuiteError, UnavailableError
from pytest_mlperf.adapters.conventions import not_installed, sides_of
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.adapters.scorers import ScorerBase, require_choice, scorer_error
from pytest_mlperf.adapters.scorers.images._clip import ClipScores, look_for_clip
from pytest_mlperf.adapters.scorers.images._frechet import frechet, read_statistics
from pytest_mlperf.adapters.scorers.images._inception import ADVICE, InceptionFeatures, check_device
from pytest_mlperf.extension import require_options

CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""Your own code instead of a model's files: "package.module:factory"."""

DEVICES = ("cpu", "cuda")


class CaptionScores(Protocol):
    """Score how well images fit their captions; higher is better, on any scale.

    Your own class is created by `factory(model=..., device=...)`, with the workload's model and the
    option `device`. It is called once per batch, in sample order.
    """

    def __call__(self, images: NDArray[np.uint8], captions: Sequence[str]) -> Any:
        """Return a score per image for its caption; images are (images, height, width, 3)."""
        ...


class ImageFeatures(Protocol):
    """Compute features of images; your own class is created by `factory(model=..., device=...)`."""

    def __call__(self, images: NDArray[np.uint8]) -> Any:
        """Return features, shape (images, features), of images (images, height, width, 3)."""
        ...


@dataclass(frozen=True, kw_only=True)
class ClipFidOptions:
    """Options of scorer clip_fid.

    Attributes:
        clip: Folder with CLIP ViT-B/32 as Hugging Face files; or "package.module:factory", see
            `CaptionScores`.
        inception: Path of pt_inception-2015-12-05-6726825d.pth; or "package.module:factory", see
            `ImageFeatures`.
        statistics: Path of MLPerf's val2014.npz: mean "mu" and covariance "sigma" of the features
            of real images.
        size: Height and width of an output [pixels], one number or [height, width].
        batch_size: Number of images scored in one batch.
        device: Device of the networks, "cpu" or "cuda".
    """

    clip: str
    inception: str
    statistics: str
    size: int | Sequence[int] = 1024
    batch_size: int = 8
    device: str = "cpu"

    def __post_init__(self) -> None:
        _parse_size(self.size)
        count = type(self.batch_size) is int and self.batch_size >= 1
        expected = "a whole number of at least 1"
        require_options("scorer clip_fid", [("batch_size", self.batch_size, count, expected)])
        require_choice("clip_fid", "device", self.device, DEVICES)


class ClipFidScorer(ScorerBase[ClipFidOptions]):
    """Compare each image with its caption (CLIP score), and all images with real ones (FID).

    Source: text_to_image/tools/accuracy_coco.py of https://github.com/mlcommons/inference.
    """

    metrics = ("clip", "fid")
    optional_libraries = ("PIL", "torch", "transformers")

    def __init__(self, *, model: str | None = None, **options: Any) -> None:
        """Check options; require the files of CLIP, Inception weights and image statistics.

        Args:
            model: The workload's model, which is passed to your own classes.
        """
        super().__init__(**options)
        self._model = model
        if missing := list(_missing(self._asked)):
            raise UnavailableError("; also ".join(missing))

    def require(self) -> None:
        """Check that the libraries of both networks are installed; import nothing."""
        needed = [] if CODE.fullmatch(self._asked.clip) else ["torch", "transformers", "PIL"]
        needed += [] if CODE.fullmatch(self._asked.inception) else ["torch"]
        for name in dict.fromkeys(needed):
            if importlib.util.find_spec(name) is None:
                raise not_installed("scorer clip_fid", name, "diffusion")

    def score(
        self, outputs: Sequence[bytes], references: Sequence[Mapping[str, Any] | str]
    ) -> Scores:
        """Score RGB images (height x width x 3 bytes) against captions; keep only the features.

        A reference is a caption, as text or under the key "caption". A sample's "clip" is 100 x the
        cosine similarity; the aggregate is the mean. "fid" is the Fréchet distance of all images,
        lower is better; a sample's "fid" is its jackknife pseudo-value.
        """
        if len(outputs) != len(references) or len(outputs) < 2:
            raise scorer_error(
                f"scorer clip_fid: got {len(outputs)} outputs for {len(references)} references; it "
                "needs one output per reference, and at least two: FID needs a covariance",
            )
        captions = [_caption(reference, n) for n, reference in enumerate(references)]
        real = read_statistics(Path(self._asked.statistics))
        score, describe = self._networks()
        batch_size = self._asked.batch_size
        clip, features = np.empty(len(outputs)), np.empty((len(outputs), len(real.mean)))
        for start in range(0, len(outputs), batch_size):
            samples = range(start, min(start + batch_size, len(outputs)))
            part = slice(start, samples.stop)
            images = np.stack([self._image(outputs[sample], sample) for sample in samples])
            clip[part] = _checked("clip", score(images, captions[part]), samples, ())
            features[part] = _checked("inception", describe(images), samples, real.mean.shape)
        fid, pseudo_fids = frechet(features, real)
        return Scores(
            per_sample={"clip": clip.tolist(), "fid": pseudo_fids.tolist()},
            aggregate={"clip": float(clip.mean()), "fid": fid},
            lower=frozenset({"fid"}),
            whole=frozenset({"fid"}),
        )

    def _networks(self) -> tuple[CaptionScores, ImageFeatures]:
        if not (CODE.fullmatch(self._asked.clip) and CODE.fullmatch(self._asked.inception)):
            check_device(self._asked.device)
        score: CaptionScores = self._network("clip", self._asked.clip, ClipScores)
        describe: ImageFeatures = self._network(
            "inception", self._asked.inception, InceptionFeatures
        )
        return score, describe

    def _network(self, option: str, name: str, kind: type[Any]) -> Any:
        if not CODE.fullmatch(name):
            return kind(Path(name), device=self._asked.device)
        module, _, attribute = name.partition(":")
        try:
            factory = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise SuiteError(
                f"scorer clip_fid: {option} = {name!r} cannot be imported ({error}); write "
                '"package.module:factory" with a module that Python finds',
                option=option,
            ) from error
        return factory(model=self._model, device=self._asked.device)

    def _image(self, output: bytes, sample: int) -> NDArray[np.uint8]:
        height, width = _parse_size(self._asked.size)
        if len(output) != height * width * 3:
            raise scorer_error(
                f"scorer clip_fid: output of sample {sample} has {len(output)} bytes, not the "
                f"{height * width * 3} of an image of {height} x {width} pixels in red, green and "
                "blue; set the scorer's size to that of the engine's images",
            )
        return np.frombuffer(output, np.uint8).reshape(height, width, 3)


def _checked(
    option: str, values: Any, samples: range, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    numbers = np.asarray(values, np.float64)
    if numbers.shape != (len(samples), *shape):
        expected = f"{(len(samples), *shape)}" + (" as in the statistics" if shape else "")
        raise scorer_error(
            f"scorer clip_fid: {option} returned an array of shape {numbers.shape} for "
            f"{len(samples)} images, not {expected}; correct the network of option {option}",
        )
    finite = np.isfinite(numbers).reshape(len(samples), -1).all(axis=1)
    if not finite.all():
        raise scorer_error(
            f"scorer clip_fid: {option} returned a number that is not finite for sample "
            f"{samples[int(finite.argmin())]}; check the weights in the scorer's option {option}",
        )
    return numbers


def _caption(reference: Mapping[str, Any] | str, sample: int) -> str:
    caption = reference.get("caption") if isinstance(reference, Mapping) else reference
    if not isinstance(caption, str) or not caption.strip():
        raise scorer_error(
            f"scorer clip_fid: reference {reference!r:.80} of sample {sample} has no caption; use "
            'a data set whose references are captions, as text or under "caption"',
        )
    return caption


def _missing(options: ClipFidOptions) -> Iterator[str]:
    """Yield a sentence for each missing file, which says where to get it."""
    inception, statistics = options.inception, options.statistics
    if not CODE.fullmatch(options.clip):
        try:
            look_for_clip(Path(options.clip))
        except UnavailableError as error:
            yield str(error)
    if not CODE.fullmatch(inception) and not Path(inception).is_file():
        yield (
            f"{inception}: this file (weights of the Inception network) does not exist; {ADVICE}"
        )
    if not Path(statistics).is_file():
        yield (
            f"{statistics}: this file (statistics of real images) does not exist; get MLPerf's "
            "val2014.npz from text_to_image/tools of github.com/mlcommons/inference, and set the "
            "scorer's statistics to it"
        )


def _parse_size(size: object) -> tuple[int, int]:
    if sides := sides_of(size):
        return sides
    raise SuiteError(
        f"scorer clip_fid: size = {size!r} is neither a number of pixels nor [height, width]",
        option="size",
    )
