"""Lazy name -> object tables: names become CLI choices, modules load on first use."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps a name to "module:Attribute". Unknown names raise KeyError with the known ones."""

    def __init__(self, kind: str, table: Mapping[str, str]) -> None:
        self.kind = kind
        self._table = dict(table)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def get(self, name: str) -> T:
        if name not in self._table:
            raise KeyError(f"unknown {self.kind} {name!r}; known: {', '.join(self._table)}")
        module, attribute = self._table[name].split(":")
        return getattr(importlib.import_module(module), attribute)
