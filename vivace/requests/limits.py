"""How much one request may hold. The lists of the schemas carry these limits as annotations; a
longer list is refused while it is decoded, before anything is made of it.

Lists whose entries are checked one by one later (stop strings, stop ids, logit_bias) have a lower
limit there: `ServedModel`.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta

T = TypeVar("T")

PROMPTS = 2048
"""Prompts of one request, and entries of what may be given once per prompt."""
MESSAGES = 8192
PARTS = 4096
"""Content parts of one message."""
CALLS = 512
"""Tool calls of one message."""
IDS = 1 << 20
"""Token ids of one prompt: more than any context."""
CHOSEN_IDS = 4096
"""Token ids of a setting, such as stop_token_ids."""
ENTRIES = 4096
"""Of any other list, and members of an object such as logit_bias."""
LOGPROBS = 1 << 22
"""Log-probabilities one answer may have to hold, of all its sequences: about 130 bytes each."""
HIDDEN_STATES = 1 << 24
"""Numbers of hidden states one answer may have to hold, of all its sequences: 4 bytes each, and
about 20 as JSON."""

DEPTH = 64
"""Lists and objects inside each other."""
VALUES = 1 << 16
"""Values of one body, those of unknown fields included; token ids of prompts are not counted."""
PART_VALUES = 1 << 14
"""Values of one field, or of one entry of its list."""

PerPrompt = Annotated[list[T], Meta(max_length=PROMPTS)]
Prompts = Annotated[list[T], Meta(max_length=IDS)]
"""One prompt as token ids, or at most PROMPTS prompts."""
Ids = Annotated[list[int], Meta(max_length=IDS)]
Chosen = Annotated[list[T], Meta(max_length=CHOSEN_IDS)]
Messages = Annotated[list[T], Meta(max_length=MESSAGES)]
Parts = Annotated[list[T], Meta(max_length=PARTS)]
Calls = Annotated[list[T], Meta(max_length=CALLS)]
Entries = Annotated[list[T], Meta(max_length=ENTRIES)]
Members = Annotated[dict[str, T], Meta(max_length=ENTRIES)]
