"""The environment variables Vivace knows, their kinds and states."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.option import WORKS, FlagState, no_effect, not_available


@dataclass(frozen=True)
class Variable:
    """`kind`: switch, number, whole number, path (of a URL) or text; `default`: the value that asks
    for nothing; `limits`: least and largest number."""

    state: FlagState
    meaning: str
    kind: str = "text"
    default: str = ""
    limits: tuple[float, float] | None = None


ASKS_NOTHING = ("", "0", "false", "no", "off", "-1")
"""values with which a variable that has no effect, or is not available, goes unmentioned"""

NPU = no_effect("it concerns Ascend devices, and this version runs on the CPU")
CANN = no_effect("it is read by CANN, Ascend's toolkit, which is not used")
HCCL = no_effect("it is read by HCCL, Ascend's collectives, which are not used")
TORCH_NPU = no_effect("it is read by torch_npu, which is not used")
DEEP_EP = no_effect("it is read by deep_ep of sgl-kernel-npu, which is not used")
PD = no_effect("prefill and decode on separate servers is not supported yet")
EXPERTS = no_effect("ranks exchange floats over memory that they share, nodes over sockets")
ALONE = no_effect("ranks exchange over memory that they share, nodes over sockets of their own")
SAME_ANSWERS = no_effect("drafts never change an answer, greedy or sampled")
ONE_WAY = no_effect("drafts are planned, verified and given pages in one way")
ALWAYS_LOOKED = no_effect("numbers that go wrong are always looked for")
NOT_MADE_UP = no_effect("accepted drafts are never made up")
MAMBA = no_effect("recurrent states and windows of convolutions are kept in float32")
TOOLS = no_effect("a call obeys its schema where the request says so: strict, or required")
GRAMMAR = no_effect("nothing polls: a grammar that is compiled rings")
PROFILER = no_effect("a profiler endpoint is not supported yet")
DEAD = no_effect("no program reads it")
FOREIGN = no_effect("Vivace does not read it")
HUB_KEY = no_effect("the hub's own library reads it, for `vivace pull` and --download alone")
FAULTS = no_effect("faults are injected with VIVACE_TEST_FAULT")
CODE = not_available("code from outside is never run", "unset it")
FIXED = no_effect("this limit is fixed here")


def supported(
    meaning: str, kind: str, default: str = "", limits: tuple[float, float] | None = None
) -> Variable:
    return Variable(WORKS, meaning, kind, default, limits)


WORKING = {
    "SGLANG_PP_LAYER_PARTITION": supported(
        "layers of each stage of a pipeline, as 12,12; without it equally many", "text"
    ),
    "SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR": supported(
        "how far, 0 to 1, chunks of a pipeline go to the predicted size", "number", "0.75", (0, 1)
    ),
    "SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR": supported(
        "folder of what /dump_expert_distribution_record writes", "text", "/tmp"
    ),
    "SGLANG_SET_CPU_AFFINITY": supported(
        "keep each computing thread of the kernels on one core", "switch", "0"
    ),
    "SGLANG_INIT_NEW_TOKEN_RATIO": supported(
        "share of the possible output that admission expects at first", "number", "0.7"
    ),
    "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR": supported(
        "factor to which that share decays", "number", "0.14"
    ),
    "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS": supported("steps of the decay", "whole number", "600"),
    "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": supported(
        "longest output, in tokens, that admission believes in", "whole number", "4096"
    ),
    "SGLANG_RETRACT_DECODE_STEPS": supported(
        "decode steps that must fit after a retraction", "whole number", "20"
    ),
    "SGLANG_REQ_WAITING_TIMEOUT": supported(
        "seconds a request may wait before it is refused; 0 or less: for ever", "number", "-1"
    ),
    "SGLANG_REQ_RUNNING_TIMEOUT": supported(
        "seconds a request may run before it is ended; 0 or less: for ever", "number", "-1"
    ),
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": supported(
        "allow a --context-length above the model's", "switch", "0"
    ),
    "SGLANG_RETURN_ORIGINAL_LOGPROB": supported(
        "log-probabilities of the model, before temperature and filters", "switch", "0"
    ),
    "SGLANG_FORWARD_UNKNOWN_TOOLS": supported(
        "calls of functions that a request does not offer are calls, too", "switch", "0"
    ),
    "SGLANG_OLLAMA_ROOT_ROUTE": supported("another path for /", "path"),
    "SGLANG_OLLAMA_CHAT_ROUTE": supported("another path for /api/chat", "path"),
    "SGLANG_OLLAMA_GENERATE_ROUTE": supported("another path for /api/generate", "path"),
    "SGLANG_OLLAMA_TAGS_ROUTE": supported("another path for /api/tags", "path"),
    "SGLANG_OLLAMA_SHOW_ROUTE": supported("another path for /api/show", "path"),
    "AIP_PREDICT_ROUTE": supported("Vertex AI's: another path for /vertex_generate", "path"),
    "SGLANG_TEST_RETRACT": supported("test aid: retract sequences regularly", "switch", "0"),
    "SGLANG_TEST_RETRACT_INTERVAL": supported(
        "test aid: decode steps between those retractions", "whole number", "3"
    ),
    "HF_HUB_CACHE": supported("the hub's local cache, where repository ids are looked up", "text"),
    "HUGGINGFACE_HUB_CACHE": supported("old name of HF_HUB_CACHE", "text"),
    "HF_HOME": supported("folder whose `hub` is that cache", "text", "~/.cache/huggingface"),
    "HF_ENDPOINT": supported("address of the hub, where it is not huggingface.co", "text"),
    "HF_HUB_OFFLINE": supported("fetch nothing from the hub", "switch", "0"),
    "SGLANG_USE_MODELSCOPE": supported("models come from ModelScope", "switch", "0"),
    "MODELSCOPE_CACHE": supported("ModelScope's local cache", "text", "~/.cache/modelscope"),
    "XDG_CACHE_HOME": supported("folder whose `huggingface` is HF_HOME", "text", "~/.cache"),
    "XDG_STATE_HOME": supported(
        "folder whose `vivace/chat_history` has what was typed", "text", "~/.local/state"
    ),
    "VIVACE_API_KEY": supported("--api-key, where no list of processes shows it", "text"),
    "VIVACE_ADMIN_API_KEY": supported("--admin-api-key, likewise", "text"),
    "VIVACE_CLUSTER_KEY": supported("the key of --cluster-key-file, where no file has it", "text"),
    "RAY_ADDRESS": supported("with --use-ray: host:port of the cluster", "text"),
    "VIVACE_EXECUTOR": supported("test aid: `oracle[:seconds per step]` runs no model", "text"),
    "VIVACE_TEST_FAULT": supported("test aid: make a process fail, as `engine-exit@20`", "text"),
    "VIVACE_TEST_DRAFTS": supported(
        "test aid: drafts are what was answered before, each right so often (0 to 1)",
        "number",
        limits=(0, 1),
    ),
    "VIVACE_COMPARE_RANKS": supported(
        "end an engine, with the rank, step and row, when its ranks have drawn different tokens",
        "switch",
        "0",
    ),
    "VIVACE_NODE_MODULES": supported(
        "test aid: folder where npm has put the clients in JavaScript that tests run", "text"
    ),
    "VIVACE_SLOW_TESTS": supported("test aid: run the slow tests too", "switch", "0"),
}
OF_SGLANG = {
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": Variable(
        no_effect("/health looks at the engine's heartbeat, /health_generate generates"),
        "generate for /health",
        default="true",
    ),
    "SGLANG_HEALTH_CHECK_TIMEOUT": supported("seconds /health_generate waits", "number", "20"),
    "SGLANG_TIMEOUT_KEEP_ALIVE": supported("seconds an idle connection is kept", "number", "75"),
    "SGLANG_WARMUP_TIMEOUT": Variable(FIXED, "seconds the warm-up may take"),
    "SGLANG_REQUEST_STATE_WAIT_TIMEOUT": Variable(
        no_effect("results are pushed, nobody polls for them"), "seconds of a poll", default="4"
    ),
    "SGLANG_QUEUED_TIMEOUT_MS": Variable(
        no_effect("set SGLANG_REQ_WAITING_TIMEOUT, in seconds"), "milliseconds of waiting"
    ),
    "SGLANG_SCHEDULER_MAX_RECV_PER_POLL": Variable(
        no_effect("every message that has come is taken"), "messages taken at once"
    ),
    "SGLANG_EMPTY_CACHE_INTERVAL": Variable(FIXED, "seconds between emptying allocator caches"),
    "SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP": Variable(
        no_effect("steps do not overlap on the CPU"), "no overlap of two prompts"
    ),
    "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": supported(
        "tokens that a rank sends to experts at once, with low latency", "whole number", "128"
    ),
    "SGLANG_DEEPEP_BF16_DISPATCH": Variable(EXPERTS, "dispatch in bfloat16"),
    "SGLANG_EPLB_HEATMAP_COLLECTION_INTERVAL": Variable(EXPERTS, "steps between heat maps"),
    "SGLANG_SCHEDULER_SKIP_ALL_GATHER": Variable(ALONE, "do not compare ranks"),
    "SGLANG_SCHEDULER_DECREASE_PREFILL_IDLE": Variable(
        ALONE, "hold prompts until all ranks have one"
    ),
    "SGLANG_DP_ROUND_ROBIN": Variable(DEAD, "of a change that SGLang never merged"),
    "SGLANG_ENABLE_SPEC_V2": Variable(ONE_WAY, "overlap with drafts"),
    "SGLANG_ENABLE_OVERLAP_PLAN_STREAM": Variable(ONE_WAY, "plan drafts on a second stream"),
    "SGLANG_SPEC_NAN_DETECTION": Variable(ALWAYS_LOOKED, "look for NaN in drafts"),
    "SGLANG_NGRAM_FORCE_GREEDY_VERIFY": Variable(SAME_ANSWERS, "greedy acceptance"),
    "SGLANG_SPEC_EXPANSION_SAFETY_FACTOR": Variable(ONE_WAY, "reserve of drafts", default="2"),
    "SGLANG_SIMULATE_ACC_LEN": Variable(
        not_available("accepted drafts are never made up", "unset it"),
        "benchmark as if so many draft tokens were accepted",
    ),
    "SGLANG_SIMULATE_ACC_METHOD": Variable(NOT_MADE_UP, "how that is drawn", default="multinomial"),
    "SGLANG_GRAMMAR_POLL_INTERVAL": Variable(GRAMMAR, "seconds of a poll", default="0.005"),
    "SGLANG_GRAMMAR_MAX_POLL_ITERATIONS": Variable(GRAMMAR, "polls", default="10000"),
    "SGLANG_TOOL_STRICT_LEVEL": Variable(TOOLS, "strictness of tool calls"),
    "SGLANG_MAMBA_CONV_DTYPE": Variable(MAMBA, "type of states", default="bfloat16"),
    "SGLANG_MAMBA_SSM_DTYPE": Variable(MAMBA, "type of states"),
    "SGLANG_TORCH_PROFILER_DIR": Variable(PROFILER, "where profiles go", default="/tmp"),
    "SGLANG_PROFILE_WITH_STACK": Variable(PROFILER, "profile stacks", default="true"),
    "SGLANG_PROFILE_RECORD_SHAPES": Variable(PROFILER, "profile shapes", default="true"),
    "SGLANG_LOG_MS": Variable(
        no_effect("log lines keep the form that tools read"), "milliseconds in log lines"
    ),
    "SGLANG_LOG_GC": Variable(
        no_effect("use --gc-warning-threshold-secs"), "log garbage collections"
    ),
    "SGLANG_LOG_REQUEST_EXCEEDED_MS": Variable(
        no_effect("use --log-requests"), "log requests that take longer"
    ),
    "SGLANG_TEST_STUCK_DETOKENIZER": Variable(FAULTS, "test aid: hang"),
    "SGLANG_TEST_STUCK_DP_CONTROLLER": Variable(FAULTS, "test aid: hang"),
    "SGLANG_TEST_STUCK_SCHEDULER_INIT": Variable(FAULTS, "test aid: hang"),
    "SGLANG_TEST_STUCK_TOKENIZER": Variable(FAULTS, "test aid: hang"),
    "SGLANG_TEST_CRASH_AFTER_STREAM_OUTPUTS": Variable(FAULTS, "test aid: crash"),
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": Variable(
        PD, "seconds of a handshake", default="300"
    ),
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": Variable(
        PD, "seconds of waiting for KV", default="300"
    ),
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": Variable(
        PD, "seconds between heartbeats", default="5"
    ),
    "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": Variable(PD, "missed heartbeats", default="2"),
    "SGLANG_DISAGGREGATION_THREAD_POOL_SIZE": Variable(PD, "threads of the transfer"),
    "SGLANG_DISAGGREGATION_QUEUE_SIZE": Variable(PD, "queues of the transfer", default="4"),
    "SGLANG_DISAGGREGATION_NUM_PRE_ALLOCATE_REQS": Variable(PD, "requests reserved ahead"),
    "SGLANG_DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL": Variable(
        PD, "seconds between clean-ups", default="120"
    ),
    "SGLANG_NPU_USE_MLAPO": Variable(NPU, "fused MLA preparation"),
    "SGLANG_USE_FIA_NZ": Variable(NPU, "KV in NZ layout"),
    "SGLANG_NPU_USE_MULTI_STREAM": Variable(NPU, "experts on two streams"),
    "SGLANG_NPU_FUSED_MOE_MODE": Variable(NPU, "fused expert operator"),
    "SGLANG_NPU_DISABLE_ACL_FORMAT_WEIGHT": Variable(NPU, "plain weight layout"),
    "SGLANG_NPU_FORWARD_NATIVE_GELUTANH": Variable(NPU, "plain GELU"),
    "SGLANG_NPU_FORWARD_NATIVE_GEMMA_RMS_NORM": Variable(NPU, "plain norm of Gemma"),
    "SGLANG_USE_AG_AFTER_QLORA": Variable(NPU, "gather after the query's low rank"),
    "SGLANG_USE_PICKLE_IPC": Variable(
        no_effect("processes exchange typed messages, nothing is pickled"),
        "pickled messages",
        default="true",
    ),
    "SGLANG_ZMQ_ALLOWED_PEERS": Variable(
        no_effect("processes talk through an inherited socket that has no name"), "who may connect"
    ),
    "SGLANG_EXTERNAL_MODEL_PACKAGE": Variable(CODE, "package with model classes"),
    "SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE": Variable(CODE, "package with media processors"),
    "SGLANG_DISABLED_MODEL_ARCHS": Variable(
        no_effect("architectures are built in"), "architectures not to register"
    ),
}
OF_OTHERS = {
    "DISABLE_OPENAPI_DOC": Variable(
        no_effect("the API document is always served"), "no API document"
    ),
    "DEEP_NORMAL_MODE_USE_INT8_QUANT": Variable(DEEP_EP, "INT8 dispatch"),
    "DEEPEP_NORMAL_LONG_SEQ_ROUND": Variable(DEEP_EP, "rounds of a long dispatch"),
    "DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS": Variable(DEEP_EP, "tokens of a round"),
    "ENABLE_MOE_NZ": Variable(DEAD, "expert weights in NZ layout, presumably"),
    "DISABLE_EAGLE3_QUANT": Variable(DEAD, "unquantized draft head, presumably"),
    "ENABLE_ASCEND_TRANSFER_WITH_MOONCAKE": Variable(PD, "KV transport of Ascend"),
    "ASCEND_MF_STORE_URL": Variable(PD, "store of the KV transport"),
    "ASCEND_NPU_PHY_ID": Variable(CANN, "physical device"),
    "ASCEND_LAUNCH_BLOCKING": Variable(CANN, "synchronous launches"),
    "ASCEND_HOME_PATH": Variable(CANN, "CANN toolkit"),
    "cann_path": Variable(CANN, "CANN toolkit"),
    "HCCL_BUFFSIZE": Variable(HCCL, "MB of a collective buffer"),
    "HCCL_SOCKET_IFNAME": Variable(HCCL, "network interface of HCCL"),
    "HCCL_OP_EXPANSION_MODE": Variable(HCCL, "where collectives are scheduled"),
    "HCCL_ALGO": Variable(HCCL, "algorithm of collectives"),
    "GLOO_SOCKET_IFNAME": Variable(ALONE, "network interface of gloo"),
    "TASK_QUEUE_ENABLE": Variable(TORCH_NPU, "launch queue of torch_npu"),
    "STREAMS_PER_DEVICE": Variable(TORCH_NPU, "streams"),
    "PYTORCH_NPU_ALLOC_CONF": Variable(TORCH_NPU, "allocator of torch_npu"),
    "TORCHINDUCTOR_CACHE_DIR": Variable(no_effect("nothing is compiled"), "compile cache of torch"),
    "HF_TOKEN": Variable(HUB_KEY, "key of the Hugging Face hub"),
    "MODELSCOPE_API_TOKEN": Variable(HUB_KEY, "key of ModelScope"),
    "LD_LIBRARY_PATH": Variable(FOREIGN, "the system's library path"),
    "PATH": Variable(FOREIGN, "the system's program path"),
    "http_proxy": Variable(FOREIGN, "proxy; only downloads from a hub use it"),
    "https_proxy": Variable(FOREIGN, "proxy; only downloads from a hub use it"),
    "HTTP_PROXY": Variable(FOREIGN, "proxy; only downloads from a hub use it"),
    "HTTPS_PROXY": Variable(FOREIGN, "proxy; only downloads from a hub use it"),
}
VARIABLES = {**WORKING, **OF_SGLANG, **OF_OTHERS}

QUIET = frozenset(
    {"PATH", "LD_LIBRARY_PATH", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"}
    | {"HF_TOKEN", "MODELSCOPE_API_TOKEN", "ASCEND_HOME_PATH", "TORCHINDUCTOR_CACHE_DIR"}
)
"""set on many machines for other programs, or secret: never worth a line at start-up"""
