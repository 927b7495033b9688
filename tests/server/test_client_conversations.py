"""The clients that people write agents with: a streamed tool call, structured output, an error.

Each test is skipped where its client is not installed; docs/apis.md says which versions were run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from scripted_model import (
    ANSWER,
    ARGUMENTS,
    DEMAND,
    KEY,
    QUESTION,
    RESULT,
    SCHEMA,
    THOUGHT,
    serving_script,
)
from server_kit import MODEL, Running


class Forecast(BaseModel):
    """The weather of some days."""

    city: str
    days: int


WANTED = Forecast(city="Paris", days=3)
TOOL: Any = {"name": "look", "description": "Look up the weather", "parameters": SCHEMA}
TOOLS: Any = [{"type": "function", "function": TOOL}]


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def library(name: str, package: str = "") -> Any:
    """A client's module; skips the test without it."""
    return pytest.importorskip(name, reason=f"pip install {package or name}")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving_script() as running:
        yield running


def test_openai_chat(server: Running) -> None:
    openai = library("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
    asked: dict[str, Any] = {"model": MODEL, "messages": user(QUESTION), "tools": TOOLS}
    with client.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.delta" in kinds
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == ARGUMENTS
    said = message.model_dump(exclude={"parsed"}, exclude_none=True)
    result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    asked["messages"] = [*user(QUESTION), said, result]
    assert client.chat.completions.create(**asked).choices[0].message.content == ANSWER
    parsed = client.chat.completions.parse(
        model=MODEL, messages=user(DEMAND), response_format=Forecast
    )
    assert parsed.choices[0].message.parsed == WANTED
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=user(DEMAND), temperature=-1)
    assert caught.value.param == "temperature"


def test_openai_responses(server: Running) -> None:
    openai = library("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
    tools: Any = [{"type": "function", **TOOL}]
    with client.responses.stream(model=MODEL, input=QUESTION, tools=tools) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds.count("response.function_call_arguments.delta") > 2
    thought, call = final.output
    assert (thought.type, thought.content[0].text) == ("reasoning", THOUGHT)
    assert json.loads(call.arguments) == ARGUMENTS
    result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    again = client.responses.create(
        model=MODEL, input=[result], tools=tools, previous_response_id=final.id
    )
    assert again.output_text == ANSWER
    parsed = client.responses.parse(model=MODEL, input=DEMAND, text_format=Forecast)
    assert parsed.output_parsed == WANTED
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input=DEMAND, temperature=-1)
    assert caught.value.param == "temperature"


def test_anthropic(server: Running) -> None:
    anthropic = library("anthropic")
    client = anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0)
    tool: Any = {"name": "look", "description": "Look it up", "input_schema": SCHEMA}
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 500}
    with client.messages.stream(**asked, messages=user(QUESTION), tools=[tool]) as stream:
        deltas = [event.delta.type for event in stream if event.type == "content_block_delta"]
        final = stream.get_final_message()
    assert deltas.count("input_json_delta") > 2 and final.stop_reason == "tool_use"
    thought, call = final.content
    assert (thought.type, thought.thinking) == ("thinking", THOUGHT)
    assert (call.name, call.input) == ("look", ARGUMENTS)
    said = {"role": "assistant", "content": final.content}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    turns = [*user(QUESTION), said, {"role": "user", "content": [result]}]
    answer = client.messages.create(**asked, messages=turns, tools=[tool])
    assert answer.content[0].text == ANSWER
    parsed = client.messages.parse(**asked, messages=user(DEMAND), output_format=Forecast)
    assert parsed.parsed_output == WANTED
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**{**asked, "max_tokens": -1}, messages=user(DEMAND))


def test_anthropics_tool_runner(server: Running) -> None:
    """It asks for a thread first, and has to learn that there is none."""
    anthropic = library("anthropic")
    client = anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0)

    @anthropic.beta_tool(name="look")
    def look(city: str, days: int) -> str:
        """Look up the weather."""
        return RESULT if {"city": city, "days": days} == ARGUMENTS else ""

    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=500, messages=user(QUESTION), tools=[look]
    )
    assert runner.until_done().content[-1].text == ANSWER
    prompt = bytes(token for token in server.engine.requests[-1].tokens if token < 256).decode()
    assert QUESTION in prompt and RESULT in prompt


def test_ollama(server: Running) -> None:
    ollama = library("ollama")
    client = ollama.Client(host=server.url, headers={"Authorization": f"Bearer {KEY}"})
    parts = list(client.chat(model=MODEL, messages=user(QUESTION), tools=TOOLS, stream=True))
    (call,) = [call for part in parts for call in part.message.tool_calls or ()]
    assert (call.function.name, dict(call.function.arguments)) == ("look", ARGUMENTS)
    assert "".join(part.message.thinking or "" for part in parts) == THOUGHT
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_name": "look", "content": RESULT}
    turns = [*user(QUESTION), said, result]
    assert client.chat(model=MODEL, messages=turns, tools=TOOLS).message.content == ANSWER
    schema = Forecast.model_json_schema()
    text = client.chat(model=MODEL, messages=user(DEMAND), format=schema).message.content
    assert Forecast.model_validate_json(text) == WANTED
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(model=MODEL, messages=user(DEMAND), options={"temperature": -1})
    assert caught.value.status_code == 400 and "temperature" in caught.value.error


