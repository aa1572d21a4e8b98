"""Decoding on a static cache gives the tokens of `generate`, and graphs need little of the host."""

from __future__ import annotations

import functools
import os
import random as random_numbers
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.engines.llm.generation import Generation
from pytest_mlperf.engines.torch._attention import FusedLayers, attend
from pytest_mlperf.engines.torch._base import TorchOptions
from pytest_mlperf.engines.torch._batching import generation_config
from pytest_mlperf.engines.torch._decode import (
    LOOK,
    STRIDE,
    StaticDecoder,
    Step,
    _fault,
    open_decoder,
)
from tests.engines.recording import Recorder, ask
from tests.engines.torch.models import MIXED, open_engine

# torch's compiler still imports what torch no longer wants.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")

TINY = Path(__file__).parents[3] / "suites" / "tiny"
MODELS = {"llama2-70b": "sdpa", "gptj": "eager", "mixtral-8x7b": "sdpa"}
BATCH = 6


class Replays:
    """Stands in for CUDA graphs on a CPU: a step becomes a graph of its tensors' operators.

    As of a CUDA graph, nothing of a capture stays done, a replay runs no Python of the model, and
    what reads a tensor's value breaks the capture.
    """

    def __init__(self) -> None:
        self.captured = 0
        self.replayed = 0

    def __call__(self, step: Step) -> Step:
        self.captured += 1
        step()
        kept = [(tensor, tensor.clone()) for tensor in written(step)]
        for tensor, _ in kept:  # tracing computes, which a capture does not: there must be room
            tensor.zero_()
        graph = make_fx(step)()
        for tensor, before in kept:
            tensor.copy_(before)

        def replay() -> None:
            self.replayed += 1
            graph()

        return replay


def written(step: Any) -> list[Any]:
    """Return all that a decoder's step may write to."""
    decoder = step.func.__self__
    buffers, layers = decoder._buffers, decoder._cache.layers
    return [
        *(getattr(buffers, name) for name in buffers.__slots__),
        *(tensor for layer in layers for tensor in (layer.keys, layer.values)),
    ]


CAPTURES: list[Callable[[], Replays] | None] = [None, Replays]


@pytest.fixture(scope="session", params=MODELS, ids=lambda name: f"tiny {name}")
def model(request: pytest.FixtureRequest) -> Any:
    """A trained model, in fp32."""
    return load(TINY / request.param / "model", attention=MODELS[request.param])


def load(folder: Path, *, attention: str = "sdpa", dtype: Any = torch.float32) -> Any:
    auto = transformers.AutoModelForCausalLM
    loaded = auto.from_pretrained(folder, dtype=dtype, attn_implementation=attention).eval()
    loaded.generation_config = transformers.GenerationConfig()
    return loaded


def prompts_of(lengths: Sequence[int], *, seed: int = 0) -> tuple[Any, Any]:
    """Return random token ids, padded on the left, and their mask."""
    numbers, width = random_numbers.Random(seed), max(lengths)
    rows = [[numbers.randrange(26, 320) for _ in range(length)] for length in lengths]
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    return ids, torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])


def generated(model: Any, generation: Generation, ids: Any, mask: Any) -> list[list[int]]:
    with torch.inference_mode():
        rows = model.generate(
            input_ids=ids, attention_mask=mask, generation_config=generation_config(generation)
        )
    return [list(generation.cut(row)) for row in rows[:, ids.shape[1] :].tolist()]


def decoded(decoder: StaticDecoder, generation: Generation, ids: Any, mask: Any) -> Any:
    """Return the rows as the engine takes them: until all have ended."""
    steps: list[list[int]] = []

    def put(tokens: list[int]) -> bool:
        steps.append(tokens)
        ended = [set(row) & set(generation.ends) for row in zip(*steps, strict=True)]
        return len(steps) < generation.max_new_tokens and not all(ended)

    with torch.inference_mode():
        decoder.run(ids, mask, put)
    return [list(generation.cut(row)) for row in zip(*steps, strict=True)]


lengths = st.lists(
    st.integers(1, 40) | st.integers(STRIDE - 3, STRIDE + 3), min_size=1, max_size=BATCH
)
MANY = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def both(
    model: Any,
    lengths: list[int],
    *,
    most: int,
    fewest: int,
    ends: bool,
    capture: Callable[[], Replays] | None = None,
) -> tuple[Any, Any]:
    """Return the tokens of a static cache, and those of `generate`."""
    eos = tuple(range(320, 420)) if ends else ()
    generation = Generation(max_new_tokens=most, min_new_tokens=min(fewest, most), eos=eos)
    decoder = StaticDecoder(model, generation, batch_size=BATCH, capture=capture)
    ids, mask = prompts_of(lengths, seed=most)
    return decoded(decoder, generation, ids, mask), generated(model, generation, ids, mask)


