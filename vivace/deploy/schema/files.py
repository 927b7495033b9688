"""deployment.yaml <-> Deployment: includes, one clear error for each mistake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from vivace.deploy.files import MAX_BYTES, beside, file_name, is_beside
from vivace.deploy.schema.deployment import Deployment, DeploymentError
from vivace.deploy.schema.keys import environment_as_text, refuse_keys
from vivace.files import PathName, read_file

if TYPE_CHECKING:
    from yaml import SafeLoader
else:
    SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MERGE = "tag:yaml.org,2002:merge"
MAX_DEPTH = 8
"""files that include one another"""
MAX_NESTING = 200
"""levels of YAML: libyaml's composer needs the stack for each"""
MAX_VALUES = 100_000
"""of a file, with what its YAML aliases repeat"""


Documents = dict[str, tuple[str, yaml.Node | None]]
"""of each file its text and its YAML nodes, in the order in which they include one another"""


def load(
    path: PathName, documents: Documents | None = None, raw: bytes | None = None
) -> Deployment:
    """Read a file (`raw`: what it holds, where that was read before) and what it includes, and add
    them to `documents`. Raises DeploymentError."""
    documents = {} if documents is None else documents
    return parse_deployment(with_includes(str(path), (), documents, raw), str(path))


def parse_deployment(content: Mapping[str, Any], where: str) -> Deployment:
    """Plain data -> Deployment. Raises DeploymentError; `where` is how errors call the file."""
    try:
        refuse_keys(content, Deployment)
        return msgspec.convert(environment_as_text(content), Deployment)
    except (ValueError, RecursionError) as error:
        raise DeploymentError(f"{where}: {error}") from None


def with_includes(
    path: str, before: tuple[str, ...], documents: Documents, raw: bytes | None = None
) -> dict[str, Any]:
    """The file's values merged over those of the file it includes (same folder or below)."""
    content = mapping_in(path, documents, raw)
    include = content.pop("include", None)
    if include is None:
        return content
    if not isinstance(include, str):
        raise DeploymentError(f"{path}: include must be the path of a file, got {include!r}")
    base, chain = beside(path, include), (*before, beside(path, file_name(path)))
    if base in chain or len(chain) >= MAX_DEPTH:
        shown = " -> ".join((*chain, base))
        raise DeploymentError(f"{path}: include: {shown}: files include one another in a circle")
    if not is_beside(path, include):  # a stranger's file must not show what lies elsewhere
        reason = "an included file must lie in the same folder or below"
        raise DeploymentError(f"{path}: include: {include}: {reason}")
    return merge(with_includes(base, chain, documents), content)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged key by key; everything else is replaced; null takes a key away."""
    result = dict(base)
    for key, value in over.items():
        before = result.get(key)
        if value is None and key in result:
            del result[key]
        elif isinstance(value, Mapping) and isinstance(before, Mapping):
            result[key] = merge(before, value)
        else:
            result[key] = value
    return result


def mapping_in(path: str, documents: Documents, raw: bytes | None = None) -> dict[str, Any]:
    """The mapping a YAML file holds. Raises DeploymentError."""
    try:
        text = (read_file(path, MAX_BYTES) if raw is None else raw).decode()
        content, node = parse_yaml(text)
    except OSError as error:
        raise DeploymentError(f"{path}: {error.strerror or error}") from None
    except yaml.MarkedYAMLError as error:
        raise DeploymentError(f"{path}: {describe_problem(error)}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DeploymentError(f"{path}: line {line}: not UTF-8") from None
    except yaml.reader.ReaderError as error:
        raise DeploymentError(f"{path}: {describe_character(error)}") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise DeploymentError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise DeploymentError(f"{path}: expected a mapping (name:, roles:, ..)")
    documents[path] = text, node
    return content


def describe_problem(error: yaml.MarkedYAMLError) -> str:
    """`line 3: what is wrong there`"""
    mark = error.problem_mark or error.context_mark
    text = ", ".join(part for part in (error.context, error.problem) if part)
    return f"line {mark.line + 1}: {text}" if mark else text


def describe_character(error: yaml.reader.ReaderError) -> str:
    return f"YAML does not allow the character at position {error.position}: {error.reason}"


def parse_yaml(text: str) -> tuple[Any, yaml.Node | None]:
    """YAML -> its data, and its nodes, which know their lines. A key given twice, and aliases that
    repeat one another, are errors."""
    refuse_deep(text)
    loader = UniqueKeyLoader(text)
    try:
        node = loader.get_single_node()
        content = None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()
    refuse_endless(content)
    return content, node


def refuse_deep(text: str) -> None:
    """Raises ValueError for YAML that may be nested more than MAX_NESTING deep."""
    depth = most = 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        most = max(most, depth)
    indents = max((len(line) - len(line.lstrip(" -?:")) for line in text.splitlines()), default=0)
    if most > MAX_NESTING or indents > 4 * MAX_NESTING:
        raise ValueError(f"nested more than {MAX_NESTING} deep")


def refuse_endless(content: Any) -> None:
    """Raises ValueError where YAML aliases expand a short file beyond MAX_VALUES."""
    waiting, count = [content], 0
    while waiting:
        value = waiting.pop()
        count += 1
        if count > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values")
        inner = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            waiting.extend(inner)


class LimitedLoader(SafeLoader):
    """Plain data only. Merge keys that double what they merge end at MAX_VALUES."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values")


class UniqueKeyLoader(LimitedLoader):
    """PyYAML keeps the last of two equal keys; here that is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise ValueError(f"line {line}: {key.value!r} is given twice; keep one of them")
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def to_yaml(deployment: Deployment) -> str:
    """The YAML of a deployment, keys in the order of the struct."""

    def dump(allow_unicode: bool) -> str:
        return yaml.dump(
            msgspec.to_builtins(deployment),
            Dumper=PlainDumper,
            sort_keys=False,
            default_flow_style=False,
            width=100,
            allow_unicode=allow_unicode,
        )

    return without_controls(dump)


def without_controls(dump: Callable[[bool], str]) -> str:
    """YAML with the letters of all languages; where it would hold characters that steer a
    terminal, with escapes, which are read back as the same."""
    text = dump(True)
    visible = all(line.replace("\t", " ").isprintable() for line in text.split("\n"))
    return text if visible else dump(False)


class PlainDumper(yaml.SafeDumper):
    """Without anchors: every value is written where it is used. Lists of single values stay on
    one line, and so do texts."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = None if text.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        short = not any(isinstance(value, dict | list) for value in sequence)
        return super().represent_sequence(tag, sequence, flow_style=short or flow_style)


PlainDumper.add_representer(str, PlainDumper.represent_text)
