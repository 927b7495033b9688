"""Models that answer with numbers in whole engines, against transformers' own classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedding_toys import write_modules, write_tokenizer
from encoder_toys import read_inputs, write_as_nomic, write_encoder, write_judge
from safetensors.torch import load_file, save_file
from toy_models import make

import vivace
from vivace.api import Engine
from vivace.config.parsing import from_arguments
from vivace.launch.configure import configure
from vivace.launch.summary import curl

EXACT: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
TEXTS = ["The sea is wide.", "why?", "The sky is high and the sea is wide, how high? " * 3]
PAIRS = [["why?", "The sea is wide."], ["how high is the sky?", "ten"], ["a", "the fish"]]

Start = Callable[..., Engine]


@pytest.fixture
def start() -> Iterator[Start]:
    engines: list[Engine] = []

    def begin(folder: Path, **flags: Any) -> Engine:
        flags = {"dtype": "float32", "cpu_threads": 1, "max_total_tokens": 4096, **flags}
        engines.append(Engine(folder, **flags))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.shutdown()


# --- decoders with a head -------------------------------------------------------------------


def compute_logits(model: Any, ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()


IDS = [[5, 6, 7], list(range(3, 90)), [200] * 40, [9]]


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("Llama", {"num_labels": 1}),
        ("Qwen2", {"num_labels": 3}),
        ("Qwen3", {"num_labels": 2, "head_dim": 16}),
        ("Mistral", {"num_labels": 5, "sliding_window": None}),
        ("Gemma2", {"num_labels": 2, "head_dim": 16, "query_pre_attn_scalar": 10}),
    ],
)
@pytest.mark.parametrize("flags", [{}, {"disable_cpu_kernels": True}, {"chunked_prefill_size": 16}])
def test_heads_of_decoders(
    tmp_path: Path, start: Start, family: str, settings: dict[str, Any], flags: dict[str, Any]
) -> None:
    model = write_judge(tmp_path, family, **settings)
    engine = start(tmp_path, skip_tokenizer_init=True, **flags)
    for _ in range(2):  # the second time prefixes are cached
        answers: Any = engine.encode(input_ids=IDS)
        for ids, answer in zip(IDS, answers, strict=True):
            np.testing.assert_allclose(answer["embedding"], compute_logits(model, ids), **EXACT)
            assert len(answer["embedding"]) == settings["num_labels"]
    assert engine.get_server_info()["audit"] == []
    with pytest.raises(vivace.BadRequest):
        engine.generate(input_ids=IDS[0])
    with pytest.raises(vivace.BadRequest, match="dimensions"):
        engine.encode(input_ids=IDS[0], dimensions=1)


def test_a_reward_model_has_two_layers(tmp_path: Path, start: Start) -> None:
    """Qwen2ForRewardModel, which transformers does not have."""
    model = write_judge(tmp_path, "Qwen2", num_labels=7)
    file = tmp_path / "model.safetensors"
    generator = torch.Generator().manual_seed(1)
    first, second = (
        (torch.randn(n, 96, generator=generator), torch.randn(n, generator=generator))
        for n in (96, 1)
    )
    weights = {name: one for name, one in load_file(file).items() if name != "score.weight"}
    weights |= {"score.0.weight": first[0], "score.0.bias": first[1]}
    save_file({**weights, "score.2.weight": second[0], "score.2.bias": second[1]}, file)
    rename_class(tmp_path, "Qwen2ForRewardModel")
    answers: Any = start(tmp_path, skip_tokenizer_init=True).encode(input_ids=IDS)
    for ids, answer in zip(IDS, answers, strict=True):
        with torch.inference_mode():
            states = model.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state
            inner = torch.relu(torch.nn.functional.linear(states[0, -1], *first))
            expected = torch.nn.functional.linear(inner, *second)
        np.testing.assert_allclose(answer["embedding"], expected, atol=1e-4, rtol=1e-4)


def test_internlm2_makes_a_reward_of_the_last_token(tmp_path: Path, start: Start) -> None:
    """InternLM2ForRewardModel: as `v_head` in the place of the output layer."""
    model = make("InternLM2", tmp_path, vocab_size=260)
    file = tmp_path / "model.safetensors"
    head = torch.randn(1, 96, generator=torch.Generator().manual_seed(1))
    weights = {name: one for name, one in load_file(file).items() if name != "output.weight"}
    save_file({**weights, "v_head.weight": head}, file)
    rename_class(tmp_path, "InternLM2ForRewardModel")
    answers: Any = start(tmp_path, skip_tokenizer_init=True).encode(input_ids=IDS)
    for ids, answer in zip(IDS, answers, strict=True):
        with torch.inference_mode():
            expected = model.model(torch.tensor([ids]))[0, -1] @ head[0]
        assert answer["embedding"] == pytest.approx([float(expected)], abs=1e-4)


STEP = 7


def judge_steps(folder: Path, **settings: Any) -> Any:
    """A random Qwen2ForProcessRewardModel, which transformers does not have; returns the function
    from ids to its logits[steps, 2] by the published rule."""
    model = write_judge(folder, "Qwen2", num_labels=7, **settings)
    file = folder / "model.safetensors"
    weights = {name: one for name, one in load_file(file).items() if name != "score.weight"}
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(96, 96), torch.nn.ReLU(), torch.nn.Linear(96, 2))
    head = {f"score.{name}": one for name, one in layers.state_dict().items()}
    save_file(weights | head, file)
    rename_class(folder, "Qwen2ForProcessRewardModel", step_tag_id=STEP)

    def compute(ids: list[int]) -> np.ndarray:
        with torch.inference_mode():
            states = model.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state
            return layers(states[0])[torch.tensor(ids) == STEP].numpy()

    return compute


@pytest.mark.parametrize("flags", [{}, {"disable_cpu_kernels": True}, {"chunked_prefill_size": 16}])
def test_a_process_reward_model_judges_each_step(
    tmp_path: Path, start: Start, flags: dict[str, Any]
) -> None:
    compute = judge_steps(tmp_path)
    engine = start(tmp_path, skip_tokenizer_init=True, **flags)
    prompts = [[STEP], [5, STEP, 6, STEP], [*range(3, 90), STEP, *[8, STEP] * 12, 9], [9, STEP]]
    for _ in range(2):  # a cached prefix would hide steps
        answers: Any = engine.encode(input_ids=prompts)
        for ids, answer in zip(prompts, answers, strict=True):
            expected = compute(ids)
            assert len(expected) == ids.count(STEP)
            np.testing.assert_allclose(answer["embedding"], expected, **EXACT)
            assert answer["meta_info"]["cached_tokens"] == 0
    with pytest.raises(vivace.BadRequest, match="7") as caught:
        engine.encode(input_ids=[[STEP], [5, 6]])
    assert caught.value.field == "input_ids[1]"


def test_the_token_that_ends_a_step_is_in_the_vocabulary(tmp_path: Path, start: Start) -> None:
    judge_steps(tmp_path)
    config = configure(from_arguments(model_path=str(tmp_path), skip_tokenizer_init=True))
    assert f'"input": [{STEP}]' in " ".join(curl(config, "http://127.0.0.1:1", "judge"))
    rename_class(tmp_path, "Qwen2ForProcessRewardModel", step_tag_id=None)
    with pytest.raises(vivace.CannotStart, match="step_tag_id"):
        start(tmp_path)


def rename_class(folder: Path, name: str, **more: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [name], **more}))


def test_a_decoder_may_rank_pairs(tmp_path: Path, start: Start) -> None:
    model = write_judge(tmp_path, "Qwen2", num_labels=1)
    write_tokenizer(tmp_path)
    answers: Any = start(tmp_path).rerank([["ab", "c"]])
    (number,) = compute_logits(model, [*b"abc"])  # its tokenizer's template says nothing of pairs
    assert answers[0]["embedding"] == pytest.approx(1 / (1 + np.exp(-number)), abs=1e-5)


# --- encoders -------------------------------------------------------------------------------


def compute_states(model: Any, folder: Path, text: str) -> torch.Tensor:
    with torch.inference_mode():
        return model(**read_inputs(folder, text)).last_hidden_state[0].double()


@pytest.mark.parametrize("name", ["BertModel", "XLMRobertaModel", "RobertaModel", "NomicBertModel"])
@pytest.mark.parametrize("pooling", [None, "mean", "cls"])
@pytest.mark.parametrize("flags", [{}, {"disable_cpu_kernels": True}])
def test_vectors_of_encoders(
    tmp_path: Path, start: Start, name: str, pooling: str | None, flags: dict[str, Any]
) -> None:
    model = write_encoder(tmp_path, name)
    if pooling is not None:
        write_modules(tmp_path, pooling, True, 48)
    engine = start(tmp_path, **flags)
    for _ in range(2):
        answers: Any = engine.encode(TEXTS)
        for text, answer in zip(TEXTS, answers, strict=True):
            states = compute_states(model, tmp_path, text)
            pooled = states.mean(0) if pooling == "mean" else states[0]
            np.testing.assert_allclose(answer["embedding"], pooled / pooled.norm(), **EXACT)
            assert answer["meta_info"]["cached_tokens"] == 0
    info = engine.get_server_info()
    assert info["audit"] == [] and info["is_embedding"] is True
    assert info["chunked_prefill_size"] == -1


def test_files_of_nomics_own_class(tmp_path: Path, start: Start) -> None:
    model = write_encoder(tmp_path, "NomicBertModel")
    write_as_nomic(tmp_path)
    answers: Any = start(tmp_path).encode(TEXTS)
    for text, answer in zip(TEXTS, answers, strict=True):
        state = compute_states(model, tmp_path, text)[0]
        np.testing.assert_allclose(answer["embedding"], state / state.norm(), **EXACT)


@pytest.mark.parametrize(
    "name",
    ["encoder.layers.1.attn.Wqkv.weight", "encoder.layers.0.mlp.fc11.weight", "emb_ln.bias"],
)
def test_what_files_lack_is_named_as_they_would(tmp_path: Path, name: str) -> None:
    write_encoder(tmp_path, "NomicBertModel")
    write_as_nomic(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights[name]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(vivace.CannotStart, match="missing") as caught:
        Engine(tmp_path, cpu_threads=1)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            ("prenorm", True),
            ("rotary_emb_fraction", 0.5),
            ("moe_every_n_layers", 2),
            ("n_head", 5),
        ),
        *(("activation_function", "gelu"), ("causal", True), ("rotary_emb_scale_base", 512)),
        ("n_head", 16),
    ],
)
def test_other_models_of_nomic_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    write_encoder(tmp_path, "NomicBertModel")
    write_as_nomic(tmp_path, **{key: value})
    with pytest.raises(vivace.CannotStart, match=key) as caught:
        Engine(tmp_path)
    wrong = key == "n_head"  # another value of the others would not be the model's
    assert ("override" in str(caught.value)) is wrong


def test_texts_of_a_batch_do_not_see_each_other(tmp_path: Path, start: Start) -> None:
    write_encoder(tmp_path, "BertModel")
    engine = start(tmp_path, max_running_requests=3)
    many: Any = engine.encode(TEXTS * 5)
    alone: Any = [engine.encode(text) for text in TEXTS]
    for index, answer in enumerate(many):
        assert answer["embedding"] == alone[index % 3]["embedding"]


@pytest.mark.parametrize(
    "name",
    [
        "BertForSequenceClassification",
        "XLMRobertaForSequenceClassification",
        "RobertaForSequenceClassification",
    ],
)
@pytest.mark.parametrize("flags", [{}, {"disable_cpu_kernels": True}])
def test_cross_encoders(tmp_path: Path, start: Start, name: str, flags: dict[str, Any]) -> None:
    model = write_encoder(tmp_path, name, num_labels=1)
    engine = start(tmp_path, **flags)
    answers: Any = engine.rerank(PAIRS)
    for (query, document), answer in zip(PAIRS, answers, strict=True):
        with torch.inference_mode():
            (number,) = model(**read_inputs(tmp_path, query, document)).logits[0].tolist()
        expected = 1 / (1 + np.exp(-number))
        assert answer["embedding"] == pytest.approx(expected, abs=1e-5)
    single: Any = engine.encode(TEXTS[0])
    with torch.inference_mode():
        expected = model(**read_inputs(tmp_path, TEXTS[0])).logits[0]
    np.testing.assert_allclose(single["embedding"], expected, **EXACT)


def test_a_cross_encoder_that_says_what_becomes_of_its_number(tmp_path: Path, start: Start) -> None:
    name = "BertForSequenceClassification"
    key = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    model = write_encoder(tmp_path, name, num_labels=1, **key)
    answers: Any = start(tmp_path).rerank(PAIRS[:1])
    with torch.inference_mode():
        (number,) = model(**read_inputs(tmp_path, *PAIRS[0])).logits[0].tolist()
    assert answers[0]["embedding"] == pytest.approx(number, abs=1e-5)


def test_the_types_of_a_pair_matter(tmp_path: Path, start: Start) -> None:
    """Ids of the second text are larger by the number of words, whatever way they come."""
    model = write_encoder(tmp_path, "BertForSequenceClassification", num_labels=1)
    inputs = read_inputs(tmp_path, *PAIRS[0])
    words = model.config.vocab_size
    ids = (inputs["input_ids"] + words * inputs["token_type_ids"])[0].tolist()
    assert max(ids) >= words
    engine = start(tmp_path)
    typed: Any = engine.encode(input_ids=ids)
    untyped: Any = engine.encode(input_ids=inputs["input_ids"][0].tolist())
    with torch.inference_mode():
        np.testing.assert_allclose(typed["embedding"], model(**inputs).logits[0], **EXACT)
    assert typed["embedding"] != untyped["embedding"]
    for bad in ([2 * words], [-1]):
        with pytest.raises(vivace.BadRequest):
            engine.encode(input_ids=bad)


@pytest.mark.parametrize(("name", "longest"), [("BertModel", 70), ("XLMRobertaModel", 68)])
def test_a_text_may_fill_all_positions(
    tmp_path: Path, start: Start, name: str, longest: int
) -> None:
    """RoBERTa's first two are for padding."""
    model = write_encoder(tmp_path, name)
    engine = start(tmp_path)
    ids = [5] * longest
    answer: Any = engine.encode(input_ids=ids)
    with torch.inference_mode():
        state = model(input_ids=torch.tensor([ids])).last_hidden_state[0, 0].double()
    np.testing.assert_allclose(answer["embedding"], state / state.norm(), **EXACT)
    with pytest.raises(vivace.BadRequest) as caught:
        engine.encode(input_ids=[5] * (longest + 1))
    assert caught.value.field == "input_ids"


