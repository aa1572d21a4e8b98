"""What the trainers of the tiny language models share: tokens, batches, Muon, ROUGE and files."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import pandas as pd
import torch
import training
from damage_weights import damage
from rouge_score.rouge_scorer import RougeScorer
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import functional
from training import Course, answers_of, warmed_up, write_folder
from transformers import GenerationConfig, PreTrainedTokenizerFast

from pytest_mlperf.adapters.engines.torch import TorchEngine
from pytest_mlperf.core.extension import Dataset

B = TypeVar("B")
R = TypeVar("R")

SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")
"""Of Llama's and Mixtral's tokenizers."""
UNKNOWN, BEGIN, END, PAD = range(4)
POSITIONS = 512
"""That their tokenizers fill at most."""
ROUGES = ("rouge1", "rouge2", "rougeL")
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "pandas", "numpy", "rouge_score")

# --- training -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a model is trained on what a grammar draws.

    Attributes:
        seed: Of the weights, and of what is drawn.
        steps: Batches; a multiple of `pool`.
        batch: Rows of a batch.
        pool: Batches drawn together: rows of like length then share one, and little is padding.
        checkpoint_steps: A checkpoint is written each time after so many, a multiple of `pool`.
        peak_learning_rate: Reached after the warm-up, then down to 0.
        warm_up_steps: Of the learning rate.
        matrices: Part of the names of those weights that Muon gets.
        decay: How slowly AdamW's mean of squares forgets, the second of its betas.
        settings: What else decides the result.
        name: Of what is drawn: plans of other names draw others from the same seed.
        title: Stands before what is printed.
    """

    seed: int
    steps: int
    batch: int
    pool: int
    checkpoint_steps: int
    peak_learning_rate: float
    warm_up_steps: int
    matrices: str
    decay: float = 0.95
    settings: Sequence[int | float | str]
    name: str = "training"
    title: str = ""

    def batches(
        self,
        first_step: int,
        draw: Callable[[Random, int], Sequence[R]],
        length: Callable[[R], int],
    ) -> Iterator[list[R]]:
        """Yield the batches from one step on, a multiple of `pool`; each depends on its step only.

        Args:
            first_step: The first step that is yielded.
            draw: Draws the rows of a pool that begins with a step.
            length: Of a row.
        """
        for pool in range(first_step // self.pool, self.steps // self.pool):
            random = Random(f"{self.seed} {self.name} {pool}")
            yield from pooled(draw(random, pool * self.pool), random, self.batch, length)


def pooled(
    rows: Iterable[R], random: Random, size: int, length: Callable[[R], int]
) -> Iterator[list[R]]:
    """Yield batches of rows of like length, in an order that is drawn: little is padding then."""
    ordered = sorted(rows, key=length)
    starts = list(range(0, len(ordered), size))
    random.shuffle(starts)
    for start in starts:
        yield ordered[start : start + size]


def fit(
    model: torch.nn.Module,
    plan: Plan,
    *,
    batches: Callable[[int], Iterator[B]],
    loss_of: Callable[[B], Sequence[Tensor]],
    checkpoint: Path,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    """Train in place, with Muon for some matrices, and AdamW for everything else.

    Args:
        model: As made after `torch.manual_seed`.
        plan: How.
        batches: Gives the batches from a step on.
        loss_of: Returns first what is made smaller and last what is printed.
        checkpoint: File that is written, and resumed from where there is one.
        after_step: Called after each step.
    """
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, weights in model.named_parameters():
        is_matrix = weights.ndim == 2 and plan.matrices in name
        (matrices if is_matrix else others).append(weights)
    optimizers = (
        torch.optim.Muon(matrices, lr=1.0, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=1.0, betas=(0.9, plan.decay), weight_decay=0.0),
    )
    training.fit(
        model,
        [
            warmed_up(
                optimizer,
                peak=plan.peak_learning_rate,
                warm_up=plan.warm_up_steps,
                steps=plan.steps,
            )
            for optimizer in optimizers
        ],
        Course(
            settings=astuple(plan),
            steps=plan.steps,
            checkpoint_steps=plan.checkpoint_steps,
            clip=1.0,
            title=plan.title,
        ),
        batches=batches,
        loss_of=loss_of,
        checkpoint=checkpoint,
        after_step=after_step,
    )


# --- prompts and answers --------------------------------------------------------------------------


class Row(NamedTuple):
    """A sample as tokens.

    Attributes:
        sample: What was drawn.
        text: Its answer, without the space before it.
        prompt: Of the prompt, with a begin token where the tokenizer has one.
        answer: Of the answer with the space before it, and the end token.
    """

    sample: Any
    text: str
    prompt: list[int]
    answer: list[int]


def encode(
    samples: Sequence[Any],
    tokenizer: Tokenizer,
    *,
    prompts: Sequence[str],
    answers: Sequence[str],
    end: int,
) -> list[Row]:
    """Return samples as tokens."""
    questions = tokenizer.encode_batch(list(prompts))
    texts = tokenizer.encode_batch(list(answers), add_special_tokens=False)
    return [
        Row(sample, answer.removeprefix(" "), question.ids, [*text.ids, end])
        for sample, answer, question, text in zip(samples, answers, questions, texts, strict=True)
    ]


def token_ranges(rows: Sequence[Row]) -> dict[str, list[int]]:
    """Return the fewest and the most tokens of prompts and of answers, for the record."""
    lengths = {
        "prompt_tokens": [len(row.prompt) for row in rows],
        "answer_tokens": [len(row.answer) for row in rows],
    }
    return {name: [min(each), max(each)] for name, each in lengths.items()}


class Batch(NamedTuple):
    """Rows of tokens, padded at the right.

    Attributes:
        tokens: Shape (rows, longest row), int64.
        weights: Same shape, float32: what each token weighs in the loss; padding weighs 0.
    """

    tokens: Tensor
    weights: Tensor


PROMPT_WEIGHT = 0.1
"""Weight of a prompt's token in the loss; a token of an answer weighs 1."""


def pad(rows: Sequence[Row], filler: int) -> Batch:
    """Return rows of equal length; the filler at the right is neither seen nor counted."""
    longest = max(map(tokens_of, rows))
    tokens = torch.full((len(rows), longest), filler)
    weights = torch.zeros(len(rows), longest)
    for index, row in enumerate(rows):
        tokens[index, : tokens_of(row)] = torch.tensor(row.prompt + row.answer)
        weights[index, : tokens_of(row)] = 1.0
        weights[index, : len(row.prompt)] = PROMPT_WEIGHT
    return Batch(tokens, weights)


def tokens_of(row: Row) -> int:
    """Return how many tokens prompt and answer have."""
    return len(row.prompt) + len(row.answer)


class Predicted(NamedTuple):
    """What a model says of all tokens that weigh something, and what they are.

    Attributes:
        logits: Shape (tokens, vocabulary).
        targets: Shape (tokens,).
        weights: Shape (tokens,).
    """

    logits: Tensor
    targets: Tensor
    weights: Tensor

    def losses(self) -> Tensor:
        """Return the cross entropy of each token."""
        return functional.cross_entropy(self.logits, self.targets, reduction="none")

    def means(self, losses: Tensor, written: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted mean of losses, and of answers alone that of what was written."""
        mean = (losses * self.weights).sum() / self.weights.sum()
        return mean, written.detach()[self.weights == 1].mean()


def predict(model: Any, batch: Batch, hidden: Tensor | None = None) -> Predicted:
    """Return what a causal model says of a batch.

    Args:
        model: With a layer `lm_head`.
        batch: What is predicted.
        hidden: The last hidden state, where it is there already.
    """
    if hidden is None:
        hidden = model.base_model(batch.tokens, use_cache=False).last_hidden_state
    weights = batch.weights[:, 1:]
    counted = weights > 0
    logits = model.lm_head(hidden[:, :-1][counted])
    return Predicted(logits, batch.tokens[:, 1:][counted], weights[counted])


def causal_loss(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch, and the mean one of the answers' tokens."""
    predicted = predict(model, batch)
    losses = predicted.losses()
    return predicted.means(losses, losses)


def train_causal(
    make: Callable[[], Any],
    plan: Plan,
    draw: Callable[[Random], Sequence[Row]],
    *,
    filler: int,
    checkpoint: Path,
    loss_of: Callable[[Any, Batch], Sequence[Tensor]] = causal_loss,
    after_step: Callable[[], None] = lambda: None,
) -> Any:
    """Return a causal model, trained on prompts and answers.

    Args:
        make: Gives the model as it is before.
        plan: How.
        draw: Draws the rows of a pool.
        filler: The token that pads rows.
        checkpoint: File that is written, and resumed from where there is one.
        loss_of: Returns first what is made smaller and last what is printed.
        after_step: Called after each step.
    """
    torch.manual_seed(plan.seed)
    model = make()
    fit(
        model,
        plan,
        batches=lambda step: (
            pad(rows, filler)
            for rows in plan.batches(step, lambda random, _: draw(random), tokens_of)
        ),
        loss_of=lambda batch: loss_of(model, batch),
        checkpoint=checkpoint,
        after_step=after_step,
    )
    return model


# --- tokenizer and files --------------------------------------------------------------------------


def byte_pairs(
    texts: Sequence[str],
    vocabulary: int,
    special: Sequence[str],
    unknown: str | None = None,
    *,
    words: str | None = None,
    alphabet: Sequence[str] | None = None,
) -> Tokenizer:
    """Train byte-level BPE on texts; merges stay within words, by GPT-2's pattern or another.

    With an alphabet, it is for texts of no other bytes.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=unknown))
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)
    tokenizer.pre_tokenizer = (
        to_bytes
        if words is None
        else pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(words), "isolated"), to_bytes])
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet is None else alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def llama_tokenizer(texts: Sequence[str], vocabulary: int) -> Tokenizer:
    """Train byte-level BPE with the tokens SPECIAL; a begin token comes before each text."""
    tokenizer = byte_pairs(texts, vocabulary, SPECIAL, SPECIAL[UNKNOWN])
    begin = SPECIAL[BEGIN]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, BEGIN)]
    )
    return tokenizer


def write_llama(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a model that generates the likeliest tokens, and a tokenizer with those SPECIAL."""
    model.generation_config = GenerationConfig(
        do_sample=False, bos_token_id=BEGIN, eos_token_id=END, pad_token_id=PAD
    )
    unknown, begin, end, padding = SPECIAL
    names = {"unk_token": unknown, "bos_token": begin, "eos_token": end, "pad_token": padding}
    write_model(model, tokenizer, folder, positions=POSITIONS, names=names)


def write_model(
    model: Any, tokenizer: Tokenizer, folder: Path, *, positions: int, names: Mapping[str, str]
) -> None:
    """Write a model and its tokenizer in Hugging Face's layout.

    Args:
        model: With its generation_config.
        tokenizer: Makes the tokens.
        folder: Where to.
        positions: Tokens that the model takes at most.
        names: Of the special tokens.
    """
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **names,
        padding_side="left",
        model_max_length=positions,
        clean_up_tokenization_spaces=False,
    )

    def save_to(place: str) -> None:
        model.save_pretrained(place)
        wrapped.save_pretrained(place)
        # Written by transformers 5 under a name of its own; every version knows this one.
        settings = Path(place, "tokenizer_config.json")
        fields = json.loads(settings.read_text("utf-8"))
        fields["tokenizer_class"] = "PreTrainedTokenizerFast"
        settings.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")

    write_folder(folder, save_to)


def table_of(columns: Mapping[str, Sequence[Any]], lengths: Mapping[str, str]) -> bytes:
    """Return a pickled DataFrame as MLPerf's tables are, for pandas from 2.0 on.

    Args:
        columns: By name.
        lengths: Columns that follow with the lengths of other columns' values: name, and of which.
    """
    table = pd.DataFrame({name: pd.Series(v, dtype=object) for name, v in columns.items()})
    for name, counted in lengths.items():
        table[name] = table[counted].map(len).astype("int64")
    # As text of Arrow, which pandas 3 would make of them, older versions cannot read the names.
    table.columns = pd.Index(list(table.columns), dtype=object)
    return pickle.dumps(table, protocol=4)


# --- scores ---------------------------------------------------------------------------------------


def answer(dataset: Dataset, model: Path, **options: Any) -> list[bytes]:
    """Return the answers of engine torch to all samples, as it gives them."""
    settings = {"precision": "fp32", "threads": 1, **options}
    engine = TorchEngine(dataset=dataset, model=str(model), **settings)
    return answers_of(engine, dataset)


def answer_damaged(dataset: Dataset, model: Path, **options: Any) -> list[bytes]:
    """Return the answers of a model of which one weight in a hundred is ten times as large."""
    with TemporaryDirectory() as place:
        damage(model, Path(place, "model"))
        return answer(dataset, Path(place, "model"), **options)


def packed(ids: Sequence[int]) -> bytes:
    """Return tokens as an engine answers with them."""
    return b"".join(one.to_bytes(8, "little") for one in ids)


def rouge(references: Sequence[str], answers: Sequence[str]) -> dict[str, float]:
    """Return the mean F-measure of each kind, on the scale 0 to 100, to four decimal places."""
    scorer = RougeScorer(list(ROUGES), use_stemmer=True)
    scores = [scorer.score(*pair) for pair in zip(references, answers, strict=True)]
    return {
        kind: round(100 * sum(score[kind].fmeasure for score in scores) / len(scores), 4)
        for kind in ROUGES
    }


def rouge_of_next(groups: Sequence[Sequence[str]]) -> dict[str, float]:
    """Score each text of a group with the next one in it: chance."""
    return rouge(
        [text for group in groups for text in group],
        [text for group in groups for text in (*group[1:], *group[:1])],
    )
