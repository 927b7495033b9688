"""Rules about what flags do on a platform and in an engine."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.config.releases.tables import is_taken
from vivace.deploy.case import Case
from vivace.deploy.catalogue.ascend import ELSEWHERE, ascend_flags
from vivace.deploy.from_script.flags import find_option, server_options
from vivace.deploy.rules.flags import INVENTORY
from vivace.deploy.rules.rule import Issue, server_rule
from vivace.deploy.server_plan import ServerPlan, placeholder

DEVICES = {"npu": ("npu",), "cuda": ("cuda",), "hip": ("cuda", "hip"), "cpu": ("cpu",)}
"""platform -> what --device calls it; torch for AMD says cuda"""
ACCELERATORS = ("cuda", "npu", "hip", "xpu", "hpu", "musa")
FEATURES = "Support Features on Ascend NPU"


@server_rule("own-flag", "error", source=INVENTORY, engine="sglang")
def own_flag(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """SGLang is not given flags that only Vivace has.
    SGLang's parser stops at a flag it does not know."""
    for flag in server.long_flags:
        if flag in server_options() and not is_taken(flag):
            yield Issue(flag, f"{flag} is a flag of Vivace; SGLang has no such flag", "remove it")


@server_rule("ascend-flag", "warning", source=FEATURES, platforms=("npu",), engine="sglang")
def ascend_flag(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Flags work on Ascend.
    SGLang's feature table marks flags that are for GPUs only, planned or incomplete on Ascend."""
    for flag, value in server.role.flags.items():
        option = find_option(flag)
        spellings = [*(each[2:] for each in (option.flags if option else ())), flag]
        state = ascend_flags().state(spellings)
        if state and value is not False:
            yield Issue("--" + flag, f"--{flag} {state}", "remove it")
        elif ascend_flags().is_experimental(spellings):
            yield Issue("--" + flag, f"--{flag} is experimental on Ascend", severity="note")


@server_rule("ascend-value", "note", source=FEATURES, platforms=("npu",), engine="sglang")
def ascend_value(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Values are documented for Ascend.
    The feature table lists the values that were tested on Ascend."""
    for name, (flag, value) in server.given.items():
        documented = ascend_flags().values.get(name)
        if documented is None or str(value) in documented or placeholder(value):
            continue
        option = find_option(flag)
        if option is not None and option.choices and str(value) not in option.choices:
            continue
        values = ", ".join(documented)
        text = f"--{flag} {value} is not documented for Ascend (documented: {values})"
        yield Issue("--" + flag, text, "test it before you rely on it")


@server_rule("backend-platform", "error", source=INVENTORY)
def backend_platform(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--device and backends are those of the hardware.
    Each device has a torch of its own: the server stops where it asks for another one, or for a
    backend that imports torch_npu, which only Ascend has."""
    asked, known = str(server.value("device")), DEVICES.get(case.platform, ())
    if known and asked in ACCELERATORS and asked not in known:
        text = f"--device {asked}, but the hardware is {case.platform}"
        yield Issue("device", text, f"--device {known[0]}, or other hardware")
    for name, (flag, value) in server.given.items() if case.platform not in ("", "npu") else ():
        if isinstance(value, str) and "ascend" in value and name.endswith("_backend"):
            text = f"--{flag} {value} needs an Ascend device, and this is {case.platform}"
            remedy = f"remove --{flag}, or choose another ({ELSEWHERE.get(name, 'see --help')})"
            yield Issue("--" + flag, text, remedy)


@server_rule("vivace-flag", "error", source="Vivace's own table of flags", engine="vivace")
def vivace_flag(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Vivace supports every flag and value on this device.
    Every flag has a state on every device: works, no effect, not supported yet. `vivace flags`
    prints them."""
    from vivace.config.config import all_options
    from vivace.config.option import ABSENT, DEFAULT_PLATFORM, PLATFORMS, Support, not_available

    platform = case.platform or DEFAULT_PLATFORM
    other = not_available(f"{platform} is not supported yet", "use --device cpu")
    absent = ABSENT.get(platform) if platform in PLATFORMS else other
    if absent is not None:
        yield Issue("--device", f"no flag of this role works on {platform}: {absent.text()}")
        return
    options = {option.name: option for option in all_options()}
    for flag, value in server.role.flags.items():
        known = find_option(flag)
        if known is None or value is None or value is False:
            continue
        option = options[known.name]
        if value == option.default or value in option.trivial:
            continue
        state = option.state(platform, value)
        if state.kind is not Support.WORKS:
            severity = "error" if state.kind is Support.NOT_AVAILABLE else "note"
            yield Issue("--" + flag, f"--{flag} on {platform}: {state.text()}", severity=severity)
