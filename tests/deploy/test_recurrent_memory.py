"""What a check counts of layers that keep a state, and of a layer for drafts, is what a worker
keeps of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from draft_head_toys import HIDDEN, RECURRENT_MODEL, ReferenceNextn
from safetensors.torch import load_file
from served_toy import write_byte_tokenizer
from toy_models import make

from vivace.config.parsing import parse
from vivace.deploy.load_case import Overrides, build_case, open_command
from vivace.deploy.memory.plan import MemoryPlan, plan_role
from vivace.deploy.rules.judge import judge
from vivace.launch.configure import configure
from vivace.worker.build import build_worker
from vivace.worker.sizing import Demand, count_slots, size_pool

ROWS = 3
NEXTN = ("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "2")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recurrent")
    ReferenceNextn(make("Qwen3Next", folder, **RECURRENT_MODEL), folder)
    write_byte_tokenizer(folder)
    return folder


def words(toy: Path, *flags: str) -> list[str]:
    sizes = ("--max-running-requests", str(ROWS), "--max-total-tokens", "2048")
    return ["--model-path", str(toy), *sizes, *flags]


def planned(toy: Path, *flags: str, engine: str = "vivace serve") -> MemoryPlan:
    command = open_command([*engine.split(), *words(toy, *flags)])
    case = build_case(command, Overrides(hardware="atlas-800i-a2", cards=1))
    plan = plan_role(case, case.servers[0])
    assert plan is not None
    return plan


@pytest.mark.parametrize("flags", [(), NEXTN])
def test_states_of_a_request_are_those_of_a_row(toy: Path, flags: tuple[str, ...]) -> None:
    config = configure(parse(words(toy, *flags), {}))
    (group,) = build_worker(config, lambda stage, done: None).capacity.others
    state = group.kv_bytes // count_slots(ROWS, config.draft_width, group.pages)
    saved = 1
    assert planned(toy, *flags).state_bytes == state * (2 + config.draft_width + saved)


def test_sglang_keeps_windows_in_16_bits(toy: Path) -> None:
    plan = planned(toy, engine="python -m sglang.launch_server")
    assert plan.state_bytes == 3 * (4 * 16 * 24 * 4 + (2 * 2 * 16 + 4 * 24) * 3 * 2)


@pytest.mark.parametrize("given", [None, 1, 3])
def test_a_layer_that_drafts_is_counted_once(toy: Path, given: int | None) -> None:
    """Whether the configuration tells of it, or the family has it; only where it drafts."""
    override = f'{{"num_nextn_predict_layers": {given}}}'
    said = () if given is None else ("--json-model-override-args", override)
    drafting, plain = (planned(toy, *said, *flags) for flags in (NEXTN, ()))
    saved = load_file(toy / "model.safetensors")
    matrices = [one.numel() for name, one in saved.items() if "mtp." in name and len(one) > 1]
    parts = {part.name: part.size for part in drafting.parts}
    assert "draft layers" not in {part.name for part in plain.parts}
    vectors = sum(one.dim() == 1 for name, one in saved.items() if "mtp." in name) * HIDDEN
    assert 0 <= 2 * sum(matrices) - parts["draft layers"] <= 2 * vectors
    assert drafting.token_bytes == 2 * plain.token_bytes


PUBLISHED = "vivace serve --model-path Qwen/Qwen3-Next-80B-A3B-Instruct --tp-size 4"


@pytest.mark.parametrize("ratio", [0.2, 0.9])
def test_requests_whose_states_have_no_room_are_told_as_sizing_lowers_them(ratio: float) -> None:
    flags = f"--mem-fraction-static 0.8 --mamba-full-memory-ratio {ratio} --max-running-requests"
    command = open_command(f"{PUBLISHED} {flags} 2000".split())
    case = build_case(command, Overrides(hardware="h200"))
    plan = plan_role(case, case.servers[0])
    assert plan is not None and case.model is not None and case.model.linear is not None
    (told,) = (one for one in judge(case).findings if one.rule == "states-fit")
    fit = int(re.findall(r"for (\d+)$", told.text)[0])
    demand = Demand(
        free_bytes=plan.usable,
        available_bytes=plan.usable,
        weight_bytes=int(plan.usable * 0.8) - plan.pool,
        kv_bytes_per_token=plan.token_bytes,
        page_size=16,
        context=1 << 18,
        rows=2000,
        static_fraction=0.8,
        state_bytes=plan.state_bytes // 3,
        state_ratio=ratio,
    )
    size = size_pool(demand)
    assert abs(size.rows - fit) <= 1
    command = open_command(f"{PUBLISHED} {flags} {size.rows - 1}".split())
    kept = build_case(command, Overrides(hardware="h200"))
    assert not [one for one in judge(kept).findings if one.rule == "states-fit"]
    assert plan.room == pytest.approx(size.pages * 16, rel=0.05)


def test_what_is_told_to_give_is_for_all_groups() -> None:
    flags = "--mem-fraction-static 0.8 --dp-size 4 --enable-dp-attention --max-running-requests"
    told = 8000
    for remaining in (1, 0):
        command = open_command(f"{PUBLISHED} {flags} {told}".split())
        findings = judge(build_case(command, Overrides(hardware="h200"))).findings
        issues = [one for one in findings if one.rule == "states-fit"]
        assert len(issues) == remaining
        for one in issues:
            told = int(re.findall(r"--max-running-requests (\d+)", one.remedy)[0])
            least = int(re.findall(r"for (\d+)$", one.text)[0])
            assert told == 4 * least
