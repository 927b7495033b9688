"""What Vivace itself says at start-up of flags, of a model that lies here or is known from the
catalogue, and of how ranks would share it; of no machine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from vivace.checkpoint.hub_cache import is_repo_id, split_quantization
from vivace.checkpoint.layouts import InputGroups
from vivace.checkpoint.source import ModelSource, locate, merge
from vivace.checkpoint.weight_files import PICKLED
from vivace.config.all_to_all import VARIABLE
from vivace.config.checks import LAYOUT_CHECKS, MODEL_CHECKS, OPTION_CHECKS, PAIR_CHECKS
from vivace.config.config import DraftModel, ModelContext, Options, all_options, with_values
from vivace.config.draft_flags import speculation
from vivace.config.draft_models import draft_path, locate_draft, takes_own_layers
from vivace.config.errors import ConfigError
from vivace.config.expert_location import TRIVIAL, find_experts
from vivace.config.nodes import OWN, nodes
from vivace.config.parallelism import LEGALITY, requested_sizes
from vivace.config.pipeline_parallel import PARTITION
from vivace.config.process_environment import KEYS_OF_THE_SERVER
from vivace.config.resolution import check_steps
from vivace.config.secret import Secret
from vivace.config.sharded_state import file_pattern, saved_state
from vivace.config.values import parse_value
from vivace.deploy.case import Case
from vivace.deploy.catalogue.flags import ServerFlag
from vivace.deploy.catalogue.models import DescribedModel
from vivace.deploy.from_script.flags import find_option
from vivace.deploy.memory.weights import precision_named, weight_precision
from vivace.deploy.schema.deployment import FlagValue
from vivace.deploy.server_plan import ServerPlan, placeholder, unknown
from vivace.errors import CannotStart, cause
from vivace.models.facts import ModelFacts, without_quantization
from vivace.models.pooling.facts import read_pooler, read_served_facts
from vivace.models.stored_weights import parse_precision

STEP_OPTIONS = frozenset(("chunked_prefill_size", "max_running_requests", "page_size"))
"""those that tokens of a step depend on"""
UNKNOWN_KEY = Secret("a key that is not read here")
UNKNOWN_GROUPS = InputGroups(experts=2)
"""with which ranks share a model more easily than with any that weights may have"""
CATALOGUE = Path("catalogue")
WEIGHTS = (".safetensors", ".safetensors.index.json", ".gguf", *PICKLED)
"""ends of files' names, of weights or what looks like them"""


def why_refused_alone(option: ServerFlag, value: FlagValue) -> str:
    """Why Vivace refuses a value, whatever else is given; empty if it takes it."""
    if value is True and option.shape != "bool":
        return f"{option.flag} needs a value"
    try:
        options = with_values(Options(), {option.name: parse_value(option, value)})
        for check in OPTION_CHECKS:
            check(options)
    except ConfigError as error:
        return str(error)
    return ""


def known_values(server: ServerPlan) -> dict[str, Any]:
    """By the options' names; without what only the machine knows, and what is refused alone."""
    return {
        name: parse_value(option, value)
        for name, (flag, stated) in server.given.items()
        for value in (of_first_node(server, name, flag, stated),)
        if (option := find_option(name.replace("_", "-")))
        and is_stated(value)
        and not why_refused_alone(option, value)
    }


def of_first_node(server: ServerPlan, name: str, flag: str, value: Any) -> Any:
    """Of an option about nodes, with `{node}` and the like filled in."""
    written = isinstance(value, str) and "{" in value and name in options_in("parallel")
    return server.nodes[0].flags.get(flag, value) if written and server.nodes else value


def is_stated(value: Any) -> bool:
    """Whether the machine has nothing to fill in; JSON has braces of its own."""
    return not (
        unknown(str(cast("object", value))) if isinstance(value, dict) else placeholder(value)
    )


class StartMessage(NamedTuple):
    """What the start says: why it stops, or a notice."""

    text: str
    refused: bool


def said_together(server: ServerPlan, *, named: bool = False) -> Iterator[StartMessage]:
    """Of values that Vivace takes alone, and of a model that lies on this machine. `named`: where
    no flag says which model it is, something else does."""
    values = known_values(server)
    if "api_key_file" in values or server.environment.get(KEYS_OF_THE_SERVER[0]):
        values["api_key"] = UNKNOWN_KEY
    made = Options(environment=dict(server.environment), given=tuple(values))
    made = with_values(made, values)
    left_out = server.given.keys() - values.keys()
    for check in PAIR_CHECKS:
        if check is nodes and left_out & options_in("parallel"):
            continue  # whose words are of sizes and addresses that are the defaults here
        try:
            yield from (StartMessage(notice, False) for notice in check(made))
        except ConfigError as error:
            yield StartMessage(str(error), True)
            if check is speculation:  # whose draft is then no question
                values["speculative_algorithm"] = None
    made = with_values(made, values)
    if "model_path" in values or ("model_path" not in server.given and not named):
        steps_known = knows_steps(server) and not left_out & STEP_OPTIONS
        layout_known = not left_out & layout_options()
        yield from said_of_model(made, layout_known=layout_known, steps_known=steps_known)


def knows_steps(server: ServerPlan) -> bool:
    """Whether the limit of low latency is one, and its steps have prompts beside requests."""
    limit = (server.environment.get(VARIABLE) or "0").strip()
    return server.prefills and server.decodes and limit.isdecimal()


def why_model_refused(options: Options, *, layout_known: bool, steps_known: bool) -> list[str]:
    said = said_of_model(options, layout_known=layout_known, steps_known=steps_known)
    return [text for text, refused in said if refused]


