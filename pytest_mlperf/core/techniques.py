"""What the open division allows and the closed one does not, by the names that suites declare."""

from __future__ import annotations

from collections.abc import Mapping

TECHNIQUES: Mapping[str, str] = {
    "2:4-sparsity": "two of each four weights are zero and are skipped",
    "pruning": "layers, heads or channels were taken out",
    "distillation": "trained to answer as a larger model does",
    "retraining": "the weights were trained further",
    "deepcache": "deep features of a diffusion model are reused between steps",
    "fewer-steps": "fewer denoising steps than the reference",
    "latent-consistency": "a diffusion model that was trained to need few steps",
    "early-exit": "samples may leave before the last layer",
    "speculative-decoding": "a draft of several tokens is checked at once",
    "prefix-caching": "work on a beginning that prompts share is kept between samples",
}
"""What each means. One that skips work also changes what is physically possible, so that a name
must be known: a free word could not."""
