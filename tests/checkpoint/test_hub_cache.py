"""Repository ids and revisions in the Hugging Face hub's local cache, offline."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_files import write_single

from vivace.checkpoint.hub_cache import repositories
from vivace.checkpoint.source import SourceError, locate
from vivace.config.environment import hub_cache
from vivace.config.parsing import parse
from vivace.launch.configure import configure
from vivace.launch.summary import build_summary
from vivace.protocol.messages import Capacity

OLD, NEW = "1111111aaaa" + "0" * 29, "2222222bbbb" + "0" * 29


def write_repository(cache: Path, repo_id: str = "org/toy") -> Path:
    """Two revisions as huggingface_hub lays them out: files are links to blobs."""
    folder = cache / f"models--{repo_id.replace('/', '--')}"
    (folder / "blobs").mkdir(parents=True)
    for commit, vocabulary in ((OLD, 30), (NEW, 40)):
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(parents=True)
        write_single(snapshot, vocab_size=vocabulary)
        for file in list(snapshot.iterdir()):
            blob = folder / "blobs" / f"{commit}-{file.name}"
            file.rename(blob)
            file.symlink_to(Path("../../blobs") / blob.name)
    for ref, commit in (("main", NEW), ("v1.0", OLD), ("refs/pr/3", OLD)):
        (folder / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
        (folder / "refs" / ref).write_text(commit)
    return folder


@pytest.mark.parametrize(
    ("revision", "commit"),
    [
        (None, NEW), ("main", NEW), ("v1.0", OLD), ("refs/pr/3", OLD), (OLD, OLD), (NEW[:9], NEW),
    ],
)  # fmt: skip
def test_a_revision_names_its_snapshot(tmp_path: Path, revision: str | None, commit: str) -> None:
    folder = write_repository(tmp_path)
    source = locate("org/toy", revision=revision, cache=tmp_path)
    assert source.path == source.tokenizer_path == folder / "snapshots" / commit
    assert (source.commit, source.format) == (commit, "safetensors")
    assert source.config["vocab_size"] == {OLD: 30, NEW: 40}[commit]


@pytest.mark.parametrize("revision", ["v2.0", "1111112", "../main", "/etc/passwd", ".", "f" * 40])
def test_a_revision_that_is_not_there_says_which_are(tmp_path: Path, revision: str) -> None:
    write_repository(tmp_path)
    with pytest.raises(SourceError, match=r"--model-path org/toy: .*: main, refs/pr/3, v1"):
        locate("org/toy", revision=revision, cache=tmp_path)


def test_a_ref_without_its_snapshot_and_a_damaged_ref_are_refused(tmp_path: Path) -> None:
    folder = write_repository(tmp_path)
    damaged = {"gone": "3" * 40, "bent": "../../../elsewhere", "up": "..", "here": ".", "void": ""}
    for revision, content in damaged.items():
        (folder / "refs" / revision).write_text(content)
    for revision in damaged:
        with pytest.raises(SourceError, match="there: main, refs/pr/3, v1"):
            locate("org/toy", revision=revision, cache=tmp_path)


@pytest.mark.parametrize(
    ("content", "snapshot"),
    [(NEW[:12], NEW), (NEW[:12], NEW[:12]), ("abc12", "abc12"), ("abc12\n", "abc12"), ("v1", "v1")],
)
def test_a_ref_names_a_snapshot_however_long_its_commit_is(
    tmp_path: Path, content: str, snapshot: str
) -> None:
    """Tools that copy caches shorten commits, or name snapshots otherwise."""
    folder = write_repository(tmp_path)
    (folder / "snapshots" / NEW).rename(folder / "snapshots" / snapshot)
    (folder / "refs" / "main").write_text(content)
    assert locate("org/toy", cache=tmp_path).commit == snapshot
    assert locate("org/toy", revision=snapshot, cache=tmp_path).commit == snapshot
    assert snapshot in next(repositories(tmp_path)).revisions


def test_a_cache_without_a_snapshot_offers_none(tmp_path: Path) -> None:
    (tmp_path / "models--org--toy" / "refs").mkdir(parents=True)
    (tmp_path / "models--org--toy" / "refs" / "main").write_text(NEW)
    with pytest.raises(SourceError, match="there: none"):
        locate("org/toy", cache=tmp_path)


def test_the_tokenizer_follows_the_revision_too(tmp_path: Path) -> None:
    folder = write_repository(tmp_path)
    write_single(tmp_path / "plain")
    found = locate(
        str(tmp_path / "plain"), tokenizer_path="org/toy", revision="v1.0", cache=tmp_path
    )
    assert found.tokenizer_path == folder / "snapshots" / OLD
    assert (found.path, found.commit) == (tmp_path / "plain", "")
    with pytest.raises(SourceError, match="--tokenizer-path org/toy: revision 'v9'"):
        locate(str(tmp_path / "plain"), tokenizer_path="org/toy", revision="v9", cache=tmp_path)


def test_files_outside_of_a_cache_have_no_revision(tmp_path: Path) -> None:
    write_single(tmp_path / "plain")
    path = str(tmp_path / "plain")
    assert locate(path, revision="main", cache=tmp_path).commit == ""
    with pytest.raises(SourceError, match=r"--revision v1\.0: .*/plain "):
        locate(path, revision="v1.0", cache=tmp_path)


def test_a_folder_wins_over_a_repository_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_repository(tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "toy").mkdir(parents=True)
    write_single(tmp_path / "org" / "toy", vocab_size=50)
    assert locate("org/toy", cache=tmp_path / "cache").config["vocab_size"] == 50


def test_an_unknown_repository_says_where_was_looked(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"{tmp_path}.*vivace pull org/no"):
        locate("org/no", cache=tmp_path)
    with pytest.raises(SourceError) as caught:
        locate("./no/such/folder", cache=tmp_path)
    assert "vivace pull" not in str(caught.value)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    every = {"HF_HUB_CACHE": "/a", "HF_HOME": "/b", "XDG_CACHE_HOME": "~/c"}
    assert hub_cache("/flag", every) == Path("/flag")
    assert hub_cache(None, every) == Path("/a")
    assert hub_cache(None, {**every, "HF_HUB_CACHE": ""}) == Path("/b/hub")
    assert hub_cache(None, {"XDG_CACHE_HOME": "~/c"}) == Path("/home/me/c/huggingface/hub")
    assert hub_cache(None, {}) == Path("/home/me/.cache/huggingface/hub")


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (["--download-dir", "{}/hub"], {}),
        ([], {"HF_HUB_CACHE": "{}/hub"}),
        ([], {"HF_HOME": "{}"}),
    ],
)
def test_the_command_line_reaches_the_snapshot(
    tmp_path: Path, flags: list[str], variables: dict[str, str]
) -> None:
    write_repository(tmp_path / "hub")
    argv = ["--model-path", "org/toy", "--revision", "v1.0"]
    config = configure(
        parse(
            [*argv, *(word.format(tmp_path) for word in flags)],
            {name: value.format(tmp_path) for name, value in variables.items()},
        )
    )
    assert config.source.commit == OLD
    capacity = Capacity(pages=4, page_size=16, rows=2, context=64, vocabulary=30)
    rows = dict(build_summary(config, capacity, "http://host").rows)
    assert rows["model"].startswith(f"org/toy, safetensors, commit {OLD[:12]}, ")
