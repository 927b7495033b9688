"""Which experts can be spread over how many devices, and what does something there."""

from __future__ import annotations

from vivace.config.config import ModelContext, Options
from vivace.config.errors import ConfigError
from vivace.config.expert_location import find_experts, read_locations
from vivace.config.parallelism import dense_tp, ep_divides_tp, requested_sizes
from vivace.models.expert_facts import ExpertFacts

FAKE = (
    "--ep-dispatch-algorithm fake sends tokens to experts that they did not choose: speed can be "
    "measured with it, answers mean nothing"
)


def expert_parallel(options: Options, context: ModelContext) -> list[str]:
    """Before `tensor_parallel`, which divides the inside of experts."""
    asked, layout = options.experts, requested_sizes(options)
    if fault := ep_divides_tp(layout) or dense_tp(layout):
        raise ConfigError(f"--expert-parallel-size: {fault}" if "ep " in fault else fault)
    given = {  # in front what the rewrites take others from
        "--moe-a2a-backend": asked.moe_a2a_backend != "none",
        "--expert-parallel-size": asked.ep_size > 1,
        "--ep-num-redundant-experts": asked.ep_num_redundant_experts > 0,
        "--init-expert-location": asked.init_expert_location != "trivial",
        "--ep-dispatch-algorithm": asked.ep_dispatch_algorithm is not None,
        "--enable-eplb": asked.enable_eplb,
        "--expert-distribution-recorder-mode": asked.expert_distribution_recorder_mode is not None,
        "--enable-expert-distribution-metrics": asked.enable_expert_distribution_metrics,
        "--moe-dense-tp-size": asked.moe_dense_tp_size is not None,
    }
    notices = [FAKE] if asked.ep_dispatch_algorithm == "fake" else []
    one_copy = not (asked.ep_num_redundant_experts or asked.enable_eplb)
    if asked.ep_dispatch_algorithm in ("static", "dynamic") and one_copy:
        flag = f"--ep-dispatch-algorithm {asked.ep_dispatch_algorithm}"
        notices.append(f"{flag} has no effect without --ep-num-redundant-experts")
    places = asked.enable_eplb or given["--init-expert-location"]
    if asked.eplb_algorithm != "auto" and not places:
        notices.append("--eplb-algorithm has no effect without --enable-eplb")
    size, recorded = (
        asked.expert_distribution_recorder_buffer_size,
        any((asked.expert_distribution_recorder_mode, asked.enable_eplb)),
    )
    if size is not None and not recorded:
        flag = "--expert-distribution-recorder-buffer-size"
        notices.append(f"{flag} has no effect without --expert-distribution-recorder-mode")
    flags = [flag for flag, is_given in given.items() if is_given]
    if not flags:
        return notices
    found = find_experts(context.facts)
    if found is None:
        raise ConfigError(f"{flags[0]}: this model has no experts; leave it out")
    check_slots(options, found)
    return notices


def check_slots(options: Options, found: ExpertFacts) -> None:
    asked = options.experts
    ep, redundant = requested_sizes(options).ep, asked.ep_num_redundant_experts
    if ep == 1 and (redundant or asked.enable_eplb):
        flag = "--enable-eplb" if asked.enable_eplb else f"--ep-num-redundant-experts {redundant}"
        raise ConfigError(f"{flag}: one device has all experts; give --expert-parallel-size, too")
    if redundant > found.count * (ep - 1):
        raise ConfigError(
            f"--ep-num-redundant-experts {redundant}: with {found.count * (ep - 1)} each of {ep} "
            f"devices has all {found.count} experts"
        )
    if (found.count + redundant) % ep:
        wanted = -found.count % ep
        raise ConfigError(
            f"--expert-parallel-size {ep}: {found.count} experts and {redundant} copies "
            f"(--ep-num-redundant-experts) are no multiple of it; give {wanted} or "
            f"{wanted + ep} copies"
        )
    read_locations(options, found)
