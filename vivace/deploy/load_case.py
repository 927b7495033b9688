"""A deployment file, scripts or a command line, with overrides -> a case for the rules."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from vivace.config.process_environment import process_environment
from vivace.deploy.case import Case
from vivace.deploy.catalogue.hardware import Device, devices, find_device, measured_devices
from vivace.deploy.catalogue.models import (
    DescribedModel,
    describe_known,
    find_model,
    guess_model,
    models,
    names_exactly,
    read_description,
)
from vivace.deploy.files import (
    MAX_BYTES,
    STDIN,
    STDIN_NAMES,
    absolute,
    below,
    beside,
    home,
    is_beside,
    is_file,
    is_folder,
    is_silent,
    read_stdin,
)
from vivace.deploy.from_script.roles import LoadedDeployment
from vivace.deploy.schema.deployment import (
    DEVICES,
    Deployment,
    DeploymentError,
    Hardware,
    Model,
    Workload,
)
from vivace.deploy.target import parse_target
from vivace.errors import nearest
from vivace.files import FileTooLarge, PathName, read_file
from vivace.terminal import print_wrapped

SPECS = (".yaml", ".yml")
MANIFEST = re.compile(rb"^(?:\xef\xbb\xbf)?(?:apiVersion|services|run)[ \t]*:", re.MULTILINE)


class Overrides(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the command line that override those of the files; None: not given."""

    target: str | None = None
    hardware: str | None = None
    cards: int | None = None
    model: str | None = None
    quantization: str | None = None
    input: int | None = None
    output: int | None = None
    concurrency: int | None = None
    prefix_share: float | None = None


def open_files(files: Sequence[PathName]) -> LoadedDeployment:
    """One deployment file, or scripts. Raises DeploymentError or ScriptError."""
    paths = [STDIN if str(file) in STDIN_NAMES else str(file) for file in files]
    given = {STDIN: stdin_content()} if STDIN in paths else {}
    specs = [path for path in paths if is_spec(path, given.get(path))]
    if specs and len(paths) > 1:
        text = "give one deployment file, or scripts, not both; --each judges every file alone"
        raise DeploymentError(text)
    if specs:
        from vivace.deploy.schema.files import Documents, load
        from vivace.deploy.schema.lines import collect_sources

        documents: Documents = {}
        deployment = load(specs[0], documents, given.get(specs[0]))
        refuse_elsewhere(specs[0], deployment.model)
        return LoadedDeployment(deployment, (), specs[0], collect_sources(documents))
    from vivace.deploy.from_script.script import import_files

    return import_files(paths, given)


def stdin_content() -> bytes:
    """Raises DeploymentError. A terminal and a silent pipe are told what is waited for."""
    if is_silent():
        print_wrapped(f"{STDIN}: waiting for a deployment file or a script; Ctrl-D ends it")
    try:
        return read_stdin(MAX_BYTES)
    except FileTooLarge as error:
        raise DeploymentError(f"{STDIN}: {error}") from None


def refuse_elsewhere(file: str, model: Model) -> None:
    """A stranger's file must not have others read. Raises DeploymentError."""
    if model.config is not None and not is_beside(file, model.config):
        reason = "it must lie in the same folder or below; --model takes one from elsewhere"
        raise DeploymentError(f"{file}: model.config: {model.config}: {reason}")


def is_spec(path: str, raw: bytes | None) -> bool:
    """Whether it is a deployment: YAML that is no compose file, manifest or task of SkyPilot.
    `raw`: of what has no name that would say so."""
    if raw is not None:
        from vivace.deploy.from_script.formats import is_yaml

        return MANIFEST.search(raw) is None and is_yaml(raw.decode("utf-8-sig", "replace"))
    if not path.endswith(SPECS):
        return False
    try:
        return MANIFEST.search(read_file(path, MAX_BYTES)) is None
    except (OSError, FileTooLarge):
        return True


def open_command(words: Sequence[str]) -> LoadedDeployment:
    """What follows `--`. Raises ScriptError."""
    from vivace.deploy.from_script.script import import_command

    return import_command(words)


