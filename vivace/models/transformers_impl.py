"""`--model-impl transformers`: architectures Vivace has not written, run by transformers' code.

Only classes that transformers itself ships are built (no code from a model directory). Weights come
from our checkpoint readers and go through transformers' own loading, which knows what published
files call them. Attention goes through our paged backend by way of transformers' attention
interface, as the trace of the model found it (`transformers_trace`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vivace.checkpoint.source import SourceError
from vivace.checkpoint.weights import CheckpointError, Weights
from vivace.layers.module import Bindings, Module
from vivace.models.causal_lm import ModelStep
from vivace.models.facts import AttentionFacts, ModelFacts
from vivace.models.transformers_check import check_same, probe
from vivace.models.transformers_facts import TraceRequest
from vivace.platforms.attention import AttentionLayer
from vivace.quantization.int8 import SCALE_SUFFIX, Int8AsFloats

ATTENTION = "vivace_paged"


@dataclass
class ForwardContext:
    """What the attention interface needs to know of the step under way, and how many of its
    attentions have run."""

    layers: list[AttentionLayer]
    step: ModelStep | None = None
    calls: int = 0


class TransformersModel(Module):
    """A `CausalLM` around transformers' own classes: the body computes hidden states, and the rest
    of the class (scalings and caps included) turns them into logits."""

    def __init__(self, facts: ModelFacts) -> None:
        self.facts = facts
        self.attention_layers = [
            attention_layer(index, found) for index, found in enumerate(facts.attention)
        ]
        self._context = ForwardContext(self.attention_layers)
        self._claims: Iterable[str] = ()
        self._body: Any = None
        self._head: Any = None

    def bind(self, name: str, env: Bindings) -> None:
        super().bind(name, env)
        if env.layout.dense.size > 1:
            raise SourceError("--model-impl transformers runs on one device")
        self._env = env

    def load(self, weights: Weights) -> None:
        """Build the network with the checkpoint's tensors, part body from head, and compare a few
        tokens with what transformers computes by itself. Raises SourceError where they differ."""
        from vivace.models.transformers_body import IdentityBody

        weights = Int8AsFloats(weights)
        self._claims = weights.names() or ()
        with quiet_transformers(), torch.inference_mode(False):
            network = self._network(weights)
        network.requires_grad_(False).to(self._env.device)
        wanted = [reference(network, ids) for ids in probe(self.facts.vocabulary)]
        for module in network.modules():
            module.vivace_context = self._context
        self._body = network.base_model
        setattr(network, network.base_model_prefix, IdentityBody())
        self._head = network
        check_same(self, wanted, f"{self.facts.architecture} with --model-impl transformers")

    def update(self, weights: Weights) -> None:
        raise SourceError("--model-impl transformers cannot take other weights; start it again")

    def claims(self) -> Iterator[str]:
        """All: `refuse_gaps` has seen which of them have no place."""
        return (name for one in self._claims for name in (one, one + SCALE_SUFFIX))

    def _network(self, weights: Weights) -> Any:
        import transformers

        from vivace.models.transformers_trace import CannotTrace, build_config, model_class

        transformers.AttentionInterface.register(ATTENTION, paged_attention)
        architecture = self.facts.architecture
        try:
            request = TraceRequest(architecture, self.facts.config)
            kind = model_class(request)
            config = build_config(request, kind)
            network, found = kind.from_pretrained(
                None,
                config=config,
                state_dict=load_tensors(weights, kind, config),
                attn_implementation=ATTENTION,
                dtype=self._env.dtype,
                output_loading_info=True,
            )
        except CannotTrace as error:
            raise SourceError(f"transformers cannot run {architecture}: {error}") from error
        except (CheckpointError, SourceError):
            raise
        except Exception as error:  # whatever the class of the model makes of bad values
            reason = " ".join(str(error).split())[:400]
            if OTHER_SHAPES in reason:  # the tensors are named in its log only
                raise CheckpointError(
                    f"the checkpoint does not fit {architecture}: its tensors have other shapes "
                    "than config.json says"
                ) from error
            raise SourceError(
                f"transformers {transformers.__version__} cannot load {architecture} from these "
                f"files: {type(error).__name__}: {reason}"
            ) from error
        refuse_gaps(architecture, found)
        return network

    def forward(self, step: ModelStep) -> Tensor:
        """One row of T tokens; which sequence each belongs to is the attention backend's affair."""
        self._context.step, self._context.calls = step, 0
        output = self._body(
            input_ids=step.input_ids.unsqueeze(0),
            position_ids=step.positions.unsqueeze(0),
            use_cache=False,
        )
        assert self._context.calls == len(self.attention_layers)
        return output.last_hidden_state[0]

    def lm_head(self, hidden: Tensor) -> Tensor:
        return self._head(inputs_embeds=hidden.unsqueeze(0), use_cache=False).logits[0].float()


