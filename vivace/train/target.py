"""What of the served model training needs: its embedding, its head's rows for the tokens that may
be drafted, and the shape of a head for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import functional

from vivace.checkpoint.open import open_weights
from vivace.checkpoint.weights import EMBEDDING, OUTPUT
from vivace.config.draft_heads import OTHER_RESIDUALS, TAPPED
from vivace.config.parallelism import requested_sizes
from vivace.errors import CannotStart

if TYPE_CHECKING:
    from vivace.config.config import Config
    from vivace.models.facts import ModelFacts

NORM = "model.norm.weight"
FEWEST_LAYERS = 3
HEAD_DIM = 128
"""of a head for a model whose attention has another form"""


@dataclass(frozen=True, kw_only=True)
class TargetWeights:
    """`embedding`[vocabulary, hidden] in the type of the file, `norm`[hidden], `output`[vocabulary,
    hidden]: of the head."""

    embedding: Tensor
    output: Tensor
    norm: Tensor

    def embed(self, ids: Tensor) -> Tensor:
        """-> [..., hidden] float32"""
        return functional.embedding(ids, self.embedding).float()

    def rows(self, ids: Tensor) -> Tensor:
        """-> [n, hidden] float32 of the head"""
        return self.output.index_select(0, ids).float()


def check_target(config: Config) -> None:
    """Raises CannotStart for a model that no head drafts for, and for flags of other uses."""
    facts = config.facts
    if requested_sizes(config).engine_ranks > 1:
        raise CannotStart("training is one process: leave --tp-size and --pp-size out")
    if config.draft_width or config.model.is_embedding:
        raise CannotStart(
            "training runs the model alone: leave --speculative-algorithm and --is-embedding out"
        )
    if facts.decoder is None or facts.architecture in OTHER_RESIDUALS:
        raise CannotStart(
            f"{config.source.path}: heads do not draft for {facts.architecture} here; nothing can "
            "be trained for it (NGRAM and STANDALONE draft for every model: docs/speculative.md)"
        )
    if facts.layers < FEWEST_LAYERS:
        raise CannotStart(
            f"{config.source.path}: it has {facts.layers} layers, and a head reads what "
            f"{FEWEST_LAYERS} of them are given"
        )


def choose_taps(layers: int) -> tuple[int, ...]:
    """Whose inputs the head reads: of the third layer, the middle one and the third last one, as
    published heads do; of fewer than seven layers the last three."""
    if layers < 7:
        return tuple(range(layers - 3, layers))
    return (2, layers // 2, layers - 3)


def read_target(config: Config) -> TargetWeights:
    """Raises CannotStart."""
    facts, seed = config.facts, config.runtime.random_seed or 0
    weights = open_weights(config.source, facts, seed=seed)
    shape = facts.vocabulary, facts.hidden_size
    embedding = weights.take(EMBEDDING, shape)
    output = embedding if weights.tied else weights.take(OUTPUT, shape)
    norm = weights.take(NORM, (facts.hidden_size,))
    return TargetWeights(embedding=embedding, output=output, norm=norm)


def head_config(config: Config, taps: Sequence[int], vocabulary: int) -> dict[str, Any]:
    """The config.json of a head with a draft vocabulary of so many tokens."""
    facts, given = config.facts, config.source.config
    assert facts.decoder is not None
    rope = facts.decoder.rope
    head_dim = facts.head_dim if facts.latent is None else HEAD_DIM
    heads = facts.heads if facts.latent is None else max(1, facts.hidden_size // HEAD_DIM)
    described = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "draft_vocab_size": vocabulary,
        "eagle_config": {TAPPED: [tap - 1 for tap in taps]},
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": facts.hidden_size,
        "intermediate_size": inner_width(facts),
        "max_position_embeddings": facts.context,
        "num_attention_heads": heads,
        "num_hidden_layers": 1,
        "num_key_value_heads": facts.kv_heads if facts.latent is None else heads,
        "rms_norm_eps": facts.decoder.norm_eps,
        "rope_theta": rope.theta,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": facts.vocabulary,
    }
    ends = {name: given[name] for name in ("bos_token_id", "eos_token_id") if given.get(name)}
    return {**described, **ends}


def inner_width(facts: ModelFacts) -> int:
    """Of the head's MLP: that of the model's, of a mixture that of all experts of a token."""
    experts = facts.decoder.experts if facts.decoder is not None else None
    if experts is None:
        return facts.intermediate_size
    return max(experts.width * experts.choice.top, 2 * facts.hidden_size)
