"""A plain reimplementation of MLPerf's accuracy-squad.py and evaluate_v1.1.py."""

from __future__ import annotations

import math
import re
import string
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.adapters.datasets.squad_plain import basic_tokens

Feature = Mapping[str, Any]
Logits = NDArray[np.float32]
Candidate = tuple[float, int, int, Feature]


def evaluate(
    outputs: Sequence[Logits], features: Sequence[Feature], *, n_best: int = 20, longest: int = 30
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the figures of the second script, and the answers that the first one writes."""
    by_question: dict[str, list[tuple[Logits, Feature]]] = defaultdict(list)
    for output, feature in zip(outputs, features, strict=True):
        by_question[feature["id"]].append((output, feature))
    answers = {
        identity: nbest(found, n_best, longest)[0] for identity, found in by_question.items()
    }
    f1 = exact = 0.0
    for identity, predictions in by_question.items():
        accepted = predictions[0][1]["answers"]
        exact += max(normalize(answers[identity]) == normalize(text) for text in accepted)
        f1 += max(f1_score(answers[identity], text) for text in accepted)
    total = len(by_question)
    return {"exact_match": 100.0 * exact / total, "f1": 100.0 * f1 / total}, answers


def nbest(windows: Sequence[tuple[Logits, Feature]], n_best: int, longest: int) -> list[str]:
    """Return up to `n_best` different texts, the best first."""
    candidates: list[Candidate] = []
    for output, feature in windows:
        candidates += spans(output, feature, n_best, longest)
    candidates.sort(key=lambda candidate: candidate[0], reverse=True)
    texts: dict[str, float] = {}
    for total, start, end, feature in candidates:
        if len(texts) >= n_best:
            break
        texts.setdefault(final_text(start, end, feature), total)
    top = max(texts.values(), default=0.0)
    shares = [math.exp(total - top) for total in texts.values()]
    assert not texts or sum(shares) >= 1
    return list(texts) or ["empty"]


def spans(output: Logits, feature: Feature, n_best: int, longest: int) -> list[Candidate]:
    """Return every span that may be an answer, from the product of the best starts and ends."""
    starts = [-10000.0] * 384
    ends = [-10000.0] * 384
    for position, (start_logit, end_logit) in enumerate(output.tolist()):
        starts[position], ends[position] = start_logit, end_logit
    first, length = feature["first"], feature["length"]
    candidates = []
    for start in best_positions(starts, n_best):
        for end in best_positions(ends, n_best):
            if not first <= start < first + length or not first <= end < first + length:
                continue
            piece = start - first + feature["start"]
            if not any(low <= piece < high for low, high in feature["max_context"]):
                continue
            if end < start or end - start + 1 > longest:
                continue
            candidates.append((starts[start] + ends[end], start, end, feature))
    return candidates


def best_positions(logits: list[float], count: int) -> list[int]:
    """Sort all positions by their logit, and take the first few."""
    ranked = sorted(enumerate(logits), key=lambda pair: pair[1], reverse=True)
    return [position for position, _ in ranked[:count]]


def final_text(start: int, end: int, feature: Feature) -> str:
    """Find the pieces in the tokenized words, and the words' characters one by one."""
    shift = feature["start"] - feature["first"]
    pieces = feature["pieces"][start + shift : end + shift + 1]
    low, high = feature["word_of_piece"][start + shift], feature["word_of_piece"][end + shift]
    written = " ".join(feature["words"][low : high + 1])
    joined_text = " ".join(" ".join(pieces).replace(" ##", "").replace("##", "").split())
    tokenized = " ".join(basic_tokens(written))
    at = tokenized.find(joined_text)
    if at == -1:
        return written
    theirs = {place: rank for rank, place in enumerate(marks(tokenized))}
    ours = dict(enumerate(marks(written)))
    if len(theirs) != len(ours):
        return written
    left, right = theirs.get(at), theirs.get(at + len(joined_text) - 1)
    if left is None or right is None:
        return written
    return written[ours[left] : ours[right] + 1]


def marks(text: str) -> list[int]:
    """Return the places of all characters but spaces."""
    return [place for place, character in enumerate(text) if character != " "]


def normalize(text: str) -> str:
    """Lower, drop marks, drop articles, unify spaces."""
    lowered = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", lowered).split())


def f1_score(answer: str, accepted: str) -> float:
    """Return the harmonic mean of precision and recall over words."""
    left, right = normalize(answer).split(), normalize(accepted).split()
    same = sum((Counter(left) & Counter(right)).values())
    if same == 0:
        return 0
    precision, recall = 1.0 * same / len(left), 1.0 * same / len(right)
    return (2 * precision * recall) / (precision + recall)
