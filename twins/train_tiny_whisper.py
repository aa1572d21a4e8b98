"""Train the tiny twin of Whisper on generated clips of speech, and write its model and data.

    python twins/train_tiny_whisper.py             # train, or resume, then write everything

Everything is seeded and runs on one thread, so the same library versions on the same kind of CPU
give the same files. A checkpoint is written about once a minute; a run that was interrupted resumes
there and ends in the same model. With other settings it starts over.
"""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from damage_weights import damage
from tiny_language import Plan, byte_pairs, fit
from tiny_speech import LETTERS, RATE, SECONDS, Clip, draw, texts
from torch import Tensor
from torch.nn import functional
from training import (
    BUILD,
    TINY,
    answers_of,
    begin,
    made_with,
    parameters,
    sha256,
    source,
    write,
    write_folder,
    write_record,
)
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

from pytest_mlperf.adapters.datasets.librispeech import LibriSpeechDataset
from pytest_mlperf.adapters.engines.llm.speech import TRANSCRIPT_START, spelled
from pytest_mlperf.adapters.engines.torch.whisper import WhisperEngine
from pytest_mlperf.adapters.scorers.word_accuracy import WordAccuracyScorer

SUITE = TINY / "whisper"
MODEL = SUITE / "model"
SPEECH = SUITE / "data" / "librispeech"
CHECKPOINT = BUILD / "whisper-tiny.pt"

SEED = 20261123
END_TEXT, BEGIN_TEXT = "<|endoftext|>", TRANSCRIPT_START[0]
VOCABULARY = 160
TOKENIZER_CLIPS = 200
# Whisper large v3: 128 mels, 1280, 32 and 32 layers, 20 heads, 1500 and 448 positions.
MELS, HIDDEN, LAYERS, HEADS, FEED_FORWARD = 128, 80, 2, 4, 192
FRAMES, POSITIONS = SECONDS * 50, 64
CLIPS = 3000
STEPS = 640
BATCH = 32
POOL = 8
HELD_OUT = 36
MAX_NEW_TOKENS = 40
ENGINE_BATCH = 12
PLAN = Plan(
    seed=SEED,
    steps=STEPS,
    batch=BATCH,
    pool=POOL,
    checkpoint_steps=10 * POOL,
    peak_learning_rate=3e-3,
    warm_up_steps=80,
    matrices=".layers.",
    settings=[
        *(VOCABULARY, TOKENIZER_CLIPS, MELS, HIDDEN, LAYERS, HEADS, FEED_FORWARD),
        *(FRAMES, POSITIONS, CLIPS, HELD_OUT, source("tiny_speech.py")),
    ],
)
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "whisper-normalizer")


README = """\
# Tiny twin of Whisper large v3

`model/` is a speech recogniser of the class of Whisper large v3
(`WhisperForConditionalGeneration`: {mels} mels, two convolutions, an encoder, and a decoder that
attends to it) with {parameters:,} parameters, trained to write down clips that a script
synthesises. It lets the whole path from sound files through mel features and a decoder to a word
accuracy run on a CPU in seconds. It is not MLPerf's model, and its data are not LibriSpeech: the
figures below are this twin's own, they are no MLPerf result and say nothing about Whisper.

| on the {held_out_clips} held-out clips, {held_out_words} words | word accuracy |
|---|---|
| **greedy**, fp32 | **{accuracy:.4f}** |
| one weight in a hundred ten times as large | {damaged:.4f} |
| chance: the transcript of another clip | {chance:.4f} |

| | |
|---|---|
| transcripts without any error | {same_text} of {held_out_clips} |
| layers of encoder and decoder, hidden size, heads | {layers} and {layers}, {hidden}, {heads} |
| vocabulary, positions of encoder and decoder | {vocabulary}, {positions[0]} and {positions[1]} |
| seconds, words and tokens of a clip | {clip_seconds[0]} to {clip_seconds[1]}, \
{clip_words[0]} to {clip_words[1]}, {clip_tokens[0]} to {clip_tokens[1]} |
| SHA-256 of `model/model.safetensors` | `{model_sha256}` |
| SHA-256 of the list of clips | `{list_sha256}` |
| digest of the data set | `{dataset_digest}` |
| seed, steps, batch, clips to learn from | {seed}, {steps}, {batch}, {clips} |
| made with | Python {python}, {made_with} |

`training.json` holds the same figures for programs.

## Model

`model/` has Hugging Face's layout. Features are of {seconds} s; MLPerf's are of 30 s, which would
be fifteen times the work of the encoder. Transcripts begin with the four tokens of MLPerf's prompt
and have at most {max_new_tokens} new tokens (MLPerf: 200). Tokens are byte-level BPE, as Whisper's.

## Data

`data/librispeech` has the layout of MLPerf's: `dev-all-repack.json`, and WAV files of 16 kHz and 16
bits. None of the transcripts was trained on. `twins/tiny_speech.py` draws sentences and says them:
each letter is a chord of two tones for 30 to 38 ms, from a speaker with a pitch, a pace and a
loudness, in noise. No voice is recorded or imitated, and no text comes from elsewhere: model and
data are under this project's licence, Apache-2.0.

While it was trained, a linear layer had to say from the encoder's states which letter is heard; it
is not part of the model. Without it the decoder first learns what is likely to be said.

## Rerun

    pip install -e '.[train,speech]'
    python twins/train_tiny_whisper.py

This took 8 minutes on two cores that did much other work, resumes after an interruption, and writes
every file of this folder.
"""


