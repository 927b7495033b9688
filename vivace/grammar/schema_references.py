"""References by name (`$anchor`, `$id`, `$dynamicRef`) as pointers, which all who read schemas
follow, the library among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import islice
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin

import msgspec

from vivace.grammar.backend import GrammarError
from vivace.grammar.limits import MAX_TEXTS, MAX_VALUES
from vivace.grammar.schema_keywords import DATA, IN_MAPS, PATTERNS, all_schemas, named_draft
from vivace.parsers.schema_types import Path, is_pointer, pointed, values

ANCHORS = ("$anchor", "$dynamicAnchor")
DYNAMIC = ("$dynamicRef", "$recursiveRef")
NAMING = frozenset((*ANCHORS, *DYNAMIC, "$recursiveAnchor"))
TELLING = NAMING | {"$id", "$ref"}
"""Without one of these a schema neither has nor uses a name."""
REF_ALONE = ("draft-04", "draft-06", "draft-07")
"""drafts in which nothing beside a `$ref` counts"""
IN_POINTERS = "!$&'()*+,;=:@~?"
Part = tuple[Path, dict[str, Any]]
"""a schema within another, and where"""
MOST_VALUES = 2500
"""of all schemas of a request that are read while nothing else is done: 30 ms where each refers"""
MOST_WRITTEN = 1 << 20
"""characters of pointers: each reference to a long name has that in it"""


def with_pointers(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The schemas, with copies that refer by pointers in the place of those that refer by names;
    beyond `MOST_VALUES` and `MAX_TEXTS` the rest as they are."""
    found, left, room = dict(schemas), MOST_VALUES, MAX_TEXTS
    if not _may_refer(schemas):
        return found
    for key, schema in schemas.items():
        if refers_by_names(schema):
            left -= sum(1 for _ in islice(values(schema), left + 1))
            if left < 0:
                break
            copy = deepcopy(schema)
            with suppress(GrammarError):
                room -= use_pointers(copy, room)
                found[key] = copy
    return found


def _may_refer(schemas: Mapping[str, Any]) -> bool:
    """A quick look, since each request brings its tools: most have no key that begins with $. What
    is longer than `MAX_TEXTS` is not read."""
    try:
        text = msgspec.json.encode(list(schemas.values()))
    except ValueError:  # half a character
        return _is_short(list(schemas.values()))
    return len(text) <= MAX_TEXTS and b'"$' in text


def _is_short(schema: Any) -> bool:
    left = MAX_TEXTS
    for one in values(schema):
        left -= 1 + (len(one) if isinstance(one, str) else 0)
        left -= sum(map(len, one)) if isinstance(one, dict) else 0
        if left < 0:
            return False
    return True


def use_pointers(schema: Any, most: int = MOST_WRITTEN) -> int:
    """In place. What refers to nothing that is in the schema stays, and so does what refers to
    whichever of several is the outermost one: both are refused then. With an `$id` of more than
    `MAX_URI` all stay. The characters that were written; GrammarError beyond `most` of them."""
    if not refers_by_names(schema):
        return 0
    parts = _NamedParts(schema, most)
    parts.use_pointers()
    return most - parts.room


def separate_instances(schema: Any, before: str) -> Iterator[Any]:
    """In place: what a `$ref` leads to within an instance, or below an expression, is copied to
    `$defs`, and it leads there: schemas and expressions are written in other words, instances are
    not. The copies. Raises GrammarError, as `before` begins, where these have too many values."""
    copies, left = dict[Path, str](), MAX_VALUES
    for _, one in all_schemas(schema):
        path, value = pointed(schema, str(one.get("$ref"))) or ((), None)
        keyword = _instance_keyword(path) or PATTERNS * (PATTERNS in path)
        if not keyword or not isinstance(value, dict):
            continue
        if path not in copies:
            left -= sum(1 for _ in islice(values(value), left + 1))
            definitions = schema.setdefault("$defs", {})
            if left < 0 or not isinstance(definitions, dict):
                raise GrammarError(f"{before}put what $ref leads to under $defs, not {keyword}")
            name = f"{keyword}.{len(copies)}"
            while name in definitions:
                name += "_"
            definitions[name] = deepcopy(value)
            copies[path] = f"#/$defs/{name}"
            yield definitions[name]
        one["$ref"] = copies[path]


def _instance_keyword(path: Path) -> str:
    """The first one on the way whose value is no schema; empty: there is none."""
    named = False  # by who wrote the schema
    for part in path:
        if part in DATA and not named:
            return str(part)
        named = part in IN_MAPS and not named
    return ""


