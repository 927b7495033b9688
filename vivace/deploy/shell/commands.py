"""Simple commands: launches, preparation, function calls, exits and jumps."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from tree_sitter import Node

from vivace.deploy.shell.builtins import BUILTINS, give_words, separators_in
from vivace.deploy.shell.interpreter import MAX_LAUNCHES, Interpreter, ScriptTooLarge
from vivace.deploy.shell.state import (
    Launch,
    Placement,
    ScriptState,
    States,
    Value,
    merge_results,
    stretch,
)
from vivace.deploy.shell.strings import variables_in
from vivace.deploy.shell.text import (
    EMPTY,
    MAX_WORDS,
    Text,
    TextTooLong,
    Unknown,
    concatenate,
    display,
    join_script,
    known_text,
    text,
)
from vivace.deploy.shell.words import array_words, expand_text, expand_words, source
from vivace.deploy.shell.wrappers import (
    CONTAINER,
    KEYS,
    SHELL,
    TASKS,
    WrappedCommand,
    ends_servers,
    program_of_image,
    published_ports,
    unwrap,
)

SILENT = frozenset("echo cd shopt true false : sleep wait mkdir".split())
"""commands without effect on later launches"""
SERVERS = ("launch_server", "launch_router", "vivace serve", "sglang serve", "api_server")
"""commands that do not return"""
OWN_FILES = ("activate", "conda.sh", "set_env.sh", "setenv.bash", ".bashrc", ".profile")
"""sourced files that belong to the machine"""


def expand_value(node: Node | None, state: ScriptState) -> Value:
    if node is None:
        return EMPTY
    if node.type == "array":
        if node.named_child_count > MAX_WORDS:
            raise TextTooLong(f"an array of {node.named_child_count} words")
        words = [word for child in node.named_children for word in expand_words(child, state)]
        if len(words) > MAX_WORDS:
            raise TextTooLong(f"an array of {len(words)} words")
        return words
    many = array_words(node, state)
    if many is not None:
        return text(" ".join(display(word) for word in many))
    return expand_text(node, state)


def command(shell: Interpreter, node: Node, state: ScriptState, background: bool) -> States:
    words, prefix = command_parts(node, state)
    here = next((each for each in node.children if each.type == "herestring_redirect"), None)
    if here is None:
        return run(shell, node, state, words, prefix, background)
    outer, state.given = state.given, here_string(here, state)
    ended = run(shell, node, state, words, prefix, background)
    for each in ended:
        each.given = outer
    return ended


def here_string(node: Node, state: ScriptState) -> str | None:
    """The text behind `<<<`, if it is known."""
    found = known_text(expand_text(node.named_children[0], state)) if node.named_children else None
    return None if found is None else found + "\n"


def command_parts(node: Node, state: ScriptState) -> tuple[list[Text], dict[str, Text]]:
    """(words, variables set for it)"""
    prefix: dict[str, Text] = {}
    words: list[Text] = []
    if node.named_child_count > MAX_WORDS:
        raise TextTooLong(f"a command of {node.named_child_count} words")
    for child in node.named_children:
        if child.type == "variable_assignment":
            name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
            if name is not None:
                result = expand_value(value, state)
                prefix[source(name)] = EMPTY if isinstance(result, list) else result
        elif child.type == "command_name":
            if prefix and is_on_own_line(child, node):
                state.variables |= prefix
                prefix = {}
            words += expand_words(child.named_children[0], state) if child.named_children else []
        elif child.type not in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
            words += expand_words(child, state)
    if len(words) > MAX_WORDS:
        raise TextTooLong(f"a command of {len(words)} words")
    return words, prefix


def is_on_own_line(name: Node, command: Node) -> bool:
    """The grammar may take a line of assignments for the beginning of the command below it."""
    raw, before = command.text or b"", name.prev_sibling or name
    gap = raw[before.end_byte - command.start_byte : name.start_byte - command.start_byte]
    return b"\n" in gap.replace(b"\\\n", b"")


def run(
    shell: Interpreter,
    node: Node,
    state: ScriptState,
    words: list[Text],
    prefix: dict[str, Text],
    background: bool,
) -> States:
    program = known_text(words[0]) if words else ""
    if ends_servers(words):
        state.stops = {**state.stops, (host := state.placement.host): state.stopped(host) + 1}
    if program in ("break", "continue", "return", "exit"):
        state.ended = state.ended or program == "exit"
        state.leaves = "" if program == "exit" else program
        return [state]
    if program in shell.functions:
        return call(shell, shell.functions[program], state, words[1:])
    if program in BUILTINS:
        BUILTINS[program](shell, state, words[1:], separators_in(prefix, state))
        return [state]
    if program in SILENT or not words:
        return [state]
    if program in ("source", "."):
        return run_source(shell, node, state, words)
    inner = unwrap([text("bash"), *words] if (program or "").endswith(".sh") else words)
    if inner is not None:
        return run_wrapped(shell, node, state, inner, prefix, background)
    return add_launch(shell, node, state, words, prefix, background)


def add_launch(
    shell: Interpreter,
    node: Node,
    state: ScriptState,
    words: list[Text],
    prefix: dict[str, Text],
    background: bool,
) -> States:
    environment = state.environment() | {name: display(value) for name, value in prefix.items()}
    plain, line = tuple(display(word) for word in words), shell.line(node)
    if len(state.launches) >= MAX_LAUNCHES:
        raise ScriptTooLarge(f"line {line}: more than {MAX_LAUNCHES} commands")
    launch = Launch(
        plain,
        environment,
        line,
        background,
        state.assumptions,
        state.serving,
        tuple(sorted(state.unset)),
        file=shell.file,
        end=shell.above + node.end_point[0] + 1,
        round=sum((each.line, each.file) == (line, shell.file) for each in state.launches),
        placement=state.placement,
        stops=(state.stopped(""), state.stopped(state.placement.host)),
    )
    state.launches.append(launch)
    if not background and serves(plain):
        state.serving = line
    return [state]


def run_wrapped(
    shell: Interpreter,
    node: Node,
    state: ScriptState,
    inner: WrappedCommand,
    prefix: dict[str, Text],
    background: bool,
) -> States:
    """The command that a wrapper runs, with the variables that the wrapper sets for it."""
    words, own = split_variables([*own_program(inner), *inner.words])
    own = {**container_environment(shell, node, inner), **own}
    prefix = {**({} if inner.wrapper.apart else prefix), **own}
    for each in inner.given(*inner.wrapper.environment):
        prefix |= split_variables((each,))[1] or passed_variables(each, state)
    placement, background = inner_placement(inner, state.placement), background or inner.detached
    script = script_in(inner)
    if script is None and inner.wrapper is SHELL:
        return started_file(shell, node, state, inner, prefix)
    if not inner.wrapper.apart and placement == state.placement and script is None:
        return run(shell, node, state, words, prefix, background)
    begun = state.copy() if inner.name == "eval" else state.exported_only()
    if inner.wrapper.apart:
        begun.variables, begun.exported = {}, set()
    begun.placement = placement
    if script is None:
        ended = run(shell, node, begun, words, prefix, background) if words else [begun]
    else:
        for name, value in prefix.items():
            begun.assign(name, value)
            begun.exported.add(name)
        before, rows = len(begun.launches), node.end_point[0] - first_row(node)
        ended = shell.nested(script, shell.above + first_row(node), begun)
        if script.strip().count("\n") < rows:
            stretch(ended, before, shell.above + node.end_point[0] + 1)
    if inner.name == "eval":
        return ended
    return detach(merge_results(state, ended), state.serving, background)


def own_program(inner: WrappedCommand) -> list[Text]:
    """What `docker run` starts before the words behind the image."""
    given = inner.given("--entrypoint") if inner.wrapper is CONTAINER else []
    if given or inner.name.split(" ")[-1] != "run" or not inner.arguments:
        return given
    first = known_text(inner.words[0]) if inner.words else None
    return [text(word) for word in program_of_image(display(inner.arguments[0]), first)]


def detach(states: States, serving: int, background: bool) -> States:
    """A server in the background leaves the script going on."""
    for each in states if background else ():
        each.serving = serving
    return states


def split_variables(words: Sequence[Text]) -> tuple[list[Text], dict[str, Text]]:
    """The words behind the A=1 of `env A=1 ..`, and those variables."""
    found: dict[str, Text] = {}
    for at, word in enumerate(words):
        first = word[0] if word else ""
        name, equals, value = first.partition("=") if isinstance(first, str) else ("", "", "")
        if not equals or not name.isidentifier():
            return list(words[at:]), found
        found[name] = concatenate(text(value), word[1:])
    return [], found


def passed_variables(name: Text, state: ScriptState) -> dict[str, Text]:
    """`docker run -e NAME` passes a variable on."""
    value = state.scalar(known_text(name) or "")
    return {} if value is None else {known_text(name) or "": value}


def container_environment(shell: Interpreter, node: Node, inner: WrappedCommand) -> dict[str, Text]:
    """What `docker run --env-file` and `--gpus device=4,5` set."""
    found: dict[str, Text] = {}
    for path in inner.given("--env-file") if inner.wrapper is CONTAINER else ():
        opened = shell.follow(relative(path))
        if opened is None:
            name = display(path)
            shell.note(node, f"not understood: {name} is not beside this script; not read")
            continue
        shell.files[opened[0]] = opened[1]
        found |= {name: text(value) for name, value in variables_in(opened[1]).items()}
    for gpus in inner.given("--gpus") if inner.wrapper is CONTAINER else ():
        name, _, devices = (known_text(gpus) or "").strip("'\"").partition("=")
        if name == "device" and devices:
            found["NVIDIA_VISIBLE_DEVICES"] = text(devices)
    return found


def inner_placement(inner: WrappedCommand, before: Placement) -> Placement:
    if inner.name == "ssh" and inner.arguments:
        return msgspec.structs.replace(before, host=display(inner.arguments[0]).rpartition("@")[2])
    tasks = [known_text(value) or "" for value in inner.given(*TASKS)]
    if inner.name in ("srun", "mpirun", "mpiexec") and tasks and tasks[0].isdecimal():
        return msgspec.structs.replace(before, tasks=int(tasks[0][:6]))
    if inner.name.split(" ")[-1] in ("run", "exec") and inner.wrapper.apart:
        shared = any(known_text(each) == "host" for each in inner.given("--net", "--network"))
        ports = [published_ports(display(each)) for each in inner.given("-p", "--publish")]
        found = () if shared else tuple(each for each in ports if each is not None)
        return msgspec.structs.replace(before, contained=not shared, published=found)
    return before


def script_in(inner: WrappedCommand) -> str | None:
    """The text that a wrapper reads as a script, if it does."""
    if inner.wrapper is SHELL:
        given = [value for name, value in inner.options if name == "-c"]
        return join_script([given[0]]) if given else None
    if not inner.wrapper.text:
        return None
    words = [word for word in inner.words if known_text(word) not in KEYS]
    return join_script(words)


def first_row(node: Node) -> int:
    """Lines above the text that a command holds in quotes."""
    for child in node.named_children:
        if child.type in ("string", "raw_string") and child.end_point[0] > child.start_point[0]:
            return child.start_point[0]
    return node.start_point[0]


def started_file(
    shell: Interpreter,
    node: Node,
    state: ScriptState,
    inner: WrappedCommand,
    prefix: dict[str, Text],
) -> States:
    """`bash start.sh`: a script beside this one, or one that this one wrote."""
    if not inner.words:
        return [state]
    begun = state.exported_only()
    for name, value in prefix.items():
        begun.assign(name, value)
        begun.exported.add(name)
    give_words(list(inner.words[1:]), begun)
    ended = run_file(shell, begun, inner.words[0])
    if ended is None:
        if serves([display(word) for word in inner.words[1:]]):
            return add_launch(shell, node, state, list(inner.words), prefix, False)
        path = display(inner.words[0])
        shell.note(
            node, f"not understood: {path} is not beside this script; what it starts is unknown"
        )
        return [state]
    return merge_results(state, ended)


def run_source(shell: Interpreter, node: Node, state: ScriptState, words: list[Text]) -> States:
    if len(words) < 2:
        return [state]
    ended = run_file(shell, state, words[1])
    if ended is not None:
        return caught(ended, "return")
    path = display(words[1])
    if not path.endswith(OWN_FILES) and (not path.startswith("/") or "<" in path):
        shell.note(
            node, f"not understood: {path} is not beside this script; what it sets is unknown"
        )
        return [state]
    return add_launch(shell, node, state, words, {}, False)


def run_file(shell: Interpreter, state: ScriptState, path: Text) -> States | None:
    """The states after a file; None where it is not one that may be read."""
    name = relative(path)
    if name in shell.written:
        content, above = shell.written[name]
        return shell.nested(content, above, state)
    found = shell.follow(name) if name else None
    if found is None:
        return None
    shell.files[found[0]] = found[1]
    return shell.nested(found[1], 0, state, found[0])


def relative(path: Text) -> str:
    """The path from the script's folder: `$(dirname $0)/env.sh` is env.sh. Empty if unknown."""
    first, *rest = path or ("",)
    if isinstance(first, Unknown) and any(
        word in first.origin for word in ("dirname", "BASH_SOURCE", "pwd", "$PWD")
    ):
        return (known_text(tuple(rest)) or "").lstrip("/")
    return (known_text(path) or "").removeprefix("./")


def serves(words: Sequence[str]) -> bool:
    line = " ".join(words)
    return any(server in line for server in SERVERS)


def call(shell: Interpreter, body: Node, state: ScriptState, arguments: list[Text]) -> States:
    before = positional_arguments(state)
    give_words(arguments, state)
    states = caught(shell.block(body.named_children, [state]), "return")
    for each in states:
        for name in positional_arguments(each):
            del each.variables[name]
        each.variables |= before
    return states


def positional_arguments(state: ScriptState) -> dict[str, Value]:
    return {n: value for n, value in state.variables.items() if n == "@" or n.isdecimal()}


def caught(states: States, leaves: str) -> States:
    for state in states:
        if state.leaves == leaves:
            state.leaves = ""
    return states
