"""The embedded model from its GGUF file, against transformers with the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from embedded_model import SHAPE, converted
from paged_model import PagedModel, load
from torch import Tensor

from vivace.checkpoint.source import ModelSource, locate
from vivace.models.facts import read_facts

PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]


@pytest.fixture(scope="module")
def source() -> ModelSource:
    return locate(None)


@pytest.fixture(scope="module")
def theirs(source: ModelSource) -> Any:
    config = transformers.LlamaConfig(
        **SHAPE,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    tensors = converted(source.path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()


@pytest.fixture(scope="module")
def wanted(theirs: Any) -> tuple[Tensor, list[Tensor]]:
    """Logits (tokens, vocabulary) of the prompt; of its last token and 64 greedy ones behind."""
    with torch.inference_mode():
        answer = theirs(input_ids=torch.tensor([PROMPT]), use_cache=True)
        prompt, behind = answer.logits[0], [answer.logits[0, -1]]
        for _ in range(64):
            token = behind[-1].argmax().reshape(1, 1)
            answer = theirs(input_ids=token, past_key_values=answer.past_key_values)
            behind.append(answer.logits[0, -1])
    return prompt, behind


def test_the_file_is_understood(source: ModelSource) -> None:
    facts = read_facts(source)
    assert source.embedded
    assert source.format == "gguf"
    assert source.tokenizer_path == source.path
    assert facts.architecture == "LlamaForCausalLM"
    assert (facts.layers, facts.hidden_size, facts.heads, facts.kv_heads) == (30, 576, 9, 3)
    assert (facts.head_dim, facts.vocabulary, facts.context) == (64, 49152, 8192)
    assert facts.tied
    assert facts.dtype == "bfloat16"
    assert facts.eos_ids == (2,)
    assert round(facts.parameters / 1e6) == 134


def test_logits_and_64_greedy_tokens_equal_transformers(
    source: ModelSource, wanted: tuple[Tensor, list[Tensor]]
) -> None:
    ours = PagedModel(load(None, source=source, positions=256), page_size=16)
    prompt, behind = wanted
    found = ours.feed("a", PROMPT, [5, 11])
    torch.testing.assert_close(found, prompt, rtol=1e-3, atol=2e-3)

    last = found[-1]
    for logits in behind[:-1]:
        token = int(logits.argmax())
        assert int(last.argmax()) == token
        last = ours.step({"a": [token]})["a"][-1]
    torch.testing.assert_close(last, behind[-1], rtol=1e-3, atol=2e-3)


def test_bfloat16_answers_the_same_question(
    source: ModelSource, wanted: tuple[Tensor, list[Tensor]]
) -> None:
    """What is served by default: rounding may change a close call, not what the model knows."""
    dtype = torch.bfloat16
    ours = PagedModel(load(None, source=source, positions=64, dtype=dtype), dtype=dtype)
    found, prompt = ours.feed("a", PROMPT, [16]), wanted[0]
    close = torch.nn.functional.cosine_similarity(found, prompt, dim=-1)
    assert close.min() > 0.99
    assert int(found[-1].argmax()) == int(prompt[-1].argmax())
