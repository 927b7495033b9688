"""Keys from flags, files and variables: who may read them, and where they show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from config_kit import resolved

from vivace.config.child_process import bare_environment, child_environment
from vivace.config.errors import ConfigError
from vivace.config.parsing import parse
from vivace.config.process_environment import GIVE_A_KEY, KEY_VARIABLES, client_key
from vivace.config.serialize import decode, encode, public
from vivace.launch.process_list import hide

CLIENTS = "# ours\n  one-key  \n\ntwo-key\n#three\n"


def file(tmp_path: Path, text: str = CLIENTS, mode: int = 0o600) -> str:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def texts(keys: tuple) -> list[str]:
    return [key.reveal() for key in keys]


def test_files_flags_and_variables_add_up(tmp_path: Path) -> None:
    words = ["--api-key-file", file(tmp_path)]
    assert texts(parse(words, {}).http.keys) == ["one-key", "two-key"]
    http = parse(["--api-key", "flag", *words], {"VIVACE_API_KEY": "variable"}).http
    assert texts(http.keys) == ["flag", "one-key", "two-key"]
    http = parse(words, {"VIVACE_API_KEY": "variable", "VIVACE_ADMIN_API_KEY": "admin"}).http
    assert texts(http.keys) == ["variable", "one-key", "two-key"]
    assert texts(http.admin_keys) == ["admin"]
    http = parse(["--admin-api-key-file", file(tmp_path)], {}).http
    assert texts(http.admin_keys) == ["one-key", "two-key"] and not http.keys


def test_a_file_of_keys_is_as_good_as_a_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--api-key-file"):
        resolved("--host", "0.0.0.0")
    config = resolved("--host", "0.0.0.0", "--api-key-file", file(tmp_path))
    again = decode(encode(config))
    assert texts(again.http.keys) == ["one-key", "two-key"]
    for shown in (repr(config), json.dumps(public(config)), repr(config.environment)):
        assert "one-key" not in shown


def test_a_variable_is_not_kept() -> None:
    options = parse([], {"VIVACE_API_KEY": "sesame"})
    assert "sesame" not in repr(options) and not options.environment and not options.notices


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o620, 0o601])
def test_others_must_not_read_it(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="chmod 600") as caught:
        parse(["--api-key-file", file(tmp_path, mode=mode)], {})
    assert "one-key" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_the_group_may(tmp_path: Path, mode: int) -> None:
    assert parse(["--api-key-file", file(tmp_path, mode=mode)], {}).http.keys


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has 0 keys"),
        ("# none\n\n", "has 0 keys"),
        ("a\nb\na\n", "line 3: this key is there twice"),
        ("good\ntwo words\n", "line 2: a key is made of"),
        ("schlüssel\n", "line 1: a key is made of"),
        ("x\0y\n", "line 1: a key is made of"),
        ("x" * (2 << 20), "larger than 1 MiB"),
        ("".join(f"k{i}\n" for i in range(5000)), "has 5000 keys"),
    ],
)
def test_what_is_no_file_of_keys(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse(["--api-key-file", file(tmp_path, text)], {})


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("missing", ".", "pipe"):
        with pytest.raises(ConfigError, match="--api-key-file"):
            parse(["--api-key-file", str(tmp_path / name)], {})


def test_children_do_not_inherit_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIVACE_API_KEY", "VIVACE_ADMIN_API_KEY"):
        monkeypatch.setenv(name, "sesame")
    for environment in (child_environment(), bare_environment()):
        assert "sesame" not in environment.values() and environment["PATH"]


HIDING = """
import os, sys
from pathlib import Path
from vivace.launch.process_list import hide
before = Path("/proc/self/cmdline").read_bytes()
assert b"sesame" in before
assert hide(["SESAME", "geheim"])
for name in ("cmdline", "environ"):
    shown = Path("/proc/self/" + name).read_bytes().replace(b"keep=sesameseed", b"")
    assert b"sesame" not in shown and b"geheim" not in shown, shown
    assert b"******" in shown
after = Path("/proc/self/cmdline").read_bytes()
assert len(after) == len(before)
assert b"keep=sesameseed" in after and sys.argv[2] == "SESAME"
assert b"PATH=" in Path("/proc/self/environ").read_bytes()
"""


@pytest.mark.parametrize("first", ["sesame", "sesame==", "a=sesame", "=sesame="], ids=range(4))
def test_the_list_of_processes_shows_stars(first: str) -> None:
    """Keys in base64 end with the sign that parts a flag from its value."""
    words = ["--api-key", first, "--admin-api-key=geheim", "keep=sesameseed", f"--api-key={first}"]
    command = [sys.executable, "-", *words]
    environment = {**os.environ, "VIVACE_API_KEY": first}
    done = subprocess.run(
        command,
        env=environment,
        input=HIDING.replace("SESAME", first),
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_key_within_an_argument_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all that shows one is understood: what is left is looked for, whatever it is part of."""
    shown = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    longest = max(shown, key=len).decode()
    monkeypatch.setattr("vivace.launch.process_list.blank", lambda *_: None)
    assert not hide([longest[1:-1]]) and hide(["nowhere-at-all-in-it"])


@pytest.mark.parametrize(
    "origin",
    [
        *("ui.example", "https://ui.example/path", "https://ui.example/", "ftp://x", "", "null"),
        *("https://", "https://ui example", "http://ui:99999", "http://ui:0", "http://ui:"),
        *(
            "https://ui:443",
            "http://ui:80",
            "http://a@ui",
            "http://[1::2",
            "http://[x]",
            "http://ü",
        ),
    ],
)
def test_an_origin_is_what_browsers_send(origin: str) -> None:
    with pytest.raises(ConfigError, match="--allowed-origins"):
        resolved("--allowed-origins", origin)


def test_origins_and_hosts() -> None:
    config = resolved(
        "--allowed-origins", "https://a.example", "http://b:8080", "--allowed-hosts", "llm", "a-b.c"
    )
    assert config.http.allowed_origins == ("https://a.example", "http://b:8080")
    assert config.http.allowed_hosts == ("llm", "a-b.c")
    other = ("https://[::1]:8443", "http://10.0.0.1", "*")
    assert resolved("--allowed-origins", *other).http.allowed_origins == other
    assert resolved("--allowed-hosts", "*").http.allowed_hosts == ("*",)


@pytest.mark.parametrize(
    "host", ["http://x", "a b", "name:8080", "", "x/", "name.", "ü.example", "a..b", "-a"]
)
def test_a_host_that_can_never_match_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="--allowed-hosts"):
        resolved(f"--allowed-hosts={host}")


@pytest.mark.parametrize("key", ["", " ", "two words", "schlüssel", "x\n"])
def test_what_is_no_key(key: str) -> None:
    for name in ("api-key", "admin-api-key"):
        with pytest.raises(ConfigError, match=f"--{name}: ") as caught:
            parse([f"--{name}={key}"], {})
        assert not key.strip() or key not in str(caught.value)
    if key != "x\n":  # a variable may come from a file
        for name in ("VIVACE_API_KEY", "VIVACE_ADMIN_API_KEY"):
            with pytest.raises(ConfigError, match=f"^{name}: "):
                parse([], {name: key})


def test_clients_look_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert client_key() is None
    for name in reversed(KEY_VARIABLES):
        monkeypatch.setenv(name, f"of-{name}")
        assert client_key() == f"of-{name}"
        assert name in GIVE_A_KEY
    monkeypatch.setenv(KEY_VARIABLES[0], " ")
    assert client_key() == f"of-{KEY_VARIABLES[1]}"
