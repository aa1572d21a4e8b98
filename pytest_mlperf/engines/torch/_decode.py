"""Greedy decoding with a static cache: a step is a function of tensors that stay in place.

All that a step reads and writes is allocated once, and looked at through views: of as many rows as
a batch has, and as many columns as it has come to. So a GPU replays a step from a CUDA graph, and
Python does nothing for a token.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.cache_utils import Cache, CacheLayerMixin, StaticLayer

from pytest_mlperf.core.errors import SuiteError, text_of
from pytest_mlperf.engines.llm.generation import Generation
from pytest_mlperf.engines.torch._attention import FusedLayers, StepCache
from pytest_mlperf.engines.torch._base import TorchOptions
from pytest_mlperf.engines.torch._sampling import drawn

Scores = Callable[[Any, Any, Any, Any, Any], Any]
"""What `_scores` takes and returns."""

Step = Callable[[], object]
Capture = Callable[[Step], Step]
"""Runs a step, takes it without running it again, and returns what does so again and again."""

STRIDE = 64
"""Captured steps see a multiple of so many columns of the cache; each such number has a graph."""

LOOK = 16
"""Steps that are enqueued before the host looks at their tokens."""

ARGUMENTS = ("attention_mask", "position_ids", "past_key_values", "logits_to_keep")
"""A model that takes these leaves it to its caller which token stands where."""

TRIAL_TOKENS = 8
NEARLY = 0.05
"""A token as good as the best: its score is below by this share of the best one's lead over all."""


def open_decoder(
    model: Any, generation: Generation, options: TorchOptions
) -> tuple[StaticDecoder | None, str]:
    """Return what decodes static batches, None for transformers' `generate`, and it in words."""
    if options.decode == "generate" or generation.num_beams > 1:
        return None, "generate"
    problem = obstacle(model)
    if problem is None:
        on_gpu = model.device.type == "cuda"
        capture = functools.partial(CudaGraphs, torch.cuda.Stream(model.device)) if on_gpu else None
        make = functools.partial(StaticDecoder, model, capture=capture)
        if options.compile and on_gpu:
            make = functools.partial(make, fused=FusedLayers(model))
        elif options.compile:
            # With shapes that stay open, or each number of columns would be compiled.
            make = functools.partial(make, alone=torch.compile(_scores, dynamic=True))
        problem = _fault(make)
    if problem is None:
        words = "static cache, CUDA graphs" if on_gpu else "static cache"
        if options.compile:
            words += ", compiled layers" if on_gpu else ", compiled for one prompt"
        return make(generation, batch_size=options.batch_size), words
    option = {"static": "decode"}.get(options.decode, "compile" if options.compile else None)
    if option is not None:
        asked = 'decode = "static"' if option == "decode" else "compile = true"
        raise SuiteError(
            f"engine torch: {asked} cannot run {type(model).__name__} here: {problem}; set "
            'decode = "generate", or leave it out',
            option=option,
        )
    return None, f"generate: {problem}"


def obstacle(model: Any) -> str | None:
    """Return why a model cannot decode in place; None: nothing is known to be in the way."""
    config = model.config.get_text_config()
    kinds = {type(layer) for layer in transformers.StaticCache(config, max_cache_len=1).layers}
    if kinds != {StaticLayer}:
        return "not all of its layers keep the keys and values of every token"
    if not set(ARGUMENTS) <= set(inspect.signature(model.forward).parameters):
        return "it counts its tokens itself"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in {"dynamic", "longrope"}:
        return "the host changes its positions as sequences grow"
    if config._attn_implementation not in {"sdpa", "eager"}:
        return f"attention {config._attn_implementation!r} takes no mask of its caller"
    if model.device.type == "cuda" and not model._can_compile_fullgraph:
        return "transformers cannot run it without the host"
    return None


