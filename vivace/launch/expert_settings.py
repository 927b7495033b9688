"""What an engine counts of its experts, from the flags."""

from __future__ import annotations

from vivace.config.config import Config
from vivace.config.expert_location import expert_devices, find_experts, read_locations
from vivace.engine.executor import Executor
from vivace.engine.expert_distribution import DistributionSettings, ExpertDistribution

FOLDER = "SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR"


def expert_distribution(
    config: Config, executor: Executor, *, first: bool = True
) -> ExpertDistribution | None:
    """None where nobody counts. `first` of the engines that share experts."""
    asked, found = config.experts, find_experts(config.facts)
    if found is None or asked.expert_distribution_recorder_mode is None:
        return None
    room = expert_devices(config, found)
    trivial = tuple(slot % found.count for slot in range(room.slots))
    rows = read_locations(config, found) or [trivial] * len(found.layers)
    size = asked.expert_distribution_recorder_buffer_size
    return ExpertDistribution(
        DistributionSettings(
            layers=len(found.layers),
            experts=found.count,
            placed={layer: rows[layer] for layer, mixed in enumerate(found.layers) if mixed},
            room=room,
            mode=asked.expert_distribution_recorder_mode,
            buffer=-1 if size is None else size,
            rebalance_steps=asked.eplb_rebalance_num_iterations if asked.enable_eplb else 0,
            algorithm=asked.eplb_algorithm,
            chunk=asked.eplb_rebalance_layers_per_chunk,
            threshold=asked.eplb_min_rebalancing_utilization_threshold,
            report_steps=config.logging.decode_log_interval
            if asked.enable_expert_distribution_metrics
            else 0,
            folder=recorder_folder(config),
            keeps=first,
        ),
        executor,
    )


def recorder_folder(config: Config) -> str:
    """Where the recorder writes what it is asked for."""
    return config.environment.get(FOLDER) or "/tmp"