def refers_by_names(schema: Any) -> bool:
    """Or looks so, where an instance or a map of properties has these keys."""
    return any(
        not NAMING.isdisjoint(one)
        or ("$id" in one and one is not schema)
        or not is_pointer(str(one.get("$ref", "#")))
        for one in values(schema)
        if isinstance(one, dict) and not TELLING.isdisjoint(one)
    )


MAX_URI = 512
"""characters: to join two takes as long as they are, for each name and each reference"""


class _NamedParts:
    """The schemas within one, by their names: an absolute `$id`, or an anchor below one."""

    def __init__(self, schema: Any, room: int) -> None:
        self.room = room
        """characters of pointers that may be written"""
        self._parts: Sequence[Part] = [  # the outer ones first
            part for part in all_schemas(schema) if not _instance_keyword(part[0])
        ]
        self._schemas = dict(self._parts)
        self._written: dict[Path, str] = {}
        """pointers"""
        self._bases: dict[Path, str] = {(): ""}
        self._roots: dict[str, Path] = {"": ()}
        self._anchors: dict[tuple[str, str], Path] = {}
        draft = named_draft(schema)
        self._undated = not draft
        self._alone = any(name in draft for name in REF_ALONE)
        self._dynamic = Counter[str]()
        """names of anchors that `$dynamicRef` looks for from the outside"""
        self._followed = True
        """whether all names can be"""
        for path, one in self._parts:
            self._note(path, one)

    def _note(self, path: Path, one: dict[str, Any]) -> None:
        identity = None if self._alone and "$ref" in one else one.get("$id")
        names = [one[key] for key in ANCHORS if isinstance(one.get(key), str)]
        if isinstance(identity, str) and identity.startswith("#"):  # as drafts 6 and 7 have it
            names.append(identity[1:])
        elif isinstance(identity, str) and (named := _absolute(self._base(path), identity)):
            self._bases[path] = named[0][:MAX_URI]
            self._followed = self._followed and len(named[0]) <= MAX_URI
            self._roots.setdefault(named[0], path)
        base = self._bases[path] = self._base(path)
        if isinstance(one.get("$dynamicAnchor"), str):
            self._dynamic[one["$dynamicAnchor"]] += 1
        if one.get("$recursiveAnchor") is True:
            self._dynamic[""] += 1
        for name in names:
            self._anchors.setdefault((base, name), path)

    def _base(self, path: Path) -> str:
        """The `$id` that a schema is below."""
        lengths = range(len(path), -1, -1)
        return next(self._bases[path[:n]] for n in lengths if path[:n] in self._bases)

    def use_pointers(self) -> None:
        if not self._followed:
            return
        for path, one in self._parts:
            for key in ("$ref", *DYNAMIC):
                ref = one.get(key)
                if not isinstance(ref, str) or (key != "$ref" and "$ref" in one):
                    continue
                target = self._find(self._base(path), ref)
                # in drafts 6 and 7 an `$id` beside a reference is nothing
                base = self._base(path[:-1]) if path else ""
                if self._undated and "$id" in one and self._find(base, ref) not in (None, target):
                    if is_pointer(ref):  # which would be followed from the outermost one
                        one["$ref"] = self._base(path) + ref
                    continue  # who wrote it has to say of which draft it is
                if key != "$ref" and self._dynamic[ref.partition("#")[2]] > 1:
                    continue
                if target is not None:
                    del one[key]
                    one["$ref"] = self._as_pointer(target)
        for _, one in self._parts:
            for key in (*ANCHORS, "$recursiveAnchor", "$id"):
                one.pop(key, None)

    def _find(self, base: str, ref: str) -> Path | None:
        """Where the schema stands that a reference is to, below the `$id` that it stands below."""
        named = _absolute(base, ref)
        if named is None or (start := self._roots.get(named[0])) is None:
            return None
        fragment = named[1]
        if not fragment:
            return start
        if not fragment.startswith("/"):
            return self._anchors.get((self._base(start), unquote(fragment)))
        found = pointed(self._schemas[start], "#" + fragment)
        return found and (*start, *found[0])

    def _as_pointer(self, path: Path) -> str:
        if path not in self._written:
            self._written[path] = as_pointer(path)
        pointer = self._written[path]
        self.room -= len(pointer)
        if self.room < 0:
            raise GrammarError("its references by $anchor or $id lead to names that are too long")
        return pointer


def as_pointer(path: Path) -> str:
    parts = [str(part).replace("~", "~0").replace("/", "~1") for part in path]
    return "#" + "".join(["/" + quote(part, safe=IN_POINTERS) for part in parts])


def _absolute(base: str, ref: str) -> tuple[str, str] | None:
    """A URI without its fragment, and that; None: it is none."""
    try:
        uri, fragment = urldefrag(ref)
        return urldefrag(urljoin(base, uri)).url if uri else base, fragment
    except ValueError:
        return None