@given(lengths=lengths, most=st.integers(1, 70), fewest=st.integers(0, 70), ends=st.booleans())
@MANY
def test_tokens_are_those_of_generate(
    model: Any, lengths: list[int], most: int, fewest: int, ends: bool
) -> None:
    """Whatever the lengths, padding, ends and limits; of trained models in fp32."""
    static, plain = both(model, lengths, most=most, fewest=fewest, ends=ends)

    assert static == plain


@pytest.mark.parametrize(
    ("lengths", "most", "fewest", "ends"),
    [([STRIDE - 9, 5, 17], 20, 6, True), ([3], 9, 0, False), ([2, 9, 1, 1, 4], 2, 0, True)],
)
def test_tokens_of_captured_steps_are_those_of_generate(
    model: Any, lengths: list[int], most: int, fewest: int, ends: bool
) -> None:
    """With fewer rows than graphs are made for, and over the border of a graph's columns."""
    static, plain = both(model, lengths, most=most, fewest=fewest, ends=ends, capture=Replays)

    assert static == plain


@pytest.mark.parametrize("capture", CAPTURES, ids=["step by step", "captured"])
def test_a_batch_leaves_nothing_behind_for_the_next(
    random: Path, capture: Callable[[], Replays] | None
) -> None:
    """One cache serves batches of all sizes and lengths, longer ones and shorter ones later."""
    loaded, generation = load(random), Generation(max_new_tokens=20, eos=tuple(range(2, 26)))
    decoder = StaticDecoder(loaded, generation, batch_size=BATCH, capture=capture)
    batches = [[1], [40, 3, 5], [1], [70, 2, 8, 9, 60], [70] * BATCH, [5, 4], [2]]

    for number, each in enumerate(batches):
        ids, mask = prompts_of(each, seed=number)
        expected = generated(loaded, generation, ids, mask)
        assert decoded(decoder, generation, ids, mask) == expected, each


def test_a_step_is_captured_once_for_its_rows_and_columns(random: Path) -> None:
    """The first step of its kind is run, all others are replayed."""
    made: list[Replays] = []

    def capture() -> Replays:
        made.append(Replays())
        return made[-1]

    loaded = load(random)
    generation = Generation(max_new_tokens=STRIDE, ignore_eos=True)
    decoder = StaticDecoder(loaded, generation, batch_size=BATCH, capture=capture)

    for rows in (BATCH, 5, 3, 4):
        decoded(decoder, generation, *prompts_of([10] * rows))

    # Rows of 6 and of 4; columns up to 64 and 128. Each batch takes 63 steps.
    (replays,) = made
    assert replays.captured == 2 * 2
    assert replays.replayed == 4 * (STRIDE - 1) - replays.captured


@pytest.mark.parametrize(
    ("look", "bursts", "done"), [(LOOK, [1, 16, 16, 6], 40), (1, [1] * 39, 39)]
)
def test_the_host_looks_every_so_many_steps(
    random: Path, look: int, bursts: list[int], done: int
) -> None:
    """Until then it only enqueues; it stops at the look after which nothing is needed."""
    replays, calls, seen = Replays(), list[int](), list[int]()
    loaded = load(random)
    loaded.register_forward_hook(lambda *_: calls.append(1))
    generation = Generation(max_new_tokens=40, ignore_eos=True)
    decoder = StaticDecoder(loaded, generation, batch_size=BATCH, capture=lambda: replays)

    def put(_tokens: list[int]) -> bool:
        # The prompts' call gives the first tokens, the first step is run and then captured.
        seen.append(1 + replays.captured + replays.replayed)
        return len(seen) < 39

    with torch.inference_mode():
        decoder.run(*prompts_of([10, 7]), put, look=look)

    assert [seen.count(each) for each in dict.fromkeys(seen)] == bursts
    assert 1 + replays.captured + replays.replayed == done
    assert len(calls) == 3


@pytest.mark.parametrize(("times_tokens", "look"), [(True, 1), (False, LOOK)])
def test_timed_tokens_are_looked_at_one_by_one(
    random: Path, monkeypatch: pytest.MonkeyPatch, times_tokens: bool, look: int
) -> None:
    looks, run = list[int](), StaticDecoder.run

    def watched(*given: Any, look: int = LOOK, numbers: Any = None) -> None:
        looks.append(look)
        run(*given, look=look, numbers=numbers)

    monkeypatch.setattr(StaticDecoder, "run", watched)
    sink = Recorder(expected=len(MIXED), times_tokens=times_tokens)
    with open_engine(random, MIXED, batching="static", max_new_tokens=8) as engine:
        looks.clear()
        ask(engine, sink, len(MIXED))

    assert looks == [look]


SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}


