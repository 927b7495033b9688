"""Reading weights: all of them, exactly once, and never a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoint_files import shapes, tensors, write_gguf, write_sharded, write_single
from safetensors.torch import save_file

from vivace.checkpoint.open import open_weights
from vivace.checkpoint.safetensors_files import SafetensorsFiles
from vivace.checkpoint.source import locate
from vivace.checkpoint.weights import CheckpointError, OpenWeights, TrackedWeights
from vivace.models.facts import read_facts


def opened(path: Path, **options: object) -> OpenWeights:
    source = locate(str(path), load_format=str(options.get("load_format", "auto")))
    seed = int(str(options.get("seed", 0)))
    return open_weights(source, read_facts(source), seed=seed, progress=lambda stage, part: None)


@pytest.mark.parametrize("sharded", [False, True])
def test_tensors_come_back_as_written(sharded: bool, tmp_path: Path) -> None:
    path = write_sharded(tmp_path) if sharded else write_single(tmp_path)
    weights = opened(path)
    for name, wanted in tensors().items():
        assert weights.has(name)
        assert torch.equal(weights.take(name, tuple(wanted.shape)), wanted)
    weights.finish(shapes())


def test_weights_outlive_their_file(tmp_path: Path) -> None:
    """A file that is replaced or cut while the model runs must not change it."""
    write_single(tmp_path)
    weights, wanted = opened(tmp_path), tensors()["lm_head.weight"]
    found = weights.take("lm_head.weight", (40, 32))
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.write(b"\xff" * (tmp_path / "model.safetensors").stat().st_size)
    assert torch.equal(found, wanted)


def test_missing_tensor(tmp_path: Path) -> None:
    found = tensors()
    del found["model.norm.weight"]
    weights = opened(write_single(tmp_path, found))
    assert not weights.has("model.norm.weight")
    with pytest.raises(CheckpointError, match=r"'model\.norm\.weight' .*missing"):
        weights.take("model.norm.weight", (32,))


@pytest.mark.parametrize(
    ("layer", "key"), [("self_attn.q_proj", "attention_bias"), ("mlp.up_proj", "mlp_bias")]
)
def test_a_missing_bias_is_asked_for_by_the_configuration(
    layer: str, key: str, tmp_path: Path
) -> None:
    """The plain weight beside it says nothing of quantization."""
    weights = opened(write_single(tmp_path))
    assert weights.has(f"model.layers.0.{layer}.weight")
    with pytest.raises(CheckpointError, match=f"missing.*{key}") as caught:
        weights.take(f"model.layers.0.{layer}.bias", (32,))
    assert "quantized" not in str(caught.value)


@pytest.mark.parametrize("name", ["A_log", "gate.e_score_correction_bias"])
def test_what_stands_beside_is_not_in_its_place(name: str, tmp_path: Path) -> None:
    """A module's own numbers are missing, its parts are there."""
    found = {**tensors(), "mixer.dt_bias": torch.zeros(2), "mixer.gate.weight": torch.zeros(2, 2)}
    with pytest.raises(CheckpointError, match="missing") as caught:
        opened(write_single(tmp_path, found)).take(f"mixer.{name}", (2,))
    assert "fetch it again" in str(caught.value) and "quantized" not in str(caught.value)


def test_an_output_layer_that_may_be_shared(tmp_path: Path) -> None:
    found = tensors()
    del found["lm_head.weight"]
    with pytest.raises(CheckpointError, match='"tie_word_embeddings": true'):
        opened(write_single(tmp_path, found)).take("lm_head.weight", (40, 32))


@pytest.mark.parametrize("parts", [("qweight", "scales"), ("weight_packed", "weight_scale")])
def test_a_matrix_in_parts_is_quantized(parts: tuple[str, ...], tmp_path: Path) -> None:
    """As AutoGPTQ wrote it, which described it in a file that is not config.json."""
    found = tensors()
    del found["lm_head.weight"]
    found |= {f"lm_head.{part}": torch.zeros(2) for part in parts}
    weights = opened(write_single(tmp_path, found))
    with pytest.raises(CheckpointError, match=f"{', '.join(parts)}: quantized"):
        weights.take("lm_head.weight", (40, 32))


def test_tensor_of_another_shape(tmp_path: Path) -> None:
    weights = opened(write_single(tmp_path))
    with pytest.raises(CheckpointError, match=r"\[40, 32\].*\[41, 32\]"):
        weights.take("lm_head.weight", (41, 32))


def test_left_over_tensors(tmp_path: Path) -> None:
    found = {**tensors(), "model.layers.0.mlp.router.weight": torch.zeros(2)}
    weights = opened(write_single(tmp_path, found))
    for name, shape in shapes().items():
        weights.take(name, shape)
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.mlp\.router"):
        weights.finish(shapes())