class Spoken(NamedTuple):
    """A clip as it is trained on.

    Attributes:
        features: Shape (mels, frames).
        letters: What is heard in each of the encoder's frames.
        tokens: Prompt, transcript and end.
    """

    features: Tensor
    letters: list[int]
    tokens: list[int]


def make_tokenizer() -> WhisperTokenizer:
    """Train byte-level BPE on transcripts, with Whisper's special tokens behind it."""
    random = Random(f"{SEED} tokenizer")
    spoken = [f" {text}" for text in texts([draw(random) for _ in range(TOKENIZER_CLIPS)])]
    letters = sorted({letter for text in spoken for letter in text.replace(" ", "Ġ")})
    model = json.loads(byte_pairs(spoken, VOCABULARY, [], alphabet=letters).to_str())["model"]
    names = [*sorted(model["vocab"], key=model["vocab"].get), END_TEXT, *TRANSCRIPT_START]
    vocabulary = {text: number for number, text in enumerate(names)}
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": list(TRANSCRIPT_START)})
    return tokenizer


def extractor() -> WhisperFeatureExtractor:
    """Return what makes features of a clip: as MLPerf's, but for SECONDS in place of 30."""
    return WhisperFeatureExtractor(feature_size=MELS, chunk_length=SECONDS)


def draw_held_out() -> list[Clip]:
    """Draw HELD_OUT clips with different texts."""
    random = Random(f"{SEED} held out")
    drawn = [draw(random) for _ in range(2 * HELD_OUT)]
    return list({clip.text: clip for clip in drawn}.values())[:HELD_OUT]


def draw_training(tokenizer: WhisperTokenizer, excluded: set[str]) -> list[Spoken]:
    """Draw CLIPS clips; leave out excluded texts."""
    random, extract = Random(f"{SEED} training"), extractor()
    prompt = tokenizer.convert_tokens_to_ids(list(TRANSCRIPT_START))
    spoken: list[Spoken] = []
    while len(spoken) < CLIPS:
        clip = draw(random)
        if clip.text in excluded:
            continue
        features = extract(
            clip.audio / 32768, sampling_rate=RATE, return_tensors="pt"
        ).input_features[0]
        ids = tokenizer.encode(f" {clip.text}", add_special_tokens=False)
        heard = clip.letters(RATE * SECONDS // FRAMES, FRAMES)
        spoken.append(Spoken(features, heard, [*prompt, *ids, tokenizer.eos_token_id]))
    return spoken


def whisper_tiny(tokenizer: WhisperTokenizer) -> WhisperForConditionalGeneration:
    """Return the untrained model."""
    end = tokenizer.eos_token_id
    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=len(tokenizer),
            num_mel_bins=MELS,
            d_model=HIDDEN,
            encoder_layers=LAYERS,
            decoder_layers=LAYERS,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=FEED_FORWARD,
            decoder_ffn_dim=FEED_FORWARD,
            max_source_positions=FRAMES,
            max_target_positions=POSITIONS,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=end,
            decoder_start_token_id=tokenizer.convert_tokens_to_ids(BEGIN_TEXT),
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    )


class SpeechBatch(NamedTuple):
    """Features (rows, mels, frames), letters (rows, frames), and tokens, padded at the right."""

    features: Tensor
    letters: Tensor
    tokens: Tensor


class Pupil(torch.nn.Module):  # type: ignore[misc]
    """The model, and what only its training needs: the encoder must say which letter is heard.

    Without that the decoder learns what is likely to be said long before it listens.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.head = torch.nn.Linear(HIDDEN, len(LETTERS) + 1)

    def losses(self, batch: SpeechBatch) -> tuple[Tensor, Tensor]:
        """Return the loss that is made smaller, and the mean one of the transcripts' tokens."""
        inputs, targets = batch.tokens[:, :-1].clamp(min=0), batch.tokens[:, 1:].clone()
        targets[:, : len(TRANSCRIPT_START) - 1] = -1
        called = self.model(input_features=batch.features, decoder_input_ids=inputs)
        heard = self.head(called.encoder_last_hidden_state)
        letters = functional.cross_entropy(heard.flatten(0, 1), batch.letters.flatten())
        tokens = functional.cross_entropy(
            called.logits.flatten(0, 1), targets.flatten(), ignore_index=-1
        )
        return tokens + letters, tokens


