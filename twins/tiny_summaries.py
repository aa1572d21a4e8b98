"""Articles with their highlights as tokens: what the tiny GPT-J and the tiny Llama 3.1 8B learn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tiny_articles import TOPICS, draw
from tiny_language import ROUGES, Plan, Row, encode, rouge, rouge_of_next
from tokenizers import Tokenizer

from pytest_mlperf.adapters.datasets.cnn_dailymail import CnnDailyMailDataset
from pytest_mlperf.adapters.scorers.rouge.scorer import RougeScorer


@dataclass(frozen=True, kw_only=True)
class Summaries:
    """Samples that one model learns.

    Attributes:
        seed: Of all that is drawn.
        prompt: Gives the prompt of an article's text.
        end: The token that ends an answer.
    """

    seed: int
    prompt: Callable[[str], str]
    end: int

    def texts(self, articles: int) -> list[str]:
        """Draw articles and highlights for a tokenizer to learn."""
        random = Random(f"{self.seed} tokenizer")
        drawn = [draw(random) for _ in range(articles)]
        return [text for each in drawn for text in (each.text, f" {each.summary(random)}")]

    def rows(self, random: Random, count: int, tokenizer: Tokenizer) -> list[Row]:
        """Draw articles, each with its highlights."""
        articles = [draw(random) for _ in range(count)]
        return encode(
            articles,
            tokenizer,
            answers=[f" {article.summary(random)}" for article in articles],
            prompts=[self.prompt(article.text) for article in articles],
            end=self.end,
        )

    def held_out(self, count: int, tokenizer: Tokenizer) -> list[Row]:
        """Draw samples with different articles."""
        rows = self.rows(Random(f"{self.seed} held out"), 2 * count, tokenizer)
        return list({row.sample.text: row for row in rows}.values())[:count]

    def pool(
        self, plan: Plan, tokenizer: Tokenizer, excluded: Sequence[Row]
    ) -> Callable[[Random], list[Row]]:
        """Return what draws the samples of a plan's pool, and leaves out excluded articles."""
        size, texts = plan.batch * plan.pool, {row.sample.text for row in excluded}

        def drawn(random: Random) -> list[Row]:
            rows = self.rows(random, size + 32, tokenizer)
            return [row for row in rows if row.sample.text not in texts][:size]

        return drawn

    def compare(self, rows: Sequence[Row]) -> dict[str, dict[str, float]]:
        """Score what needs no model: highlights of other articles, others of these, and leads."""
        random = Random(f"{self.seed} comparison")
        order = random.sample(rows, len(rows))
        highlights = [row.text for row in rows]
        return {
            "again": rouge(highlights, [row.sample.summary(random) for row in rows]),
            "lead": rouge(highlights, [". ".join(row.sample.text.split(". ")[:2]) for row in rows]),
            "chance": rouge_of_next([[row.text for row in order]]),
            "chance_same_topic": rouge_of_next(
                [[row.text for row in order if row.sample.topic == topic] for topic in TOPICS]
            ),
        }


def score(
    dataset: CnnDailyMailDataset, outputs: Sequence[bytes], model: Path, ends: Collection[int]
) -> dict[str, float]:
    """Return the scores of the first answers; ROUGE must be that of the library rouge_score, too.

    Args:
        dataset: What was asked.
        outputs: Of its first samples, in order.
        model: Folder with the tokenizer.
        ends: Tokens that end an answer.
    """
    references = [dataset.reference(index) for index in range(len(outputs))]
    aggregate = dict(RougeScorer(model=str(model)).score(outputs, references).aggregate)
    tokens = [memoryview(output).cast("q").tolist() for output in outputs]
    texts = Tokenizer.from_file(str(model / "tokenizer.json")).decode_batch(tokens)
    by_library = rouge(references, [text.strip() for text in texts])
    assert by_library == {kind: aggregate[kind] for kind in ROUGES}
    return {**aggregate, "ended": sum(ids[-1] in ends for ids in tokens)}
