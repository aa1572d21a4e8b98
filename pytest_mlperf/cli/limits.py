"""`pytest-mlperf limits`: what GPUs could do at most, and which printed figures are beyond."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

from pytest_mlperf.cli.limits_tables import FIGURES, bound, claims_table, results_table
from pytest_mlperf.cli.output import add_parser, show, width
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.roofline import Seen
from pytest_mlperf.core.techniques import TECHNIQUES
from pytest_mlperf.hardware.specs import find_gpu, known_gpus
from pytest_mlperf.rounds.work import WorkloadWork, find_work, known_work
from pytest_mlperf.suite.values import nearest


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = add_parser(
        commands,
        "limits",
        summary="what is physically possible, and published figures against it",
        description=(
            "Without options: every official result of MLPerf Inference v4.1 on a known GPU\n"
            "with its share of the speed of light, nearest first, then printed figures that\n"
            "cannot be, each with the reason. With --gpu and --workload: one limit, and the\n"
            "numbers that it is made of. The certain limit counts only what cannot be less;\n"
            "the estimated one what the mean sample of the data set needs."
        ),
        needs="nothing; the tables come with the package",
        examples=[
            ("limits", "both tables"),
            ("limits --claims", "the figures that cannot be"),
            ("limits --workload bert", "the official results of one workload"),
            ("limits --gpu H200 --workload bert --precision int8 --count 8", "one limit"),
            (
                "limits --gpu L4 --workload gptj --precision fp8 --set batch=1",
                "one sequence at a time: how fast the weights can be read",
            ),
        ],
    )
    _add_options(parser)
    parser.set_defaults(run=run)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--claims", action="store_true", help="only the figures that cannot be")
    parser.add_argument("--gpu", help=f"a class or a kind: {', '.join(known_gpus())}")
    parser.add_argument("--workload", help='by any name: "bert", "llama2-70b-99.9"')
    parser.add_argument("--precision", help="default: the GPU's fastest")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="GPUs; default: 1")
    parser.add_argument(
        "--technique",
        action="append",
        default=[],
        metavar="NAME",
        help="of the open division: " + ", ".join(TECHNIQUES),
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="figures",
        metavar="NAME=NUMBER",
        help="a figure of the run: " + ", ".join(sorted(FIGURES)),
    )


def run(parsed: argparse.Namespace) -> int:
    """Print the tables, or one limit.

    Raises:
        MlperfError: An option names nothing that is known, or two contradict each other.
    """
    about = None if parsed.workload is None else _workload(parsed.workload)
    if parsed.gpu is not None:
        if about is None or parsed.claims:
            raise MlperfError("--gpu asks for one limit: say --workload too, and not --claims")
        show(_one(parsed, about, width()))
        return 0
    if parsed.precision or parsed.count != 1 or parsed.technique or parsed.figures:
        raise MlperfError("--precision, --count, --technique and --set are of one limit: say --gpu")
    show(_tables(parsed.claims, about, width()))
    return 0


def _tables(only_claims: bool, about: WorkloadWork | None, columns: int) -> Iterator[str]:
    if not only_claims:
        yield from results_table(about.name if about else None, columns)
        yield ""
    yield from claims_table(about.name if about else None, columns)


def _one(parsed: argparse.Namespace, about: WorkloadWork, columns: int) -> Iterable[str]:
    gpu = find_gpu(parsed.gpu)
    for name in parsed.technique:
        if name not in TECHNIQUES:
            raise MlperfError(
                f"--technique {name}: there is none of this name{nearest(name, TECHNIQUES)}; "
                f"known: {', '.join(TECHNIQUES)}"
            )
    try:
        given = {**about.typical, **_figures(parsed.figures)}
        seen = Seen(
            gpus=parsed.count,
            precision=parsed.precision,
            techniques=tuple(parsed.technique),
            **given,
        )
    except ValueError as defect:
        raise MlperfError(f"{defect}") from None
    return bound(parsed.gpu, gpu, about, seen, columns)


def _workload(name: str) -> WorkloadWork:
    found = find_work(name)
    if found is None:
        raise MlperfError(f"nobody counted the work of {name!r}{nearest(name, known_work())}")
    return found


def _figures(given: Iterable[str]) -> dict[str, Any]:
    """Return the figures of `--set`: formats are words, everything else is a number."""
    figures: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if name not in FIGURES or not equals:
            raise MlperfError(f"--set {text}: must be NAME=NUMBER{nearest(name, sorted(FIGURES))}")
        if name in ("weights", "kv"):
            figures[name] = value
            continue
        try:
            figures[name] = float(value)
        except ValueError:
            raise MlperfError(f"--set {text}: {value!r} is no number") from None
    return figures