def _fault(make: Callable[..., StaticDecoder]) -> str | None:
    """Try two prompts of different lengths; return what is wrong with the tokens, if anything.

    Each must be as good as the best by the scores of the whole sequence, read at once. What is
    compiled is compiled here: for both, and for one of them alone.
    """
    trial = Generation(max_new_tokens=TRIAL_TOKENS, ignore_eos=True)
    decoder = make(trial, batch_size=2)
    device = decoder.model.device
    prompts = torch.tensor([[5, 6, 7], [0, 0, 8]], device=device)
    mask = torch.tensor([[1, 1, 1], [0, 0, 1]], device=device)
    # Sides that happen to be equal here, as rows and heads, are not so later.
    with torch.fx.experimental._config.patch(use_duck_shape=False):
        problem = _fault_with(decoder, prompts, mask)
        if problem is None and decoder.compiled:
            problem = _fault_with(decoder, prompts[:1], mask[:1])
    return problem


def _fault_with(decoder: StaticDecoder, prompts: Any, mask: Any) -> str | None:
    model, steps = decoder.model, list[list[int]]()

    def put(tokens: list[int]) -> bool:
        steps.append(tokens)
        return len(steps) < TRIAL_TOKENS

    with torch.inference_mode():
        # Another architecture may break at any place, a capture at what the host waits for, and
        # compilers in ways of their own.
        try:
            decoder.run(prompts, mask, put)
        except Exception as error:
            return text_of(error)
        tokens = torch.tensor(steps, device=prompts.device).T
        whole = torch.cat([prompts, tokens[:, :-1]], 1)
        mask = torch.cat([mask, torch.ones_like(tokens[:, :-1])], 1)
        called = model(
            input_ids=whole,
            attention_mask=mask,
            position_ids=_positions(mask),
            use_cache=False,
            logits_to_keep=TRIAL_TOKENS,
        )
        scores = called.logits.float()
        best = scores.amax(-1)
        behind = best - scores.gather(-1, tokens[..., None]).squeeze(-1)
        right = bool((behind <= NEARLY * (best - scores.mean(-1))).all())
    return None if right else "its tokens are others than with the whole sequence read at once"


def _scores(model: Any, cache: Any, tokens: Any, mask: Any, positions: Any) -> Any:
    """Return the scores of what follows: (rows, vocabulary)."""
    called = model(
        input_ids=tokens,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return called.logits[:, -1]


def _whole_strides(columns: int) -> int:
    return -(-columns // STRIDE) * STRIDE


def _positions(mask: Any) -> Any:
    return (mask.cumsum(1) - 1).clamp_(min=0)


class CudaGraphs:
    """Captures steps as CUDA graphs, which share their memory: no two are replayed at once."""

    def __init__(self, stream: Any) -> None:
        """Capture on a stream of the model's device: torch's own may belong to another one."""
        self._stream = stream
        self._pool: Any = None

    def __call__(self, step: Step) -> Step:
        # Libraries set themselves up in their first call on a stream, and compilers look at which
        # it is: a capture could hold neither.
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            step()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self._stream.device),
            # Continuous batching may be at work in another thread.
            torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ),
        ):
            step()
        self._pool = graph.pool()
        replay: Step = graph.replay
        return replay


@dataclass(slots=True)
class _CacheView:
    """What a call of the model sees of the cache: up to `visible`; and the columns it writes."""

    columns: Any
    visible: int
    start: Any = 0


