"""Spellings and values of SGLang that were retired or renamed, and what stands for them today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from vivace.config.releases.tables import definitions, flags_at, latest, successor

if TYPE_CHECKING:
    from vivace.protocol.messages import Rewrite

RETIRED_SPELLING = "retired spelling"
"""rule of the rewrites of `RETIRED`"""
TP_FLAGS = ("--tp", "--tp-size", "--tensor-parallel-size")


class RetiredFlag(NamedTuple):
    """`today`: the words that replace the flag, "{tp}" being the tensor-parallel size typed.

    A value that follows the flag stays. No words: there is nothing left to ask for.
    """

    today: tuple[str, ...]
    why: str


RETIRED = {
    "--enable-deepep-moe": RetiredFlag(
        ("--moe-a2a-backend", "deepep"), "SGLang replaced this 0.4.x flag in 0.5"
    ),
    "--enable-ep-moe": RetiredFlag(
        ("--expert-parallel-size", "{tp}"),
        "SGLang replaced this 0.4.x flag; it meant as many expert as tensor ranks",
    ),
    "--disable-mla": RetiredFlag((), "SGLang removed it before 0.4.6: MLA models have one form"),
    "--enable-flashinfer-mla": RetiredFlag(
        ("--attention-backend", "flashinfer"), "SGLang replaced this 0.4.x flag"
    ),
    "--hybrid-kvcache-ratio": RetiredFlag(
        (), "SGLang ignores it since 0.5.8; --swa-full-tokens-ratio took its place"
    ),
    "--oltp-traces-endpoint": RetiredFlag(
        ("--otlp-traces-endpoint",), "a misspelling in SGLang's documentation"
    ),
    "--disable-tokenizer-batch-encode": RetiredFlag(
        ("--disable-tokenizer-batch-decode",), "a misspelling in SGLang's documentation"
    ),
}
BARE = frozenset({"--hybrid-kvcache-ratio"})
"""retired flags without successor that may be followed by a value"""

VALUES = {
    ("load_balance_method", "decode_round_robin"): (
        "auto",
        "a value of SGLang 0.5.7 only; auto covers what it did",
    ),
    ("load_balance_method", "shortest_queue"): ("total_requests", "its name in SGLang 0.4.x"),
    ("load_balance_method", "minimum_tokens"): ("total_tokens", "its name in SGLang 0.5.x"),
    ("nsa_prefill_cp_mode", "zigzag"): ("in-seq-split", "its name in SGLang 0.5.23"),
    ("nsa_prefill_cp_mode", "interleave"): ("round-robin-split", "its name in SGLang 0.5.23"),
}
"""(option name, retired or later value) -> (the value that stands for it, why)"""


def replace_retired(words: Sequence[str]) -> tuple[list[str], list[Rewrite]]:
    """The words with retired flags replaced, and a record of each replacement."""
    tensor_ranks = typed_value(words, TP_FLAGS) or "1"
    result: list[str] = []
    rewrites: list[Rewrite] = []
    after_bare = False
    for word in words:
        flag, equals, value = word.partition("=")
        retired = RETIRED.get(flag)
        if retired is None:
            if not (after_bare and not word.startswith("-")):
                result.append(word)
            after_bare = False
            continue
        after_bare = flag in BARE
        today = [part.format(tp=tensor_ranks) for part in retired.today]
        rewrites.append(replacement(flag, today, retired.why))
        if today and equals:
            today[-1] += f"={value}"
        result += today
    return result, rewrites


def replacement(flag: str, today: list[str], why: str) -> Rewrite:
    from vivace.protocol.messages import Rewrite

    field = flag.removeprefix("--").replace("-", "_")
    after = " ".join(today) or "left out"
    return Rewrite(
        field=field, before="given", after=after, rule=RETIRED_SPELLING, reason=why, typed=True
    )


def typed_value(words: Sequence[str], flags: tuple[str, ...]) -> str | None:
    """The last value typed for any of these flags."""
    found = None
    for word, following in pairwise([*words, ""]):
        flag, equals, value = word.partition("=")
        if flag in flags:
            found = value if equals else following
    return found


def renamed_flags(words: Sequence[str]) -> list[str]:
    """One line per spelling that current SGLang would not take, or calls by another name."""
    flags = dict.fromkeys(word.partition("=")[0] for word in words)
    return [line for flag in flags if (line := renamed_flag(flag))]


def renamed_flag(flag: str) -> str:
    row = flags_at(latest()).get(flag)
    if flag not in definitions() or (row is not None and row.state != "deprecated"):
        return ""
    today = successor(flag, latest())
    if today:
        return f"{flag} is called {today} in SGLang {latest()}; both work here"
    return "" if row is not None else f"{flag} is gone from SGLang {latest()}"


def today_values(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Rewrite]]:
    """Option values with retired ones replaced, and a record of each replacement."""
    from vivace.protocol.messages import Rewrite

    result = dict(values)
    rewrites: list[Rewrite] = []
    for (name, old), (new, why) in VALUES.items():
        if values.get(name) == old:
            result[name] = new
            rule = "retired value"
            rewrites.append(
                Rewrite(field=name, before=old, after=new, rule=rule, reason=why, typed=True)
            )
    return result, rewrites
