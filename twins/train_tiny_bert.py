"""Train the tiny twin of BERT on generated paragraphs and questions, and write its model and data.

    python twins/train_tiny_bert.py                # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written about once a minute; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from tiny_language import Plan, fit
from tiny_paragraphs import Asked, Paragraph, draw, vocabulary
from tiny_vision import export, session
from torch import Tensor
from training import (
    BUILD,
    TINY,
    begin,
    made_with,
    parameters,
    sha256,
    source,
    write,
    write_folder,
    write_record,
)
from transformers import BertConfig, BertForQuestionAnswering

from pytest_mlperf.adapters.datasets.squad import SquadDataset
from pytest_mlperf.adapters.datasets.squad._features import (
    Feature,
    Passage,
    Question,
    WordPieces,
    features_of,
)
from pytest_mlperf.adapters.scorers.squad import SquadScorer, text_scores

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUITE = TINY / "bert"
MODEL = SUITE / "model"
ONNX = SUITE / "bert-tiny.onnx"
DATA = SUITE / "data" / "squad"
CHECKPOINT = BUILD / "bert-tiny.pt"

SEED = 20261121
# BERT-large: 1024, 4096, 24 layers, 16 heads, 512 positions, features of 384 pieces.
HIDDEN, INTERMEDIATE, LAYERS, HEADS = 96, 192, 3, 3
MAX_SEQ_LENGTH, DOC_STRIDE, MAX_QUERY_LENGTH = 96, 48, 24
STEPS = 2400
BATCH = 32
POOL = 8
QUESTIONS = 4
"""Of a paragraph, at most."""
SENTENCES = 14
"""Of a paragraph, at most; at least 2."""
EASY_STEPS = 800
"""Until this step, the longest paragraphs grow from 2 sentences to SENTENCES."""
HELD_OUT = 120
PLAN = Plan(
    seed=SEED,
    steps=STEPS,
    batch=BATCH,
    pool=POOL,
    checkpoint_steps=25 * POOL,
    peak_learning_rate=4e-3,
    warm_up_steps=100,
    matrices=".layer.",
    decay=0.98,
    settings=[
        *(HIDDEN, INTERMEDIATE, LAYERS, HEADS, MAX_SEQ_LENGTH, DOC_STRIDE, MAX_QUERY_LENGTH),
        *(QUESTIONS, SENTENCES, EASY_STEPS, source("tiny_paragraphs.py")),
    ],
)
LIBRARIES = ("torch", "transformers", "safetensors", "onnx", "onnxruntime", "numpy")

README = """\
# Tiny twin of BERT

`bert-tiny.onnx` is BERT for question answering (`BertForQuestionAnswering`) with {parameters:,}
parameters, trained on paragraphs and questions that a small grammar generates. It lets the whole
path from SQuAD's file to F1 run on a CPU in seconds. It is not MLPerf's model, and its data are not
SQuAD: the figures below are this twin's own, they are no MLPerf result and say nothing about BERT
on SQuAD.

| on the {questions} held-out questions | F1 | exact match |
|---|---|---|
| **onnxruntime**, fp32 | **{onnxruntime[f1]:.4f}** | **{onnxruntime[exact_match]:.4f}** |
| torch, fp32 | {torch[f1]:.4f} | {torch[exact_match]:.4f} |
| chance: the fact asked for, of any subject of the paragraph | {chance[same_fact][f1]:.4f} | \
{chance[same_fact][exact_match]:.4f} |
| chance: any fact of the paragraph | {chance[any_fact][f1]:.4f} | \
{chance[any_fact][exact_match]:.4f} |
| chance: random logits | {chance[random][f1]:.4f} | {chance[random][exact_match]:.4f} |