def make(kind: str, **changes: Any) -> Any:
    """Return a small model of a kind of transformers', with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = transformers.AutoConfig.for_model(
            kind, **{**SMALL, "initializer_range": 0.3, "pad_token_id": 0, **changes}
        )
        made = transformers.AutoModelForCausalLM.from_config(config).eval()
    made.generation_config = transformers.GenerationConfig()
    return made


@pytest.mark.parametrize(
    "kind", ["llama", "qwen3", "mixtral", "opt", "gpt_neox", "phi", "gemma", "olmo2", "falcon"]
)
def test_many_architectures_decode_in_place(kind: str) -> None:
    """Each counts positions and makes masks in its own way."""
    changes: dict[str, Any] = {"sliding_window": None} if kind == "mixtral" else {}
    changes |= {"ffn_dim": 64, "word_embed_proj_dim": 32} if kind == "opt" else {}
    loaded = make(kind, **changes)
    generation = Generation(max_new_tokens=12, ignore_eos=True)

    decoder, words = open_decoder(loaded, generation, TorchOptions())

    assert (decoder is None, words) == (False, "static cache")
    assert decoder is not None
    ids, mask = prompts_of([3, 17, 9, 1])
    ids = ids % 60 * mask
    assert decoded(decoder, generation, ids, mask) == generated(loaded, generation, ids, mask)


@pytest.mark.parametrize(
    ("kind", "changes", "problem"),
    [
        ("mistral", {"sliding_window": 8}, "not all of its layers keep the keys and values"),
        ("mamba", {}, "not all of its layers keep the keys and values"),
        ("bloom", {"n_layer": 2, "n_head": 4}, "it counts its tokens itself"),
        ("falcon", {"alibi": True}, "too many values to unpack"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "the host changes its positions",
        ),
    ],
)
def test_other_architectures_are_left_to_generate(
    kind: str, changes: dict[str, Any], problem: str
) -> None:
    """With "auto" it is said; a suite that asks for "static" is refused."""
    loaded, generation = make(kind, **changes), Generation(ignore_eos=True)

    decoder, words = open_decoder(loaded, generation, TorchOptions())

    assert decoder is None
    assert words.startswith(f"generate: {problem}")
    with pytest.raises(SuiteError, match=f'decode = "static" cannot run .* here: {problem}'):
        open_decoder(loaded, generation, TorchOptions(decode="static"))
    with pytest.raises(SuiteError, match=f"compile = true cannot run .* here: {problem}"):
        open_decoder(loaded, generation, TorchOptions(compile=True))
    assert open_decoder(loaded, generation, TorchOptions(decode="generate")) == (None, "generate")


def test_a_model_that_would_answer_otherwise_is_left_to_generate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that forgets which columns are padding gives other tokens, which a trial finds."""
    loaded = make("llama")
    forward = loaded.model.forward

    def forgetful(*_: Any, attention_mask: Any, **more: Any) -> Any:
        seen = attention_mask if attention_mask.ndim == 2 else torch.zeros_like(attention_mask)
        return forward(attention_mask=seen, **more)

    monkeypatch.setattr(loaded.model, "forward", forgetful)

    _, words = open_decoder(loaded, Generation(ignore_eos=True), TorchOptions())

    assert words == "generate: its tokens are others than with the whole sequence read at once"