def attention_layer(index: int, found: AttentionFacts) -> AttentionLayer:
    return AttentionLayer(
        index=index,
        heads=found.heads,
        kv_heads=found.kv_heads,
        head_dim=found.head_dim,
        scale=found.scale,
        window=found.window,
        soft_cap=found.soft_cap,
    )


def paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query[1, Hq, T, D], key[1, Hk, T, D], value[1, Hk, T, Dv].

    The n-th call of a forward pass is the n-th of its trace, whatever module it comes from.
    """
    context: ForwardContext = module.vivace_context
    layer, step = context.layers[context.calls], context.step
    context.calls += 1
    assert step is not None
    if s_aux is not None:
        layer = replace(layer, sinks=s_aux)
    q, k, v = (
        functional.pad(part[0].transpose(0, 1), (0, layer.head_dim - part.shape[3])).contiguous()
        for part in (query, key, value)
    )
    attended = step.attention.attend(layer, q, k, v, step)
    return attended.view(1, -1, layer.heads, layer.head_dim)[..., : value.shape[3]], None


def reference(network: Any, ids: list[int]) -> Tensor:
    """logits[T, vocabulary] of one sequence, by transformers' code alone."""
    network.set_attn_implementation("eager")
    found = network(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    network.set_attn_implementation(ATTENTION)
    return found


class LazyTensor:
    """A tensor of the checkpoint, read when transformers' loading (in threads) wants it."""

    def __init__(self, weights: Weights, name: str, lock: Lock) -> None:
        self._weights, self._name, self._lock = weights, name, lock

    def __getitem__(self, everything: object) -> Tensor:
        with self._lock:
            return self._weights.take(self._name, self._weights.shape(self._name))


def load_tensors(weights: Weights, kind: Any, config: Any) -> dict[str, Any]:
    """The checkpoint's tensors under its own names; for a dummy what the network asks for."""
    lock = Lock()
    if (names := weights.names()) is not None:
        return {name: LazyTensor(weights, name, lock) for name in names}
    with torch.device("meta"):
        network = kind._from_config(config)
    shapes = {name: tuple(one.shape) for name, one in network.state_dict().items()}
    return {name: weights.take(name, shape) for name, shape in shapes.items()}


OTHER_SHAPES = "ignore_mismatched_sizes"
"""what transformers' error about them speaks of"""


def refuse_gaps(architecture: str, found: dict[str, Any]) -> None:
    """Raises CheckpointError for what transformers would fill with random numbers or leave out."""
    troubles = {
        "missing_keys": "are missing",
        "unexpected_keys": "have no place",
        "error_msgs": "",
    }
    for key, what in troubles.items():
        if names := sorted(map(str, found.get(key) or ())):
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            raise CheckpointError(
                f"the checkpoint does not fit {architecture}: {', '.join(names[:4])}{more} {what}"
            )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """transformers reports to us, not to the terminal."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
