"""What a head is trained with: prompts that the model answers, or texts as they are."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from vivace.errors import CannotStart
from vivace.files import FileTooLarge, read_file
from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import run_now
from vivace.frontend.tokenizer import Tokenizer
from vivace.offline.prompts import convert
from vivace.requests.prompts import template_messages
from vivace.requests.schema import Message

MOST_BYTES = 1 << 30
MOST_PROMPT_BYTES = 64 << 20
PART = 1 << 20
"""characters of a text that become tokens at once"""
HELD_OUT = 20
SUFFIX = ".jsonl"
MOST_VAIN = 5000
"""prompts in a row that came before: then there are no others"""
FIELD = re.compile(r"{(\w+)}")
GENERATED, GIVEN = "generated", "given"
Chat = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class TrainingPrompt:
    """`answered`: the model continues it; otherwise all of it is learned from."""

    number: int
    tokens: list[int]
    answered: bool
    held_out: bool


def read_lines(path: Path) -> dict[int, str]:
    """number -> line, of those in which there is something. Raises CannotStart."""
    text = read_text(path, "--prompts", MOST_PROMPT_BYTES)
    return {number: line for number, line in enumerate(text.split("\n"), 1) if line.strip()}


def draw_lines(lines: dict[int, str], most: int, seed: int) -> dict[int, str]:
    """So many of them, in their order: each takes the template a millisecond."""
    if len(lines) <= most:
        return lines
    return {number: lines[number] for number in sorted(random.Random(seed).sample([*lines], most))}


def read_chats(path: Path, lines: dict[int, str], answers: str) -> list[Chat]:
    """Of a file of prompts: a line each, or JSON lines with a string, a `prompt` or `messages`.
    Raises CannotStart."""
    wanted = "assistant" if answers == GIVEN else "user"
    chats = list[Chat]()
    for number, line in lines.items():
        chat = [{"role": "user", "content": line}]
        if path.suffix == SUFFIX:
            chat = read_json_line(path, number, line)
        if chat[-1].get("role") != wanted:
            raise CannotStart(
                f"--prompts {path}: the last message of line {number} is not the {wanted}'s, as "
                f"--answers {answers} needs it"
            )
        chats.append(chat)
    return chats


def read_json_line(path: Path, number: int, line: str) -> Chat:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CannotStart(f"--prompts {path}: line {number} is no JSON: {error}") from None
    if isinstance(found, dict):
        found = found.get("messages", found.get("prompt"))
    if isinstance(found, str) and found.strip():
        return [{"role": "user", "content": found}]
    if isinstance(found, list) and found and all(isinstance(one, dict) for one in found):
        return found
    raise CannotStart(
        f"--prompts {path}: line {number} is neither a string nor an object with a `prompt` or "
        "`messages`"
    )


def read_text(path: Path, flag: str, most: int = MOST_BYTES) -> str:
    """Raises CannotStart, also where nothing is in it."""
    try:
        text = read_file(path, most).decode()
    except OSError as error:
        raise CannotStart(f"{flag} {path}: {error.strerror}") from None
    except FileTooLarge as error:
        raise CannotStart(f"{flag} {path}: {error}; give a part of it") from None
    except UnicodeDecodeError as error:
        raise CannotStart(f"{flag} {path}: not UTF-8 at byte {error.start}") from None
    if not text.strip():
        raise CannotStart(f"{flag} {path}: there is no text in it")
    return text


def make_chats(count: int, seed: int) -> list[Chat]:
    """Different ones, of the package's templates."""
    found = json.loads(files("vivace.train").joinpath("prompts.json").read_text())
    lists, chance = found["lists"], random.Random(seed)
    prompts, vain = dict[str, None](), 0
    while len(prompts) < count and vain < MOST_VAIN:  # there are some thousands
        template, before = chance.choice(found["templates"]), len(prompts)
        prompts[FIELD.sub(lambda field: chance.choice(lists[field[1]]), template)] = None
        vain = 0 if len(prompts) > before else vain + 1
    return [[{"role": "user", "content": prompt}] for prompt in prompts]


def encode_chats(
    chats: Iterable[Chat], tokenizer: Tokenizer, answers: str, longest: int
) -> list[list[int]]:
    """Through the model's template, where it has one. Those that leave no room for an answer are
    left out; given answers are cut. Raises CannotStart."""
    found = list[list[int]]()
    for number, chat in enumerate(chats, 1):
        try:
            tokens = encode_chat(chat, tokenizer, answers == GENERATED)
        except BadRequest as error:
            raise CannotStart(f"prompt {number}: {error}") from None
        if answers == GIVEN:
            found.append(tokens[:longest])
        elif len(tokens) <= longest // 2:
            found.append(tokens)
    return found


def encode_chat(chat: Chat, tokenizer: Tokenizer, answered: bool) -> list[int]:
    if tokenizer.chat is None:
        return tokenizer.encode("\n\n".join(str(message.get("content", "")) for message in chat))
    typed = convert(chat, list[Message], "messages")
    rendered = run_now(template_messages(typed))
    text = tokenizer.chat.render(rendered, add_generation_prompt=answered)
    return tokenizer.encode(text, add_special_tokens=False)


def cut_text(
    text: str, tokenizer: Tokenizer, longest: int, most: int, seed: int
) -> list[list[int]]:
    """Of a long text parts of it, in any order, until these are `most` tokens: all of a gigabyte
    would take a hundred of memory."""
    parts = [text[start : start + PART] for start in range(0, len(text), PART)]
    random.Random(seed).shuffle(parts)
    found, count = list[list[int]](), 0
    for part in parts:
        tokens = tokenizer.encode(part)
        found += [tokens[start : start + longest] for start in range(0, len(tokens), longest)]
        count += len(tokens)
        if count >= most:
            break
    return found


def needed_sequences(batch: int) -> int:
    """So many that `batch` of them are not held out."""
    return batch + -(-batch // (HELD_OUT - 1))


def hold_out(found: Sequence[list[int]], *, answered: bool, seed: int) -> list[TrainingPrompt]:
    """One of `HELD_OUT`, and one at least, is only to measure with. Shuffled."""
    order = list(range(len(found)))
    random.Random(seed).shuffle(order)
    return [
        TrainingPrompt(
            number=place, tokens=found[index], answered=answered, held_out=place % HELD_OUT == 0
        )
        for place, index in enumerate(order)
    ]
