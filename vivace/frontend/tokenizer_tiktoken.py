"""Tokenizers from tiktoken.model: a line for each token, its bytes in base64 and its rank (OpenAI's
tiktoken; Kimi-K2 2025). Of the neighbors in a word those join first whose result has the lowest
rank; a word that is a token is that token."""

from __future__ import annotations

import base64
import binascii

from tokenizers import Tokenizer as Core
from tokenizers import models

from vivace.checkpoint.fields import ConfigFields, Text, abbreviate
from vivace.frontend.errors import TokenizerError
from vivace.frontend.tokenizer_core import byte_alphabet
from vivace.frontend.tokenizer_gguf import SPLIT_RULES, byte_level_core, merges_by_score

CLASSES = {"TikTokenTokenizer": "kimi-k2"}
"""`tokenizer_class` -> how it splits texts, which the class's code says and no file"""
LONGEST_TOKEN = 512
"""bytes"""
MOST_RANKS = 1 << 20


def tiktoken_core(data: bytes, config: ConfigFields, where: str) -> Core:
    """Without special tokens, whose ids follow. Raises TokenizerError."""
    name = config.get("tokenizer_class", Text(), "")
    if name not in CLASSES:
        raise TokenizerError(
            f"{where}: how its tokens are found is in the code of the tokenizer_class "
            f"{abbreviate(name)}, which is not run; known is {', '.join(CLASSES)}. Pass "
            "--tokenizer-path to a folder with a tokenizer.json"
        )
    tokens = [written(token) for token in read_ranks(data, where)]
    ids = {token: rank for rank, token in enumerate(tokens)}
    merges = merges_by_score(tokens, [-float(rank) for rank in ids.values()], ids, where)
    model = models.BPE(vocab=ids, merges=merges, ignore_merges=True)
    return byte_level_core(model, SPLIT_RULES[CLASSES[name]])


def read_ranks(data: bytes, where: str) -> list[bytes]:
    """The tokens by rank. Raises TokenizerError: each rank has one, no two are the same, and every
    byte is one."""
    ranks: dict[int, bytes] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        token, rank = read_line(line, f"{where}: line {number}")
        if rank in ranks or rank >= MOST_RANKS:
            raise TokenizerError(f"{where}: line {number}: the rank {rank} again, or too large")
        ranks[rank] = token
    found = [ranks[rank] for rank in range(len(ranks)) if rank in ranks]
    if len(found) < len(ranks) or len(set(found)) < len(found):
        raise TokenizerError(f"{where}: ranks are left out or tokens are there twice; fetch again")
    if len({token for token in found if len(token) == 1}) < 256:
        raise TokenizerError(f"{where}: not every byte is a token; fetch it again")
    return found


def read_line(line: bytes, where: str) -> tuple[bytes, int]:
    first, _, second = line.strip().partition(b" ")
    try:
        token = base64.b64decode(first, validate=True)
        rank = int(second) if second.isdigit() and len(second) < 9 else -1
    except binascii.Error:
        token, rank = b"", -1
    if rank < 0 or not 0 < len(token) <= LONGEST_TOKEN:
        raise TokenizerError(f"{where}: not a token in base64 and its rank; fetch it again")
    return token, rank


WRITTEN = str.maketrans({chr(byte): character for character, byte in byte_alphabet().items()})


def written(token: bytes) -> str:
    """As byte-level vocabularies write it"""
    return token.decode("latin-1").translate(WRITTEN)
