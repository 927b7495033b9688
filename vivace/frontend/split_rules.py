"""How byte-level BPE vocabularies split text into words first, by the name a GGUF file gives.

The expressions are those of the models' own tokenizer.json files (Oniguruma syntax).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_APOSTROPHES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _APOSTROPHES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_QWEN2 = _APOSTROPHES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_QWEN35 = (
    _APOSTROPHES + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _TAIL
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_TEKKEN = _CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
_GPT4O = (
    _CASED % (_APOSTROPHES + "?", _APOSTROPHES + "?")
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + _TAIL
)
_SEED_CODER = (
    _APOSTROPHES
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _TAIL,
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


@dataclass(frozen=True, kw_only=True)
class SplitRule:
    """Expressions applied one after the other; every match stands alone.

    `whole_words`: a word that is in the vocabulary is one token, whatever the merges say.
    `adds_bos`: the family starts every prompt with the begin token unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        splits: list[PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns
        ]
        return pre_tokenizers.Sequence(
            [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )


_DIGITS_GPT2 = SplitRule(patterns=(r"\p{N}", _GPT2))
_PLAIN_GPT2 = SplitRule(patterns=(_GPT2,))
_LLAMA3_RULE = SplitRule(patterns=(_LLAMA3,), whole_words=True, adds_bos=True)
_QWEN2_RULE = SplitRule(patterns=(_QWEN2,))
_CASED_LETTERS = r"\s?[\p{Lu}\p{Ll}\p{Lt}]+"

_RULES: tuple[tuple[str, SplitRule], ...] = (
    ("gpt-2 gpt2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat mpt olmo", _PLAIN_GPT2),
    ("jais trillion granite-docling exaone4 a.x-4.0 mellum roberta-bpe modern-bert", _PLAIN_GPT2),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b", _DIGITS_GPT2),
    ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2", _LLAMA3_RULE),
    ("dbrx smaug-bpe glm4 chatglm-bpe", SplitRule(patterns=(_LLAMA3,))),
    ("qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan grok-2 solar-open", _QWEN2_RULE),
    ("qwen35", SplitRule(patterns=(_QWEN35,))),
    ("tekken", SplitRule(patterns=(_TEKKEN,), whole_words=True, adds_bos=True)),
    ("gpt-4o llama4 minimax-m2", SplitRule(patterns=(_GPT4O,))),
    ("seed-coder", SplitRule(patterns=(_SEED_CODER,))),
    ("bailingmoe bailingmoe2 llada-moe", SplitRule(patterns=(_BAILING,))),
    ("deepseek-v3 hunyuan-dense", SplitRule(patterns=_DEEPSEEK3)),
    (
        "deepseek-coder",
        SplitRule(patterns=("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    ),
    (
        "deepseek-llm",
        SplitRule(
            patterns=("[\r\n]", _CASED_LETTERS, _PUNCTUATION, r"\s+$", _CJK, r"\p{N}+"),
        ),
    ),
    ("falcon", SplitRule(patterns=_FALCON)),
    ("default", SplitRule(patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9]{3}"))),
    ("bloom poro-chat gpt3-finnish", SplitRule(patterns=(_BLOOM,))),
    ("viking", SplitRule(patterns=(_BLOOM, r"\p{N}"))),
)

SPLIT_RULES: dict[str, SplitRule] = {name: rule for names, rule in _RULES for name in names.split()}
