"""`vivace train draft`: a head that drafts for a model, from the model's own answers."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from vivace.checkpoint.file_state import model_digest
from vivace.errors import CannotStart, say
from vivace.frontend.tokenizer import configured_tokenizer
from vivace.layers.rotary import cosines_and_sines, plain
from vivace.terminal import print_wrapped
from vivace.train.collect import Collection
from vivace.train.folder import HeadFolder
from vivace.train.head import HeadPasses, HeadSizes, make_parameters
from vivace.train.objective import choose_vocabulary
from vivace.train.progress import TrainingProgress
from vivace.train.prompts import (
    GENERATED,
    GIVEN,
    Chat,
    TrainingPrompt,
    cut_text,
    draw_lines,
    encode_chats,
    hold_out,
    make_chats,
    needed_sequences,
    read_chats,
    read_lines,
    read_text,
)
from vivace.train.recorder import StateRecorder
from vivace.train.state_files import StateFiles, check_room, needed_bytes
from vivace.train.target import (
    check_target,
    choose_taps,
    head_config,
    read_target,
)
from vivace.train.trainer import HeadTrainer, TrainingSettings
from vivace.worker.build import DTYPES

if TYPE_CHECKING:
    from vivace.config.config import Config

COLLECTING = 1 / 3
"""of --max-minutes at most"""
USUAL_ANSWER = 100
"""tokens: so many prompts are made that answers half as long as usual fill --tokens"""
SHORT_SEQUENCE = 20
"""tokens of a prompt and its answer: of a file so many prompts are used that these fill --tokens"""
TOKENS_PER_NUMBER = 8
"""of a hidden state, in the draft vocabulary"""
SAVED_BYTES = 28
"""of a number of the head: itself and two moments, and itself in half as many, twice while a file
takes the place of the one before it"""
SAMPLED = 64
"""sequences of which the size of hidden states is taken"""


def train_draft(config: Config, asked: argparse.Namespace) -> int:
    """Returns the exit code. Raises CannotStart before anything long begins."""
    began = time.monotonic()
    check_target(config)
    check_sizes(config, asked)
    if asked.tokens < (least := needed_sequences(asked.batch) * asked.sequence_length):
        raise CannotStart(
            f"--tokens {asked.tokens} is too little for a batch and what is held out; give "
            f"{least} or more, a smaller --batch or a shorter --sequence-length"
        )
    folder, prompts = HeadFolder(asked.output), find_prompts(config, asked)
    taps = choose_taps(config.facts.layers)
    recorder = StateRecorder(taps, config.facts.hidden_size, asked.sequence_length)
    tokens = min(asked.tokens, sum(longest_outcome(one, asked) for one in prompts))
    plan = make_plan(config, asked, prompts, tokens)
    folder.check(plan)
    check_room(folder.training, tokens, recorder.state_width, saved_bytes(config, asked, taps))
    with saying_what_failed(folder), folder.claim(plan), TrainingProgress() as progress:
        progress.say(
            f"{folder.training}: hidden states of up to {tokens:,} tokens, "
            f"{needed_bytes(tokens, recorder.state_width) / 1e9:.2f} GB"
        )
        files = StateFiles(folder.training, tokens, recorder.state_width)
        if not folder.trained:  # else it goes on with what it has begun with
            collect(config, asked, prompts, files, recorder, progress, began)
        if progress.interrupted:
            progress.say("interrupted; the same command goes on from here")
            return 130
        return train(config, asked, files, folder, taps, progress, began)


def check_sizes(config: Config, asked: argparse.Namespace) -> None:
    """Raises CannotStart for what is larger than the model's."""
    facts = config.facts
    for flag, given, most, of in (
        ("--sequence-length", asked.sequence_length, facts.context, "context"),
        ("--draft-vocab-size", asked.draft_vocab_size or 0, facts.vocabulary, "vocabulary"),
    ):
        if given > most:
            raise CannotStart(
                f"{flag} {given} is above the model's {of} of {most} tokens; give less"
            )


