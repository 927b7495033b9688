"""Architectures that answer with numbers, and what is known about each. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

LINEAR, MLP, BERT, ROBERTA = "linear", "mlp", "bert", "roberta"
"""heads: `score` alone, two layers of it with a ReLU between them, and those of encoders"""
NOMIC = "nomic_bert"
"""a family of encoders without any"""


@dataclass(frozen=True)
class JudgeKind:
    """`labels`: how many numbers the head has; None: config.json says it. `steps`: it judges each
    step of reasoning."""

    head: str
    labels: int | None = 1
    steps: bool = False


JUDGES = {
    "ForSequenceClassification": JudgeKind(LINEAR, None),
    "InternLM2ForRewardModel": JudgeKind(LINEAR),
    "ForProcessRewardModel": JudgeKind(MLP, 2, steps=True),
    "ForRewardModel": JudgeKind(MLP),
}
"""ending of a decoder's class, the longest first -> its head"""


STEP_TOKEN = 151651
"""`<extra_0>` of Qwen2.5-Math-PRM, whose config.json does not name it"""


@dataclass(frozen=True)
class EncoderKind:
    """`prefix`: of its tensors; `classifies`: it has a head that judges texts and pairs of them."""

    family: str
    prefix: str
    classifies: bool


ENCODERS = {
    "BertModel": EncoderKind(BERT, "", False),
    "BertForSequenceClassification": EncoderKind(BERT, "bert", True),
    "RobertaModel": EncoderKind(ROBERTA, "", False),
    "RobertaForSequenceClassification": EncoderKind(ROBERTA, "roberta", True),
    "XLMRobertaModel": EncoderKind(ROBERTA, "", False),
    "XLMRobertaForSequenceClassification": EncoderKind(ROBERTA, "roberta", True),
    "NomicBertModel": EncoderKind(NOMIC, "", False),
}