def test_a_prompt_alone_is_compiled_once_and_other_batches_are_not(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is opened, for every length: nothing is compiled while time is measured.

    Graphs are traced and guarded as always, but run as they are: making code takes a minute.
    """
    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", functools.partial(compile_with, backend="eager"))
    torch._dynamo.reset()
    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    generation = Generation(max_new_tokens=12, ignore_eos=True)

    decoder, words = open_decoder(model, generation, TorchOptions(compile=True, batch_size=BATCH))

    assert words == "static cache, compiled for one prompt"
    assert decoder is not None
    assert graphs["unique_graphs"] == 1
    with torch.compiler.set_stance("fail_on_recompile"):
        for each in ([3], [STRIDE], [9, 4], [1], [STRIDE + 7] * BATCH, [2]):
            ids, mask = prompts_of(each)
            rows = decoded(decoder, generation, ids, mask)
            assert rows == generated(model, generation, ids, mask), each
    assert graphs["unique_graphs"] == 1


def replayed(step: Step) -> Step:
    """Stands in for a capture, of steps that cannot be traced."""
    step()
    return step


@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "opt"])
def test_compiled_layers_are_one_graph_for_all_rows_and_columns(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one for a row alone; their tokens are those of `generate`, whatever the lengths.

    On a CPU the operator that attends is plain torch, and graphs run as they are.
    """
    compile_with = torch.compile

    def traced(run: Any, *, dynamic: bool, options: Any) -> Any:
        assert options == {"emulate_precision_casts": True}
        return compile_with(run, dynamic=dynamic, backend="eager")

    monkeypatch.setattr(torch, "compile", traced)
    torch._dynamo.reset()
    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    changes: dict[str, Any] = {"num_key_value_heads": 2} if kind == "llama" else {}
    changes |= {"ffn_dim": 64, "word_embed_proj_dim": 32} if kind == "opt" else {}
    loaded = make(kind, **changes)
    asked = loaded.config._attn_implementation
    create = functools.partial(
        StaticDecoder, loaded, capture=lambda: replayed, fused=FusedLayers(loaded)
    )

    assert _fault(create) is None
    assert graphs["unique_graphs"] == 2
    generation = Generation(max_new_tokens=12, ignore_eos=True)
    decoder = create(generation, batch_size=BATCH)
    with torch.compiler.set_stance("fail_on_recompile"):
        for each in ([3], [9, 4], [STRIDE + 7, 2, 5, 1], [1], [5] * BATCH):
            ids, mask = prompts_of(each)
            ids = ids % 60 * mask
            rows = decoded(decoder, generation, ids, mask)
            assert rows == generated(loaded, generation, ids, mask), each
    assert loaded.config._attn_implementation == asked
    # Or a cache that has grown too small would stay beside the next one.
    assert not any(hasattr(module, "static_cache") for module in loaded.modules())


def cached(*, rows: int, heads: int, kv_heads: int, size: int, dtype: Any) -> list[Any]:
    """Return query, key and value of a new token, and keys and values of a cache, random."""
    shapes = [(rows, heads, 1), (rows, kv_heads, 1), (rows, kv_heads, 1)]
    shapes += [(rows + 1, kv_heads, 140)] * 2
    return [torch.randn(*shape, size, dtype=dtype) for shape in shapes]


INTERPRETED = """
import torch
from pytest_mlperf.engines.torch import _attention, _attention_gpu
from tests.engines.torch.test_decode import cached

torch.manual_seed(1)
for heads, kv_heads, size in ((4, 4, 16), (8, 2, 32), (4, 1, 64), (4, 2, 128)):
    for dtype, near in ((torch.float32, 1e-5), (torch.float16, 2e-3)):
        given = cached(rows=3, heads=heads, kv_heads=kv_heads, size=size, dtype=dtype)
        for column, positions in ((0, (0, 0, 0)), (64, (64, 3, 33)), (139, (139, 0, 76))):
            place = torch.tensor([column]), torch.tensor([[each] for each in positions])
            both = [[each.clone() for each in given] for _ in range(2)]
            found = _attention_gpu.attend(*both[0], *place, 0.2)
            right = _attention.attend(*both[1], *place, 0.2)
            torch.testing.assert_close(found, right, atol=near, rtol=near)
            assert all(map(torch.equal, *(each[3:] for each in both)))
"""


@pytest.mark.process
def test_the_kernel_attends_as_the_operator_is_defined() -> None:
    """By Triton's interpreter, which needs no GPU, of sequences with and without padding."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", INTERPRETED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("this Triton's interpreter is older than this NumPy")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("position", [[0, 0], [20, 20], [20, 3]])
def test_a_token_attends_to_its_sequence_alone(position: list[int]) -> None:
    """Not to what stands in other columns, which may be anything."""
    query, key, value, keys, values = cached(
        rows=2, heads=4, kv_heads=2, size=8, dtype=torch.float64
    )
    column, places = torch.tensor([20]), torch.tensor([[each] for each in position])
    expected = []
    for row, before in enumerate(position):
        seen = [
            torch.cat([old[[row], :, 20 - before : 20], new[[row]]], 2)
            for old, new in ((keys, key), (values, value))
        ]
        one = torch.nn.functional.scaled_dot_product_attention(
            query[[row]], *seen, scale=0.3, enable_gqa=True
        )
        expected.append(one)
        for kept in (keys, values):
            kept[row, :, : 20 - before] = kept[row, :, 20:] = 1e9

    found = attend(query, key, value, keys, values, column, places, 0.3)

    torch.testing.assert_close(found, torch.cat(expected))
    assert torch.equal(keys[:2, :, 20], key[:, :, 0])
    assert torch.equal(values[:2, :, 20], value[:, :, 0])


def test_a_step_that_the_host_reads_from_cannot_be_captured(random: Path) -> None:
    """So that what is captured in these tests never waits for the host."""
    loaded, generation = load(random), Generation(max_new_tokens=9, ignore_eos=True)
    loaded.register_forward_hook(lambda *given: print(given[-1].logits.max().item()))
    decoder = StaticDecoder(loaded, generation, batch_size=BATCH, capture=Replays)

    with pytest.raises(RuntimeError, match="get value out of a tracing tensor"):
        decoded(decoder, generation, *prompts_of([5, 3]))
