"""What transformers' code does with a configuration, found by running its forward pass over
tensors without content: how it attends, and whether Vivace can do the same.

No key of a configuration is interpreted here. Shapes, scales and sinks of every attention are what
the class hands to transformers' attention interface; masks are what it asks of transformers' mask
functions. What is not known to be right is refused, with the reason. As a program it reads a
`TraceRequest` and writes a `TraceResult` (`launch/transformers_process.py` starts it).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import masking_utils

from vivace.checkpoint.errors import SourceError
from vivace.models.config_fields import MOST_LAYERS
from vivace.models.facts import AttentionFacts, TracedModel
from vivace.models.transformers_facts import TraceRequest, TraceResult

TRACED = "vivace_traced"
TOKENS = 5
"""of the traced step"""
LONGEST_MASK = 1 << 18
"""tokens over which a mask is read"""
ASSUMED_CONTEXT = 2048
"""tokens, where a configuration does not say"""
PLAIN = frozenset(("dropout", "position_ids", "is_causal", "cache_position", "sliding_window"))
"""keywords of the attention interface that say no more than the mask and the tokens do"""
FLAGS = ("use_cache", "output_", "return_")
MIXING = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase, nn.modules.batchnorm._BatchNorm)
"""modules that mix the tokens of a step, which may be of several sequences"""
GROWING = ("dynamic", "longrope")
"""kinds of rotary embedding that turn all tokens of a step by its longest sequence"""
IGNORED = frozenset(
    "architectures torch_dtype dtype auto_map _name_or_path model_type transformers_version "
    "attn_implementation _attn_implementation experts_implementation _experts_implementation "
    "quantization_config compression_config fusion_config transformers_weights return_dict "
    "torchscript output_attentions output_hidden_states output_router_logits use_cache".split()
)
"""keys of a config.json that are about other things than the network"""


OWN_ATTENTION = "it attends by itself, not through transformers' attention interface"


class CannotTrace(SourceError):
    """Vivace cannot run the model through transformers; the text is the reason."""


def trace(request: TraceRequest) -> TracedModel:
    """Raises CannotTrace."""
    kind = model_class(request)
    config = build_config(request, kind)
    text = config.get_text_config(decoder=True)
    layers = getattr(text, "num_hidden_layers", None) or 1
    if not 0 < layers <= MOST_LAYERS:
        raise CannotTrace(f"it has more than {MOST_LAYERS} layers")
    max_positions = getattr(text, "max_position_embeddings", None) or ASSUMED_CONTEXT
    recorder = ForwardRecorder(max_positions)
    with recorder.register(), torch.no_grad():
        network = build_network(kind, config)
        parameters = sum(one.numel() for one in network.parameters())
        recorder.context, limits = longest_exact(network, max_positions)
        hidden_size, vocabulary = run(network, recorder)
    if len(recorder.calls) < layers:
        raise CannotTrace(f"of its {layers} layers {layers - len(recorder.calls)} are no attention")
    return TracedModel(
        attention=tuple(recorder.calls),
        hidden_size=hidden_size,
        vocabulary=vocabulary,
        context=recorder.context,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
        parameters=parameters,
        limits=limits,
    )


def model_class(request: TraceRequest) -> Any:
    """transformers' class for causal language models of the model's type."""
    model_type = request.config.get("model_type")
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        raise CannotTrace(f"it has no model type {model_type!r}; code from a model is never run")
    settings = transformers.CONFIG_MAPPING[model_type]
    if settings not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise CannotTrace(f"it has no causal language model of the type {model_type!r}")
    kind: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[settings]
    if kind.__name__ != request.architecture:
        raise CannotTrace(
            f"its causal language model of the type {model_type!r} is {kind.__name__}"
        )
    if kind._is_stateful:
        raise CannotTrace(
            "it keeps a state beside keys and values (recurrent or convolution layers)"
        )
    return kind


def build_config(request: TraceRequest, kind: Any) -> Any:
    """transformers' configuration, without what a checkpoint may not decide; its text model's part
    where the class is that of the text model."""
    keys = {key: value for key, value in request.config.items() if key not in IGNORED}
    with refuse_errors("it does not take this configuration"):
        config = transformers.AutoConfig.for_model(request.config["model_type"], **keys)
        return config if kind.config_class is type(config) else config.get_text_config()


def build_network(kind: Any, config: Any) -> Any:
    """The network without content."""
    with refuse_errors("it cannot build this network"):
        config._attn_implementation = TRACED
        with torch.device("meta"):
            network = kind._from_config(config, dtype=torch.bfloat16).eval()
    body = network.base_model
    if body is network:
        raise CannotTrace("its class has no body that runs without its head")
    if "position_ids" not in inspect.signature(body.forward).parameters:
        raise CannotTrace("it does not take positions")
    mixing = {type(one).__name__ for one in language_modules(body) if isinstance(one, MIXING)}
    if mixing:
        raise CannotTrace(f"it mixes tokens outside of attention ({', '.join(sorted(mixing))})")
    return network


def language_modules(body: nn.Module) -> Iterator[nn.Module]:
    """Without those for pictures and sound, which text does not pass through."""
    for name, module in body.named_modules():
        if not any(word in name for word in ("vision", "visual", "audio", "speech", "image")):
            yield module


def longest_exact(network: nn.Module, context: int) -> tuple[int, tuple[str, ...]]:
    """Tokens up to which each sequence's rotary embedding is its own affair, and what to say."""
    for module in network.modules():
        kinds = getattr(module, "rope_type", None)
        growing = [
            k for k in (kinds.values() if isinstance(kinds, dict) else [kinds]) if k in GROWING
        ]
        if not growing:
            continue
        trained = getattr(module, "original_max_seq_len", None) or context
        parameters = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
        trained = parameters.get("original_max_position_embeddings") or trained
        if trained < context:
            why = (
                f"transformers stretches {growing[0]} rotary embeddings for all sequences of a "
                f"step at once, so --model-impl transformers serves {trained} of {context} tokens"
            )
            return int(trained), (why,)
    return context, ()


