"""A server whose model thinks, calls tools and writes JSON as a script says, for real clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from server_kit import EOS, Running, ScriptedEngine, make_tokenizer, running_server

from vivace.protocol.messages import Request
from vivace.server.settings import ServerSettings

KEY = "secret"
QUESTION = "What is the weather in Paris?"
DEMAND = "The same as JSON."
THOUGHT = "Let me look."
ARGUMENTS = {"city": "Paris", "days": 3}
RESULT = "sun"
ANSWER = "It is sunny."
PLAIN = "Well."
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
SPECIAL = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEMPLATE = (
    "{% if tools %}<tools>{{ tools[0].function.name }}\n{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOKENIZER = make_tokenizer(TEMPLATE, special=SPECIAL)


def speak(request: Request) -> list[int]:
    """Calls the first tool when it is asked for the weather, tells what a tool has found, gives
    JSON when that is demanded."""
    prompt = bytes(token for token in request.tokens if token < 256).decode()
    asked = prompt.rpartition("<user>")[2]
    tool = prompt.partition("<tools>")[2].partition("\n")[0]
    if "<tool>" in asked:
        text = ANSWER
    elif "weather" in asked and tool:
        call = json.dumps({"name": tool, "arguments": ARGUMENTS})
        text = f"<think>\n{THOUGHT}\n</think>\n\n<tool_call>\n{call}\n</tool_call>"
    else:
        text = json.dumps(ARGUMENTS) if "JSON" in asked else PLAIN
    return [*TOKENIZER.encode(text, add_special_tokens=False), EOS]


@contextmanager
def serving_script() -> Iterator[Running]:
    settings = ServerSettings(api_keys=(KEY,), tool_call_parser="hermes", reasoning_parser="qwen3")
    with running_server(
        settings,
        ScriptedEngine(speak),
        tokenizer=TOKENIZER,
        context=4096,
        vocabulary=258 + len(SPECIAL),
    ) as server:
        yield server
