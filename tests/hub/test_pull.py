"""Models by name: fetched from a hub that runs here, listed, removed."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from fake_hub import COMMIT, FakeHub, serving, sha256
from filelock import FileLock

from vivace.checkpoint.hub_cache import find_snapshot, modelscope_folders, split_quantization
from vivace.checkpoint.source import EMBEDDED_NAME, SourceError, locate
from vivace.cli import main
from vivace.config.parsing import parse
from vivace.doctor import serving as probes
from vivace.doctor.diagnosis import ProbeOptions
from vivace.doctor.system import System
from vivace.hub import fetch as fetching
from vivace.hub import guard, huggingface, large_files
from vivace.hub.cached import cached_models, remove
from vivace.hub.fetch import fetch
from vivace.hub.huggingface import HuggingFace
from vivace.hub.large_files import fetch_large_file
from vivace.hub.listing import (
    LARGEST_TEXT,
    HubError,
    Listing,
    RepoFile,
    chosen_files,
    is_text,
)
from vivace.launch.configure import configure

WEIGHTS = os.urandom(200_000)
MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "tiktoken.model": b"QQ== 0",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"pickled",
    "modeling_x.py": b"import os",
    "onnx/model.onnx": b"other",
    "README.md": b"words",
}
TAKEN = {
    "config.json", "tokenizer.json", "tiktoken.model", "chat_template.jinja", "model.safetensors",
}  # fmt: skip
QUANTIZED = {f"Toy.{kind}.gguf": kind.encode() * 999 for kind in ("Q4_0", "Q8_0")}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    repositories = {"org/toy": dict(MODEL), "org/toy-gguf": {**QUANTIZED, "config.json": b"{}"}}
    with serving(FakeHub(repositories)) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield served


def pull(hub: FakeHub, cache: Path, name: str = "org/toy", revision: str | None = None) -> Path:
    return fetch(name, revision, HuggingFace(cache, {"HF_ENDPOINT": hub.url}), cache, print).path


def transfers(hub: FakeHub) -> list[str]:
    return [line for line in hub.requests if line.startswith("GET /org/")]


def test_only_weights_json_and_the_template_are_fetched(hub: FakeHub, tmp_path: Path) -> None:
    folder = pull(hub, tmp_path)
    assert {file.name for file in folder.iterdir()} == TAKEN
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert locate("org/toy", cache=tmp_path).commit == COMMIT


def test_what_is_there_is_not_fetched_again(hub: FakeHub, tmp_path: Path) -> None:
    pull(hub, tmp_path)
    hub.requests.clear()
    pull(hub, tmp_path)
    assert transfers(hub) == []


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(hub: FakeHub, tmp_path: Path) -> None:
    # larger than the blocks in which the library writes (10 MB): what it holds at the break is lost
    hub.repositories["org/toy"]["model.safetensors"] = weights = WEIGHTS * 80
    hub.cut["model.safetensors"] = 13_000_000
    folder = pull_until_done(hub, tmp_path)
    assert (folder / "model.safetensors").read_bytes() == weights
    assert any("bytes=10485760-" in line for line in transfers(hub)), transfers(hub)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_fetch_that_was_ended_goes_on_in_the_next_one(
    hub: FakeHub, tmp_path: Path, number: signal.Signals
) -> None:
    hub.repositories["org/toy"]["model.safetensors"] = weights = WEIGHTS * 120
    hub.paused["model.safetensors"] = 21_000_000  # two blocks of the library
    command = [sys.executable, "-m", "vivace", "pull", "org/toy", "--download-dir", str(tmp_path)]
    program = subprocess.Popen(
        command,
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    (partial,) = wait_for_partial(tmp_path, 20_000_000)
    program.send_signal(number)
    assert b"Traceback" not in program.communicate(timeout=60)[0]
    assert partial.stat().st_size == 20_971_520  # 2 blocks
    hub.paused.clear()
    assert (pull(hub, tmp_path) / "model.safetensors").read_bytes() == weights
    assert any("bytes=20971520-" in line for line in transfers(hub)), transfers(hub)
    assert not list(tmp_path.rglob("*.incomplete"))


@pytest.mark.parametrize("have", [0, 10_000, 70_000, 130_000])
def test_what_is_too_large_for_one_answer_comes_in_pieces(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, have: int
) -> None:
    monkeypatch.setattr(large_files, "PIECE", 65_000)
    monkeypatch.setattr("huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE", 65_000)
    hub.most = 65_000
    partial = tmp_path / "models--org--toy" / "blobs" / f"{sha256(WEIGHTS)}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(WEIGHTS[:have])
    assert (pull(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS
    pieces = [line.rpartition("=")[2] for line in transfers(hub) if "bytes=" in line]
    places = [0, 65_000, 130_000, 195_000, 200_000]
    begins = [have, *(place for place in places[:-1] if place > have)]
    ends = [place - 1 for place in places if place > have]
    assert pieces == [f"{a}-{b}" for a, b in zip(begins, ends, strict=True)]


@pytest.mark.parametrize("have", [0, 150_000])
def test_a_server_that_ignores_ranges_gives_the_whole_file(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, have: int
) -> None:
    monkeypatch.setattr(large_files, "PIECE", 60_000)
    partial = tmp_path / "models--org--toy" / "blobs" / f"{sha256(WEIGHTS)}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(WEIGHTS[:have])
    hub.ignores_ranges = True
    if have:  # what is appended to the pieces of another server is thrown away, once
        with pytest.raises(HubError, match="bytes"):
            pull(hub, tmp_path)
    assert (pull(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


def test_what_the_hub_does_not_give_in_pieces_its_library_fetches(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(large_files, "PIECE", 100_000)
    hub.most = 1000
    download = huggingface_hub.snapshot_download

    def library(*args: Any, **rest: Any) -> str:
        hub.most = 1 << 60
        return download(*args, **rest)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", library)
    assert (pull(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS
    assert "begins anew" in caplog.text


def wait_for_partial(cache: Path, size: int) -> list[Path]:
    """Unfinished files that have come so far."""
    for _ in range(600):
        found = [file for file in cache.rglob("*.incomplete") if file.stat().st_size >= size]
        if found:
            return found
        time.sleep(0.1)
    raise TimeoutError("nothing comes")


@pytest.mark.parametrize("left", [b"other bytes", bytes(10**6), "link", "pipe"])
def test_what_lies_under_the_name_of_a_partial_file_does_no_harm(
    hub: FakeHub, tmp_path: Path, left: bytes | str
) -> None:
    """Bytes of another file are found by their hash; nothing else is written through."""
    blobs = tmp_path / "models--org--toy" / "blobs"
    blobs.mkdir(parents=True)
    partial = blobs / f"{sha256(WEIGHTS)}.incomplete"
    (tmp_path / "precious").write_bytes(b"keep")
    if left == "link":
        partial.symlink_to(tmp_path / "precious")
    elif left == "pipe":
        os.mkfifo(partial)
    else:
        partial.write_bytes(left)  # type: ignore[arg-type]
    if left != bytes(10**6):  # longer than the file: begun anew at once
        with pytest.raises(HubError):
            pull(hub, tmp_path)
        assert (tmp_path / "precious").read_bytes() == b"keep"
        partial.unlink(missing_ok=True)
    assert (pull(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


def test_who_waits_for_another_fetch_says_so(
    hub: FakeHub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = tmp_path / ".locks" / "models--org--toy" / f"{sha256(WEIGHTS)}.lock"
    lock.parent.mkdir(parents=True)
    waiting = threading.Thread(target=pull, args=(hub, tmp_path))
    with FileLock(lock):
        waiting.start()
        for _ in range(600):
            if "model.safetensors is being fetched by another program" in caplog.text:
                break
            time.sleep(0.1)
    waiting.join(60)
    assert caplog.text.count("another program; waiting for it") == 1
    assert locate("org/toy", cache=tmp_path).commit == COMMIT


def test_nothing_goes_on_behind_an_answer_of_somebody_else(hub: FakeHub, tmp_path: Path) -> None:
    """A page to log in, with 200 and a length of its own."""
    weights = hub.repositories["org/toy"]["model.safetensors"]
    listing = HuggingFace(tmp_path, {"HF_ENDPOINT": hub.url}).list("org/toy", None)
    hub.repositories["org/toy"]["model.safetensors"] = b"<html>log in</html>"
    (file,) = (file for file in listing.files if file.sha256 == sha256(weights))
    with pytest.raises(HubError, match="200,000"):
        fetch_large_file(tmp_path, listing, file, hub.url)
    hub.repositories["org/toy"]["model.safetensors"] = weights
    assert (pull(hub, tmp_path) / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize(("status", "kept"), [(401, True), (403, True), (500, True), (416, False)])
def test_what_has_come_outlives_an_error_of_the_server(
    hub: FakeHub, tmp_path: Path, status: int, kept: bool
) -> None:
    """But for 416: the file has fewer bytes than have come."""
    partial = tmp_path / "models--org--toy" / "blobs" / f"{sha256(WEIGHTS)}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(WEIGHTS[:150_000])
    hub.failing["model.safetensors"] = status
    with pytest.raises(HubError) as told:
        pull(hub, tmp_path)
    assert ("bytes that the hub lists" in str(told.value)) is not kept
    assert partial.stat().st_size == (150_000 if kept else 0)
    hub.failing.clear()
    assert (pull(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS
    assert any("bytes=150000-" in line for line in transfers(hub))


@pytest.mark.parametrize("silent", ["tree", "config.json"])
def test_a_hub_that_stops_answering_behind_the_weights(
    hub: FakeHub, tmp_path: Path, silent: str
) -> None:
    """Its library takes the folder that is there for the model then."""
    hub.failing[silent] = 501
    with pytest.raises(HubError) as told:
        pull(hub, tmp_path)
    assert "`vivace rm`" not in str(told.value)
    hub.failing.clear()
    assert (pull(hub, tmp_path) / "config.json").read_bytes() == MODEL["config.json"]


def test_a_key_with_other_characters_is_said_so(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_ü")
    with pytest.raises(HubError, match="HF_TOKEN"):
        pull(hub, tmp_path)


@pytest.mark.parametrize("said", [{"siblings": 3}, {"siblings": [3]}, {"sha": {}}])
def test_what_is_no_hub_is_said_so(hub: FakeHub, tmp_path: Path, said: dict[str, object]) -> None:
    hub.said = said
    with pytest.raises(HubError, match="hub") as told:
        pull(hub, tmp_path)
    assert "Without a network" not in str(told.value)


def test_a_repository_of_very_many_files_is_no_model(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/toy"] |= {f"{n}.json": b"{}" for n in range(5000)}
    with pytest.raises(HubError, match=r"5,005 .* 5,000"):
        pull(hub, tmp_path)
    assert transfers(hub) == []


def pull_until_done(hub: FakeHub, cache: Path) -> Path:
    """Newer libraries try again themselves; for older ones the user does."""
    try:
        return pull(hub, cache)
    except HubError:
        return pull(hub, cache)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_damaged_files_are_noticed_and_removed(hub: FakeHub, tmp_path: Path, name: str) -> None:
    hub.damaged.add(name)
    with pytest.raises(HubError, match=f"{name}: .*arrived"):
        pull(hub, tmp_path)
    hub.damaged.clear()
    assert (pull(hub, tmp_path) / name).read_bytes() == MODEL[name]


def test_every_damaged_file_is_removed(hub: FakeHub, tmp_path: Path) -> None:
    hub.damaged |= {"model.safetensors", "config.json", "tokenizer.json"}
    with pytest.raises(HubError, match=r"config.json, tokenizer.json, model.safetensors: "):
        pull(hub, tmp_path)
    hub.damaged.clear()
    assert (pull(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


def test_files_of_a_fetch_that_was_killed_are_checked(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.damaged.add("model.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr(fetching, "check_hashes", lambda *_: None)
        pull(hub, tmp_path)
    hub.damaged.clear()
    with pytest.raises(HubError, match=r"model.safetensors: .*arrived"):
        pull(hub, tmp_path)
    assert (pull(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sha", None),
        ("sha", "../../evil"),
        ("sha", "main"),
        ("size", "12"),
        ("size", -1),
        ("size", 10**400),
        ("size", 1.5),
        ("size", True),
        ("rfilename", 5),
        ("blobId", "../../evil"),
        ("blobId", 7),
        ("lfs", 7),
        ("lfs", {"sha256": "../evil", "size": 3, "pointerSize": 1}),
        ("siblings", [3]),
    ],
)
def test_a_listing_of_wrong_things_is_refused(
    hub: FakeHub, tmp_path: Path, key: str, value: object
) -> None:
    hub.said[key] = value
    with pytest.raises(HubError):
        pull(hub, tmp_path)
    assert transfers(hub) == [] and not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("etag", ["../../../evil", "/evil", "x/../../../evil"])
def test_an_etag_names_nothing_outside_of_the_cache(
    hub: FakeHub, tmp_path: Path, etag: str
) -> None:
    hub.etag = etag
    with pytest.raises(HubError, match="leaves"):
        pull(hub, tmp_path / "a/b/cache")
    assert not list(tmp_path.rglob("*evil*")) and not Path("/evil").exists()


@pytest.mark.parametrize("what", ["model.safetensors", "config.json", "about"])
def test_an_answer_without_end_is_ended(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(huggingface, "LARGEST_LISTING", 300_000)
    hub.endless.add(what)
    with pytest.raises(HubError, match="300,000"):
        pull(hub, tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 1_000_000


def test_a_listing_of_a_byte_now_and_then_is_given_up(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "LISTING_SECONDS", 0.3)
    hub.endless |= {"about", "slow"}
    with pytest.raises(HubError, match="end"):
        pull(hub, tmp_path)


WAITS = {
    "at-once": {"Retry-After": "99999"},
    "leading-zeros": {"Retry-After": "0" * 40 + "99999"},
    "endless": {"Retry-After": "9" * 5000},
    "reset": {"RateLimit": '"resolvers";r=0;t=99999', "Retry-After": "1"},
}


@pytest.mark.parametrize("headers", WAITS.values(), ids=WAITS)
@pytest.mark.parametrize("what", ["about", "config.json", "model.safetensors"])
def test_a_hub_has_nobody_wait_for_long(
    hub: FakeHub,
    tmp_path: Path,
    what: str,
    headers: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    hub.failing[what] = 429
    hub.headers = headers
    assert main(["pull", "org/toy", "--download-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "429" in said and "hours" in said and "HF_TOKEN" in said


def test_waits_add_up(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is short enough."""
    slept: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", slept.append)
    monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=lambda: sum(slept)))
    hub.failing["model.safetensors"] = 429
    hub.headers = {"Retry-After": "25"}
    with pytest.raises(HubError, match="429"):
        pull(hub, tmp_path)
    assert len(slept) == 2
    hub.failing.clear()
    assert (pull(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("what", ["about", "config.json", "model.safetensors"])
@pytest.mark.parametrize(
    ("status", "words"), [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (503, "later"), (418, "418")]
)
def test_a_refusal_says_what_helps(
    hub: FakeHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    status: int,
    words: str,
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    hub.failing[what] = status
    hub.headers = {"X-Error-Message": "Invalid credentials in Authorization header"}
    with pytest.raises(HubError, match=words) as told:
        pull(hub, tmp_path)
    assert "http://" not in str(told.value)


def test_what_is_encoded_is_counted_decoded(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "LARGEST_LISTING", 300_000)
    hub.encodings["about"] = "gzip"
    hub.said["id"] = " " * 20_000_000  # 20 KB with gzip
    with pytest.raises(HubError, match="300,000"):
        pull(hub, tmp_path)
    pieces = list(guard.decoded(iter([gzip.compress(bytes(1 << 24))])))
    assert max(map(len, pieces)) <= guard.BLOCK and sum(map(len, pieces)) == 1 << 24


def test_what_is_encoded_is_decoded(hub: FakeHub, tmp_path: Path) -> None:
    hub.encodings = {"about": "gzip", "config.json": "gzip"}
    assert (pull(hub, tmp_path) / "config.json").read_bytes() == MODEL["config.json"]


@pytest.mark.parametrize("what", ["about", "config.json"])
def test_an_encoding_that_nobody_asked_for_is_refused(
    hub: FakeHub, tmp_path: Path, what: str
) -> None:
    hub.encodings[what] = "br"
    with pytest.raises(HubError, match="br"):
        pull(hub, tmp_path)


def test_no_word_of_a_hub_steers_the_terminal(hub: FakeHub, tmp_path: Path) -> None:
    hub.refusal = {"X-Error-Message": "no \x1b[2J\x9b31m way"}
    with pytest.raises(HubError, match="way") as caught:
        pull(hub, tmp_path)
    assert str(caught.value).isprintable()


def test_a_model_has_a_name_only_when_its_files_are_right(hub: FakeHub, tmp_path: Path) -> None:
    hub.damaged.add("model.safetensors")
    with pytest.raises(HubError, match="arrived"):
        pull(hub, tmp_path)
    with pytest.raises(SourceError, match="revision 'main'"):
        locate("org/toy", cache=tmp_path)


def test_a_file_without_a_hash_is_said(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.said["lfs"] = {"sha256": None, "size": len(WEIGHTS), "pointerSize": 1}
    pull(hub, tmp_path)
    assert "no hash of model.safetensors: only the size was checked" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "revision", "words"),
    [
        ("org/none", None, "no model org/none"),
        ("org/toy", "v9", "no revision 'v9'"),
        ("a/b/c", None, "not a name of a model"),
        ("org/toy-gguf", None, "several GGUF files; name one as org/toy-gguf:Q4_0"),
        ("org/toy-gguf:Q5_K", None, "'Q5_K' fits 0 files"),
        ("org/toy:Q4_0", None, "neither|pickled"),
    ],
)
def test_what_cannot_be_fetched_says_why(
    hub: FakeHub, tmp_path: Path, name: str, revision: str | None, words: str
) -> None:
    with pytest.raises(HubError, match=words):
        pull(hub, tmp_path, name, revision)


def test_a_gated_model_says_what_to_do(hub: FakeHub, tmp_path: Path) -> None:
    hub.gated.add("org/toy")
    with pytest.raises(HubError, match=r"accept .* HF_TOKEN"):
        pull(hub, tmp_path)


def test_a_quantization_names_one_file(hub: FakeHub, tmp_path: Path) -> None:
    path = pull(hub, tmp_path, "org/toy-gguf:q8_0")
    assert path.name == "Toy.Q8_0.gguf"
    assert [file.name for file in path.parent.glob("*.gguf")] == ["Toy.Q8_0.gguf"]


def test_a_hub_that_never_answers_is_given_up(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "TIMEOUT_SECONDS", 0.3)
    hub.silent = True
    with pytest.raises(HubError, match="network"):
        pull(hub, tmp_path)


@pytest.mark.parametrize("name", ["toy", "llama3.2", "toy:Q4_0", "a/b/c", ""])
def test_what_is_no_name_on_the_hub_is_asked_of_nobody(
    hub: FakeHub, tmp_path: Path, name: str
) -> None:
    with pytest.raises(HubError, match="org/name"):
        pull(hub, tmp_path, name)
    assert hub.requests == []


@pytest.mark.parametrize("endpoint", ["nonsense", "http://127.0.0.1:9", "{silent}"])
def test_an_endpoint_that_is_no_hub_is_named(
    endpoint: str, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "TIMEOUT_SECONDS", 0.3)
    hub.silent = True
    hub.url = endpoint.format(silent=hub.url)
    with pytest.raises(HubError, match="HF_ENDPOINT") as told:
        pull(hub, tmp_path)
    assert hub.url in str(told.value)


@pytest.mark.parametrize("name", [None, EMBEDDED_NAME])
def test_the_embedded_model_is_fetched_from_no_hub(hub: FakeHub, name: str | None) -> None:
    assert main(["pull", *([name] if name else [])]) == 0
    assert hub.requests == []


def test_offline_nothing_is_asked(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(HubError, match="HF_HUB_OFFLINE"):
        HuggingFace(tmp_path, {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": hub.url})
    assert hub.requests == []


def test_a_full_disk_is_seen_before_anything_is_fetched(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    with pytest.raises(HubError, match="--download-dir"):
        pull(hub, tmp_path)
    assert transfers(hub) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_fails_half_way_is_not_the_network(number: int) -> None:
    with (
        pytest.raises(HubError, match=r"written .*--download-dir") as caught,
        huggingface.readable_errors("org/toy", None),
    ):
        raise OSError(number, os.strerror(number), "/cache")
    assert "network" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("can't start new thread"), OSError(errno.EMFILE, "Too many"),
     OSError(errno.EFBIG, "File too large"), OSError(errno.ENAMETOOLONG, "Too long", "/cache/x")],
)  # fmt: skip
def test_a_limit_of_this_machine_is_not_the_network(error: Exception) -> None:
    with (
        pytest.raises(HubError, match="kept") as caught,
        huggingface.readable_errors("org/toy", None),
    ):
        raise error
    assert "network" not in str(caught.value)


def test_a_model_that_is_removed_while_it_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    hub.paused["model.safetensors"] = 1000
    told: list[str] = []

    def fetch_it() -> None:
        with pytest.raises(HubError) as caught:
            pull(hub, tmp_path)
        told.append(str(caught.value))

    fetching = threading.Thread(target=fetch_it)
    fetching.start()
    wait_for_partial(tmp_path, 0)
    remove(tmp_path, "org/toy")
    hub.repositories["org/toy"]["model.safetensors"] = WEIGHTS
    hub.paused.clear()
    fetching.join(60)
    assert told == ["org/toy was removed while it was fetched (`vivace rm`?); fetch it again"]


@pytest.mark.parametrize("prefix", ["hf.co/", "huggingface.co/", "https://huggingface.co/"])
def test_addresses_of_the_hub_are_names(prefix: str) -> None:
    assert split_quantization(f"{prefix}org/toy:Q4_0") == ("org/toy", "Q4_0")


def test_a_name_without_organization_is_not_offered(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"org/name") as told:
        configure(parse(["--model-path", "toy", "--download-dir", str(tmp_path)], {}))
    assert "pull" not in str(told.value)


def test_download_at_start_fetches_once(hub: FakeHub, tmp_path: Path) -> None:
    words = ["--model-path", "org/toy", "--download-dir", str(tmp_path)]
    with pytest.raises(SourceError, match=r"`vivace pull org/toy`.*--download"):
        configure(parse(words, {}))
    for asked in (True, False):
        hub.requests.clear()
        with pytest.raises(ValueError, match=r"config\.json"):  # it is fetched, and a toy
            configure(parse([*words, "--download"], {"HF_ENDPOINT": hub.url}))
        assert bool(transfers(hub)) is asked


def test_list_and_rm(hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--download-dir", str(tmp_path)]
    assert main(["pull", "org/toy", *place]) == 0
    assert "vivace serve --model-path org/toy" in capsys.readouterr().out
    assert main(["list", "--json", *place]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (held,) = [record for record in records if record["name"] == "org/toy"]
    assert held["formats"] == ["safetensors"]
    assert held["bytes"] >= len(WEIGHTS) and held["revisions"] == [COMMIT[:12]]
    assert main(["rm", "org/toy:Q4_0", "--yes", *place]) == 2
    assert "`vivace rm org/toy`" in capsys.readouterr().err
    assert main(["rm", "org/toy", "--yes", *place]) == 0
    assert cached_models(tmp_path) == [] and list(tmp_path.glob("models--*")) == []
    assert main(["rm", "org/toy", "--yes", *place]) == 2
    assert "there is no model org/toy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "terminal", "code", "stays"),
    [
        (None, False, 2, True),  # </dev/null
        ("y\n", False, 2, True),  # a pipe may carry an answer to something else
        ("y\n", True, 0, False),
        ("n\n", True, 0, True),
        ("\n", True, 0, True),
        (None, True, 0, True),  # Ctrl-D
    ],
)
def test_rm_deletes_what_a_terminal_confirms(
    typed: str | None,
    terminal: bool,
    code: int,
    stays: bool,
    hub: FakeHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = ["--download-dir", str(tmp_path)]
    assert main(["pull", "org/toy", *place]) == 0
    stdin = io.StringIO(typed or "")
    monkeypatch.setattr(stdin, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["rm", "org/toy", *place]) == code
    assert bool(cached_models(tmp_path)) is stays
    assert ("--yes" in capsys.readouterr().err) is (code == 2)


@pytest.mark.parametrize("name", ["..", "../x", "/etc", "a/../b", "a/b/c", ""])
def test_rm_leaves_what_is_no_model(name: str, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "x").mkdir()
    assert main(["rm", "-y", name, "--download-dir", str(tmp_path / "cache")]) == 2
    assert (tmp_path / "x").exists()


def test_modelscopes_folders_are_found_listed_and_removed(tmp_path: Path) -> None:
    for folder in ("models/org--toy/snapshots/master", "hub/models/org/Toy-1___5B"):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):
            (tmp_path / folder / name).write_bytes(MODEL[name])
    assert [model.repo_id for model in cached_models(tmp_path)] == ["org/toy", "org/Toy-1.5B"]
    assert locate("org/toy", cache=tmp_path).commit == "master"
    assert locate("org/Toy-1.5B", cache=tmp_path).path.name == "Toy-1___5B"
    assert main(["rm", "-y", "org/Toy-1.5B", "--download-dir", str(tmp_path)]) == 0
    assert [model.repo_id for model in cached_models(tmp_path)] == ["org/toy"]


def test_list_says_what_a_killed_fetch_has_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blobs = tmp_path / "models--org--half" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc.incomplete").write_bytes(bytes(2500))
    assert main(["list", "--download-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "unfinished" in shown and "org/half: 2.50 KB" in shown and "goes on there" in shown
    assert main(["list", "--download-dir", str(tmp_path), "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [r["unfinished_bytes"] for r in records if r["name"] == "org/half"] == [2500]
    assert main(["rm", "-y", "--download-dir", str(tmp_path), "org/half"]) == 0
    assert not blobs.exists()


def test_list_says_what_cannot_be_served(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pull(hub, tmp_path)
    (folder / "model.safetensors").resolve().unlink()
    capsys.readouterr()
    assert main(["list", "--download-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "damaged" in shown and "vivace pull org/toy" in shown and "vivace rm org/toy" in shown
    pull(hub, tmp_path)
    capsys.readouterr()
    assert main(["list", "--download-dir", str(tmp_path)]) == 0
    assert "damaged" not in capsys.readouterr().out


def test_a_model_of_another_program_is_not_damaged(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole, in a format that is not read here: nobody is told to remove it."""
    folder = tmp_path / "models--org--torch" / "snapshots" / COMMIT
    blob = tmp_path / "models--org--torch" / "blobs" / "abc"
    for place in (folder, blob.parent):
        place.mkdir(parents=True)
    blob.write_bytes(b"pickled")
    (folder / "pytorch_model.bin").symlink_to(blob)
    assert main(["list", "--download-dir", str(tmp_path)]) == 0
    row, reason = [line for line in capsys.readouterr().out.splitlines() if "org/torch" in line]
    assert row.split()[1] == "unusable" and "config.json" in reason and "vivace rm" not in reason
    blob.unlink()
    assert main(["list", "--download-dir", str(tmp_path)]) == 0
    assert "damaged" in capsys.readouterr().out


UNUSABLE = {
    "pickled": {"config.json": b"{}", "pytorch_model.bin": b"x"},
    "several": {"config.json": b"{}", "a.bin": b"x", "b.bin": b"x"},
    "no-config": {"model.safetensors": b"x"},
    "parts": {"a-00001-of-00002.gguf": b"GGUF"},
    "nothing": {},
}
"""names of repositories -> the files of their snapshots"""


def test_list_and_doctor_count_only_what_can_be_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models--org--bare" / "refs").mkdir(parents=True)
    whole = {name: MODEL[name] for name in TAKEN}
    for name, files in {**UNUSABLE, "toy": whole, "quant": {"a.Q4_0.gguf": b"GGUF"}}.items():
        folder = tmp_path / f"models--org--{name}" / "snapshots" / COMMIT
        folder.mkdir(parents=True)
        for file, content in files.items():
            (folder / file).write_bytes(content)
    models = {model.repo_id.removeprefix("org/"): model for model in cached_models(tmp_path)}
    usable = {name for name, model in models.items() if not model.problem}
    assert usable == {"toy", "quant"} and models.keys() == {*UNUSABLE, "bare", *usable}
    assert "pickled" in models["several"].problem and "a.bin, b.bin" in models["several"].problem
    assert models["bare"].used is models["nothing"].used is None
    assert main(["list", "--download-dir", str(tmp_path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    for name in ("bare", *UNUSABLE):
        assert next(row for row in rows if row[:1] == [f"org/{name}"])[1] == "unusable"
    assert not any("1970" in word for row in rows for word in row)
    system = System(environment={"HF_HUB_CACHE": str(tmp_path)})
    (found,) = probes.models(system, ProbeOptions())
    assert "pulled: org/quant, org/toy; 6 that cannot" in found.found


def test_names_that_are_no_utf8_are_shown_as_typed(tmp_path: Path) -> None:
    cache = Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9"))
    cache.mkdir()
    commands = ("list", "--download-dir", cache), ("serve", "--model-path", cache)
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "vivace", *command], capture_output=True, check=False
        )
        assert rb"/caf\xe9" in done.stdout + done.stderr and b"Traceback" not in done.stderr


def test_list_goes_on_beside_a_download(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["pull", "org/toy", "--download-dir", str(tmp_path)]) == 0
    (whole,) = cached_models(tmp_path)
    taken = whole.folder / "blobs" / "x.incomplete"
    taken.write_bytes(b"x" * 1000)
    is_link = Path.is_symlink

    def vanishing(path: Path) -> bool:
        if path == taken:
            path.unlink(missing_ok=True)
        return is_link(path)

    monkeypatch.setattr(Path, "is_symlink", vanishing)
    assert cached_models(tmp_path) == [whole]


@pytest.mark.parametrize("layout", range(4))
def test_what_is_found_by_name_is_listed_and_removed(layout: int, tmp_path: Path) -> None:
    folder = modelscope_folders(tmp_path, "org/Toy-1.5B", "master")[layout]
    for place in (folder, tmp_path / "hub" / "datasets" / "org"):
        place.mkdir(parents=True)
        (place / "config.json").write_bytes(MODEL["config.json"])
    found = find_snapshot(tmp_path, "org/Toy-1.5B", None)
    assert found is not None and found.path == folder
    assert [model.repo_id for model in cached_models(tmp_path)] == ["org/Toy-1.5B"]
    remove(tmp_path, "org/Toy-1.5B")
    assert find_snapshot(tmp_path, "org/Toy-1.5B", None) is None
    assert (tmp_path / "hub" / "datasets" / "org").exists()


def test_modelscope_without_its_library_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "modelscope_hub", None)  # its import fails
    monkeypatch.setenv("SGLANG_USE_MODELSCOPE", "1")
    assert main(["pull", "org/toy", "--download-dir", str(tmp_path)]) == 2
    assert "pip install modelscope-hub" in capsys.readouterr().err


def listing(*names: str) -> Listing:
    files = tuple(RepoFile(name=name, size=10) for name in names)
    return Listing(repo_id="org/x", commit=COMMIT, files=files)


@pytest.mark.parametrize("name", ["tokenizer.json", "tiktoken.model"])
def test_a_vocabulary_that_is_no_text_is_not_fetched(name: str) -> None:
    files = [RepoFile(name=name, size=size) for size in (LARGEST_TEXT, LARGEST_TEXT + 1)]
    assert [is_text(file) for file in files] == [True, False]


@pytest.mark.parametrize(
    ("names", "weights"),
    [
        (["model-1.safetensors", "model-2.safetensors", "consolidated.safetensors"], 2),
        (["consolidated.safetensors"], 1),
        (["a.safetensors", "a.Q4_0.gguf"], 1),
        (["a.Q4_0.gguf", "mmproj-a.gguf"], 1),
    ],
)
def test_one_set_of_weights_is_chosen(names: list[str], weights: int) -> None:
    chosen = [file.name for file in chosen_files(listing("config.json", *names))]
    assert chosen[0] == "config.json" and len(chosen) == 1 + weights


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["pytorch_model.bin"], "pickled code"),
        (["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"], "come in parts"),
        (["README.md"], "neither safetensors nor GGUF"),
        (["../model.safetensors", "x/model.safetensors", ".model.safetensors"], "neither"),
    ],
)
def test_what_is_no_model_is_refused(names: list[str], words: str) -> None:
    with pytest.raises(HubError, match=words):
        chosen_files(listing("config.json", *names))
