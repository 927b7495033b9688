"""Commands that run others: numactl, sudo, docker run, srun, ssh, `bash -c` and the like; and
what a container starts by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from vivace.deploy.shell.text import Text, display, known_text, text


def options(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Wrapper(msgspec.Struct, frozen=True):
    """`switches`: options without a value; `valued`: with one in the next word, as all that are not
    switches with `many_valued`. `arguments`: words before the command; `environment`: options with
    NAME=VALUE; `text`: the command is a script's text; `apart`: it sees nothing of the outer
    environment; `detached`: it does not wait."""

    switches: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    many_valued: bool = False
    arguments: int = 0
    environment: frozenset[str] = frozenset()
    text: bool = False
    apart: bool = False
    detached: bool = False


PLAIN = Wrapper()
PROJECT = Wrapper(
    switches=options(
        "--no-sync --frozen --locked --isolated --active --no-project --all-extras -q --quiet "
        "--offline --no-capture-output --live-stream --dev -v --verbose -s --no-cache -U -n"
    ),
    many_valued=True,
)
CONTAINER = Wrapper(
    switches=options(
        "-d --detach -i --interactive -t --tty --rm --privileged --init --read-only "
        "--no-healthcheck -P --publish-all --oom-kill-disable --disable-content-trust -q --quiet "
        "--nv --rocm -e --cleanenv --contain --stdin"
    )
    - {"-e"},
    many_valued=True,
    arguments=1,
    environment=options("-e --env"),
    apart=True,
)
IMAGE = Wrapper(
    switches=options("--nv --rocm -c -C -e --cleanenv --contain --containall --writable-tmpfs"),
    many_valued=True,
    arguments=1,
    environment=options("--env"),
)
PROCESSES = Wrapper(
    switches=options(
        "--allow-run-as-root --oversubscribe --exclusive --overlap -l --label -u --unbuffered "
        "--pty -v -Q --quiet --tag-output --display-map -K --kill-on-bad-exit --hold -k -X -O -s"
    ),
    valued=options("-np -host -hostfile -mca -bind-to -map-by -npernode -ppn --bind-to -x"),
    many_valued=True,
    environment=options("-x -env -genv"),
)
SHELL = Wrapper(
    switches=options("-l -x -e -u -i -v --login --noprofile --norc -r --posix"),
    valued=options("-o -O -c"),
)
WRAPPERS: dict[str, Wrapper] = {
    **dict.fromkeys(("nohup", "setsid", "unbuffer", "catchsegv", "command", "builtin"), PLAIN),
    "exec": Wrapper(switches=options("-c -l"), valued=options("-a")),
    "time": Wrapper(switches=options("-p -v")),
    "stdbuf": Wrapper(valued=options("-i -o -e")),
    "nice": Wrapper(valued=options("-n --adjustment")),
    "ionice": Wrapper(switches=options("-t"), valued=options("-c -n -p")),
    "chrt": Wrapper(switches=options("-f -r -o -b -i -a"), arguments=1),
    "taskset": Wrapper(switches=options("-a -c -p --cpu-list --all-tasks"), arguments=1),
    "numactl": Wrapper(
        switches=options("-l --localalloc -a --all --balancing -b"), many_valued=True
    ),
    "timeout": Wrapper(
        switches=options("--foreground --preserve-status -v --verbose"),
        many_valued=True,
        arguments=1,
    ),
    "sudo": Wrapper(
        switches=options(
            "-E -H -n -i -s -S -b -A -k -P --preserve-env --login --non-interactive --set-home"
        ),
        many_valued=True,
    ),
    "env": Wrapper(switches=options("-i -0 -v --ignore-environment"), valued=options("-u -C")),
    **dict.fromkeys(
        ("conda run", "mamba run", "micromamba run"),
        msgspec.structs.replace(PROJECT, switches=PROJECT.switches - {"-n"}),
    ),
    **dict.fromkeys(
        ("uv run", "poetry run", "pipenv run", "pixi run", "pdm run", "rye run", "hatch run"),
        PROJECT,
    ),
    **dict.fromkeys(("docker run", "podman run", "nerdctl run"), CONTAINER),
    **dict.fromkeys(("docker exec", "podman exec", "nerdctl exec", "kubectl exec"), CONTAINER),
    **dict.fromkeys(("oc exec", "kubectl run"), CONTAINER),
    **dict.fromkeys(("singularity exec", "apptainer exec", "singularity run"), IMAGE),
    **dict.fromkeys(("srun", "mpirun", "mpiexec"), PROCESSES),
    **dict.fromkeys(("nsys profile", "ncu"), Wrapper(many_valued=True)),
    "ssh": Wrapper(
        switches=options("-t -n -f -q -A -X -Y -N -T -4 -6 -C -v -a -x -k -K -G -g -M -s"),
        many_valued=True,
        arguments=1,
        text=True,
        apart=True,
    ),
    "eval": Wrapper(text=True),
    **dict.fromkeys(
        ("tmux new-session", "tmux new", "tmux new-window"),
        Wrapper(switches=options("-d -A -D -P"), valued=options("-s -n -c -x -y -t -F -e"),
                text=True, detached=True),
    ),
    "tmux send-keys": Wrapper(
        switches=options("-l -R"), valued=options("-t -N"), text=True, detached=True
    ),
    "screen": Wrapper(
        switches=options("-d -m -D -R -L"), valued=options("-S -c -h -Logfile"), detached=True
    ),
}  # fmt: skip
SHELLS = ("bash", "sh", "zsh", "dash")
KEYS = ("C-m", "Enter", "ENTER")
"""what `tmux send-keys` presses at the end"""
TASKS = ("-n", "-np", "--ntasks", "-N", "--nodes")
DETACH = ("-d", "--detach")


class WrappedCommand(msgspec.Struct, frozen=True):
    """The command that a wrapper runs: `words`, what precedes them, and the wrapper's options."""

    wrapper: Wrapper
    name: str
    words: tuple[Text, ...]
    arguments: tuple[Text, ...]
    options: tuple[tuple[str, Text], ...]

    def given(self, *names: str) -> list[Text]:
        return [value for name, value in self.options if name in names]

    @property
    def detached(self) -> bool:
        return self.wrapper.detached or any(
            name in DETACH or (is_cluster(name) and "d" in name)
            for name, _ in self.options
            if self.wrapper is CONTAINER
        )