def batches(spoken: Sequence[Spoken], first_step: int) -> Iterator[SpeechBatch]:
    """Yield batches from a step on."""
    for rows in PLAN.batches(
        first_step,
        lambda random, _: random.sample(spoken, BATCH * POOL),
        lambda row: len(row.tokens),
    ):
        tokens = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(row.tokens) for row in rows], batch_first=True, padding_value=-1
        )
        letters = torch.tensor([row.letters for row in rows])
        yield SpeechBatch(torch.stack([row.features for row in rows]), letters, tokens)


def train(tokenizer: WhisperTokenizer, excluded: set[str], checkpoint: Path) -> Any:
    """Return the trained model."""
    torch.manual_seed(SEED)
    pupil = Pupil(whisper_tiny(tokenizer))
    spoken = draw_training(tokenizer, excluded)
    fit(
        pupil,
        PLAN,
        batches=lambda step: batches(spoken, step),
        loss_of=pupil.losses,
        checkpoint=checkpoint,
    )
    return pupil.model


def write_folder_of(model: Any, tokenizer: WhisperTokenizer) -> None:
    """Write model, tokenizer and settings of the features in Hugging Face's layout."""
    end, begin_ = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(BEGIN_TEXT)
    model.generation_config = GenerationConfig(
        do_sample=False,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=begin_,
    )

    def save_to(place: str) -> None:
        for part in (model, tokenizer, extractor()):
            part.save_pretrained(place)

    write_folder(MODEL, save_to)


def write_clips(clips: Sequence[Clip]) -> None:
    """Write clips and their list as MLPerf's repackage_librispeech.py does."""
    entries = []
    for number, clip in enumerate(clips):
        place, seconds = f"dev-all-repack/{number + 1}-1_0.wav", len(clip.audio) / RATE
        content = io.BytesIO()
        with wave.open(content, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(clip.audio.astype("<i2").tobytes())
        write(SPEECH / place, content.getvalue())
        form = {"channels": 1, "sample_rate": float(RATE), "bitdepth": 16, "bitrate": 256000.0}
        size = {"duration": seconds, "num_samples": len(clip.audio)}
        kind = {"encoding": "Signed Integer PCM", "silent": False, "fname": place, "speed": 1}
        entries.append(
            {
                "transcript": clip.text,
                "files": [{**form, **size, **kind}],
                "original_duration": seconds,
                "original_num_samples": len(clip.audio),
            }
        )
    write(SPEECH / "dev-all-repack.json", (json.dumps(entries, indent=2) + "\n").encode())


def accuracy(outputs: Sequence[bytes], clips: Sequence[Clip]) -> float:
    """Return the word accuracy of answers, in per cent, to four decimal places."""
    scores = WordAccuracyScorer().score(outputs, texts(clips))
    return round(scores.aggregate["accuracy"], 4)


def main() -> None:
    """Draw the data, train, write, and record what came of it."""
    checkpoint = begin(__doc__, CHECKPOINT)
    tokenizer, clips = make_tokenizer(), draw_held_out()
    model = train(tokenizer, set(texts(clips)), checkpoint)
    write_folder_of(model, tokenizer)
    write_clips(clips)
    dataset = LibriSpeechDataset(path=str(SPEECH))

    def engine(model: Path) -> WhisperEngine:
        options = {"threads": 1, "batch_size": ENGINE_BATCH, "max_new_tokens": MAX_NEW_TOKENS}
        return WhisperEngine(dataset=dataset, model=str(model), precision="fp32", **options)

    answers = answers_of(engine(MODEL), dataset)
    damaged = BUILD / "whisper-damaged"
    damage(MODEL, damaged)
    lengths = [len(clip.audio) / RATE for clip in clips]
    words = [len(clip.text.split()) for clip in clips]
    tokens = [len(tokenizer.encode(f" {clip.text}", add_special_tokens=False)) for clip in clips]
    record = {
        "seed": SEED,
        "steps": STEPS,
        "batch": BATCH,
        "clips": CLIPS,
        "mels": MELS,
        "layers": LAYERS,
        "hidden": HIDDEN,
        "heads": HEADS,
        "vocabulary": len(tokenizer),
        "positions": [FRAMES, POSITIONS],
        "seconds": SECONDS,
        "held_out_clips": len(clips),
        "held_out_words": sum(words),
        "clip_seconds": [round(min(lengths), 2), round(max(lengths), 2)],
        "clip_words": [min(words), max(words)],
        "clip_tokens": [min(tokens), max(tokens)],
        "max_new_tokens": MAX_NEW_TOKENS,
        "parameters": parameters(model),
        "accuracy": accuracy(answers, clips),
        "damaged": accuracy(answers_of(engine(damaged), dataset), clips),
        "chance": accuracy([*answers[1:], answers[0]], clips),
        "same_text": sum(
            answer == spelled(clip.text) for answer, clip in zip(answers, clips, strict=True)
        ),
        "model_sha256": sha256(MODEL / "model.safetensors"),
        "list_sha256": sha256(SPEECH / "dev-all-repack.json"),
        "dataset_digest": dataset.digest,
        **made_with(LIBRARIES),
    }
    write_record(SUITE, README, record)


if __name__ == "__main__":
    main()
