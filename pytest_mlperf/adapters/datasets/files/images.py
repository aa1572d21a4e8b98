"""Decode image files to pixels, and check them in bulk before an engine loads."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mlperf import UnavailableError
from pytest_mlperf.adapters.conventions import not_installed
from pytest_mlperf.adapters.datasets.files import wrong
from pytest_mlperf.adapters.lazy import NDArray, np

if TYPE_CHECKING:
    from PIL import Image

END_BYTES = {"JPEG": b"\xff\xd9", "PNG": b"\0\0\0\0IEND\xae\x42\x60\x82"}
"""Last bytes of an intact file, by Pillow's name of the format."""

THREADS = 8
"""Number of files read in parallel: disks and network folders serve several at once."""

BATCH_FILES = 256
MAX_DAMAGED = 100
"""Number of damaged files after which the check stops: each may have to be decoded."""


def hash_of_images(start: bytes, folder: Path, images: Iterable[tuple[str, bytes]]) -> str:
    """Return the hex SHA-256 over `start`, and over the bytes and label of each image, in order."""
    total = hashlib.sha256(start)
    for name, label in images:
        with (folder / name).open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest() + label)
    return total.hexdigest()


def decode(path: Path) -> NDArray[np.uint8]:
    """Decode an image file to RGB of shape (height, width, 3), rotated by its EXIF data."""
    require_pillow()
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            return np.asarray(_eight_bit(image, ImageOps.exif_transpose(image)).convert("RGB"))
    except Exception as error:  # damage makes decoders raise anything
        raise wrong(
            path,
            f"Pillow cannot decode this image ({error})",
            "replace the file by an intact JPEG or PNG with 8 bits per channel",
        ) from error


def _eight_bit(opened: Image.Image, image: Image.Image) -> Image.Image:
    """Convert 16-bit grey pixels to 8 bits by their upper byte, as OpenCV does; Pillow would clip.

    32-bit pixels are rejected, because their white level is undefined. `opened` is the image before
    its rotation by EXIF data; only that one still has the file's format.
    """
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and opened.format == "PNG"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in {"I", "F"}:
        raise ValueError(f"its pixels are 32-bit numbers (mode {image.mode}): save it with 8 bits")
    return image


def neighbours(
    old: int, new: int, *, single: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return for each new pixel the old pixels before and after it, and the weight of the second.

    At borders both are the same pixel. With `single`, positions are rounded to float32, as OpenCV
    does for uint8 images.
    """
    position = (np.arange(new) + 0.5) * (old / new) - 0.5
    position = position.astype(np.float32) if single else position
    lower = np.floor(position).astype(np.int64)
    share = (position - lower).astype(np.float32)
    return lower.clip(0, old - 1), (lower + 1).clip(0, old - 1), share


def require_pillow() -> None:
    """Raise EnvironmentFault unless Pillow is installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise not_installed("a data set of images", "Pillow", "onnx") from error


def check_images(folder: Path, names: Sequence[str], listed: Path) -> list[tuple[int, int]]:
    """Return the stored width and height of each image, in pixels; raise RunError for damage.

    Only headers and ends of files are read. A file with another end than its format's, or without a
    known one, is decoded. Damage in between shows in decoding, or in the digest. Raises
    UnavailableError if images that the file `listed` names are missing.
    """
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UnavailableError(
            f"{folder}: {len(missing)} of {len(names)} images listed in {listed} are not here, "
            f"the first is {missing[0]!r}; add the missing images or, if the list begins with the "
            "images that you have, set count to their number"
        )
    require_pillow()
    sizes: list[tuple[int, int]] = []
    damaged: list[tuple[str, str]] = []
    for name, inspected in zip(names, _inspect_all(folder, names), strict=True):
        if not isinstance(inspected, str):
            sizes.append(inspected)
            continue
        damaged.append((name, inspected))
        if len(damaged) == MAX_DAMAGED:
            break
    if damaged:
        more = "at least " if len(damaged) == MAX_DAMAGED else ""
        raise wrong(
            folder / damaged[0][0],
            damaged[0][1],
            f"{more}{len(damaged)} of {len(names)} images in {folder} are damaged: get them from "
            "their source again",
        )
    return sizes


PICTURE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def check_encoded(content: bytes) -> str | None:
    """Return the defect in an encoded image's header as text, or None; decode no pixels."""
    require_pillow()
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=PICTURE_FORMATS) as image:
            return _too_large(image)
    except UnidentifiedImageError:
        return f"its bytes are not a picture in one of the formats {', '.join(PICTURE_FORMATS)}"
    except Exception as error:  # damage makes decoders raise anything
        return f"its picture is damaged ({error})"


def encode_again(content: bytes) -> tuple[str, bytes]:
    """Re-encode an image with Pillow; return its format and bytes, or raise ValueError.

    An image with an EXIF rotation is rotated and becomes a JPEG, as in Hugging Face's datasets.
    """
    from PIL import ExifTags, Image, ImageOps

    try:
        with Image.open(io.BytesIO(content), formats=PICTURE_FORMATS) as image:
            if defect := _too_large(image):
                raise ValueError(defect)
            turned = (
                ImageOps.exif_transpose(image)
                if ExifTags.Base.Orientation in image.getexif()
                else image
            )
            name, written = turned.format or "JPEG", io.BytesIO()
            turned.save(written, format=name)
    except Exception as error:  # damage makes decoders raise anything
        raise ValueError(f"Pillow cannot re-encode its picture ({error})") from error
    return name, written.getvalue()


def _too_large(image: Image.Image) -> str | None:
    from PIL import Image

    pixels, most = image.width * image.height, Image.MAX_IMAGE_PIXELS or 0
    if pixels > most:
        return f"its picture has {pixels:,} pixels; at most {most:,} are allowed"
    return None


def _inspect_all(folder: Path, names: Sequence[str]) -> Iterator[tuple[int, int] | str]:
    batches = [names[start : start + BATCH_FILES] for start in range(0, len(names), BATCH_FILES)]
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="images")
    try:
        for batch in pool.map(lambda some: [_inspect(folder / name) for name in some], batches):
            yield from batch
    finally:
        pool.shutdown(cancel_futures=True)


def _inspect(path: Path) -> tuple[int, int] | str:
    """Return an image's width and height, or a text about its defect."""
    from PIL import Image, UnidentifiedImageError

    try:
        with path.open("rb") as file, Image.open(file) as image:
            end = END_BYTES.get(image.format or "", b"")
            file.seek(-len(end), 2)
            if not end or file.read() != end:
                file.seek(0)
                content = file.read()
                kept = content.rstrip(b"\0")
                # An incomplete copy ends in zeros, which decoders may take for pixels. Zeros
                # after the end of an image are harmless.
                if end and len(kept) < len(content) and not kept.endswith(end):
                    raise ValueError(f"it ends in {len(content) - len(kept):,} zero bytes")
                with Image.open(path) as again:
                    again.load()
            return image.size
    except UnidentifiedImageError:
        return _kind(path)
    except Exception as error:  # damage makes decoders raise anything
        return f"this image is incomplete or damaged ({error})"


def _kind(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(256)
    if not start:
        return "this file is empty"
    if not start.strip(b"\0"):
        return f"this file is no image: its first {len(start)} bytes are zeros"
    if start.lstrip()[:1] in (b"<", b"{"):
        return "this is text, such as a web page with an error, and no image"
    return "this is not an image that Pillow knows"