def test_what_may_be_left_over(tmp_path: Path) -> None:
    """Computed buffers of old checkpoints, and a tied head that was saved all the same."""
    found = {**tensors(), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    found["lm_head.weight"] = found["model.embed_tokens.weight"].clone()
    weights = opened(write_single(tmp_path, found, tie_word_embeddings=True))
    for name, shape in shapes().items():
        if name != "lm_head.weight":
            weights.take(name, shape)
    weights.finish(shapes())


def test_types_that_are_not_read(tmp_path: Path) -> None:
    found = {**tensors(), "lm_head.weight": torch.zeros(40, 32, dtype=torch.int16)}
    weights = opened(write_single(tmp_path, found))
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight' is I16"):
        weights.take("lm_head.weight", (40, 32))


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    save_file(tensors(), tmp_path / "model-00002-of-00003.safetensors")
    with pytest.raises(CheckpointError, match="also"):
        opened(tmp_path)


@pytest.mark.parametrize("keep", [0, 7, 100, 5000, -1])
def test_truncated_safetensors(keep: int, tmp_path: Path) -> None:
    file = write_single(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="truncated"):
        opened(tmp_path)


def test_progress_ends_at_one(tmp_path: Path) -> None:
    write_single(tmp_path)
    source, seen = locate(str(tmp_path)), []
    weights = open_weights(
        source, read_facts(source), seed=0, progress=lambda stage, part: seen.append((stage, part))
    )
    for name, shape in shapes().items():
        weights.take(name, shape)
    weights.finish(shapes())
    parts = [part for _, part in seen]
    assert {stage for stage, _ in seen} == {"Loading weights"}
    assert parts == sorted(parts)
    assert parts[-1] == 1.0
    assert 0 < parts[0] < 0.5


def test_gguf_leftovers_are_an_error_too(tmp_path: Path) -> None:
    weights = opened(write_gguf(tmp_path / "toy.gguf"))
    weights.take("model.embed_tokens.weight", (40, 32))
    with pytest.raises(CheckpointError, match=r"layers\.0"):
        weights.finish({"model.embed_tokens.weight"})


def test_dummy_weights_depend_on_seed_and_name(tmp_path: Path) -> None:
    write_single(tmp_path)
    first, again = opened(tmp_path, load_format="dummy"), opened(tmp_path, load_format="dummy")
    other = opened(tmp_path, load_format="dummy", seed=1)
    shape = (8, 8)
    assert torch.equal(first.take("a.weight", shape), again.take("a.weight", shape))
    assert not torch.equal(first.take("b.weight", shape), first.take("a.weight", shape))
    assert not torch.equal(other.take("a.weight", shape), first.take("a.weight", shape))
    assert first.take("model.norm.weight", (8,)).eq(1).all()
    first.finish(())


def tied_with(head: torch.Tensor, folder: Path) -> Path:
    return write_single(folder, {**tensors(), "lm_head.weight": head}, tie_word_embeddings=True)


@pytest.mark.parametrize("change", ["number", "type", "rows"])
def test_an_output_layer_of_its_own_counts_and_is_told(
    change: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the configuration says that it is the embedding; transformers does not tie them."""
    embedding = tensors()["model.embed_tokens.weight"]
    head = {"number": embedding.clone(), "type": embedding.half(), "rows": embedding[:-1].clone()}
    head["number"][-1, -1] += 1
    weights = opened(tied_with(head[change], tmp_path))
    assert not weights.tied
    (record,) = caplog.records
    assert "tie_word_embeddings" in record.getMessage() and str(tmp_path) in record.getMessage()
    if change == "number":
        assert torch.equal(weights.take("lm_head.weight", (40, 32)), head[change])
    source = locate(str(tmp_path), overrides={"tie_word_embeddings": True})
    assert open_weights(source, read_facts(source), seed=0, progress=lambda stage, part: None).tied
    assert len(caplog.records) == 1


def test_a_copy_of_the_embedding_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy = tensors()["model.embed_tokens.weight"].clone()
    assert opened(tied_with(copy, tmp_path)).tied and not caplog.records


class CountedName(str):
    """Counts how often such names are compared."""

    __slots__ = ()
    compared = 0

    def __lt__(self, other: str) -> bool:
        CountedName.compared += 1
        return super().__lt__(other)


def test_names_are_put_in_order_once(tmp_path: Path) -> None:
    """Formats ask for them with each matrix of an expert, of which there are tens of thousands."""
    file = tmp_path / "model.safetensors"
    names = [f"{place}.weight" for place in range(100)]
    save_file({name: torch.zeros(1) for name in names}, file)
    reader = SafetensorsFiles([file], lambda stored: {name: CountedName(name) for name in stored})
    weights = TrackedWeights(reader, tied=False, progress=lambda stage, fraction: None)
    before = CountedName.compared
    for _ in range(9):
        assert list(weights.names()) == sorted(names)
    assert CountedName.compared == before > 0