def said_of_model(
    options: Options, *, layout_known: bool, steps_known: bool
) -> Iterator[StartMessage]:
    """Of one whose files are here: the embedded one, a folder, a file."""
    model = options.model
    path = model.model_path
    if (path and not lies_here(Path(path))) or model.model_impl == "transformers":
        return
    here = path is not None
    try:
        source = locate(
            path,
            load_format="dummy" if path and is_only_described(Path(path)) else model.load_format,
            pattern=file_pattern(options),
            tokenizer_path=model.tokenizer_path,
            overrides=model.json_model_override_args,
        )
        here = True
        facts = read_served_facts(source)
        draft = locate_draft_here(options, source, facts)
        context = ModelContext(source=source, facts=facts, draft=draft)
        for check in MODEL_CHECKS:
            if layout_known or check is not saved_state:
                yield from (StartMessage(notice, False) for notice in check(options, context))
        for check in LAYOUT_CHECKS if layout_known else ():
            check(options, context)
        if layout_known and steps_known:
            check_steps(options, context)
        if model.is_embedding or facts.pooled is not None:
            read_pooler(source, facts)
    except (CannotStart, OSError) as error:
        if here or isinstance(error, ConfigError):  # else: the embedded one is not installed
            yield StartMessage(cause(error), True)


def locate_draft_here(
    options: Options, target: ModelSource, facts: ModelFacts
) -> DraftModel | None:
    """None: no model drafts, or its name is one of the hub's. A path has to lie here as the model
    does. Raises SourceError, ConfigError."""
    path = draft_path(options)
    if path is None:
        return locate_draft(options, target, facts, None) if takes_own_layers(options) else None
    if not lies_here(Path(path)) and is_repo_id(split_quantization(path)[0]):
        return None
    if is_only_described(Path(path)):
        options = with_values(options, {"speculative_draft_load_format": "dummy"})
    return locate_draft(options, target, facts, None)


def why_layout_refused(server: ServerPlan, case: Case, model: DescribedModel) -> str:
    """Why ranks cannot share a model of which only the configuration is known; empty where they
    can, where it depends on what is not known, and where another rule has the words. Raises
    UnknownValue."""
    values = known_values(server)
    path = values.get("model_path")
    left_out = server.given.keys() - values.keys()
    if (path and lies_here(Path(path))) or left_out & layout_options():
        return ""
    server.variable(PARTITION)  # may not be known
    options = with_values(Options(environment=dict(server.environment)), values)
    if options.model.model_impl == "transformers" or any(
        check(requested_sizes(options)) for check in LEGALITY
    ):
        return ""
    source = describe_source(model, options)
    stored = as_published(server, case, model)
    steps_known = knows_steps(server) and not left_out & STEP_OPTIONS
    try:
        context = check_layout(options, source)
    except (CannotStart, OSError) as error:
        any_weights = isinstance(error, ConfigError) and refuses_any_weights(options, source)
        return cause(error) if stored or any_weights else ""
    try:
        if steps_known:
            check_steps(options, context)
        if takes_own_layers(options) and draft_path(options) is None:
            locate_draft(options, source, context.facts, None)
    except ConfigError as error:
        return str(error)
    return ""


@cache
def layout_options() -> frozenset[str]:
    """Those that how ranks share a model depends on."""
    others = ("model_impl", "json_model_override_args", "disable_cpu_kernels")
    sizes = options_in("parallel").difference(OWN) | options_in("experts")
    return sizes.union(others, ("enable_deterministic_inference",))


@cache
def options_in(name: str) -> frozenset[str]:
    """Of a slice"""
    return frozenset(option.name for option in all_options() if option.slice_name == name)


def describe_source(model: DescribedModel, options: Options) -> ModelSource:
    """As if its files were there, which are not read."""
    overrides = options.model.json_model_override_args or {}
    folder = Path(model.folder) if model.folder else CATALOGUE / model.name
    return ModelSource(
        path=folder,
        format="dummy",
        files=(),
        config=merge(model.config, overrides),
        overridden=tuple(overrides),
        tokenizer_path=folder,
    )


def as_published(server: ServerPlan, case: Case, model: DescribedModel) -> bool:
    """Whether weights are stored as the model's configuration says, and nothing says otherwise."""
    if model.folder:
        return True
    path, blocks = str(server.value("model_path") or "").lower(), model.architecture.blocks
    if "gguf" in path or server.value("load_format") == "gguf":
        return False
    found, certain = weight_precision(server, case.deployment.model.quantization, case.model)
    published = precision_named(parse_precision(model.config))
    return certain and blocks.certain and found == published


def check_layout(options: Options, source: ModelSource) -> ModelContext:
    """Raises CannotStart or OSError."""
    context = ModelContext(source=source, facts=read_served_facts(source))
    if find_experts(context.facts) and options.experts.init_expert_location.endswith(".json"):
        options = with_values(options, {"init_expert_location": TRIVIAL})  # of another machine
    for check in LAYOUT_CHECKS:
        check(options, context)
    return context


def refuses_any_weights(options: Options, source: ModelSource) -> bool:
    """Whether it is the shapes that cannot be shared, however weights are stored."""
    try:
        check_layout(options, without_quantization(source, UNKNOWN_GROUPS))
    except ConfigError:
        return True
    return False


def is_only_described(folder: Path) -> bool:
    """A model's folder without weights, which the check needs none of."""
    try:
        names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    except OSError:
        return False
    return "config.json" in names and not any(name.endswith(WEIGHTS) for name in names)


def lies_here(path: Path) -> bool:
    """A folder or a file on this machine; what cannot be looked at is not."""
    try:
        return path.is_dir() or path.is_file()
    except (OSError, ValueError):
        return False
