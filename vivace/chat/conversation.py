"""What was said so far."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from vivace.chat.backend import ChatError, Message


@dataclass(kw_only=True)
class Conversation:
    """`turns` are of the user and of the model in turns, beginning with the user."""

    system: str = ""
    turns: list[Message] = field(default_factory=list)

    def messages(self) -> list[Message]:
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + self.turns

    def clear(self) -> None:
        self.turns = []

    def say(self, role: str, text: str) -> None:
        self.turns.append({"role": role, "content": text})

    def take_back(self) -> str:
        """The user's last message, removed together with its answer. Raises ChatError."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        raise ChatError("nothing has been asked yet")

    def save(self, name: str) -> Path:
        """Write it to a new file: messages as JSON for a name in .json, else text to read.
        Raises ChatError."""
        path = Path(name).expanduser()
        text = json.dumps(self.messages(), ensure_ascii=False, indent=1) + "\n"
        if path.suffix != ".json":
            text = "\n".join(f"## {m['role']}\n\n{m['content']}\n" for m in self.messages())
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise ChatError(f"{path} exists already; choose another name") from None
        except OSError as error:
            raise ChatError(f"{path}: {error.strerror}") from None
        return path
