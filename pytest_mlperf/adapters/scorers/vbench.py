"""Score videos with VBench, by running the command of the user's own installation."""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf import RunError, Scores, UnavailableError
from pytest_mlperf.adapters import scorers
from pytest_mlperf.adapters.lazy import NDArray, np
from pytest_mlperf.extension import require_options

DIMENSIONS = (
    *("subject_consistency", "dynamic_degree", "motion_smoothness", "appearance_style"),
    *("scene", "background_consistency"),
)
"""VBench's dimensions in MLPerf's score, which is their mean."""

VIDEOS, OUTPUT = "{videos}", "{output}"
RESULTS = "*_eval_results.json"
VIDEO_QUALITY, MACRO_BLOCK_PIXELS = 5.0, 16
"""Values of diffusers' export_to_video, which the reference uses."""


@dataclass(frozen=True, kw_only=True)
class VBenchScorerOptions:
    """Options of scorer vbench.

    Attributes:
        command: Program and arguments that run VBench. `{videos}` is replaced by the folder with
            the videos, and `{output}` by the folder in which it must write a file
            `*_eval_results.json`.
        height: Height of a video [pixels].
        width: Width of a video [pixels].
        fps: Frames per second of a video.
    """

    command: Sequence[str]
    height: int = 720
    width: int = 1280
    fps: int = 16

    def __post_init__(self) -> None:
        words = isinstance(self.command, list | tuple) and all(
            isinstance(word, str) for word in self.command
        )
        named = words and all(
            any(field in word for word in self.command[1:]) for field in (VIDEOS, OUTPUT)
        )
        expected = f"a list of a program and its arguments, which must hold {VIDEOS} and {OUTPUT}"
        sizes = [
            (name, size, type(size) is int and size >= 1, "a whole number of at least 1")
            for name, size in (("height", self.height), ("width", self.width), ("fps", self.fps))
        ]
        require_options("scorer vbench", [("command", self.command, named, expected), *sizes])


class VBenchScorer(scorers.ScorerBase[VBenchScorerOptions]):
    """Write each video to `PROMPT-0.mp4`, run VBench on all videos, and read its results.

    Metrics, in per cent, are VBench's means of the six dimensions in MLPerf's score, and "vbench",
    the mean of the six. VBench scores a dimension only on the prompts that it has for that
    dimension. The results depend on the installed VBench, and are not MLPerf scores.
    Source: text_to_video/wan-2.2-t2v-a14b/run_evaluation.py of
    https://github.com/mlcommons/inference, for the dimensions and for reading the results.
    """

    metrics = (*DIMENSIONS, "vbench")
    libraries = ("imageio_ffmpeg",)

    def score(self, outputs: Sequence[bytes], references: Sequence[Any]) -> Scores:
        """Score videos, uint8 (frames, height, width, 3), by the prompts of data set vbench.

        A sample's score for a dimension is None if VBench gave none; "vbench" is its jackknife
        pseudo-value.
        """
        scorers.require_outputs("vbench", outputs, references)
        prompts = scorers.require_texts("vbench", references, "the prompt")
        names = [_name(sample, prompt, prompts) for sample, prompt in enumerate(prompts)]
        with tempfile.TemporaryDirectory() as folder:
            videos, output = Path(folder, "videos"), Path(folder, "output")
            videos.mkdir()
            output.mkdir()
            for sample, (name, frames) in enumerate(zip(names, outputs, strict=True)):
                self._write(sample, videos / name, frames)
            results = self._judge(videos, output)
        return _scores(results, names)

    def _write(self, sample: int, file: Path, output: bytes) -> None:
        import imageio_ffmpeg

        height, width = self._asked.height, self._asked.width
        if not output or len(output) % (height * width * 3):
            raise scorers.scorer_error(
                f"scorer vbench: the output of sample {sample} has {len(output):,} bytes, "
                f"which is not a whole number of RGB frames of {height} x {width} pixels; set "
                "height and width to those of the engine's videos",
            )
        frames = np.frombuffer(output, np.uint8).reshape(-1, height * width * 3)
        try:
            writer = imageio_ffmpeg.write_frames(
                file,
                (width, height),
                fps=self._asked.fps,
                quality=VIDEO_QUALITY,
                macro_block_size=MACRO_BLOCK_PIXELS,
                ffmpeg_log_level="error",
            )
            next(writer)
            for frame in frames:
                writer.send(np.ascontiguousarray(frame))
            writer.close()
        except (OSError, RuntimeError) as error:
            raise scorers.scorer_error(
                f"scorer vbench: ffmpeg cannot write the video of sample {sample}: {error}",
            ) from error

    def _judge(self, videos: Path, output: Path) -> Mapping[str, Any]:
        command = [
            word.replace(VIDEOS, str(videos)).replace(OUTPUT, str(output))
            for word in self._asked.command
        ]
        try:
            process = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
        except OSError as error:
            raise UnavailableError(
                f"scorer vbench: {command[0]} cannot be started ({error.strerror}); the scorer's "
                "command must begin with the Python in which VBench is installed"
            ) from error
        if process.returncode:
            last = repr(process.stderr.decode("utf-8", "replace").strip()[-500:])
            raise _failed(f"ended with {process.returncode}: {last}")
        files = sorted(output.glob(RESULTS))
        if len(files) != 1:
            raise _failed(f"wrote {len(files)} files named {RESULTS} to {OUTPUT}, not one")
        try:
            results = json.loads(files[0].read_bytes())
        except (ValueError, RecursionError) as error:
            raise _failed(f"wrote results that are not JSON ({error})") from error
        return results if isinstance(results, dict) else {}