| | |
|---|---|
| paragraphs, features | {paragraphs}, {features} |
| questions whose paragraph needs several windows | {in_several_windows} |
| word pieces of a feature, between windows, of a question, at most | {max_seq_length}, \
{doc_stride}, {max_query_length} |
| layers, hidden size, heads | {layers}, {hidden}, {heads} |
| vocabulary | {vocabulary} word pieces |
| logits of onnxruntime and torch differ by at most | {largest_difference_of_logits:.1e} |
| SHA-256 of `bert-tiny.onnx` | `{onnx_sha256}` |
| SHA-256 of `model/model.safetensors` | `{model_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed, steps, batch | {seed}, {steps}, {batch} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Model

The ONNX file has the inputs `input_ids`, `input_mask` and `segment_ids` and the outputs
`output_start_logits` and `output_end_logits`, as MLPerf's has them, all of shape (batch, seq).
`model/` has the same weights in Hugging Face's layout, for `BertForQuestionAnswering` and the
engine `torch-module` with `factory = "question-answering"`.

## Data

`data/squad/dev-v1.1.json` has the layout of SQuAD v1.1, and `data/squad/vocab.txt` that of BERT
uncased. The paragraphs were not trained on.

`twins/tiny_paragraphs.py` draws them: invented facts about invented towns, ships, painters and
rivers. A question asks for one fact of one of them; the paragraph also has other facts of the same
and the same facts of others. No text comes from elsewhere: model and data are under this project's
licence, Apache-2.0.

## Rerun

    pip install -e '.[train]'
    python twins/train_tiny_bert.py

This takes about three minutes on one core, resumes after an interruption, and writes every file of
this folder. It is seeded: a second training, interrupted at step 1200 and resumed, gave the same
bytes with the same libraries on the same kind of CPU.
"""


class Row(NamedTuple):
    """A feature for training.

    Attributes:
        numbers: [CLS], question, [SEP], window, [SEP].
        question: How many of these come before the window.
        start, end: Places of the answer's first and last piece; 0 where the window lacks it.
    """

    numbers: list[int]
    question: int
    start: int
    end: int


def word_pieces() -> WordPieces:
    """Return the vocabulary, as the data set of the suite has it."""
    return WordPieces({piece: number for number, piece in enumerate(vocabulary())})


def rows(pieces: WordPieces, paragraph: Paragraph) -> Iterator[Row]:
    """Yield the features of a paragraph's first QUESTIONS questions."""
    asked = {str(number): each for number, each in enumerate(paragraph.asked[:QUESTIONS])}
    passage = Passage(
        where=paragraph.title,
        article=1,  # these features are trained on: nothing is judged by groups
        context=paragraph.context,
        questions=[
            Question(identity=identity, text=each.question, answers=[])
            for identity, each in asked.items()
        ],
    )
    (last,) = pieces.numbers(["[SEP]"])
    features = features_of(
        passage,
        pieces,
        max_seq_length=MAX_SEQ_LENGTH,
        doc_stride=DOC_STRIDE,
        max_query_length=MAX_QUERY_LENGTH,
    )
    for feature in features:
        window = feature.paragraph.numbers[feature.start : feature.start + feature.length]
        start, end = span(pieces, paragraph, asked[feature.question.identity], feature)
        numbers = [*feature.numbers.tolist(), *window.tolist(), last]
        yield Row(numbers, len(feature.numbers), start, end)


def span(
    pieces: WordPieces, paragraph: Paragraph, asked: Asked, feature: Feature
) -> tuple[int, int]:
    """Return the places of the first answer's first and last piece in a feature, or 0 and 0."""
    begin, text = asked.answers[0]
    word = paragraph.context.count(" ", 0, begin)
    first = feature.paragraph.word_of_piece.index(word)
    last = first + len(pieces.split(text)) - 1
    if first < feature.start or last >= feature.start + feature.length:
        return 0, 0
    shift = len(feature.numbers) - feature.start
    return first + shift, last + shift


def draw_pool(pieces: WordPieces, excluded: set[str], random: Random, step: int) -> list[Row]:
    """Draw the features of a pool that begins with a step, of paragraphs that are not excluded."""
    longest = 2 + (SENTENCES - 2) * min(1.0, step / EASY_STEPS)
    drawn: list[Row] = []
    while len(drawn) < BATCH * POOL:
        paragraph = draw(random, sentences=random.randint(2, round(longest)))
        if paragraph.context not in excluded:
            drawn += rows(pieces, paragraph)
    return drawn[: BATCH * POOL]


def pad(some: Sequence[Row]) -> dict[str, Tensor]:
    """Return rows as what the model takes, shape (rows, longest), with zeros at the right."""
    arrays = np.zeros((3, len(some), max(len(row.numbers) for row in some)), np.int64)
    for index, row in enumerate(some):
        length = len(row.numbers)
        arrays[0, index, :length] = row.numbers
        arrays[1, index, :length] = 1
        arrays[2, index, row.question : length] = 1
    ids, mask, segments = torch.from_numpy(arrays)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": segments,
        "start_positions": torch.tensor([row.start for row in some]),
        "end_positions": torch.tensor([row.end for row in some]),
    }


def bert_tiny() -> BertForQuestionAnswering:
    """Return the untrained model."""
    return BertForQuestionAnswering(
        BertConfig(
            vocab_size=len(vocabulary()),
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=INTERMEDIATE,
            max_position_embeddings=MAX_SEQ_LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            pad_token_id=0,
        )
    )


def train(pieces: WordPieces, excluded: set[str], checkpoint: Path) -> BertForQuestionAnswering:
    """Train on features of paragraphs that are not excluded, from the checkpoint if there is one.

    The loss is the mean of those of start and end.
    """
    torch.manual_seed(SEED)
    model = bert_tiny()
    fit(
        model,
        PLAN,
        batches=lambda first_step: PLAN.batches(
            first_step,
            lambda random, step: draw_pool(pieces, excluded, random, step),
            lambda row: len(row.numbers),
        ),
        loss_of=lambda some: [model(**pad(some)).loss],
        checkpoint=checkpoint,
    )
    return model


def draw_held_out() -> list[Paragraph]:
    """Draw HELD_OUT paragraphs of all lengths."""
    random = Random(f"{SEED} held out")
    return [draw(random, sentences=random.randint(2, SENTENCES)) for _ in range(HELD_OUT)]


def write_data(paragraphs: Sequence[Paragraph]) -> None:
    """Write vocab.txt, and paragraphs with their first questions in SQuAD's layout."""
    articles: dict[str, list[Any]] = {paragraph.title: [] for paragraph in paragraphs}
    for number, paragraph in enumerate(paragraphs):
        questions = [
            {
                "answers": [{"answer_start": at, "text": text} for at, text in asked.answers],
                "question": asked.question,
                "id": hashlib.sha256(f"{SEED} {number} {nth}".encode()).hexdigest()[:24],
            }
            for nth, asked in enumerate(paragraph.asked[:QUESTIONS])
        ]
        articles[paragraph.title].append({"context": paragraph.context, "qas": questions})
    listed = [{"title": title, "paragraphs": own} for title, own in articles.items()]
    text = json.dumps({"data": listed, "version": "1.1"}, indent=1)
    write(DATA / "dev-v1.1.json", f"{text}\n".encode())
    write(DATA / "vocab.txt", "".join(f"{piece}\n" for piece in vocabulary()).encode())


def write_model(model: BertForQuestionAnswering) -> None:
    """Write the model in Hugging Face's layout, and as ONNX with MLPerf's names."""
    write_folder(MODEL, model.save_pretrained)
    # Its attention is plain operators, which onnxruntime fuses.
    plain = BertForQuestionAnswering.from_pretrained(MODEL, attn_implementation="eager").eval()
    example = torch.ones(2, 8, dtype=torch.int64)
    inputs = ["input_ids", "input_mask", "segment_ids"]
    outputs = ["output_start_logits", "output_end_logits"]
    export(
        Logits(plain),
        ONNX,
        (example, example, example),
        inputs=inputs,
        outputs=outputs,
        axes={name: {0: "batch", 1: "seq"} for name in (*inputs, *outputs)},
    )


class Logits(torch.nn.Module):  # type: ignore[misc] # torch is Any here
    """The model as MLPerf's ONNX file has it: three inputs, two outputs."""

    def __init__(self, model: BertForQuestionAnswering) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        """Return start and end logits, each of shape (batch, seq) as all inputs."""
        outputs = self.model(input_ids=ids, attention_mask=mask, token_type_ids=segments)
        return outputs.start_logits, outputs.end_logits


def answer_torch(model: BertForQuestionAnswering, dataset: SquadDataset) -> list[NDArray[Any]]:
    """Return each feature's start and end logits, shape (2, seq)."""
    module, logits = Logits(model), []
    for index in range(len(dataset)):
        tensors = [torch.from_numpy(array)[None] for array in dataset.input(index).values()]
        with torch.inference_mode():
            logits.append(torch.cat(module(*tensors)).numpy())
    return logits


def answer_onnx(dataset: SquadDataset) -> list[NDArray[Any]]:
    """Return each feature's start and end logits, shape (2, seq), on one CPU thread."""
    onnx, logits = session(ONNX), []
    for index in range(len(dataset)):
        feed = {name: array[None] for name, array in dataset.input(index).items()}
        logits.append(np.concatenate(onnx.run(None, feed)))
    return logits


def score(dataset: SquadDataset, logits: Sequence[NDArray[Any]]) -> dict[str, float]:
    """Return F1 and exact match in per cent, to four decimal places."""
    outputs = [each.astype("<f4").tobytes() for each in logits]
    references = [dataset.reference(index) for index in range(len(dataset))]
    aggregate = SquadScorer(transposed=True).score(outputs, references).aggregate
    return {name: round(value, 4) for name, value in aggregate.items()}


def chance(paragraphs: Sequence[Paragraph], dataset: SquadDataset) -> dict[str, dict[str, float]]:
    """Score what needs no model: random logits, and answers drawn from all facts of a paragraph.

    The latter are drawn from all of them, or from those that answer the question for any subject.

    Args:
        paragraphs: Of the data set.
        dataset: Gives the features.
    """
    random = np.random.RandomState(SEED)
    lengths = [len(dataset.input(index)["input_ids"]) for index in range(len(dataset))]
    same_fact, any_fact = [], []
    for paragraph in paragraphs:
        asked = paragraph.asked
        for question in asked[:QUESTIONS]:
            right = [text for _, text in question.answers]
            scored = [text_scores(each.answers[0][1], right) for each in asked]
            any_fact.append(mean(scored))
            same_fact.append(
                mean(
                    [
                        pair
                        for pair, each in zip(scored, asked, strict=True)
                        if each.fact == question.fact
                    ]
                )
            )
    return {
        "random": score(dataset, [random.normal(size=(2, length)) for length in lengths]),
        "any_fact": percent(any_fact),
        "same_fact": percent(same_fact),
    }


def mean(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the means of the first and of the second numbers."""
    first, second = zip(*pairs, strict=True)
    return sum(first) / len(pairs), sum(second) / len(pairs)


def percent(shares: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return the means of F1 and exact match in per cent, to four decimal places."""
    f1, exact = mean(shares)
    return {"f1": round(100 * f1, 4), "exact_match": round(100 * exact, 4)}


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    paragraphs = draw_held_out()
    write_data(paragraphs)
    dataset = SquadDataset(
        path=str(DATA),
        max_seq_length=MAX_SEQ_LENGTH,
        doc_stride=DOC_STRIDE,
        max_query_length=MAX_QUERY_LENGTH,
        pad=False,
    )
    model = train(word_pieces(), {each.context for each in paragraphs}, checkpoint)
    write_model(model)
    by_torch, by_onnx = answer_torch(model, dataset), answer_onnx(dataset)
    apart = max(float(np.abs(a - b).max()) for a, b in zip(by_torch, by_onnx, strict=True))
    references = [dataset.reference(index) for index in range(len(dataset))]
    record = {
        "seed": SEED,
        "steps": STEPS,
        "batch": BATCH,
        "parameters": parameters(model),
        "layers": LAYERS,
        "hidden": HIDDEN,
        "heads": HEADS,
        "vocabulary": len(vocabulary()),
        "max_seq_length": MAX_SEQ_LENGTH,
        "doc_stride": DOC_STRIDE,
        "max_query_length": MAX_QUERY_LENGTH,
        "paragraphs": len(paragraphs),
        "questions": len({each["id"] for each in references}),
        "in_several_windows": len({each["id"] for each in references if each["features"] > 1}),
        "features": len(dataset),
        "onnxruntime": score(dataset, by_onnx),
        "torch": score(dataset, by_torch),
        "largest_difference_of_logits": apart,
        "chance": chance(paragraphs, dataset),
        "onnx_sha256": sha256(ONNX),
        "model_sha256": sha256(MODEL / "model.safetensors"),
        "dataset_digest": dataset.digest,
        **made_with(LIBRARIES),
    }
    write_record(SUITE, README, record)


if __name__ == "__main__":
    main()
