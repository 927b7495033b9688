"""The lines that begin with a slash."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from vivace.chat.backend import NO_LIMIT, SETTINGS, ChatError, read_setting
from vivace.chat.conversation import Conversation


@dataclass(frozen=True, kw_only=True)
class ChatCommand:
    """`act` gets what stands behind the name and returns what to tell the user."""

    usage: str
    help: str
    act: Callable[[str], str]
    others: tuple[str, ...] = ()
    """further names"""

    @property
    def name(self) -> str:
        return self.usage.split()[0]


TYPING = """\
A line that ends with \\ goes on in the next one; \"\"\" begins and ends a text of
several lines. Ctrl-C stops an answer, Ctrl-D leaves."""


class Leave(Exception):
    """The user says goodbye."""


class Commands:
    """What the user may do besides talking. `ask_again` answers the last message anew."""

    def __init__(
        self,
        conversation: Conversation,
        settings: dict[str, float],
        ask_again: Callable[[str], None],
    ) -> None:
        self._conversation = conversation
        self._settings = settings
        self._ask_again = ask_again
        self._table = self._commands()
        self._by_name = {
            name: command for command in self._table for name in (command.name, *command.others)
        }

    def obey(self, line: str) -> str:
        """Carry a line out; what to tell the user. Raises ChatError, and Leave."""
        name, _, rest = line.partition(" ")
        command = self._by_name.get(name)
        if command is None:
            near = difflib.get_close_matches(name, self._by_name, 1)
            hint = f"did you mean {near[0]}?" if near else "/help shows what there is."
            raise ChatError(
                f"unknown command {name}; {hint} (A message may begin with a slash behind a space.)"
            )
        return command.act(rest.strip())

    def help(self) -> str:
        width = max(len(command.usage) for command in self._table)
        lines = [f"{command.usage:<{width}}  {command.help}" for command in self._table]
        return "\n".join([*lines, TYPING])

    def _commands(self) -> tuple[ChatCommand, ...]:
        names = ", ".join(SETTINGS)
        return (
            ChatCommand(usage="/set NAME VALUE", help=f"{names}, system", act=self._set),
            ChatCommand(usage="/set", help="show the settings; /set NAME: the default",
                        act=self._set),
            ChatCommand(usage="/system TEXT", help="/set system TEXT", act=self._set_system),
            ChatCommand(usage="/regenerate", help="another answer to the last message",
                    act=self._regenerate, others=("/retry",)),
            ChatCommand(usage="/clear", help="forget the conversation", act=self._clear,
                    others=("/reset", "/new")),
            ChatCommand(usage="/save FILE", help="write it to a new file (.json: messages)",
                    act=self._save),
            ChatCommand(usage="/help", help="this list", act=lambda _: self.help(), others=("/?",)),
            ChatCommand(usage="/bye", help="leave", act=self._leave, others=("/exit", "/quit")),
        )  # fmt: skip

    def _set(self, rest: str) -> str:
        name, _, value = rest.partition(" ")
        if not name:
            return self._show()
        if name == "system":
            return self._set_system(value.strip())
        if name not in SETTINGS:
            names = [*SETTINGS, "system"]
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(names)}"
            raise ChatError(f"unknown setting {name!r}; {hint}")
        if not value.strip():
            self._settings.pop(name, None)
            return f"{name}: the model's default"
        self._settings[name] = read_setting(name, value.strip())
        return f"{name}: {self._settings[name]:g}"

    def _show(self) -> str:
        given = [f"{name}: {value:g}" for name, value in self._settings.items()]
        if self._settings.get("max_tokens") == NO_LIMIT:
            given.append("(max_tokens 0: the rest of the context)")
        system = self._conversation.system or "none"
        return "\n".join([*given, f"system: {system}", "everything else: the model's default"])

    def _set_system(self, text: str) -> str:
        """A new system message: what was said under the old one is forgotten."""
        self._conversation.system = text
        self._conversation.clear()
        return "a new conversation, " + ("with that system message" if text else "without one")

    def _regenerate(self, _: str) -> str:
        before = list(self._conversation.turns)
        self._ask_again(self._conversation.take_back())
        if len(self._conversation.turns) < len(before):  # there was no answer
            self._conversation.turns = before
        return ""

    def _clear(self, _: str) -> str:
        self._conversation.clear()
        return "a new conversation"

    def _save(self, name: str) -> str:
        if not name:
            raise ChatError("/save FILE: the name of a file is missing")
        return f"saved to {self._conversation.save(name)}"

    def _leave(self, _: str) -> str:
        raise Leave
