"""Why whole groups of options are not available or have no effect, said once."""

from __future__ import annotations

from vivace.config.option import no_effect, not_available

CONTEXT_PARALLEL = not_available("a prompt is not divided among devices yet")
NO_LORA = not_available("LoRA adapters are not supported yet", "merge the adapter into the model")
NO_EXPERTS = not_available("this device computes experts in one way only")
OTHER_ALL_TO_ALL = not_available(
    "it is a library of other devices",
    "use deepep or ascend_fuseep, which are the same here, or none",
)
NO_PROCESSORS = not_available("it divides a GPU's processors between sending and computing")
NO_ELASTICITY = not_available(
    "an engine that has lost a rank is started again, and its streams go on"
)
NO_TOKENS_OF_EXPERTS = not_available(
    "the experts of single tokens are not recorded", "use per_pass, which counts them in each step"
)
ONE_PLACEMENT = not_available("it is not one of the published algorithms", "use auto")
NO_TIERS = not_available("KV tiers behind the device are not supported yet")
NO_PD = not_available(
    "prefill and decode on separate servers is not supported yet", "let one server do both"
)
NO_MEDIA = not_available("this version serves text models only")
NO_OFFLOAD = not_available(
    "weights stay where they are computed on", "use a smaller model or dtype"
)
NO_HOT_WEIGHTS = not_available(
    "changing weights while serving is not supported yet", "restart the server"
)
NO_TRACE = not_available("tracing is not supported yet", "use --enable-metrics")
NO_MODELOPT = not_available("ModelOpt is NVIDIA's", "use an unquantized or GGUF checkpoint")
NO_QUANTIZATION = not_available(
    "this checkpoint format is not supported yet", "use an unquantized or GGUF checkpoint"
)
NO_DUMPS = not_available("tensor dumps are not supported yet")
NO_SPARSITY = not_available("double sparsity was removed by SGLang too")
NO_DIFFUSION = not_available("diffusion language models are not supported yet")
NO_CODE = not_available("code from outside is never run", "use a registered feature instead")

EAGER = no_effect(
    "on the CPU only decode steps are captured: a prompt step is long, its calls are not"
)
FLOAT_STATES = no_effect("recurrent states are kept in float32")
SAVED_STATES = no_effect("a step never writes a state where it reads one, whatever is overlapped")
ONE_BACKEND = no_effect("the CPU has one attention backend")
GPU_KERNELS = no_effect("it tunes GPU kernels, which a CPU does not have")
NO_COLLECTIVES = no_effect("ranks on CPUs exchange over shared memory")
ALONE = no_effect("ranks find and watch each other by themselves")
NO_ROOMS = not_available(
    "prefill and decode are not split yet, so requests have no rooms", "use round_robin"
)
NEEDS_DP = no_effect("it matters with data parallelism only")
"""The meaning of a flag that only modifies another one, which is refused by itself."""