def run(network: Any, recorder: ForwardRecorder) -> tuple[int, int]:
    """Body and head, once; returns (hidden size, vocabulary)."""
    from vivace.models.transformers_body import IdentityBody

    ids = torch.zeros((1, TOKENS), dtype=torch.int64, device="meta")
    with DataDependentOps():
        with refuse_errors("its forward pass cannot be followed"):
            output = network.base_model(input_ids=ids, position_ids=ids, use_cache=False)
            hidden = output.last_hidden_state
        if not recorder.calls:
            raise CannotTrace(OWN_ATTENTION)
        with refuse_errors("its head does not run without its body"):
            setattr(network, network.base_model_prefix, IdentityBody())
            logits = network(inputs_embeds=hidden, use_cache=False).logits
    if tuple(logits.shape[:2]) != (1, TOKENS):
        raise CannotTrace("its head does not give logits for each token")
    return hidden.shape[2], logits.shape[2]


@dataclass
class ForwardRecorder:
    """Stands in for transformers' attention and masks and keeps what a forward pass asks of them.
    Windows are read within `context` tokens."""

    context: int
    calls: list[AttentionFacts] = field(default_factory=list)
    masks: dict[int, tuple[Tensor, int | None]] = field(default_factory=dict)
    """of each mask, by its identity: itself (so that the identity stays its own), its window"""

    @contextmanager
    def register(self) -> Iterator[None]:
        """transformers asks us. That a step's positions are of one sequence is taken for granted:
        tensors without content cannot say it."""
        transformers.AttentionInterface.register(TRACED, self.attend)  # pyright: ignore[reportArgumentType]
        transformers.AttentionMaskInterface.register(TRACED, self.mask)
        packed = masking_utils.find_packed_sequence_indices
        masking_utils.find_packed_sequence_indices = lambda position_ids: None
        try:
            yield
        finally:
            masking_utils.find_packed_sequence_indices = packed

    def mask(self, *_: Any, mask_function: Callable[..., Tensor], **__: Any) -> Tensor:
        """transformers' mask interface."""
        window = sliding_window(mask_function, min(self.context, LONGEST_MASK))
        mask = torch.empty((1, 1, TOKENS, TOKENS), dtype=torch.bool, device="meta")
        self.masks[id(mask)] = (mask, window)
        return mask

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **others: object,
    ) -> tuple[Tensor, None]:
        """transformers' attention interface."""
        check_keywords(others)
        check_shapes(query, key, value, s_aux)
        if id(attention_mask) not in self.masks:
            missing = "it attends without a mask", "it makes masks of its own"
            raise CannotTrace(missing[attention_mask is not None])
        self.calls.append(
            AttentionFacts(
                heads=query.shape[1],
                kv_heads=key.shape[1],
                key_dim=key.shape[3],
                value_dim=value.shape[3],
                scale=float(query.shape[3] ** -0.5 if scaling is None else scaling),
                window=self.masks[id(attention_mask)][1],
                soft_cap=None if softcap is None else float(softcap),
                sinks=s_aux is not None,
            )
        )
        return query.new_empty(1, TOKENS, query.shape[1], value.shape[3]), None


