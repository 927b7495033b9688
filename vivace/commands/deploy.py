"""`vivace deploy`: import, render, schema, hardware and models."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from vivace.arguments import ArgumentParser, named_path
from vivace.deploy.load_case import (
    LoadedDeployment,
    Overrides,
    build_case,
    load_device,
    open_files,
    with_overrides,
)
from vivace.deploy.schema.deployment import Deployment
from vivace.deploy.schema.nodes import refuse_without_address
from vivace.errors import CANNOT_START, CannotStart, exit_code
from vivace.files import check_folder, read_file, write_file, write_own_file
from vivace.terminal import print_wrapped, shown

TARGETS = ("shell", "systemd", "compose", "kubernetes", "ray")
VIVACE_PROGRAMS = {
    "sglang.launch_server": "vivace.launch_server",
    "sglang serve": "vivace serve",
    "sglang.bench_serving": "vivace.bench_serving",
}


def main(words: Sequence[str]) -> int:
    """Exit code: 0, or 2 with the error on stderr."""
    if not words:
        parser().print_help()
        return CANNOT_START
    chosen = parser().parse_args(list(words))
    return exit_code("vivace deploy", lambda: COMMANDS[chosen.command](chosen))


def parser() -> argparse.ArgumentParser:
    made = ArgumentParser(prog="vivace deploy", description="Deployments as one file.")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    reading = commands.add_parser("import", help="launch scripts -> a deployment file")
    reading.add_argument("scripts", nargs="+", type=named_path, metavar="SCRIPT")
    reading.add_argument("-o", "--output", type=named_path, metavar="FILE", help="default: stdout")
    reading.add_argument("--name", default="", help="of the deployment")
    reading.add_argument("--hardware", metavar="NAME", help="`vivace deploy hardware` lists names")
    reading.add_argument("--cards", type=int, metavar="N")
    reading.add_argument("--model", metavar="NAME", help="`vivace deploy models` lists names")
    reading.add_argument("--quantization", metavar="FORM", help="of the weights: w8a8, w4a8")
    reading.add_argument("--force", action="store_true", help="write over a file that differs")
    rendering = commands.add_parser("render", help="a deployment -> what starts it")
    rendering.add_argument("files", nargs="+", type=named_path, metavar="FILE")
    rendering.add_argument("--to", choices=TARGETS, required=True)
    rendering.add_argument(
        "-o", "--output", type=named_path, metavar="FOLDER", help="default: stdout"
    )
    rendering.add_argument("--force", action="store_true", help="write over files that differ")
    help_text = "programs to start (default: Vivace's where the file says engine: vivace)"
    rendering.add_argument("--engine", choices=("vivace", "sglang"), help=help_text)
    commands.add_parser("schema", help="the JSON schema of a deployment file")
    commands.add_parser("hardware", help="known devices")
    commands.add_parser("models", help="known models")
    return made


def import_scripts(chosen: argparse.Namespace) -> int:
    from vivace.deploy.schema.files import to_yaml

    if any(str(word).startswith("--") for word in chosen.scripts):
        raise CannotStart("import reads scripts: write the command into a file, and name that")
    loaded = open_files(chosen.scripts)
    overrides = Overrides(
        hardware=chosen.hardware,
        cards=chosen.cards,
        model=chosen.model,
        quantization=chosen.quantization,
    )
    deployment = with_overrides(loaded.deployment, overrides)
    load_device(deployment.hardware)
    if deployment.model.config is not None:
        reason = "put a config.json beside the deployment file and name it there as model.config"
        raise CannotStart(f"--model {chosen.model}: a known name is needed here; {reason}")
    deployment.name = chosen.name
    text = to_yaml(deployment)
    print_remarks(loaded, deployment)
    if chosen.output is None:
        print(text, end="")
        return 0
    if not chosen.force:
        refuse_other_content({chosen.output: text})
    write_file(chosen.output, text)
    print_wrapped(f"written: {chosen.output}")
    return 0


def refuse_other_content(contents: Mapping[Path, str]) -> None:
    """Raises CannotStart where writing would lose what somebody has changed in a file."""
    others = [path for path, text in contents.items() if has_other_content(path, text.encode())]
    if others:
        shown_names = ", ".join(map(str, others[:3]))
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        them, differ = ("it", "differs") if len(others) == 1 else ("them", "differ")
        raise CannotStart(
            f"{shown_names}{more}: there already, and {differ} from what would be written; "
            f"--force writes over {them}"
        )


def has_other_content(path: Path, content: bytes) -> bool:
    """Of folders, pipes and devices there is nothing to lose: `write_file` says what they are."""
    if not path.is_file():
        return False
    return path.stat().st_size != len(content) or read_file(path, len(content)) != content


def print_remarks(loaded: LoadedDeployment, deployment: Deployment) -> None:
    """Prints the roles and every line that was not understood to stderr."""
    for each in loaded.remarks:
        print_wrapped(shown(f"{each.file}:{each.line}: {each.text}"))
    roles = [
        f"{name}: {role.instances} x {role.nodes} node(s)"
        for name, role in deployment.roles.items()
    ]
    found = "; ".join([*roles, f"{len(deployment.benchmarks)} benchmark(s)"])
    print_wrapped(shown(found))


def render(chosen: argparse.Namespace) -> int:
    loaded = open_files(chosen.files)
    deployment = loaded.deployment
    if (chosen.engine or deployment.engine.strip()) == "vivace":
        deployment = for_vivace(deployment)
    files = render_files(deployment, chosen.to, loaded)
    if chosen.output is None:
        for name, content in files.items():
            print(f"# ==> {name} <==\n{content}")
        return 0
    check_folder(chosen.output, new=True)
    contents = {chosen.output / name: content for name, content in files.items()}
    if not chosen.force:
        # --force would not help with a link, which is never followed (`write_own_file` says so).
        own = {path: text for path, text in contents.items() if not path.is_symlink()}
        refuse_other_content(own)
    chosen.output.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        write_own_file(path, content)
        if path.suffix == ".sh":
            path.chmod(0o755)
        print_wrapped(f"written: {path}")
    return 0


def render_files(deployment: Deployment, to: str, loaded: LoadedDeployment) -> dict[str, str]:
    """File name -> content."""
    from vivace.deploy.render.compose import render_compose
    from vivace.deploy.render.kubernetes import render_kubernetes
    from vivace.deploy.render.ray import render_ray
    from vivace.deploy.render.shell import render_shell
    from vivace.deploy.render.systemd import render_systemd

    refuse_controls(deployment.prepare, loaded.file)
    if to != "kubernetes":  # pods are told their addresses
        refuse_without_address(deployment, loaded.file)
    case = build_case(LoadedDeployment(deployment, (), loaded.file), Overrides())
    return {
        "shell": lambda: render_shell(deployment),
        "systemd": lambda: render_systemd(deployment),
        "compose": lambda: render_compose(case),
        "kubernetes": lambda: render_kubernetes(case),
        "ray": lambda: render_ray(case),
    }[to]()


def refuse_controls(prepare: Sequence[str], file: str) -> None:
    """Lines of shell are written as they are. Raises CannotStart for one that would steer a
    terminal or a CI system."""
    for line in (part for each in prepare for part in each.split("\n")):
        if not line.replace("\t", " ").isprintable() or line.lstrip().startswith(("::", "##")):
            reason = "control characters, or a beginning that CI systems obey"
            raise CannotStart(f"{file}: prepare: {line[:80]!a}: {reason}; take it out")


def for_vivace(deployment: Deployment) -> Deployment:
    """The deployment with Vivace's programs; routers stay."""
    from msgspec.structs import replace

    roles = {
        name: replace(role, program=VIVACE_PROGRAMS.get(role.program, role.program))
        for name, role in deployment.roles.items()
    }
    benchmarks = [
        replace(each, program=VIVACE_PROGRAMS.get(each.program, each.program))
        for each in deployment.benchmarks
    ]
    return replace(deployment, engine="vivace", roles=roles, benchmarks=benchmarks)


