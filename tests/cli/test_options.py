"""Test `pytest-mlperf options`: the options of extensions, read from the extensions themselves."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import registry
from pytest_mlperf.cli.options import read_extension, toml
from pytest_mlperf.core.declaration import declaration_of, parse_docstring
from pytest_mlperf.suite.libraries import NOUNS, declared_libraries
from tests.cli.imported import libraries_of
from tests.cli.text import Say, finished, one_line, page

EVERY = [(group, name) for group in NOUNS for name in registry.registered(group)]


EXTRAS: dict[tuple[registry.Group, str], dict[str, str]] = {
    ("engines", "null"): {},
    ("engines", "onnxruntime"): {"onnxruntime": "onnx", "onnx": "onnx"},
    ("engines", "torch"): {
        **dict.fromkeys(("torch", "transformers", "psutil"), "lm"),
        "torchao": "quantization",
        "compressed_tensors": "compressed",
    },
    ("engines", "torch-diffusion"): {
        **dict.fromkeys(("diffusers", "torch", "transformers"), "diffusion"),
        "torchao": "quantization",
    },
    ("datasets", "imagenet"): {"PIL": "onnx"},
    ("datasets", "openorca"): {"pyarrow": "parquet"},
    ("scorers", "clip_fid"): {"PIL": "onnx", "torch": "lm", "transformers": "lm"},
    ("scorers", "map"): {"pycocotools": "vision"},
    ("scorers", "top1"): {},
}


def test_every_extension_declares_its_options_and_its_libraries() -> None:
    """Every option has a text and a type, every text an option, every import a declaration."""
    failures = []
    for group, name in EVERY:
        extension = read_extension(group, name)
        declaration, options = extension.declaration, extension.options
        factory = registry.resolve(extension.target)
        texts = {
            **parse_docstring(factory.__doc__)[1],
            **parse_docstring(factory.__init__.__doc__)[1],
        }
        names = {*declaration.supplied, "options", *(option.name for option in options)}
        defects = {
            "no description": [] if declaration.about else [name],
            "no text": [option.name for option in options if not option.text],
            "no type": [option.name for option in options if not option.type],
            "no text of": [key for key, text in declaration.supplied.items() if not text],
            "no such option": sorted(set(texts) - names),
            "not declared": sorted(undeclared(extension.target, factory)),
            "no top-level library": [key for key in declared_libraries(group, name) if "." in key],
        }
        failures += [(group, name, defect, keys) for defect, keys in defects.items() if keys]
    assert failures == []
    assert libraries_of("no_such_package.engines") == ()
    assert libraries_of("pytest_mlperf.adapters.engines.no_such_engine") == ()

    assert {
        key: {name: each["extra"] for name, each in read_extension(*key).libraries.items()}
        for key in EXTRAS
    } == EXTRAS


def test_texts_tell_the_formats_of_imagenet_and_the_precisions_of_engines(say: Say) -> None:
    """The map's lines, the order of colours, and the scale of mean and std."""
    output = say.ends(0, "options", "imagenet")
    options = {
        option.name: option.text for option in read_extension("datasets", "imagenet").options
    }
    assert '"ILSVRC2012_val_00000001.JPEG 65"' in options["map"]
    assert "a class counted from 0" in options["map"]
    assert "red, green and blue, in this order" in options["mean"]
    assert "for pixels from 0 to 255" in options["mean"]
    assert "for pixels from 0 to 255" in options["std"]
    assert all(text in one_line(output) for text in options.values())
    names = ("onnxruntime", "torch", "torch-module", "torch-whisper")
    precisions = {"fp32", "bf16", "fp16", "int8", "int4", "fp8"}
    assert [
        name for name in names if precisions - {*read_extension("engines", name).precisions}
    ] == []


OF_THE_PACKAGE = {"numpy", "pydantic", "safetensors", "PIL"}
"""The first two are always here; checkpoints and pictures import theirs where one is read."""

BROUGHT = {
    "rouge_score": {"nltk"},
    "tensorrt_llm": {"transformers"},
    "transformers": {"huggingface_hub", "tokenizers"},
    "vllm": {"transformers"},
}
"""What libraries bring along."""


