"""Every command that takes a path, with everything that may lie there instead: one line that names
the path, at once, and nothing written elsewhere."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from vivace import cli
from vivace.errors import CANNOT_START
from vivace.files import check_folder, read_file, write_file, write_own_file

ROOT = Path(__file__).parents[2]
DEPLOYMENT = str(ROOT / "examples" / "deployment.yaml")
PORT = ["serve", "--port", "0"]
BENCH = ["bench", "serving", "--backend", "sglang", "--num-prompts", "1", "--port", "1"]


def a_socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # a socket's name is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)
    os.chdir(before)


KINDS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a folder": lambda path: path.mkdir(),
    "a text": lambda path: path.write_text("hello {{\n"),
    "a link to nowhere": lambda path: path.symlink_to(path.parent / "nowhere"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a pipe": os.mkfifo,
    "a socket": a_socket,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
}
NO_FOLDER = [kind for kind in KINDS if kind != "a folder"]
THERE = [kind for kind in NO_FOLDER if kind != "nothing"]
NO_TEXT = [kind for kind in KINDS if kind != "a text"]
NEITHER_TEXT_NOR_DEVICE = ["a folder", "a link to itself", "a pipe", "a socket"]
COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "list": (["list", "--download-dir"], NO_FOLDER),
    "rm": (["rm", "-y", "org/name", "--download-dir"], NO_FOLDER),
    "pull": (["pull", "org/name", "--download-dir"], THERE),
    "doctor": (["doctor"], NO_TEXT),
    "doctor --models": (["doctor", "--models"], NO_FOLDER),
    "check": (["check"], NO_TEXT),
    "check --html": (["check", DEPLOYMENT, "--html"], NEITHER_TEXT_NOR_DEVICE),
    "check --model": (["check", DEPLOYMENT, "--model"], NO_TEXT),
    "import": (["deploy", "import"], NO_TEXT),
    "import -o": (["deploy", "import", DEPLOYMENT, "--force", "-o"], NEITHER_TEXT_NOR_DEVICE),
    "render": (["deploy", "render", "--to", "shell"], NO_TEXT),
    "render -o": (["deploy", "render", DEPLOYMENT, "--to", "shell", "-o"], THERE),
    "--config": ([*PORT, "--config"], NO_TEXT),
    "--model-path": ([*PORT, "--model-path"], list(KINDS)),
    "--tokenizer-path": ([*PORT, "--tokenizer-path"], list(KINDS)),
    "--chat-template": ([*PORT, "--chat-template"], list(KINDS)),
    "--download-dir": ([*PORT, "--model-path", "org/name", "--download-dir"], list(KINDS)),
    "--api-key-file": ([*PORT, "--api-key-file"], NO_TEXT),
    "--dataset-path": ([*BENCH, "--dataset-name", "custom", "--dataset-path"], NO_TEXT),
    "--output-file": ([*BENCH, "--output-file"], NEITHER_TEXT_NOR_DEVICE),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("command", "kind"), [(name, kind) for name, (_, kinds) in COMMANDS.items() for kind in kinds]
)
def test_one_line_at_once(
    command: str,
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("VIVACE_EXECUTOR", "oracle")  # `serve` starts no engine ahead
    place = tmp_path / "place"
    KINDS[kind](place)
    before = sorted(tmp_path.iterdir())
    try:
        code = cli.main([*COMMANDS[command][0], str(place)])
    except SystemExit as end:
        code = end.code
    told = capsys.readouterr().err.strip()
    assert code in (CANNOT_START, 1), told
    assert str(place) in told.splitlines()[-1], told
    assert len(told.splitlines()) == 1 or command == "import -o", told  # that says what it read
    assert "Errno" not in told and "Traceback" not in told
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_of_a_file(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    KINDS[kind](place)
    expected = {
        "nothing": "No such file or directory",
        "a folder": "a folder; give a file",
        "a link to nowhere": f"a link to {tmp_path}/nowhere, which is not there",
        "a link to itself": "a link that leads back to itself",
        "a socket": "a pipe or a socket; give a file",
        "a pipe": "not a regular file",
        "an endless device": "not a regular file",
    }
    if kind == "a text":
        assert read_file(place, 100) == b"hello {{\n"
        return
    with pytest.raises(OSError) as caught:
        read_file(place, 100)
    assert (caught.value.filename, caught.value.strerror) == (str(place), expected[kind])


def test_a_part_of_the_path_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for work in (read_file, write_file, check_folder):
        with pytest.raises(OSError) as caught:
            work(
                tmp_path / "file" / "x",
                *([10] if work is read_file else []),  # type: ignore[arg-type]
                **({"text": ""} if work is write_file else {}),
            )
        assert caught.value.strerror == "a part of the path is not a folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_without_permission(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0)
    for work in (lambda path: read_file(path / "x", 10), check_folder):
        with pytest.raises(OSError, match="Permission denied"):
            work(tmp_path / "folder")


def test_a_named_link_is_followed_and_a_chosen_name_is_not(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("kept")
    link.symlink_to(target)
    with pytest.raises(OSError, match="link"):
        write_own_file(link, "changed")
    assert target.read_text() == "kept"
    write_file(link, "changed")
    assert target.read_text() == "changed" and link.is_symlink()


def test_render_overwrites_nothing_through_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "out" / "server-0.sh").symlink_to(tmp_path / "kept")
    words = ["deploy", "render", DEPLOYMENT, "--to", "shell", "-o", str(tmp_path / "out")]
    assert cli.main(words) == CANNOT_START
    assert "link" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "kept").read_text() == "kept"


def test_new_folders(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b", new=True)
    with pytest.raises(FileNotFoundError):
        check_folder(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["deploy", "render", DEPLOYMENT, "--to", "shell", "-o"],
        ["deploy", "import", DEPLOYMENT, "-o"],
        ["deploy", "import"],
        ["deploy", "render", "--to", "shell"],
        ["doctor"],
        ["bench", "peers", "--dir"],
    ],
)
def test_an_empty_name_is_not_the_current_folder(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, ""])
    assert ended.value.code == CANNOT_START and not list(tmp_path.iterdir())
    assert "the name is empty" in capsys.readouterr().err
