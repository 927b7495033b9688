"""Keys from files and variables, where no list of processes shows them."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from vivace.config.errors import ConfigError
from vivace.config.http import HttpOptions
from vivace.config.parallel import ParallelOptions
from vivace.config.process_environment import KEY_FORM, KEYS_OF_THE_SERVER, is_key
from vivace.config.secret import Secret

API_KEY, ADMIN_API_KEY, CLUSTER_KEY = KEYS_OF_THE_SERVER
SHORTEST_CLUSTER_KEY = 16
"""characters: a guess can be tried on what goes over the network"""
MOST_KEYS = 4096
MOST_BYTES = 1 << 20
OTHERS = stat.S_IRWXO | stat.S_IWGRP


def with_keys(http: HttpOptions, environ: Mapping[str, str]) -> HttpOptions:
    """The options with the keys of the files and, where no flag gives one, of the variables.

    Raises ConfigError for what is no key, and for a file that cannot be read, or that others can.
    """
    return dataclasses.replace(
        http,
        api_key=of_flag("--api-key", http.api_key) or of_variable(environ, API_KEY),
        admin_api_key=of_flag("--admin-api-key", http.admin_api_key)
        or of_variable(environ, ADMIN_API_KEY),
        file_keys=of_file("--api-key-file", http.api_key_file),
        admin_file_keys=of_file("--admin-api-key-file", http.admin_api_key_file),
    )


def with_cluster_key(parallel: ParallelOptions, environ: Mapping[str, str]) -> ParallelOptions:
    """The options with the key of the file or, without one, of the variable. Raises ConfigError."""
    flag, path = "--cluster-key-file", parallel.cluster_key_file
    found, where = of_file(flag, path), f"{flag} {path}"
    if len(found) > 1:
        raise ConfigError(f"{where}: has {len(found)} keys, where one may be")
    if not found and (key := of_variable(environ, CLUSTER_KEY)):
        found, where = (key,), CLUSTER_KEY
    if found and len(found[0].reveal()) < SHORTEST_CLUSTER_KEY:
        raise ConfigError(
            f"{where}: a key of fewer than {SHORTEST_CLUSTER_KEY} characters can be guessed; "
            "`openssl rand -hex 32` makes one"
        )
    return dataclasses.replace(parallel, cluster_key=found[0] if found else None)


def of_flag(flag: str, key: Secret | None) -> Secret | None:
    if key is not None:
        check_key(flag, key.reveal(), "leave the flag out")
    return key


def of_variable(environ: Mapping[str, str], name: str) -> Secret | None:
    text = environ.get(name)
    if text is None:
        return None
    check_key(name, text.strip(), "unset it")
    return Secret(text.strip())


def check_key(where: str, key: str, without: str = "") -> None:
    if not key:
        raise ConfigError(f"{where}: the key is empty; give one, or {without} to serve without")
    if not is_key(key):
        raise ConfigError(f"{where}: {KEY_FORM}")


def of_file(flag: str, path: str | None) -> tuple[Secret, ...]:
    """The keys of a file: one in a line; blank lines and lines that begin with # do not count."""
    if path is None:
        return ()
    where = f"{flag} {path}"
    keys: list[str] = []
    for number, line in enumerate(read_key_file(where, Path(path)).splitlines(), 1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        check_key(f"{where}: line {number}", key)
        if key in keys:
            raise ConfigError(f"{where}: line {number}: this key is there twice")
        keys.append(key)
    if not 1 <= len(keys) <= MOST_KEYS:
        raise ConfigError(
            f"{where}: has {len(keys)} keys, where 1 to {MOST_KEYS} may be; write one key a line "
            "(python -c 'import secrets; print(secrets.token_urlsafe())' makes one)"
        )
    return tuple(Secret(key) for key in keys)


def read_key_file(where: str, path: Path) -> str:
    """The file's text, if only its owner and its group can read it."""
    try:
        with open(path, "rb", opener=without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{where}: is not a file")
            if status.st_mode & OTHERS:
                raise ConfigError(f"{where}: others can read or change it; chmod 600 {path}")
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{where}: is larger than {MOST_BYTES >> 20} MiB")
    return data.decode("ascii", "replace")


def without_waiting(path: str, flags: int) -> int:
    """Opening a pipe would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)
