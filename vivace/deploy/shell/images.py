"""What a container starts by itself."""

from __future__ import annotations

IMAGES = (
    ("vllm-openai", ("vllm", "serve")),
    ("text-generation-inference", ("text-generation-launcher",)),
    ("text-embeddings-inference", ("text-embeddings-router",)),
    ("llama.cpp", ("llama-server",)),
    ("ollama", ("ollama", "serve")),
)
"""the end of an image's name -> its own program"""


def program_of_image(image: str, first: str | None) -> list[str]:
    """The program of an image that is given flags alone, or nothing; empty where the command's
    `first` word is a program itself, or the image is not known."""
    if first is not None and not first.startswith("-"):
        return []
    name = image.rsplit("/", 1)[-1].partition("@")[0].partition(":")[0]
    return next((list(program) for end, program in IMAGES if name.endswith(end)), [])