@pytest.mark.parametrize(
    ("pairs", "field"),
    [
        ([["a", "the " * 90]], "documents[0]"), ([["a", ""]], "documents[0]"),
        ([["", "a"]], "query"), ([], "prompt"), ([["a", "b", "c"]], "prompt"),
    ],
)  # fmt: skip
def test_bad_pairs(tmp_path: Path, start: Start, pairs: Any, field: str) -> None:
    write_encoder(tmp_path, "BertForSequenceClassification", num_labels=1)
    with pytest.raises(vivace.BadRequest) as caught:
        start(tmp_path).rerank(pairs)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"num_attention_heads": 5}, "num_attention_heads"),
        ({"hidden_act": "tanh"}, "hidden_act"),
        ({"layer_norm_eps": "x"}, "layer_norm_eps"),
        ({"max_position_embeddings": 1}, "max_position_embeddings"),
        ({"type_vocab_size": 0}, "type_vocab_size"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label"),
        ({"problem_type": "other"}, "problem_type"),
        ({"sbert_ce_default_activation_function": "os.system"}, "sbert_ce"),
        ({"vocab_size": 99}, "word_embeddings"),
    ],
)
def test_configurations_that_are_refused(
    tmp_path: Path, start: Start, changes: dict[str, Any], named: str
) -> None:
    write_encoder(tmp_path, "BertForSequenceClassification", num_labels=1)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(vivace.CannotStart, match=named):
        start(tmp_path)


def test_ranks_of_encoders_answer_as_one_process(tmp_path: Path, start: Start) -> None:
    write_encoder(tmp_path, "BertForSequenceClassification", num_labels=3, num_attention_heads=4)
    wanted: Any = start(tmp_path).encode(TEXTS)
    flags = {"tp_size": 2, "pp_size": 2, "cpu_threads": 4, "enable_deterministic_inference": True}
    found: Any = start(tmp_path, **flags).encode(TEXTS)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one["embedding"], other["embedding"], **EXACT)


@pytest.mark.parametrize(
    "flags",
    [
        {"tp_size": 2},
        {"speculative_algorithm": "NGRAM"},
        {"tp_size": 3, "dp_size": 3, "enable_dp_attention": True},
    ],
)
def test_what_does_not_go_with_them(tmp_path: Path, start: Start, flags: dict[str, Any]) -> None:
    write_encoder(tmp_path, "BertModel")
    with pytest.raises(vivace.ConfigError):
        start(tmp_path, **flags)