def unwrap(words: Sequence[Text]) -> WrappedCommand | None:
    """What a wrapper runs; None for a command that is none."""
    named = [(known_text(word) or "") for word in words[:2]]
    first = named[0].rsplit("/", 1)[-1]
    for count in (2, 1):
        name = " ".join((first, *named[1:count]))
        wrapper = WRAPPERS.get(name)
        if wrapper is not None:
            return parse_inner(wrapper, name, words[count:])
    return parse_inner(SHELL, first, words[1:]) if first in SHELLS else None


def parse_inner(wrapper: Wrapper, name: str, words: Sequence[Text]) -> WrappedCommand:
    found: list[tuple[str, Text]] = []
    at, separated = 0, False
    while at < len(words):
        word = display(words[at])
        if word == "--":
            at, separated = at + 1, True
            break
        if not word.startswith("-") or word == "-":
            break
        option, takes = parse_option(wrapper, word)
        value = words[at + 1] if takes and at + 1 < len(words) else attached_value(words[at])
        found.append((option, value))
        at += 2 if takes else 1
    if not separated and name.startswith(("kubectl", "oc")):
        at = next((i for i in range(at, len(words)) if known_text(words[i]) == "--"), at)
    count = (
        0 if separated or (at < len(words) and known_text(words[at]) == "--") else wrapper.arguments
    )
    arguments, rest = words[at : at + count], words[at + count :]
    if not separated and rest and known_text(rest[0]) == "--":
        rest = rest[1:]
    return WrappedCommand(wrapper, name, tuple(rest), tuple(arguments), tuple(found))


def parse_option(wrapper: Wrapper, word: str) -> tuple[str, bool]:
    """(the option, whether the next word is its value)"""
    name, equals, _ = word.partition("=")
    if word in wrapper.valued:
        return word, True
    if word in wrapper.switches or equals:
        return name, False
    if word.startswith("--"):
        return word, wrapper.many_valued
    letters = ["-" + letter for letter in word[1:]]
    if len(letters) == 1:
        return word, wrapper.many_valued
    if letters[0] not in wrapper.switches:
        return letters[0], False  # -p8080, -n2
    last = letters[-1]
    takes = last not in wrapper.switches and (wrapper.many_valued or last in wrapper.valued)
    return (last if takes else word), takes


def attached_value(word: Text) -> Text:
    """The value in --name=value and -n2."""
    plain = known_text(word) or ""
    return text(plain.partition("=")[2] if plain.startswith("--") else plain[2:])


def is_cluster(name: str) -> bool:
    return name.startswith("-") and not name.startswith("--") and len(name) > 2


PUBLISHED = re.compile(r"(?:0\.0\.0\.0:)?(\d{1,5})(?:-(\d{1,5}))?:[\d-]+(?:/tcp)?")


def published_ports(text: str) -> tuple[int, int] | None:
    """ "8000:30000" -> (the first port of the machine, how many); None for what is not TCP, or not
    on all addresses."""
    found = PUBLISHED.fullmatch(text)
    return found and (int(found[1]), int(found[2] or found[1]) - int(found[1]) + 1)


ENDING = re.compile(
    r"wait|fuser|[\w-]*(?:stop|kill|clean|shutdown|terminate|teardown)[\w-]*(?:\.sh)?"
)
ENDING_WORDS = ("rm", "down", "delete", "quit")
CONTROLLING = frozenset("docker podman kubectl ray tmux screen systemctl service source .".split())


def ends_servers(words: Sequence[Text]) -> bool:
    """Whether a command may end what the script started: kill, `docker rm`, `bash stop.sh`."""
    first, *rest = [(known_text(word) or "").rpartition("/")[2] for word in words[:4]] or [""]
    if "-0" in rest:  # it only asks
        return False
    named = [first, *(rest if first in CONTROLLING or first in SHELLS else ())]
    controlled = first in CONTROLLING and not {*ENDING_WORDS}.isdisjoint(rest)
    return controlled or any(map(ENDING.fullmatch, named))


IMAGES = (
    ("vllm-openai", ("vllm", "serve")),
    ("sgl-model-gateway", ("python", "-m", "sglang_router.launch_router")),
    ("sglang-router", ("python", "-m", "sglang_router.launch_router")),
    ("text-generation-inference", ("text-generation-launcher",)),
    ("text-embeddings-inference", ("text-embeddings-router",)),
    ("llama.cpp", ("llama-server",)),
    ("ollama", ("ollama", "serve")),
)
"""the end of an image's name -> its own program"""


def program_of_image(image: str, first: str | None) -> list[str]:
    """The program of an image that is given flags alone, or nothing; empty where the command's
    `first` word is a program itself, or the image is not known."""
    if first is not None and not first.startswith("-"):
        return []
    name = image.rsplit("/", 1)[-1].partition("@")[0].partition(":")[0]
    return next((list(program) for end, program in IMAGES if name.endswith(end)), [])
