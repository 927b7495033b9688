"""What was asked -> what will run: find the model, look at the device, settle every setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vivace.config.errors import tell_as_typed

if TYPE_CHECKING:
    from vivace.config.config import Config, Options


@tell_as_typed
def configure(options: Options) -> Config:
    """Raises ConfigError, SourceError or PlatformError, before anything heavy is loaded."""
    from vivace.checkpoint.source import locate
    from vivace.config.draft_models import draft_path, locate_draft
    from vivace.config.environment import hub_cache
    from vivace.config.resolution import resolve
    from vivace.config.sharded_state import file_pattern
    from vivace.launch.transformers_process import facts_by_transformers
    from vivace.models.pooling.facts import read_served_facts
    from vivace.platforms.platform import detect

    model = options.model
    cache = hub_cache(model.download_dir, options.environment)
    if model.download and model.model_path is not None:
        from vivace.hub.fetch import fetch_unless_here

        fetch_unless_here(model.model_path, model.revision, cache, options.environment)
        if (path := draft_path(options)) is not None:
            revision = options.speculative.speculative_draft_model_revision
            fetch_unless_here(path, revision, cache, options.environment)
    source = locate(
        model.model_path,
        load_format=model.load_format,
        pattern=file_pattern(options),
        tokenizer_path=model.tokenizer_path,
        overrides=model.json_model_override_args,
        revision=model.revision,
        cache=cache,
    )
    if model.model_impl == "transformers":
        facts = facts_by_transformers(source)
    else:
        facts = read_served_facts(source)
    draft = locate_draft(options, source, facts, cache)
    return resolve(options, source, facts, detect(options.runtime.device), draft)