def show_schema(chosen: argparse.Namespace) -> int:
    from vivace.deploy.schema.deployment import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0


def show_hardware(chosen: argparse.Namespace) -> int:
    from vivace.deploy.catalogue.hardware import devices, measured_devices
    from vivace.deploy.load_case import cache_folder

    for device in (*measured_devices(cache_folder()), *devices()):
        rates = f"{device.bandwidth_gbs:g} GB/s, {device.bf16_tflops:g} TFLOP/s BF16"
        cards = f", {device.devices_per_card} a card" if device.devices_per_card > 1 else ""
        text = f"{device.title}: {device.memory_gib:g} GiB, {rates}{cards}"
        print_known(device.name, text, "; ".join(device.sources), 20)
    return 0


def show_models(chosen: argparse.Namespace) -> int:
    from vivace.deploy.catalogue.models import known_architecture, models

    for model in models():
        shape = known_architecture(model)
        total, active = shape.parameters() / 1e9, shape.parameters(active=True) / 1e9
        size = f"{total:.1f}B" + (f", {active:.1f}B a token" if shape.experts else "")
        also = f"also {', '.join(model.aliases)}" if model.aliases else ""
        print_known(model.name, f"{model.title}: {size}", also, 24)
    return 0


def print_known(name: str, text: str, more: str, width: int) -> None:
    """In lines of 80 columns, of which the name takes `width`."""
    from textwrap import fill

    indent = " " * (width + 1)
    for first, words in ((f"{name:{width}} ", text), (indent, more)):
        if words:
            print(fill(words, 80, initial_indent=first, subsequent_indent=indent,
                       break_long_words=False, break_on_hyphens=False))  # fmt: skip


COMMANDS = {
    "import": import_scripts,
    "render": render,
    "schema": show_schema,
    "hardware": show_hardware,
    "models": show_models,
}