def test_langchain_openai(server: Running) -> None:
    langchain, openai = library("langchain_openai", "langchain-openai"), library("openai")
    asked: dict[str, Any] = {"model": MODEL, "base_url": f"{server.url}/v1", "api_key": KEY}
    model = langchain.ChatOpenAI(**asked, max_retries=0)
    with_tools = model.bind_tools(TOOLS)
    parts = list(with_tools.stream(QUESTION))
    assert sum(bool(part.tool_call_chunks) for part in parts) > 2
    message = parts[0]
    for part in parts[1:]:
        message += part
    (call,) = message.tool_calls
    assert (call["name"], call["args"]) == ("look", ARGUMENTS)
    result = {"role": "tool", "tool_call_id": call["id"], "content": RESULT}
    assert with_tools.invoke([*user(QUESTION), message, result]).content == ANSWER
    assert model.with_structured_output(Forecast).invoke(DEMAND) == WANTED
    with pytest.raises(openai.BadRequestError):
        langchain.ChatOpenAI(**asked, max_retries=0, temperature=-1).invoke(DEMAND)


def test_litellm(server: Running) -> None:
    litellm = library("litellm")
    asked: dict[str, Any] = {
        "model": f"hosted_vllm/{MODEL}",
        "api_base": f"{server.url}/v1",
        "api_key": KEY,
        "num_retries": 0,
    }
    parts = list(litellm.completion(**asked, messages=user(QUESTION), tools=TOOLS, stream=True))
    whole = litellm.stream_chunk_builder(parts).choices[0].message
    assert whole.reasoning_content == THOUGHT
    (call,) = whole.tool_calls
    assert json.loads(call.function.arguments) == ARGUMENTS
    result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    turns = [*user(QUESTION), whole.model_dump(), result]
    answer = litellm.completion(**asked, messages=turns, tools=TOOLS)
    assert answer.choices[0].message.content == ANSWER
    form = litellm.completion(**asked, messages=user(DEMAND), response_format=Forecast)
    assert Forecast.model_validate_json(form.choices[0].message.content) == WANTED
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**asked, messages=user(DEMAND), temperature=-1)


def test_instructor(server: Running) -> None:
    instructor, openai = library("instructor"), library("openai")
    core = library("instructor.core", "instructor")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
    asked: dict[str, Any] = {"model": MODEL, "max_retries": 1}
    structured = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    found = structured.chat.completions.create(
        **asked, messages=user(DEMAND), response_model=Forecast
    )
    assert found.model_dump() == ARGUMENTS
    calling = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    parts = list(
        calling.chat.completions.create_partial(
            **asked, messages=user(QUESTION), response_model=Forecast
        )
    )
    assert len(parts) > 2 and parts[-1].model_dump() == ARGUMENTS
    with pytest.raises(core.InstructorRetryException):
        structured.chat.completions.create(
            **asked, messages=user(DEMAND), response_model=Forecast, temperature=-1
        )


@pytest.mark.parametrize("kind", ["OpenAIChatCompletionsModel", "OpenAIResponsesModel"])
def test_openai_agents(server: Running, kind: str) -> None:
    agents, openai = library("agents", "openai-agents"), library("openai")
    agents.set_tracing_disabled(True)
    asked: list[dict[str, Any]] = []

    @agents.function_tool
    def look(city: str, days: int) -> str:
        """Look up the weather."""
        asked.append({"city": city, "days": days})
        return RESULT

    async def converse() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=KEY, max_retries=0
        ) as client:
            model = getattr(agents, kind)(model=MODEL, openai_client=client)
            agent = agents.Agent(name="one", model=model, tools=[look])
            run = agents.Runner.run_streamed(agent, QUESTION)
            raw = [event.data async for event in run.stream_events() if "raw" in event.type]
            deltas = [one for one in raw if one.type == "response.function_call_arguments.delta"]
            assert run.final_output == ANSWER and asked == [ARGUMENTS] and len(deltas) > 2
            writer = agents.Agent(name="two", model=model, output_type=Forecast)
            assert (await agents.Runner.run(writer, DEMAND)).final_output == WANTED
            settings = agents.ModelSettings(temperature=-1)
            broken = agents.Agent(name="three", model=model, model_settings=settings)
            with pytest.raises(openai.BadRequestError):
                await agents.Runner.run(broken, DEMAND)

    asyncio.run(converse())