def check_keywords(keywords: dict[str, object]) -> None:
    unknown = [
        name
        for name, value in keywords.items()
        if value is not None and name not in PLAIN and not name.startswith(FLAGS)
    ]
    if unknown:
        raise CannotTrace(f"its attention wants {' and '.join(sorted(unknown))}")


def check_shapes(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> None:
    if not query.dim() == key.dim() == value.dim() == 4 or query.shape[0] != 1:
        raise CannotTrace("its attention is not over one row of tokens")
    if {query.shape[2], key.shape[2], value.shape[2]} != {TOKENS}:
        raise CannotTrace("it attends to other things than the tokens before")
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads % kv_heads or value.shape[1] != kv_heads or key.shape[3] != query.shape[3]:
        raise CannotTrace("its attention heads do not share keys and values evenly")
    if sinks is not None and sinks.numel() != heads:
        raise CannotTrace("its attention sinks are not one for each head")


def sliding_window(mask_function: Callable[..., Tensor], context: int) -> int | None:
    """The window of a causal mask in tokens, None = full, from what it shows to some queries of
    `context`. Raises CannotTrace for any other mask."""
    keys, zero = torch.arange(context), torch.tensor(0)
    places = {0, 1, 2, context // 3, context // 2, context - 2, context - 1}
    shown = {
        query: torch.as_tensor(mask_function(zero, zero, torch.tensor(query), keys))
        for query in sorted(places & set(range(context)))
    }
    if any(allowed.is_meta for allowed in shown.values()):
        raise CannotTrace("its attention mask depends on the tokens")
    window = int(shown[context - 1].expand(context).sum())
    for query, allowed in shown.items():
        wanted = (keys <= query) & (keys > query - window)
        if not torch.equal(allowed.expand(context), wanted):
            raise CannotTrace("its attention mask is neither causal nor a sliding window")
    return None if window == context else window


class DataDependentOps(TorchDispatchMode):
    """Answers what depends on the content of tensors that have none (`device="meta"`): conditions
    hold, no expert is chosen."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        aten, first = torch.ops.aten, args[0] if args else None
        if isinstance(first, Tensor) and first.is_meta:
            if func is aten._local_scalar_dense.default:
                return first.dtype is torch.bool
            if func is aten.nonzero.default:
                return first.new_empty((0, first.dim()), dtype=torch.int64)
        return func(*args, **(kwargs or {}))


@contextmanager
def refuse_errors(what: str) -> Iterator[None]:
    """Whatever an unknown class raises is a reason to refuse it."""
    try:
        yield
    except CannotTrace:
        raise
    except Exception as error:
        if isinstance(error, KeyError) and TRACED in error.args:
            raise CannotTrace(OWN_ATTENTION) from error
        reason = " ".join(str(error).split())[:300]
        raise CannotTrace(f"{what}: {type(error).__name__}: {reason}") from error


def trace_result(request: TraceRequest) -> TraceResult:
    try:
        return TraceResult(traced=trace(request))
    except CannotTrace as error:
        return TraceResult(refused=str(error))


def main() -> None:
    output, sys.stdout = sys.stdout.buffer, sys.stderr  # whatever transformers prints
    transformers.logging.set_verbosity_error()
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=TraceRequest)
    output.write(msgspec.json.encode(trace_result(request)))
    output.flush()
