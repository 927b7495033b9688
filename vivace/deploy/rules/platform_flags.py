"""Rules about what flags do on a platform and in an engine."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.deploy.importing.flags import option_named
from vivace.deploy.rules import ascend
from vivace.deploy.rules.case import Case
from vivace.deploy.rules.finding import Found, Rule
from vivace.deploy.rules.flags import INVENTORY, flags_of, placeholder
from vivace.deploy.rules.target import OURS


def platform_flag(case: Case) -> Iterator[Found]:
    if case.platform != "npu" or case.target.engine == "vivace":
        return
    for server in case.servers:
        for flag, value in server.role.flags.items():
            option = option_named(flag)
            name = option.flags[0][2:] if option else flag
            spellings = {name, flag, *(each[2:] for each in (option.flags if option else ()))}
            state = next((ascend.STATES[each] for each in spellings if each in ascend.STATES), None)
            if state is not None and value is not False:
                yield Found(
                    role=server.name,
                    flag="--" + flag,
                    text=f"--{flag} {state}",
                    remedy="leave it out",
                )
            elif spellings & ascend.EXPERIMENTAL:
                text = f"--{flag} is experimental on Ascend"
                yield Found(role=server.name, flag="--" + flag, text=text, severity="note")


def platform_value(case: Case) -> Iterator[Found]:
    if case.platform != "npu" or case.target.engine == "vivace":
        return
    for server in case.servers:
        for name, (flag, value) in server.given.items():
            documented = ascend.VALUES.get(name)
            if documented is None or str(value) in documented or placeholder(value):
                continue
            option = option_named(flag)
            if option is not None and option.choices and str(value) not in option.choices:
                continue
            yield Found(
                role=server.name,
                flag="--" + flag,
                text=f"--{flag} {value} is not among what is documented for Ascend: "
                f"{', '.join(documented)}",
                remedy="try it before you rely on it",
            )


def vivace_state(case: Case) -> Iterator[Found]:
    if case.target.engine != "vivace":
        return
    from vivace.config.config import all_options
    from vivace.config.option import NO_CUDA, NO_NPU, Kind

    options = {option.name: option for option in all_options()}
    platform = case.platform or "cpu"
    for server in case.servers:
        if platform != "cpu":
            absent = {"cuda": NO_CUDA, "npu": NO_NPU}[platform]
            text = f"none of the role's flags is available on {platform}: {absent.text()}"
            yield Found(role=server.name, flag="--device", text=text)
            continue
        for flag, value in server.role.flags.items():
            known = option_named(flag)
            if known is None or value is None or value is False:
                continue
            option = options[known.name]
            if value == option.default or value in option.trivial:
                continue
            state = option.state(platform, value)
            if state.kind is not Kind.WORKS:
                yield Found(
                    role=server.name,
                    flag="--" + flag,
                    text=f"--{flag} on {platform}: {state.text()}",
                    severity="error" if state.kind is Kind.NOT_AVAILABLE else "note",
                )


def own_flag(case: Case) -> Iterator[Found]:
    if case.target.engine == "vivace":
        return
    for server, flag in flags_of(case):
        if flag in OURS:
            text = f"{flag} is a flag of Vivace, SGLang has none of this name"
            yield Found(role=server.name, flag=flag, text=text, remedy="leave it out")


RULES = (
    Rule(
        name="own-flag",
        severity="error",
        title="Flags of Vivace are given to Vivace only",
        explanation="SGLang stops at a flag it does not know.",
        source=INVENTORY,
        check=own_flag,
    ),
    Rule(
        name="ascend-flag",
        severity="warning",
        title="Flags work on Ascend",
        explanation="SGLang's feature table marks flags that are for GPUs only, planned or not "
        "complete on Ascend.",
        source="Support Features on Ascend NPU",
        check=platform_flag,
    ),
    Rule(
        name="ascend-value",
        severity="note",
        title="Values are documented for Ascend",
        explanation="The feature table names the values that were tested on Ascend.",
        source="Support Features on Ascend NPU",
        check=platform_value,
    ),
    Rule(
        name="vivace-flag",
        severity="error",
        title="Vivace can do what is asked",
        explanation="Every flag has a state on every device: works, no effect, not available. "
        "`vivace flags` prints them.",
        source="Vivace's own table of flags",
        check=vivace_state,
    ),
)