@contextmanager
def saying_what_failed(folder: HeadFolder) -> Iterator[None]:
    """Raises CannotStart over what a disk does."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CannotStart(
            f"--output {folder.path}: training ended: {say(error)}; what was saved before is "
            "there, and the same command goes on with it"
        ) from error


def saved_bytes(config: Config, asked: argparse.Namespace, taps: Sequence[int]) -> int:
    """Of the head and of what training goes on from."""
    vocabulary = draft_vocabulary_size(config, asked)
    sizes = head_sizes(head_config(config, taps, vocabulary), len(taps))
    return SAVED_BYTES * sizes.count(vocabulary)


def find_prompts(config: Config, asked: argparse.Namespace) -> list[TrainingPrompt]:
    """Raises CannotStart where there are too few for a batch and something held out."""
    tokenizer = configured_tokenizer(config)
    if tokenizer is None:
        raise CannotStart("training needs the tokenizer: leave --skip-tokenizer-init out")
    if asked.answers == GIVEN and asked.prompts is None:
        raise CannotStart("--answers given needs --prompts FILE.jsonl with `messages`")
    longest = asked.sequence_length
    answered = asked.text is None and asked.answers == GENERATED
    try:
        if asked.text is not None:
            text = read_text(asked.text, "--text")
            found = cut_text(text, tokenizer, longest, asked.tokens, asked.seed)
        else:
            chats = find_chats(asked)
            found = encode_chats(chats, tokenizer, asked.answers, longest)
            if left := len(chats) - len(found):
                print_wrapped(
                    f"{left} prompts are left out: they are longer than half of "
                    f"--sequence-length {longest}, and answers would be short"
                )
    finally:
        if tokenizer.chat is not None:
            tokenizer.chat.close()
    shortest = asked.steps + 3
    found = [one for one in found if answered or len(one) >= shortest]
    if len(found) < (least := needed_sequences(asked.batch)):
        raise CannotStart(
            f"sequences of up to {longest} tokens: {len(found)}, and a batch of {asked.batch} and "
            f"what is held out take {least}; give more text or prompts, a smaller --batch, or a "
            "shorter --sequence-length"
        )
    return hold_out(found, answered=answered, seed=asked.seed)


def find_chats(asked: argparse.Namespace) -> list[Chat]:
    """Those of a file, or the package's. Raises CannotStart."""
    least = needed_sequences(asked.batch)
    if asked.prompts is None:
        return make_chats(max(least, 1 + asked.tokens // USUAL_ANSWER), asked.seed)
    lines = read_lines(asked.prompts)
    most = least + asked.tokens // SHORT_SEQUENCE
    if len(lines) > most:
        print_wrapped(
            f"--prompts {asked.prompts}: {most:,} of {len(lines):,} prompts are used, drawn by "
            f"--seed; --tokens {asked.tokens} needs no more"
        )
    return read_chats(asked.prompts, draw_lines(lines, most, asked.seed), asked.answers)


def longest_outcome(prompt: TrainingPrompt, asked: argparse.Namespace) -> int:
    return asked.sequence_length if prompt.answered else len(prompt.tokens)


def make_plan(
    config: Config, asked: argparse.Namespace, prompts: Sequence[TrainingPrompt], tokens: int
) -> dict[str, Any]:
    """What must be the same when training goes on."""
    digest = sha256()
    for prompt in prompts:
        digest.update(repr((prompt.tokens, prompt.answered)).encode())
    return {
        "model": model_digest(config.source),
        "prompts": digest.hexdigest(),
        "tokens": tokens,
        "sequence_length": asked.sequence_length,
        "draft_vocab_size": draft_vocabulary_size(config, asked),
        "seed": asked.seed,
    }


def draft_vocabulary_size(config: Config, asked: argparse.Namespace) -> int:
    """By default what makes the head's product half as large as its layer; published heads have
    32,000 for 4,096 numbers."""
    usual = min(TOKENS_PER_NUMBER * config.facts.hidden_size, config.facts.vocabulary)
    return asked.draft_vocab_size or usual


def collect(
    config: Config,
    asked: argparse.Namespace,
    prompts: Sequence[TrainingPrompt],
    files: StateFiles,
    recorder: StateRecorder,
    progress: TrainingProgress,
    began: float,
) -> None:
    limit = math.inf if asked.max_minutes is None else 60 * asked.max_minutes * COLLECTING
    if files.room < asked.sequence_length or len(files.sequences) == len(prompts):
        return
    collection = Collection(
        config,
        files,
        recorder,
        progress.update,
        longest=asked.sequence_length,
        rows=asked.rows,
        seed=asked.seed,
    )
    total, started, before = files.room + files.count, time.monotonic(), files.count

    def goes_on(count: int) -> bool:
        seconds = time.monotonic() - started
        speed = (count - before) / max(seconds, 1e-9)
        fraction = max(count / total, (time.monotonic() - began) / limit)
        progress.update("Collecting", min(1.0, fraction), f"{count:,} tokens, {speed:.0f} a second")
        return not progress.interrupted and time.monotonic() - began < limit

    collection.run(prompts, goes_on)
    if not progress.interrupted:  # the time is over
        collection.keep_unfinished()
    progress.say(f"collected {files.count:,} tokens in {time.monotonic() - started:.0f} s")


def train(
    config: Config,
    asked: argparse.Namespace,
    files: StateFiles,
    folder: HeadFolder,
    taps: Sequence[int],
    progress: TrainingProgress,
    began: float,
) -> int:
    threads = torch.get_num_threads()
    torch.set_num_threads(config.runtime.cpu_threads or config.platform.cores)
    try:
        trainer = build_trainer(config, asked, files, folder, taps, began)
        if said := trainer.resume():
            progress.say(said)
        acceptance = trainer.run(progress)
    finally:
        torch.set_num_threads(threads)
    if acceptance is None:
        progress.say(
            f"interrupted; {folder.path} has the head so far, and the same command goes on"
        )
        return 130
    trainer.write(
        {
            "model": str(config.source.path),
            "tokens": files.count,
            "minutes": round((time.monotonic() - began) / 60, 1),
            "measured": trainer.measured,
        }
    )
    folder.finish(keep_states=asked.keep_states)
    print(
        f"Serve it with --speculative-algorithm EAGLE3 --speculative-draft-model-path {folder.path}"
    )
    return 0


def build_trainer(
    config: Config,
    asked: argparse.Namespace,
    files: StateFiles,
    folder: HeadFolder,
    taps: Sequence[int],
    began: float,
) -> HeadTrainer:
    files.hold_out_one()
    learned = [one for one in files.sequences if not one.held_out]
    if len(learned) < asked.batch or len(learned) == len(files.sequences):
        raise CannotStart(
            f"{len(files.sequences)} sequences were collected, too few for a batch of "
            f"{asked.batch} and one that is held out; give more --tokens or --max-minutes, or a "
            "smaller --batch"
        )
    target, hidden = read_target(config), config.facts.hidden_size
    size = draft_vocabulary_size(config, asked)
    vocabulary = choose_vocabulary(files, learned, size, config.facts.vocabulary)
    described = head_config(config, taps, len(vocabulary.ids))
    sizes = head_sizes(described, len(taps))
    states = torch.cat([files.states(one)[1:-1] for one in learned[:SAMPLED]])
    features = states[:, : len(taps) * hidden].unflatten(-1, (len(taps), hidden))
    parameters = make_parameters(
        sizes,
        output=target.rows(vocabulary.ids),
        norm=target.norm,
        scales=features.square().mean(-1).sqrt().median(0).values,
        seed=asked.seed,
    )
    positions = torch.arange(asked.sequence_length + asked.steps, dtype=torch.float32)
    angles = torch.outer(positions, plain(sizes.head_dim, described["rope_theta"], 0, {})[0])
    settings = TrainingSettings(
        epochs=asked.epochs,
        learning_rate=asked.learning_rate,
        batch=asked.batch,
        steps=asked.steps,
        seed=asked.seed,
        seconds=math.inf
        if asked.max_minutes is None
        else max(1.0, 60 * asked.max_minutes - (time.monotonic() - began)),
    )
    fastest = DTYPES[config.platform.dtypes[0]]
    passes = HeadPasses(sizes, parameters, cosines_and_sines(angles), fastest)
    return HeadTrainer(settings, folder, files, target, vocabulary, passes, parameters, described)


def head_sizes(described: dict[str, Any], features: int) -> HeadSizes:
    """`described`: the head's config.json"""
    return HeadSizes(
        hidden=described["hidden_size"],
        inner=described["intermediate_size"],
        heads=described["num_attention_heads"],
        kv_heads=described["num_key_value_heads"],
        head_dim=described["head_dim"],
        features=features,
        norm_eps=described["rms_norm_eps"],
    )
