"""The MD5 of each case's pickle in MLPerf's KiTS19, or in a file of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_mlperf.core.errors import RunError
from pytest_mlperf.datasets.array_files import damaged

OFFICIAL_MD5 = """
00000 470ec60377be417a9c271ffd81c1d610 00003 a5536433cf1c01aaa8c4293ef59a826c
00005 dbb4141573d72278c1724debe16311f5 00006 4a81aa95c7a7613138d9c148eea05a66
00012 a4f576fd327ba35242802b01f204dede 00024 f0c24290a38491c3a3901e389df345bc
00034 a40e1ef70291072b4790f2d3056972cc 00041 4ddaf586d0a7ea7f55491f9ec776ad24
00044 b7b2e115ed7fcd3e0e757ff8ac164733 00049 0b7d71d0c11458a602d71490449943d3
00052 7fd78f6dd694fe90ff6b5332c6c30f19 00056 1ff976858ecd43a9045b2c571ac18b42
00061 f631a2edb275f4fa2bc662c210dc29e2 00065 c7d63dc01cf8ca5c08075c0dee7fd9ae
00066 d3741a5f717ca978f3bb49fabd2d6651 00070 347b40ea5c3e30a8e313f6fad5504acd
00076 d572f849e8de3e352009f7156f0988ce 00078 de564386f95f97c9c276e11883acb018
00080 23cd0e88a3c1f7995082137bb7d5ab7b 00084 2a61a63abff567c4b107efeec24528ad
00086 69453d214225bcc67417c1726b1c6f31 00087 3ef7fc6c59b3a629fb4feddca92825f0
00092 4da4423b41cc606f42ad40fa769229af 00111 9f43e5824fd5459bfa7d523197346003
00112 18b9a976fd0683990a997241f1f6c588 00125 10c8971914f9d7beb66ff2d5e87f3bf4
00128 f1c1d420474ad5254ffdd6d8fbaffaa9 00138 8661d26af4271de29fb8593d1da3f195
00157 55a47901624695e3aacd9b0fb8467555 00160 0b1b2d50203070898af64ac6457c7568
00161 0e4b57e587e36042d5473de11d1792c2 00162 89f53aac7e1a421505f9b6cacdc5f09e
00169 f6c0594e20016e2b5086eae22963d051 00171 00a2700e3ff23896d7fd1ca5a30ddf6a
00176 430f5f2da6247f52b68346d549ed672e 00185 2ae858449b63e2fe4466c29087540e9c
00187 15022874121b70aa7f5f18d1a197816b 00189 966297c3adc7766655e050220b840dee
00198 cbfbd56f5c1a2570cc9d73c9fad8222a 00203 f82f9adab8d3ea22391a2e9af5572288
00206 0e59b9a2ef5bd4549938a97d136b06a8 00207 4c437995fb990736385e0dc2241255aa
00400 2ae858449b63e2fe4466c29087540e9c
"""
"""MD5 of the 43 pickles of MLPerf's inference set; case_00400 is a copy of case_00185.

Source: vision/medical_imaging/3d-unet-kits19/meta/checksum_inference.json of
https://github.com/mlcommons/inference. Another version of NumPy or SciPy can write other bytes.
"""


def checksum_of(checksums: str, files: Sequence[Path]) -> Mapping[str, str]:
    """Return the MD5 of each of these files by its name.

    Args:
        checksums: "official", or a file like MLPerf's checksum_inference.json.
        files: Those that must have one.

    Raises:
        RunError: The file of checksums cannot be read, or has none for one of these files.
    """
    known = _official() if checksums == "official" else _read(Path(checksums))
    for file in files:
        if file.name not in known:
            raise RunError(
                "dataset",
                f"{file}: {checksums} has no checksum of a file {file.name}; use the pickles of "
                "MLPerf's inference set, or leave checksums out",
            )
    return known


def _official() -> dict[str, str]:
    words = OFFICIAL_MD5.split()
    return {f"case_{number}.pkl": md5 for number, md5 in zip(words[::2], words[1::2], strict=True)}


def _read(path: Path) -> dict[str, str]:
    try:
        known = json.loads(path.read_bytes())
    except ValueError as error:
        raise damaged(path, f"it is no JSON ({error})") from error
    if not isinstance(known, dict) or not all(
        isinstance(md5, str) and re.fullmatch("[0-9a-f]{32}", md5) for md5 in known.values()
    ):
        raise damaged(path, "it is no JSON object of file names and MD5 sums")
    return known
