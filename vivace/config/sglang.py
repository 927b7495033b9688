"""Spellings of SGLang that were renamed or retired, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Retired:
    """`tokens` stand in for the flag (which took no value); `why` is shown."""

    tokens: tuple[str, ...]
    why: str


RETIRED = {
    "--enable-deepep-moe": Retired(
        ("--moe-a2a-backend", "deepep"), "became --moe-a2a-backend deepep in SGLang 0.5"
    ),
}
RENAMED = {
    "--oltp-traces-endpoint": "is a misspelling in the documentation of --otlp-traces-endpoint",
    "--disable-tokenizer-batch-encode": (
        "is a misspelling in the documentation of --disable-tokenizer-batch-decode"
    ),
    "--nsa-prefill-backend": "is called --dsa-prefill-backend in SGLang 0.5.23",
    "--nsa-decode-backend": "is called --dsa-decode-backend in SGLang 0.5.23",
    "--enable-nsa-prefill-context-parallel": "is called --enable-prefill-cp in SGLang 0.5.23",
    "--nsa-prefill-cp-mode": "is called --cp-strategy in SGLang 0.5.23",
    "--nccl-init-addr": "is an old name of --dist-init-addr",
    "--moe-dense-tp": "is short for --moe-dense-tp-size",
    "--enable-ep-moe": "became --ep-size in SGLang 0.5",
    "--disable-mla": "was removed before SGLang 0.4.6",
    "--enable-flashinfer-mla": "became --attention-backend flashinfer",
    "--hybrid-kvcache-ratio": "became --swa-full-tokens-ratio",
    "--prefill-round-robin-balance": "does nothing since SGLang 0.5.8",
    "--stream-output": "is called --incremental-streaming-output in SGLang 0.5.23",
    "--grpc-mode": "is called --smg-grpc-mode in SGLang 0.5.23",
}
VALUES = {
    ("load_balance_method", "decode_round_robin"): "exists in SGLang 0.5.7 only; it means auto",
}


def explained(tokens: list[str]) -> tuple[list[str], list[str]]:
    """(tokens with retired flags replaced, one notice per retired or renamed spelling)."""
    result: list[str] = []
    notices: list[str] = []
    for token in tokens:
        flag = token.split("=", 1)[0]
        if flag in RETIRED:
            result.extend(RETIRED[flag].tokens)
            notices.append(f"{flag} {RETIRED[flag].why}")
            continue
        if flag in RENAMED:
            notices.append(f"{flag} {RENAMED[flag]}")
        result.append(token)
    return result, list(dict.fromkeys(notices))