def build_case(loaded: LoadedDeployment, overrides: Overrides) -> Case:
    """Raises DeploymentError for an unknown target, device or model."""
    deployment = with_overrides(loaded.deployment, overrides)
    try:
        target = parse_target(overrides.target or deployment.engine or "sglang")
    except ValueError as error:
        where = "--target" if overrides.target else f"{loaded.file}: engine"
        raise DeploymentError(f"{where}: {error}") from None
    described = load_model(deployment.model, loaded.file)
    return Case(
        deployment=deployment,
        file=loaded.file,
        target=target,
        device=load_device(deployment.hardware),
        model=None if described is None else described.architecture,
        described=described,
        model_guessed=is_guessed(deployment.model),
        remarks=loaded.remarks,
        sources=loaded.sources,
        launches=loaded.started,
        target_ports=loaded.target_ports,
        shared=loaded.shared,
    )


def with_overrides(deployment: Deployment, overrides: Overrides) -> Deployment:
    """The deployment with the overrides; the one that was read stays as it is."""
    from msgspec.structs import replace

    hardware, model, workload = deployment.hardware, deployment.model, deployment.workload
    if overrides.hardware is not None:
        hardware = Hardware(device=overrides.hardware, cards=hardware.cards if hardware else None)
    if overrides.cards is not None:
        if hardware is None:
            raise DeploymentError("--cards needs --hardware")
        hardware = replace(hardware, cards=overrides.cards)
    if overrides.model is not None:
        name, config = named_or_described(overrides.model)
        model = replace(model, name=name, config=config)
    if overrides.quantization is not None:
        model = replace(model, quantization=overrides.quantization)
    names = ("input", "output", "concurrency", "prefix_share")
    stated = {name: value for name in names if (value := getattr(overrides, name)) is not None}
    if stated:
        workload = replace(workload or Workload(), **stated)
    return replace(deployment, hardware=hardware, model=model, workload=workload)


def named_or_described(model: str) -> tuple[str | None, str | None]:
    """What --model says, as (a name of the catalogue or of a hub, the path of a config.json or of
    its folder)."""
    described = model.endswith(".json") or is_folder(model)
    if described or ("/" in model and guess_model(model) is None):
        return None, absolute(model)
    return model, None


def cache_folder() -> str:
    overrides = process_environment().get("XDG_CACHE_HOME")
    return overrides or below(home(), ".cache")


def load_device(hardware: Hardware | None) -> Device | None:
    if hardware is None:
        return None
    found = find_device(hardware.device, measured_devices(cache_folder()))
    if found is None:
        names = [device.name for device in devices()]
        near = nearest(hardware.device, names)
        raise DeploymentError(
            f"hardware.device {hardware.device!r} is not in the catalogue{near or ''}; give "
            f"{DEVICES}"
        )
    return found


def is_guessed(model: Model) -> bool:
    """Whether only a likeness to a name of the catalogue says which model it is."""
    text = model.name or model.path
    if model.config is not None or text is None or names_exactly(text):
        return False
    return model.name is not None or not is_file(below(text, "config.json"))


def load_model(model: Model, file: str) -> DescribedModel | None:
    """By config.json, by name, or guessed from the path; None if unknown."""
    if model.config is not None:
        try:
            return read_description(beside(file, model.config))
        except ValueError as error:
            raise DeploymentError(f"model.config: {error}") from None
    if model.name is not None:
        known = find_model(model.name) or guess_model(model.name)
        if known is None:
            near = nearest(model.name, [each.name for each in models()])
            raise DeploymentError(
                f"model.name {model.name!r} is not known{near} (`vivace deploy models` lists them; "
                "model.config takes the path of a config.json)"
            )
        return describe_known(known, model.path or model.name)
    if model.path is None:
        return None
    config = below(model.path, "config.json")
    if is_file(config):
        try:
            return read_description(config)
        except ValueError:
            return None
    known = guess_model(model.path)
    return None if known is None else describe_known(known, model.path)
