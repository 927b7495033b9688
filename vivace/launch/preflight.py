"""What only the server's other processes would find wrong, found before they are started.

Cheap on purpose: the vocabulary itself is not loaded here. What is left to find then ends the start
with the same exit code, a moment later.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vivace.checkpoint.file_state import vocabulary_file
from vivace.checkpoint.layouts import is_gguf_file
from vivace.errors import CannotStart, cause
from vivace.files import check_folder
from vivace.grammar.availability import require_backend
from vivace.launch.corpora import check_corpus

if TYPE_CHECKING:
    from vivace.config.config import Config


def check_frontend(config: Config) -> None:
    """Sampling defaults, texts for drafts, chat template and the tokenizer's place. Raises
    CannotStart."""
    from vivace.frontend.served_model import served_model
    from vivace.frontend.validation import check_defaults

    check_defaults(served_model(config, None))
    check_corpus(config)
    if not config.model.skip_tokenizer_init:
        check_own_memory()
        check_template(config.model.chat_template)
        check_tokenizer_place(config)


def check_machine(config: Config) -> None:
    """What this machine lacks that is needed later. Raises CannotStart."""
    require_backend(config)
    if config.experts.expert_distribution_recorder_mode is not None:
        check_recorder(config)
    if config.parallel.nnodes > 1 and not config.parallel.use_ray:
        from vivace.launch.nodes import open_door

        open_door(config).close()


def check_recorder(config: Config) -> None:
    """Dumps come much later, and whoever asks for one cannot mend its folder."""
    from vivace.launch.expert_settings import FOLDER, recorder_folder

    folder = Path(recorder_folder(config))
    try:
        check_folder(folder)
    except OSError as error:
        raise CannotStart(f"{FOLDER}={folder}: {error.strerror or error}") from None
    if not os.access(folder, os.W_OK):
        raise CannotStart(f"{FOLDER}={folder}: this user cannot write there; give another folder")


def check_own_memory(place: Path = Path("/proc/self/statm")) -> None:
    """Who tries templates and constraints looks there at what it has mapped. Raises CannotStart."""
    if not place.exists():
        raise CannotStart(
            f"{place} is missing, by which chat templates and constraints are kept within a limit "
            "of memory: mount /proc"
        )


def check_template(choice: str | None) -> None:
    """--chat-template: a built-in name, or a file that compiles and keeps to its limits."""
    if choice is None:
        return
    from vivace.frontend.chat_template import TemplateSet, own_template

    try:
        template = own_template(choice, TemplateSet(), None)
        if template is not None:
            template.close()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(
            f"--chat-template {choice}: cannot be read as UTF-8 text: {cause(error)}"
        ) from None


def check_tokenizer_place(config: Config) -> None:
    """A folder needs a vocabulary; without one the loader has the words for what is there."""
    place = config.source.tokenizer_path
    if is_gguf_file(place) or (place.is_dir() and vocabulary_file(place) is not None):
        return
    from vivace.frontend.tokenizer_files import load_from_folder

    load_from_folder(place)