def undeclared(target: str, factory: Any) -> set[str]:
    """Return the libraries that an extension of this package imports and does not declare."""
    if not target.startswith("pytest_mlperf."):
        return set()
    declared = {*factory.libraries, *getattr(factory, "optional_libraries", ())}
    brought = set[str]().union(*(BROUGHT.get(library, set()) for library in declared))
    return set(libraries_of(target.partition(":")[0])) - declared - brought - OF_THE_PACKAGE


@pytest.mark.process
def test_no_heavy_library_is_loaded() -> None:
    code = (
        "import sys; from pytest_mlperf.cli import main; main(['options', '--json']); "
        "heavy = {'torch', 'onnxruntime', 'transformers', 'numpy'} & {*sys.modules}; "
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = finished(sys.executable, "-c", code)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_without_a_name_everything_has_one_line(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages fit the terminal, and describe an extension and every option."""
    output = say.ends(0, "options")
    lines = output.splitlines()
    assert lines[0] == "engines"
    assert re.match("  endpoints +Measure a server with MLCommons' client", lines[1])
    names = {line.split()[0] for line in lines if line.startswith("  ")}
    assert names == {name for _, name in EVERY}
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "more: pytest-mlperf options NAME"
    output = say.ends(0, "options", "mixtral", "null", "mixtral")
    heads = [line for line in output.splitlines() if line.endswith((" mixtral", "engine null"))]
    assert heads == ["data set mixtral", "scorer mixtral", "engine null"]
    assert say("options", "dice") == (0, page("options_dice.txt"))
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        _, output = say("options", *sorted({name for _, name in EVERY}))
        folded = (line for line in output.splitlines() if not line.startswith("code "))
        assert [line for line in folded if len(line) > columns] == []


def test_json_holds_the_same_of_names_or_of_everything(say: Say) -> None:
    code, output = say("options", "imagenet", "--json")
    document = json.loads(output)
    assert code == 0
    assert (document["schema"], document["kind"]) == (1, "pytest-mlperf options")
    assert (list(document["engines"]), list(document["datasets"])) == ([], ["imagenet"])
    dataset = document["datasets"]["imagenet"]
    assert dataset["target"] == "pytest_mlperf.adapters.datasets.imagenet:ImageNetDataset"
    assert dataset["options"]["size"] == {
        "type": "int",
        "required": False,
        "default": 224,
        "text": "Height and width of a sample, in pixels.",
    }
    assert dataset["options"]["path"]["required"] is True
    assert dataset["options"]["mean"]["default"] == [123.68, 116.78, 103.94]
    assert dataset["libraries"]["PIL"]["extra"] == "onnx"
    document = json.loads(say("options", "--json")[1])
    for group in NOUNS:
        assert set(document[group]) == set(registry.registered(group))
    assert document["engines"]["torch"]["precisions"][:2] == ["fp32", "bf16"]
    assert "int8" in document["engines"]["torch"]["given"]["precision"]


def test_an_unknown_name_is_one_sentence_with_the_nearest(say: Say) -> None:
    for name, message in {
        "imagnet": "; did you mean 'imagenet'?",
        "clip-fid": "; did you mean 'clip_fid'",
        "zzz": "; known: endpoints, null, onnxruntime,",
    }.items():
        code, output = say("options", "imagenet", name)
        expected = f"pytest-mlperf: no engine, data set or scorer named '{name}'{message}"
        assert (code, output[: len(expected)], output.count("\n")) == (2, expected, 1)


ACME = '''
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import acme_types


class FastEngine:
    """Answers fast.

    Args:
        level (int): From 0, careful, to 9.
    """

    libraries = ("acme_kernels",)

    def __init__(self, *, dataset, model, precision, level=3, sizes=[1, 2], untold=None, **more):
        pass

    def __enter__(self):
        from .kernels import run


def make(*, path: "list[int] | None" = None):
    """Make a data set."""
'''


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Extensions of another package, as entry points of its own; one of them is broken."""
    package = tmp_path / "acme"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "engines.py").write_text(ACME)
    (package / "kernels.py").write_text("import acme_kernels\n")
    (package / "broken.py").write_text("raise RuntimeError('no licence')\n")
    about = tmp_path / "acme_inference-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-inference\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[pytest_mlperf.engines]\nfast = acme.engines:FastEngine\nbroken = acme.broken:Engine\n"
        "[pytest_mlperf.datasets]\nlists = acme.engines:make\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry.registered.cache_clear()
    registry.all_registered.cache_clear()
    yield
    monkeypatch.undo()
    registry.registered.cache_clear()
    registry.all_registered.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
        del sys.modules[name]


@pytest.mark.usefixtures("acme")
def test_another_packages_extensions_are_shown_with_their_package(say: Say) -> None:
    """With the libraries that they declare; what cannot be imported spoils its own line only."""
    assert say("options", "fast") == (0, page("options_fast.txt"))
    assert re.search(r"\n  fast +\(acme-inference\) Answers fast\.\n", say("options")[1])
    output = say.ends(0, "options", "lists")
    assert output.startswith("data set lists\n  Make a data set.\n")
    assert "  path  (array of whole numbers, optional)" in output
    output = say.ends(0, "options")
    assert re.search(r"\n  broken +cannot be imported: RuntimeError: no licence\n", output)
    output = say.ends(3, "options", "broken")
    assert output == (
        "pytest-mlperf: engine 'broken' (acme.broken:Engine) cannot be imported: RuntimeError: "
        "no licence\n"
    )
    document = json.loads(say("options", "--json")[1])
    assert document["engines"]["broken"]["error"].endswith("no licence")


DOCSTRINGS: list[tuple[str | None, int | tuple[str, ...], dict[str, str] | tuple[str, ...]]] = [
    (None, (), {}),
    ("One line.", ("One line.",), {}),
    ("One\n    paragraph.\n\n    - an item\n      of it\n    - two", 3, {}),
    (
        "X.\n\nArgs:\n    a: One.\n    b (int): Two:\n        three.\n",
        ("X.",),
        {"a": "One.", "b": "Two: three."},
    ),
    ("X.\n\nArgs:\n    h, w: Pixels.\n    *rest: Others.\n", ("X.",), ("h", "w", "rest")),
    ("X.\n\nArguments:\n    a: One.\n\nRaises:\n    b: no option.\n", ("X.",), {"a": "One."}),
    ("X.\n\nArgs:\n    a: One.\n\nMore prose.", ("X.", "More prose."), {"a": "One."}),
    ("X.\n\nAttributes:\n    a: No option.\n", ("X.",), {}),
    ("X.\n\nArgs:\n", ("X.",), {}),
    ("X.\n\nArgs:\n    no argument at all\n", ("X.",), {}),
    (
        'X.\n\nArgs:\n    a: "b: c" is kept\n        d: too.\n',
        ("X.",),
        {"a": '"b: c" is kept d: too.'},
    ),
]


def test_docstrings_are_taken_apart() -> None:
    for text, blocks, arguments in DOCSTRINGS:
        parts, described = parse_docstring(text)
        assert parts == blocks if isinstance(blocks, tuple) else len(parts) == blocks
        assert (described if isinstance(arguments, dict) else tuple(described)) == arguments


def test_types_and_defaults_are_as_a_suite_writes_them() -> None:
    def kind(annotation: str) -> str:
        def make(*, x: int) -> None:
            """Take an option."""

        make.__annotations__["x"] = annotation
        return declaration_of(make).options["x"].kind

    words = {
        "int": "whole number",
        "str | None": "text",
        "int | Sequence[int]": "whole number or array of whole numbers",
        "Sequence[str] | None": "array of texts",
        "tuple[float, ...]": "array of numbers",
        "tuple[int, str]": "array",
        "Mapping[str, Mapping[str, Any]] | None": "table",
        "bool | str": "true or false or text",
        "acme.Size": "acme.Size",
        "not python at all": "not python at all",
        "": "",
    }
    assert {annotation: kind(annotation) for annotation in words} == words

    values = [True, 3, 0.05, 'a "b"', (1.0, 2), {"a": [1]}]
    texts = ["true", "3", "0.05", '"a \\"b\\""', "[1.0, 2]", "{ a = [1] }"]

    assert list(map(toml, values)) == texts