class _CacheLayer(CacheLayerMixin):
    """Keys and values of one layer, in place: (rows, heads, columns, size of a head)."""

    is_sliding = False

    def __init__(self, view: _CacheView, rows: int, columns: int) -> None:
        super().__init__()
        self._view = view
        self._shape = rows, columns

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        rows, columns = self._shape
        self.keys, self.values = (
            states.new_zeros(rows, states.shape[1], columns, states.shape[3])
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Write what is new, and return all that is visible."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, view = len(key_states), self._view
        keys, values = (
            kept[:rows, :, : view.visible].index_copy_(2, view.columns, states)
            for kept, states in ((self.keys, key_states), (self.values, value_states))
        )
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002 - transformers'
        """Return how many columns a mask has, and which is the first."""
        return self._view.visible, 0

    def get_seq_length(self) -> Any:
        """Return how many tokens there were before this call; while decoding, as a tensor."""
        return self._view.start

    def get_max_length(self) -> int:
        """Return how many tokens there can be."""
        return self._shape[1]


@dataclass(slots=True, kw_only=True)
class _Buffers:
    """What steps read and write, for as many rows and columns as there can be.

    Attributes:
        token: Of each row, what is fed next: (rows, 1).
        position: Of it in its row, padding left out: (rows, 1).
        column: Of it in the cache: (1,).
        mask: What attention adds to its scores: (rows, 1, 1, columns).
        made: How many tokens there are: (1,).
        tokens: All of them: (tokens, rows).
        numbers: What they are drawn by: (tokens, rows); empty: they are not.
    """

    token: Any
    position: Any
    column: Any
    mask: Any
    made: Any
    tokens: Any
    numbers: Any


class StaticDecoder:
    """Generates for one batch at a time."""

    def __init__(
        self,
        model: Any,
        generation: Generation,
        *,
        batch_size: int,
        capture: Callable[[], Capture] | None,
        alone: Scores | None = None,
        fused: FusedLayers | None = None,
    ) -> None:
        """Take no memory yet.

        Args:
            model: On its device.
            generation: Greedy, or drawn.
            batch_size: Rows at most.
            capture: Makes a capture; None: steps are run one by one.
            alone: Gives the scores of one row faster than `_scores`; None: nothing does.
            fused: Runs the model's layers faster than the model; None: nothing does.
        """
        self.model = model
        self.compiled = alone is not None or fused is not None
        self._fused = fused
        self._alone = alone or _scores
        self._generation = generation
        self._batch_size = batch_size
        self._make_capture = capture
        self._capture: Capture | None = None
        self._ends = torch.tensor(generation.ends, dtype=torch.long, device=model.device)
        self._room = 0, 0
        self._buffers: Any = None
        self._cache: Any = None
        self._view = _CacheView(columns=None, visible=0)
        self._steps: dict[tuple[int, int], Step] = {}

    def run(
        self,
        prompts: Any,
        mask: Any,
        put: Callable[[list[int]], bool],
        *,
        look: int = LOOK,
        numbers: Any = None,
    ) -> None:
        """Generate for prompts that are padded on the left: (rows, width), as is their mask.

        Args:
            prompts: Token ids.
            mask: 1 where there is a prompt.
            put: Takes a token of each row, step by step; returns whether any are needed still.
            look: Steps after which the host looks, where they are captured.
            numbers: What tokens are drawn by: (tokens, rows).
        """
        (asked, width), rows = prompts.shape, len(prompts)
        most = self._generation.max_new_tokens
        if self._make_capture is None:
            look = 1
        else:
            # Every number of rows has graphs of its own, so there are few: some rows come twice.
            rows = min(1 << (asked - 1).bit_length(), self._batch_size)
            twice = torch.arange(rows, device=prompts.device) % asked
            prompts, mask = prompts[twice], mask[twice]
            numbers = numbers if numbers is None else numbers[:, twice]
        self._reserve(rows, width + most - 1)
        if numbers is not None:
            self._buffers.numbers[:, :rows] = numbers
        self._prefill(prompts, mask)
        seen, made = 0, 1
        while all(map(put, self._buffers.tokens[seen:made, :asked].tolist())) and made < most:
            used = width + made
            visible = self._visible(used)
            steps = min(look, most - made, visible - used + 1)
            for _ in range(steps):
                self._advance(rows, visible)
            seen, made = made, made + steps

    def _reserve(self, rows: int, columns: int) -> None:
        """Make room for prompts, and for tokens of each with its answer; later batches use it."""
        if self.compiled:
            rows = max(rows, 2)  # a side of 1 is compiled as one that is always 1
        if rows <= self._room[0] and columns <= self._room[1]:
            return
        rows, columns = max(rows, self._room[0]), max(_whole_strides(columns), self._room[1])
        self._room = rows, columns
        # What is there is given up first, and the graphs and their memory before what they use.
        self._steps.clear()
        self._capture = self._make_capture() if self._make_capture else None
        self._buffers = self._cache = None
        model = self.model
        whole = functools.partial(torch.zeros, dtype=torch.long, device=model.device)
        drawn_tokens = self._generation.max_new_tokens if self._generation.is_drawn else 0
        self._buffers = _Buffers(
            token=whole(rows, 1),
            position=whole(rows, 1),
            column=whole(1),
            mask=torch.zeros(rows, 1, 1, columns, dtype=model.dtype, device=model.device),
            made=whole(1),
            tokens=whole(self._generation.max_new_tokens, rows),
            numbers=torch.zeros(drawn_tokens, rows, dtype=torch.float64, device=model.device),
        )
        layers = range(model.config.get_text_config().num_hidden_layers)
        self._cache = Cache(layers=[_CacheLayer(self._view, rows, columns) for _ in layers])

    def _prefill(self, prompts: Any, mask: Any) -> None:
        (rows, width), buffers, view = prompts.shape, self._buffers, self._view
        positions = _positions(mask)
        buffers.position[:rows] = positions[:, -1:]
        buffers.column.fill_(width - 1)
        buffers.made.zero_()
        buffers.mask.fill_(torch.finfo(buffers.mask.dtype).min)
        buffers.mask[:rows, 0, 0, :width].masked_fill_(mask.bool(), 0)
        view.columns = torch.arange(width, device=prompts.device)
        view.visible, view.start = width, 0
        self._choose(_scores(self.model, self._cache, prompts, mask, positions))

    def _visible(self, used: int) -> int:
        """Return how many columns a step sees that needs so many."""
        if self._fused is not None:
            return self._room[1]  # it reads no more than are used
        return used if self._capture is None else _whole_strides(used)

    def _advance(self, rows: int, visible: int) -> None:
        key = rows, visible
        if key in self._steps:
            self._steps[key]()
        elif self._capture is not None:
            self._steps[key] = self._capture(functools.partial(self._step, rows, visible))
        else:
            self._step(rows, visible)

    def _step(self, rows: int, visible: int) -> None:
        buffers, view = self._buffers, self._view
        buffers.column.add_(1)
        view.columns = view.start = buffers.column
        view.visible = visible
        position = buffers.position[:rows].add_(1)
        mask = buffers.mask[:rows, :, :, :visible].index_fill_(3, buffers.column, 0)
        inputs = buffers.token[:rows], mask, position
        if self._fused is None:
            scores = self._alone if rows == 1 else _scores
            self._choose(scores(self.model, self._cache, *inputs))
            return
        layers = self._cache.layers
        places = buffers.column, buffers.position
        with self._fused.over([(each.keys, each.values, *places) for each in layers]):
            scores = _scores(self.model, StepCache(layers=layers), *inputs)
        self._choose(scores)

    def _choose(self, scores: Any) -> None:
        """Keep the best token of each row, or one that is drawn, and feed it next."""
        buffers, fewest = self._buffers, self._generation.min_new_tokens
        if len(self._ends) and fewest:
            ends = scores.index_select(1, self._ends)
            ends.masked_fill_(buffers.made < fewest, -math.inf)
            scores = scores.index_copy(1, self._ends, ends)
        if self._generation.is_drawn:
            step = buffers.numbers.index_select(0, buffers.made)[0, : len(scores)]
            tokens = drawn(scores, step, self._generation)
        else:
            tokens = scores.argmax(1)
        buffers.token[: len(tokens)] = tokens[:, None]
        buffers.tokens[:, : len(tokens)].index_copy_(0, buffers.made, tokens[None])
        buffers.made.add_(1)
