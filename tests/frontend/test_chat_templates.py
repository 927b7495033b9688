from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from frontend_fakes import embedded_metadata, embedded_tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from vivace.frontend.chat_template import BUILTIN_TEMPLATES, ChatTemplate, TemplateSet, own_template
from vivace.frontend.errors import BadRequest, ChatTemplateError

USER = {"role": "user", "content": "Hi"}
TALK = [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "Yo"}]
TALK = [*TALK, {"role": "user", "content": "  2+2? "}]


def template(source: str, **tokens: str) -> ChatTemplate:
    return ChatTemplate(TemplateSet(sources={"default": source}, special_tokens=tokens))


def by_transformers(source: str, messages: list[dict[str, Any]], **kwargs: Any) -> str:
    rendered, _ = render_jinja_template(
        conversations=[messages], chat_template=source, add_generation_prompt=True, **kwargs
    )
    return rendered[0]


@pytest.mark.parametrize("messages", [[USER], TALK])
def test_embedded_template_equals_transformers(messages: list[dict[str, Any]]) -> None:
    chat = embedded_tokenizer().chat
    assert chat is not None and chat.content_format == "text"
    source = embedded_metadata()["tokenizer.chat_template"]
    assert chat.render(messages) == by_transformers(source, messages)


AWKWARD = """
{%- for m in messages %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
    {% generation %}{{ m | tojson }}{% endgeneration %}
    {{ tools | tojson(indent=2) if tools }}
{% endfor %}
  {%- if add_generation_prompt %}>{{ style }}{% endif %}
"""


def test_environment_equals_transformers() -> None:
    tools = [{"type": "function", "function": {"name": "é<b>", "parameters": {}}}]
    expected = by_transformers(AWKWARD, TALK, tools=tools, style="x")
    assert template(AWKWARD).render(TALK, tools=tools, variables={"style": "x"}) == expected


@pytest.mark.parametrize("name", sorted(BUILTIN_TEMPLATES))
def test_builtin_templates_show_every_message(name: str) -> None:
    chat = own_template(name, TemplateSet(special_tokens={"bos_token": "<s>"}), None)
    assert chat is not None
    text = chat.render(TALK)
    assert all(message["content"].strip() in text for message in TALK)
    assert text.index("Be brief.") < text.index("2+2?")


def test_llama3_by_name() -> None:
    chat = own_template("llama-3", TemplateSet(special_tokens={"bos_token": "<|bos|>"}), None)
    assert chat is not None and chat.render([USER]) == (
        "<|bos|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_content_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}]
    assert template("{{ messages[0].content }}").render(messages) == "a b"
    walks = "{% set c = messages[0].content %}{% for p in c %}[{{ p.text }}]{% endfor %}"
    assert template(walks).content_format == "parts"
    assert template(walks).render(messages) == "[a][b]"
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]
    with pytest.raises(BadRequest, match="text") as caught:
        template(walks).render(image)
    assert caught.value.field == "messages[0].content[0]"
    with pytest.raises(BadRequest) as caught:
        template(walks).render([{"role": "user", "content": [*parts, {"type": "text"}]}])
    assert caught.value.field == "messages[0].content[2].text"


def test_continue_final_message() -> None:
    chat = template(BUILTIN_TEMPLATES["chatml"])
    text = chat.render(
        [USER, {"role": "assistant", "content": "Well"}], continue_final_message=True
    )
    assert text.endswith("<|im_start|>assistant\nWell")
    with pytest.raises(BadRequest):
        chat.render([USER], continue_final_message=True)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}{{ missing.attribute }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ '\\ud800' }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_what_a_template_cannot_do_is_a_bad_request(source: str) -> None:
    with pytest.raises(BadRequest) as caught:
        template(source).render([USER])
    assert caught.value.status == 400


def test_requests_cannot_replace_standard_variables() -> None:
    chat = template("{{ bos_token }}{{ thinking }}", bos_token="<s>")
    assert chat.render([USER], variables={"thinking": "on"}) == "<s>on"
    for name in ("bos_token", "raise_exception", "documents", "range"):
        with pytest.raises(BadRequest, match=name):
            chat.render([USER], variables={name: "x"})


@pytest.mark.parametrize("variables", [5, "x", [1], True])
def test_variables_that_are_no_object_are_refused(variables: Any) -> None:
    with pytest.raises(BadRequest, match=r"^chat_template_kwargs: "):
        template("{{ messages }}").render([USER], variables=variables)


def test_templates_by_name_and_file(tmp_path: Path) -> None:
    brought = TemplateSet(sources={"default": "D", "tool_use": "T", "rag": "R"})
    assert own_template(None, brought, "rag").render([USER]) == "R"  # type: ignore[union-attr]
    plain = own_template(None, brought, None)
    assert plain is not None
    assert plain.render([USER]) == "D" and plain.render([USER], tools=[{}]) == "T"
    assert own_template(None, TemplateSet(), None) is None
    (tmp_path / "mine.jinja").write_text("F")
    (tmp_path / "mine.json").write_text(json.dumps({"chat_template": "J"}))
    for name, text in (("mine.jinja", "F"), ("mine.json", "J")):
        chosen = own_template(str(tmp_path / name), brought, None)
        assert chosen is not None and chosen.render([USER]) == text
    for wrong in ("no-such", str(tmp_path)):
        with pytest.raises(ChatTemplateError, match="neither"):
            own_template(wrong, brought, None)
    with pytest.raises(ChatTemplateError, match="compile"):
        template("{% if %}")
    with pytest.raises(ChatTemplateError, match="default, rag, tool_use"):
        own_template(None, brought, "other")


@pytest.mark.parametrize("source", ["chatml", "{{ bos_token }}", "{% if messages.x %}x{% endif %}"])
def test_a_template_that_shows_no_message_is_told(
    source: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Some files have the name of a template where it should be."""
    template(source, bos_token="<s>").close()
    assert "--chat-template" in caplog.text


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[7].content.x }}",
        "{{ messages[0].content + 1 }}",
        "{{ wanted.x }}{{ messages[0].content }}",
    ],
)
@pytest.mark.parametrize("name", ["default", "tool_use"])
def test_a_template_that_refuses_every_conversation_is_told(
    source: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    sources = {"default": BUILTIN_TEMPLATES["chatml"], name: source}
    places = {name: "here.jinja"}
    ChatTemplate(TemplateSet(sources=sources, places=places)).close()
    assert "--chat-template" in caplog.text and "here.jinja" in caplog.text


@pytest.mark.parametrize(
    "condition",
    [
        "false",
        "messages[0].role != 'system'",
        "messages[0].role == 'system'",
        "messages | length < 2",
        "messages | length < 3 or messages[1].role != 'assistant'",
    ],
)
def test_a_template_that_takes_some_conversation_is_fine(
    condition: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = f"{{% if {condition} %}}{{{{ raise_exception('no') }}}}{{% endif %}}"
    shown = "{% for message in messages %}{{ message.content | upper }}{% endfor %}"
    template(refusal + shown).close()
    sources = {"default": BUILTIN_TEMPLATES["chatml"], "tool_use": refusal + shown}
    ChatTemplate(TemplateSet(sources=sources)).close()
    assert not caplog.text
