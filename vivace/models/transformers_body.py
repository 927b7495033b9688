"""A stand-in for the body of a transformers model, so that its head can be run alone."""

from __future__ import annotations

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast


class BodyOutput(BaseModelOutputWithPast):
    """A body's output with nothing but the last hidden state; heads may ask for more by name."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class IdentityBody(nn.Module):
    """Returns `inputs_embeds` as the last hidden state, and stands for its parts as well."""

    def __getattr__(self, name: str) -> IdentityBody:
        if name.startswith("_"):
            raise AttributeError(name)
        return self

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> BodyOutput:
        return BodyOutput(last_hidden_state=inputs_embeds)  # pyright: ignore[reportArgumentType]
