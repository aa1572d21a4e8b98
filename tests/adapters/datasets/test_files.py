"""Rules of every data set of files: its options, its files, their checksum, and its samples."""

from __future__ import annotations

import hashlib
import importlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_mlperf import registry
from pytest_mlperf.core.errors import RunError, SuiteError, UnavailableError
from pytest_mlperf.registry import check_call
from pytest_mlperf.testing import check_dataset


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Describe the samples that `tiny` of a data set's test module writes.

    Attributes:
        size: Their number.
        checked: The file that the option `checksum` is of; None if there is no such option.
        places: Files and folders that `look` asks for, with a part of the error without them.
        parts: The same of those that only reading misses.
        whole: Files that are refused wherever they are cut.
        counted: The name of samples in messages about `count`.
    """

    size: int
    checked: str | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    whole: tuple[str, ...] = ()
    counted: str = " of samples"


CNN = "cnn_eval.json"
MIXTRAL = "09292024_mixtral_15k_mintoken2_v1.pkl"
ORCA = "open_orca_gpt4_tokenized_llama.sampled_24576.pkl"
GRADED = "mlperf_deepseek_r1_dataset_4388_fp8_eval.pkl"
OPENIMAGES = "annotations/openimages-mlperf.json"
COCO = "annotations/instances_val2017.json"
CAPTIONS, LATENTS = "captions/captions_source.tsv", "latents/latents.npy"
CLIPS = "dev-all-repack.json"
WHEEL = "bfcl_eval-2026.3.23-py3-none-any.whl"
WAYMO = "kitti_format/waymo_infos_val.pkl"
SHOPIFY = "train-00000-of-00001.parquet"
DENSE, LABELS, SPARSE = "day_23_dense.npy", "day_23_labels.npy", "day_23_sparse_multi_hot.npz"
OUTPUT = (
    "put the output of tools/openimages_mlperf.sh there (MLPerf's repository inference, folder "
)

SETS = {
    "cnn_dailymail": Rules(size=3, checked=CNN, places={CNN: f"get {CNN} as"}, whole=(CNN,)),
    "mixtral": Rules(
        size=4, checked=MIXTRAL, places={MIXTRAL: f"get {MIXTRAL} as"}, whole=(MIXTRAL,)
    ),
    "openorca": Rules(size=3, places={ORCA: f"has neither {ORCA} nor"}, whole=(ORCA,)),
    "graded": Rules(size=3, checked=GRADED, places={GRADED: "get it as"}, whole=(GRADED,)),
    "imagenet": Rules(
        size=3,
        places={
            "val_map.txt": "neither in this folder nor in its parent; put the official val_map.txt",
            "": "folder of images does not exist; set the data set's path to the folder with the",
        },
        parts={"b.png": "1 of 3 images listed in {folder}/val_map.txt are not here, the first is"},
        counted=" of images",
        whole=("b.png",),
    ),
    "openimages": Rules(
        size=3,
        checked=OPENIMAGES,
        places={
            OPENIMAGES: (
                "{folder}/annotations/openimages-mlperf.json: the annotation file openimages-mlperf"
                f".json is not here; {OUTPUT}vision/classification_and_detection), or set the "
                "option annotations to its path"
            ),
            "validation": (
                "{folder}/validation/data: the folder of images does not exist; "
                f"{OUTPUT}vision/classification_and_detection), or set the option images to its "
                "path"
            ),
            "": "the folder of Open Images does not exist; put the output of tools/openimages",
        },
        parts={"validation/data/b.png": "1 of 3 images listed in"},
        counted=" of images",
        whole=(OPENIMAGES, "validation/data/a.png"),
    ),
    "coco": Rules(
        size=2,
        checked=COCO,
        places={COCO: "is not here; put MLPerf's data set coco_safe"},
        parts={"val2017_safe/000000000139.png": "1 of 2 images listed in"},
        counted=" of images",
        whole=(COCO, "val2017_safe/000000000285.png"),
    ),
    "coco_captions": Rules(
        counted=" of captions",
        size=3,
        checked=CAPTIONS,
        places={
            CAPTIONS: (
                "{folder}: has neither captions/captions.tsv nor captions/captions_source.tsv; put "
                "the folder text_to_image/coco2014/captions of the repository mlcommons/inference "
                "there, or set the data set's path to its captions_source.tsv"
            ),
            LATENTS: (
                "{folder}/latents: has neither latents.pt nor latents.npy; put latents.pt or "
                "latents.npy from text_to_image/tools of the repository mlcommons/inference there, "
                "set the data set's latents to its path, or set latents = false if the engine "
                "draws its own latents"
            ),
        },
        whole=(LATENTS,),
    ),
    "librispeech": Rules(
        size=3,
        checked=CLIPS,
        places={CLIPS: f"has no {CLIPS}"},
        parts={"dev-all-repack/84-121123_1.wav": "1 of the 3 clips listed in"},
        whole=(CLIPS,),
        counted=" of clips",
    ),
    "bfcl": Rules(
        size=133,
        checked=WHEEL,
        places={WHEEL: f"neither {WHEEL} nor BFCL_v4_multiple.json is there; get the wheel"},
        whole=(WHEEL,),
        counted=" of questions",
    ),
    "waymo": Rules(
        size=2,
        checked=WAYMO,
        places={WAYMO: "waymo_infos_val.pkl not found; get the data from MLCommons"},
        whole=(WAYMO,),
        counted=" of frames",
    ),
    "vbench": Rules(
        size=2,
        checked="vbench_prompts.txt",
        places={
            "vbench_prompts.txt": "this file of prompts does not exist",
            "fixed_latent.npy": "has neither fixed_latent.pt nor",
        },
        whole=("fixed_latent.npy",),
        counted=" of prompts",
    ),
    "shopify": Rules(
        size=2,
        checked=SHOPIFY,
        places={SHOPIFY: "hf download Shopify/product-catalogue"},
        whole=(SHOPIFY,),
    ),
    "squad": Rules(
        size=1,
        checked="dev-v1.1.json",
        places={
            "dev-v1.1.json": (
                "{folder}/dev-v1.1.json: this file does not exist; put SQuAD's official "
                "dev-v1.1.json there, as the README of MLPerf's language/bert describes, or set "
                "the data set's path to it"
            ),
            "vocab.txt": (
                "{folder}/vocab.txt: this file does not exist; put the vocab.txt of MLPerf's BERT "
                "model there, or set the data set's option vocab to its path"
            ),
        },
        whole=("dev-v1.1.json",),
        counted=" of features",
    ),
    "kits19": Rules(
        size=3,
        counted=" of cases",
        places={"": "this folder of volumes does not exist; set the data set's path to what"},
        parts={"case_00003.pkl": "in preprocessed_files.pkl are missing, such as case_00003"},
        whole=("case_00000.pkl", "case_00003.pkl", "preprocessed_files.pkl"),
    ),
    "criteo": Rules(
        size=3,
        places={
            **{
                name: (
                    f"{{folder}}: this folder lacks {name} of the multi-hot Criteo data; get the "
                    f"preprocessed data set as README.md of MLPerf's dlrm_v2 reference says, or "
                    f"set the data set's path to its folder"
                )
                for name in (DENSE, LABELS, SPARSE)
            },
            "": "this folder does not exist; set the data",
        },
        whole=(DENSE, LABELS, SPARSE),
    ),
    "frames": Rules(
        size=2,
        checked="frames_dataset.tsv",
        places={"frames_dataset.tsv": "this folder has no frames_dataset.tsv"},
        counted=" of questions",
    ),
    "frames-pages": Rules(
        size=3,
        places={"": "no pages (*.html) are here; get docs.tar.gz"},
        counted=" of pages",
    ),
}

MODULES = {"frames": "frames_questions", "frames-pages": "frames_questions"}
"""Test modules whose names are not those of the data sets."""

SEVERAL_PLACES = {"openimages", "coco_captions", "squad"}
"""Data sets that name all missing files in one error."""

WITHOUT_SUITE = {"graded", "bfcl", "waymo", "vbench", "frames", "frames-pages"}
"""Data sets whose contract tests/testing/test_ours.py does not check."""


@dataclass(frozen=True)
class Made:
    """A tiny data set in a folder.

    Attributes:
        kind: Its class.
        options: With these `kind` can be built.
    """

    rules: Rules
    folder: Path
    kind: Any
    options: Mapping[str, Any]

    def build(self, **options: Any) -> Any:
        return self.kind(**{**self.options, **options})

    def look(self, **options: Any) -> None:
        self.kind.look(**{**self.options, **options})


def make(name: str, folder: Path) -> Made:
    module = importlib.import_module(f"tests.adapters.datasets.test_{MODULES.get(name, name)}")
    tiny = module.tiny_pages if name == "frames-pages" else module.tiny
    kind = registry.resolve(registry.target("datasets", name))
    folder.mkdir()
    return Made(SETS[name], folder, kind, tiny(folder))


def refusal(kind: type[Exception], ask: Callable[..., Any], **options: Any) -> Any:
    with pytest.raises(kind) as caught:
        ask(**options)
    return caught.value


@pytest.fixture
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    return make(request.param, tmp_path / "made")


every = pytest.mark.parametrize("made", SETS, indirect=True)


@every
def test_a_sample_out_of_range_is_refused(made: Made) -> None:
    """A negative index is a mistake, not the end of the file."""
    dataset, rules = made.build(), made.rules
    readers = [dataset.input, dataset.reference]
    if hasattr(dataset, "stop"):
        readers.append(dataset.stop)

    assert len(dataset) == rules.size
    for read in readers:
        for index in (-1, rules.size):
            with pytest.raises(IndexError, match=f"sample {index} of {rules.size}"):
                read(index)


@every
def test_count_keeps_the_first_samples(made: Made) -> None:
    whole, size = made.build(), made.rules.size
    kept = max(size - 1, 1)
    some = made.build(count=kept)

    assert len(some) == kept
    for index in range(kept):
        np.testing.assert_equal(some.reference(index), whole.reference(index))
        np.testing.assert_equal(some.input(index), whole.input(index))
    assert (some.digest == whole.digest) == (kept == size)
    with pytest.raises(SuiteError, match=f"count = {size + 1}, but .* {size} ") as caught:
        made.build(count=size + 1)
    assert caught.value.options == ("count",)
    for count in (0, True, "3"):
        with pytest.raises(
            SuiteError, match=f"count = {count!r} is not a number{made.rules.counted}, at least 1"
        ):
            made.look(count=count)


@pytest.mark.parametrize("made", [name for name in SETS if SETS[name].checked], indirect=True)
def test_a_checksum_is_compared_before_anything_is_read(made: Made) -> None:
    file = made.folder / str(made.rules.checked)
    for algorithm in ("md5", "sha256"):
        digits = hashlib.new(algorithm, file.read_bytes()).hexdigest()
        assert len(made.build(checksum=f"{algorithm}:{digits}")) == made.rules.size
    file.write_bytes(b"nonsense")

    error = refusal(RunError, made.build, checksum=f"sha256:{digits}")
    digest = hashlib.sha256(b"nonsense").hexdigest()
    assert f"{file}: sha256 is {digest}, expected {digits}: the file" in str(error)
    assert error.layer == "dataset"
    for checksum in ("", "78823c13", "md5:12", f"md4:{32 * '0'}", "crc:1"):
        error = refusal(SuiteError, made.look, checksum=checksum)
        assert f"checksum = {checksum!r} must be" in str(error)
        assert error.options == ("checksum",)


@every
def test_looking_reads_nothing_and_takes_the_options_of_a_suite(made: Made) -> None:
    for file in made.folder.rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    options: dict[str, Any] = {"count": 1}
    if made.rules.checked:
        options["checksum"] = f"md5:{32 * '0'}"

    made.look(**options)
    check_call("data set 'x'", made.kind, {**made.options, **options})
    with pytest.raises(SuiteError, match="has no option 'sise'"):
        check_call("data set 'x'", made.kind, {**made.options, "sise": 3})
    for ask in (made.build, made.look):
        with pytest.raises(TypeError, match="sise"):
            ask(sise=3)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


@pytest.mark.parametrize("name", SETS)
def test_files_that_are_missing_are_named(tmp_path: Path, name: str) -> None:
    """By `look` as by the data set, but for those that only a list in another file names."""
    for number, (file, message) in enumerate(SETS[name].places.items()):
        made = make(name, tmp_path / str(number))
        remove(made.folder / file)
        errors = {str(refusal(UnavailableError, ask)) for ask in (made.look, made.build)}
        assert len(errors) == 1
        assert errors.pop().startswith(str(made.folder))
        assert message.format(folder=made.folder) in str(refusal(UnavailableError, made.look))
    for part, message in SETS[name].parts.items():
        made = make(name, tmp_path / "part")
        remove(made.folder / part)
        made.look()
        assert message.format(folder=made.folder) in str(refusal(UnavailableError, made.build))


@pytest.mark.parametrize("made", sorted(SEVERAL_PLACES), indirect=True)
def test_files_that_are_missing_are_named_together(made: Made) -> None:
    places = [place for place in made.rules.places if place]
    for file in places:
        remove(made.folder / file)
    expected = [made.rules.places[place].format(folder=made.folder) for place in places]

    for ask in (made.look, made.build):
        assert str(refusal(UnavailableError, ask)).split("; also ") == expected


@every
def test_files_that_are_cut_are_refused(made: Made) -> None:
    failures = []
    for name in made.rules.whole:
        file = made.folder / name
        content = file.read_bytes()
        # Decoders do not need the last bytes of a PNG.
        for kept in (0, 1, 30, 0.3, 0.5) if file.suffix == ".png" else (0, 1, 30, 0.3, 0.9, -1):
            file.write_bytes(content[: int(len(content) * kept) if 0 < kept < 1 else int(kept)])
            try:
                made.build()
            except RunError as error:
                if str(file) not in str(error) or error.layer != "dataset":
                    failures.append((name, kept, str(error)))
            else:
                failures.append((name, kept, "accepted"))
        file.write_bytes(content)

    assert failures == []


@pytest.mark.parametrize("name", SETS)
def test_the_digest_is_of_the_content_not_of_the_place(tmp_path: Path, name: str) -> None:
    digests = {make(name, tmp_path / folder).build().digest for folder in ("a", "b")}

    assert len(digests) == 1
    assert len(bytes.fromhex(digests.pop())) == 32


@pytest.mark.process
@pytest.mark.parametrize("made", sorted(WITHOUT_SUITE), indirect=True)
def test_the_data_set_keeps_the_contract(made: Made) -> None:
    check_dataset(made.kind, options=made.options, samples=2)