def _failed(defect: str) -> RunError:
    advice = "run it by hand on a folder of videos to see why"
    return scorers.scorer_error(f"scorer vbench: the command {defect}; {advice}")


def _name(sample: int, prompt: str, prompts: Sequence[str]) -> str:
    if "/" in prompt or "\0" in prompt or not prompt or len(prompt.encode()) > 240:
        raise scorers.scorer_error(
            f"scorer vbench: the prompt of sample {sample} cannot be a file name, as VBench needs: "
            f"{prompt!r:.60}; use prompts of 1 to 240 bytes without /",
        )
    if prompts.index(prompt) != sample:
        raise scorers.scorer_error(
            f"scorer vbench: sample {sample} has the prompt of sample {prompts.index(prompt)}, but "
            "VBench names videos by their prompts; use a data set with unique prompts",
        )
    return f"{prompt}-0.mp4"


def _scores(results: Mapping[str, Any], names: Sequence[str]) -> Scores:
    means = {name: _mean(name, results) for name in DIMENSIONS}
    rows = {name: list(_row(results[name], names)) for name in DIMENSIONS}
    aggregate = {name: 100.0 * mean for name, mean in means.items()}
    overall = sum(aggregate.values()) / len(DIMENSIONS)
    pseudo = np.zeros(len(names))
    for row in rows.values():
        pseudo += _influences(row, len(names)) / len(DIMENSIONS)
    return Scores(
        per_sample={**rows, "vbench": (overall + pseudo - pseudo.mean()).tolist()},
        aggregate={**aggregate, "vbench": overall},
        whole=frozenset({"vbench"}),
    )


def _influences(row: Sequence[float | None], samples: int) -> NDArray[np.float64]:
    """Return each score's influence on the mean, times `samples`; 0 for samples without score."""
    is_scored = np.array([value is not None for value in row])
    values = np.array([value or 0.0 for value in row])
    if not is_scored.any():
        return np.zeros(samples)
    centred = np.where(is_scored, values - values[is_scored].mean(), 0.0)
    return np.asarray(centred * samples / is_scored.sum(), np.float64)


def _mean(name: str, results: Mapping[str, Any]) -> float:
    """Return VBench's mean score of dimension `name`; `results` maps it to [mean, videos]."""
    result: Any = results.get(name)
    mean = _number(result[0]) if isinstance(result, list) and result else None
    if mean is None or isinstance(result[0], bool):
        raise _failed(
            f"wrote no mean of {name} to its results; let it score {', '.join(DIMENSIONS)}"
        )
    return mean


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _row(result: Sequence[Any], names: Sequence[str]) -> Iterator[float | None]:
    """Yield each video's score in per cent; None if VBench gave none. `names` are file names."""
    videos = result[1] if len(result) > 1 and isinstance(result[1], list) else []
    values_by_name = {
        Path(str(video.get("video_path"))).name: video.get("video_results")
        for video in videos
        if isinstance(video, dict)
    }
    for name in names:
        value = _number(values_by_name.get(name))
        yield None if value is None else 100.0 * value
