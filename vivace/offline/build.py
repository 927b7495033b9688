"""From the offline API's keyword arguments to an engine in this process."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from vivace.frontend.frontend import Frontend
from vivace.frontend.served import served_model
from vivace.frontend.tokenizer import Tokenizer, load_tokenizer
from vivace.offline.driver import Driver
from vivace.protocol.channel import LocalMailbox
from vivace.protocol.control import Ready

if TYPE_CHECKING:
    from vivace.config.config import Config

log = logging.getLogger(__name__)


def configure(arguments: dict[str, Any]) -> Config:
    """Keyword arguments named like the flags -> what will run. ConfigError, SourceError."""
    from vivace.checkpoint.source import locate
    from vivace.config import from_arguments, resolve
    from vivace.models.facts import facts_of
    from vivace.platforms.platform import detect

    options = from_arguments(**arguments)
    model = options.model
    source = locate(
        model.model_path,
        load_format=model.load_format,
        tokenizer_path=model.tokenizer_path,
        overrides=model.json_model_override_args,
    )
    return resolve(options, source, facts_of(source), detect(options.runtime.device))


def tokenizer_of(config: Config) -> Tokenizer | None:
    model = config.model
    if model.skip_tokenizer_init:
        return None
    return load_tokenizer(
        config.source,
        mode=model.tokenizer_mode,
        chat_template=model.chat_template,
        template_name=model.hf_chat_template_name,
    )


def start(config: Config) -> tuple[Frontend, Driver]:
    """Load everything; afterwards the frontend is ready and `Driver.turn` makes it go."""
    from vivace.assemble import engine_parts

    tokenizer = tokenizer_of(config)
    mailbox = LocalMailbox()
    frontend = Frontend(served_model(config, tokenizer), tokenizer, mailbox.post)
    begin = time.monotonic()
    loop, capacity = engine_parts(config, mailbox, report)
    frontend.feed(Ready(epoch=0, capacity=capacity))
    log.info("engine ready after %.1f s", time.monotonic() - begin)
    return frontend, Driver(loop, mailbox, frontend)


def report(stage: str, fraction: float) -> None:
    log.debug("%s: %.0f %%", stage, 100 * fraction)
