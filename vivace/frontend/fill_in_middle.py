"""Fill in the middle: prompts of what stands before and behind what the model is to write, in the
order that it was trained with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vivace.frontend.tokenizer import Tokenizer

FORMS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
"""what stands before the text in front, before the text behind, and before the answer"""
SUFFIX_FIRST = ("[SUFFIX]", "[PREFIX]")
"""Mistral's: the text behind comes first, and the answer follows the text in front"""
ENDS = (
    *("<|fim_pad|>", "<fim_pad>", "<fim-pad>"),
    *("<|repo_name|>", "<repo_name>", "<reponame>"),
    *("<|file_sep|>", "<file_sep>", "<|file_separator|>", "<filename>"),
    "▁<EOT>",
    "<EOT>",
)
"""what models write behind such an answer where they do not end the text"""
MARKS = ("☺", "\n")
"""no token of a text begins with the end of one, so what is behind it is divided as anywhere"""
NO_TOKENS = (
    "the model does not fill in the middle: its vocabulary has none of the tokens for it (such as "
    "<|fim_prefix|>); send a prompt alone"
)


@dataclass(frozen=True)
class MiddleTokens:
    """Ids: `begin` before the text in front, `hole` before the text behind, `middle` before the
    answer (none where the text in front comes last). `ends`: where answers end, too."""

    begin: int
    hole: int
    middle: int | None
    ends: tuple[int, ...]

    def prompt(
        self, special: Sequence[int], before: Sequence[int], behind: Sequence[int]
    ) -> list[int]:
        """`special`: what every prompt begins with."""
        if self.middle is None:
            return [*special, self.hole, *behind, self.begin, *before]
        return [*special, self.begin, *before, self.hole, *behind, self.middle]


def middle_tokens(tokenizer: Tokenizer) -> MiddleTokens | None:
    """None where the vocabulary has none."""
    ends = tuple(known for one in ENDS if (known := tokenizer.token_id(one)) is not None)
    for form in FORMS:
        begin, hole, middle = map(tokenizer.token_id, form)
        if begin is not None and hole is not None and middle is not None:
            return MiddleTokens(begin, hole, middle, (begin, hole, middle, *ends))
    hole, begin = map(tokenizer.token_id, SUFFIX_FIRST)
    if hole is None or begin is None:
        return None
    return MiddleTokens(begin, hole, None, (hole, begin, *ends))
