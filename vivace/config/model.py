"""Model, tokenizer and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vivace.config.option import no_effect, not_available, option
from vivace.config.unavailable import NO_CODE, NO_HOT_WEIGHTS, NO_MEDIA

OTHER_FORMAT = not_available(
    "this weight format is not read (pickled formats never will be)",
    "use auto, safetensors, gguf, sharded_state or dummy",
)
LOAD_FORMATS = ("auto", "safetensors", "gguf", "sharded_state", "dummy")
OTHER_LOAD_FORMATS = (
    "pt", "npcache", "bitsandbytes", "layered", "flash_rl", "remote",
    "remote_instance", "fastsafetensors", "private", "instanttensor", "presharded", "expert_pack",
    "mistral", "runai_streamer",
)  # fmt: skip


@dataclass(frozen=True)
class ModelOptions:
    model_path: str | None = option(
        help="Model directory, GGUF file, or name of a model on the hub (`org/name`, or "
        "`org/name:Q4_0` for one GGUF file of several) that is in the local cache or fetched with "
        "--download; without it the embedded model is served.",
        aliases=["model"],
    )
    tokenizer_path: str | None = option(
        help="Where the tokenizer is, when it is not with the model: like --model-path."
    )
    tokenizer_mode: str = option(
        "auto",
        "Which tokenizer implementation to use; there is one.",
        choices=["auto", "slow"],
        values={
            "slow": not_available("there is one tokenizer implementation, the fast one", "use auto")
        },
    )
    tokenizer_worker_num: int = option(1, "Frontend processes that share the port.")
    skip_tokenizer_init: bool = option(
        False, "Take and return token ids only; no text, no stop strings."
    )
    load_format: str = option(
        "auto",
        "How weights are read; sharded_state: each rank from files of its own, which `vivace "
        "save-sharded-state` has written; dummy makes random ones.",
        choices=[*LOAD_FORMATS, *OTHER_LOAD_FORMATS],
        values=dict.fromkeys(OTHER_LOAD_FORMATS, OTHER_FORMAT),
    )
    model_loader_extra_config: Any = option(
        None,
        'JSON settings of the weight reader: {"pattern": NAME}, of files with {rank} and {part}, '
        "for --load-format sharded_state.",
        json=True,
        trivial=[{}],
    )
    trust_remote_code: bool = option(
        False,
        "Permit code shipped with a model; accepted for compatibility.",
        cpu=no_effect("code from a model directory is never run; architectures are built in"),
    )
    context_length: int | None = option(
        help="Maximum prompt plus output length in tokens; default: the model's."
    )
    is_embedding: bool = option(False, "Serve vectors of texts (embeddings) instead of text.")
    enable_multimodal: bool = option(
        False,
        "Switch the multimodal processor on for models where it is off.",
        cpu=no_effect("this version serves text models only"),
    )
    revision: str | None = option(
        help="Branch, tag or commit of --model-path and --tokenizer-path in the hub's local cache "
        "(HF_HUB_CACHE); default: main. Refused for other files, which have no revisions."
    )
    model_impl: str = option(
        "auto",
        "Own architecture files (auto, sglang, vivace) or transformers'.",
        choices=["auto", "sglang", "vivace", "transformers", "mindspore"],
        values={"mindspore": not_available("MindSpore is not supported", "use auto")},
    )
    dtype: str = option(
        "auto",
        "Type of weights and activations; auto: the checkpoint's type where it is fast here.",
        choices=["auto", "half", "float16", "bfloat16", "float", "float32"],
    )
    chat_template: str | None = option(
        help="Built-in template name, or a Jinja or JSON file, instead of the tokenizer's template."
    )
    hf_chat_template_name: str | None = option(
        help="Which one to use when the tokenizer brings several templates."
    )
    completion_template: str | None = option(
        help="Fill-in-the-middle template for /v1/completions.",
        cpu=not_available("fill-in-the-middle is not supported yet"),
    )
    served_model_name: str | None = option(
        help="Name in /v1/models, in answers and accepted as `model`."
    )
    json_model_override_args: Any = option(
        None, "JSON merged over the model's configuration.", json=True
    )
    preferred_sampling_params: Any = option(
        None, "JSON with the server's default sampling settings.", json=True
    )
    sampling_defaults: str = option(
        "model",
        "Sampling defaults of requests: the model's own (generation_config.json, GGUF keys), or "
        "OpenAI's (temperature 1, top_p 1).",
        choices=["openai", "model"],
    )
    weight_version: str = option("default", "Label returned with every answer.")
    download_dir: str | None = option(help="The hub's local cache, instead of HF_HUB_CACHE.")
    download: bool = option(
        False,
        "Fetch --model-path from the hub when it is not in the local cache (as `vivace pull`).",
    )
    model_checksum: str | None = option(
        help="Verify the model's files against checksums.",
        cpu=not_available("checksum files are not supported yet"),
    )


@dataclass(frozen=True)
class WeightsOptions:
    custom_weight_loader: tuple[str, ...] | None = option(
        help="Import paths of weight loading functions.", cpu=NO_CODE
    )
    weight_loader_disable_mmap: bool = option(
        False,
        "Read files into memory instead of mapping them.",
        cpu=not_available("weights are read through mappings", "copy the model to a local disk"),
    )
    remote_instance_weight_loader_seed_instance_ip: str | None = option(
        help="Running server to pull weights from.", cpu=NO_HOT_WEIGHTS
    )
    remote_instance_weight_loader_seed_instance_service_port: int | None = option(
        help="HTTP port of that server.", cpu=NO_HOT_WEIGHTS
    )
    remote_instance_weight_loader_send_weights_group_ports: Any = option(
        None,
        "JSON list of ports, one per rank, for sending weights.",
        json=True,
        cpu=NO_HOT_WEIGHTS,
    )
    remote_instance_weight_loader_backend: str = option(
        "nccl",
        "How weights travel between servers.",
        choices=["transfer_engine", "nccl"],
        cpu=NO_HOT_WEIGHTS,
    )
    remote_instance_weight_loader_start_seed_via_transfer_engine: bool = option(
        False, "Offer this server's weights through the transfer engine.", cpu=NO_HOT_WEIGHTS
    )
    checkpoint_engine_wait_weights_before_ready: bool = option(
        False, "Be ready only when weights were pushed.", cpu=NO_HOT_WEIGHTS
    )
    delete_ckpt_after_loading: bool = option(
        False,
        "Delete the checkpoint's files after loading.",
        cpu=not_available("files are never deleted"),
    )
    decrypted_config_file: str | None = option(
        help="Decrypted configuration of an encrypted model.",
        cpu=not_available("encrypted checkpoints are not supported yet"),
    )
    decrypted_draft_config_file: str | None = option(
        help="Decrypted configuration of an encrypted draft.",
        cpu=not_available("encrypted checkpoints are not supported yet"),
    )
    enable_memory_saver: bool = option(
        False,
        "Let weights and KV be released while serving.",
        cpu=not_available("memory is held while serving"),
    )
    enable_weights_cpu_backup: bool = option(
        False, "Keep a host copy of released weights.", cpu=NO_HOT_WEIGHTS
    )
    enable_draft_weights_cpu_backup: bool = option(
        False, "Keep a host copy of the draft's released weights.", cpu=NO_HOT_WEIGHTS
    )


@dataclass(frozen=True)
class MultimodalOptions:
    mm_attention_backend: str | None = option(
        help="Attention kernels of the vision tower.",
        choices=[
            "sdpa", "fa3", "triton_attn", "ascend_attn", "aiter_attn", "fa4", "flashinfer_cudnn",
            "amx_attn", "xpu_attn",
        ],
        cpu=NO_MEDIA,
    )  # fmt: skip
    mm_max_concurrent_calls: int = option(32, "Media prepared at the same time.", cpu=NO_MEDIA)
    mm_per_request_timeout: float = option(
        10.0, "Seconds a request's media may take to prepare.", cpu=NO_MEDIA
    )
    enable_broadcast_mm_inputs_process: bool = option(
        False, "Decode media on the first rank and send them to the others.", cpu=NO_MEDIA
    )
    mm_process_config: Any = option(
        None, "JSON settings of the image, video and audio processors.", json=True, cpu=NO_MEDIA
    )
    mm_enable_dp_encoder: bool = option(
        False, "Run the vision encoder on different images per rank.", cpu=NO_MEDIA
    )
    limit_mm_data_per_request: Any = option(
        None, "JSON with the most media per request and kind.", json=True, cpu=NO_MEDIA
    )
    enable_prefix_mm_cache: bool = option(False, "Cache encoder output by content.", cpu=NO_MEDIA)
    disable_fast_image_processor: bool = option(
        False, "Use the slow image processor.", cpu=NO_MEDIA
    )
    keep_mm_feature_on_device: bool = option(
        False, "Keep media features on the device.", cpu=NO_MEDIA
    )
    enable_precise_embedding_interpolation: bool = option(
        False, "Exact interpolation of vision positions.", cpu=NO_MEDIA
    )
