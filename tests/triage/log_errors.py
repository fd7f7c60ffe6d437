"""The failure of a rule as vLLM prints it: from the checker's finding, or made so that a signature finds it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsv4check.engine.rule import Rule, Severity
from dsv4check.engine.signature import Signature, compiled
from dsv4check.problems import Stage
from dsv4check.report.model import Finding
from tests.launches import all_rules
from tests.triage.log_launch import checked
from tests.triage.log_records import LogError
from tests.triage.log_table import LogFrame, table
from tests.triage.log_texts import CUDA_TAIL, LOGGED, whole
from tests.triage.regex_text import text_for

EXCEPTION = re.compile(
    r"((?:[A-Za-z_][\w.]*)?Exception|StopIteration|[A-Za-z_][\w.]*(?:Error|Exit|Interrupt|Warning))(?:: ?(.*))?\Z",
    re.DOTALL,
)
ABBREVIATED = re.compile(r"\(\.\.\.|\.\.\. |\(…|…|^\w+Error \(|^\w+Error in ")
DEEP_GEMM = re.compile(r"\((csrc/\S+\.hpp)\)")
"""A place in DeepGEMM's sources, whose path and line the rules leave out."""
WHERE = re.compile(r"(?!envs\.py)([\w/]+\.py):([\w.]*\b[a-z_]\w*)\Z")
"""A place of a rule's verification that is a function."""
ASSERTED = re.compile(r"(?:AssertionError \(|AssertionError: )?(assert .*?)\)?\Z", re.DOTALL)
CUDA = re.compile(r"^CUDA error: ")
MODULES = {
    "OutOfMemoryError": "torch.OutOfMemoryError",
    "AcceleratorError": "torch.AcceleratorError",
    "ValidationError": "pydantic_core._pydantic_core.ValidationError",
    "SafetensorError": "safetensors_rust.SafetensorError",
    "StrictDataclassFieldValidationError": "huggingface_hub.errors.StrictDataclassFieldValidationError",
    "StrictDataclassClassValidationError": "huggingface_hub.errors.StrictDataclassClassValidationError",
    "ParserError": "yaml.parser.ParserError",
    "HTTPError": "requests.exceptions.HTTPError",
}
CLASSES = (
    (r"specul|draft|dspark|prompt_lookup|suffix_decoding|num_speculative|synthetic_accept|FLy", "SpeculativeConfig"),
    (
        r"attention heads|max_model_len|Unrecognized model|quantization method|tokenizer|dtype|architectures",
        "ModelConfig",
    ),
    (r"parallel|EPLB|nnodes|data_parallel|expert", "ParallelConfig"),
    (r"max_num_seqs|max_num_batched|prefill", "SchedulerConfig"),
    (r"kv_cache_dtype|block_size|cache", "CacheConfig"),
)
RAISING = {
    "AssertionError": "assert (",
    "KeyError": "param = params_dict[name]",
    **dict.fromkeys(("AttributeError", "TypeError", "ZeroDivisionError", "IndexError"), ""),
    **dict.fromkeys(("OutOfMemoryError", "AcceleratorError", "ValidationError"), ""),
}
"""The quoted line of exceptions that no ``raise`` raises."""
UNKNOWN_PLACE = "vllm/models/deepseek_v4/nvidia/model.py"
OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 139.81 GiB of which 1.21 GiB is"
    " free. Including non-PyTorch memory, this process has 138.58 GiB memory in use. Of the allocated memory 134.72"
    " GiB is allocated by PyTorch, with 1.10 GiB allocated in private pools (e.g., CUDA Graphs), and 846.23 MiB is"
    " reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
    "  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
ALWAYS = {"ZeroDivisionError": "integer division or modulo by zero"}
"""What Python says with a type whenever it raises it."""
IN_FOLDERS = {"spec_decode/": "llm_base_proposer.py:load_model", "lmcache/": "v1/gpu_connector.py:register_kv_caches"}
PACKAGES = (
    "flashinfer",
    "deep_gemm",
    "torch",
    "triton",
    "transformers",
    "flash_mla",
    "safetensors",
    "pydantic",
    "ray",
    "lmcache",
)


def error_of(rule_id: str, launch: Mapping[str, Any]) -> LogError | None:
    """The failure of this launch as the rule's finding states it; None where it does not fire or prints nothing."""
    rule = next(item for item in all_rules() if item.id == rule_id)
    found = next((item for item in checked(launch).report.findings if item.rule == rule_id), None)
    return None if found is None else of_finding(rule, found)


def of_finding(rule: Rule, found: Finding) -> LogError | None:
    if found.error and (ASSERTED.match(found.error) or not ABBREVIATED.search(found.error)):
        return with_frame(rule, read_error(found.error, found.stage, rule))
    sample = sample_for(rule, found)
    if sample is None or not ASSERTED.match(sample.message):
        return sample
    # Python shows the condition of a bare assertion as the last quoted line, and no text behind the type.
    shown = read_error(sample.message, found.stage, rule)
    return with_frame(rule, replace(shown, frames=(*sample.frames, *shown.frames)))


def sample_for(rule: Rule, found: Finding | None = None) -> LogError | None:
    """A failure that one of the rule's signatures finds; None for a rule without any that a text can be made for."""
    stated = found.error if found is not None else rule.error
    stage = found.stage if found is not None else rule.stage
    if stated and "{" not in stated and not ABBREVIATED.search(stated):
        error = with_frame(rule, read_error(stated, stage, rule))
        if satisfied(rule, error):
            return error
    for signature in rule.signatures:
        text = text_for(signature.text) if signature.text else ""
        if text is None:
            continue
        error = made(text.strip("\n"), stage, rule)
        if signature.frame:
            error = add_frame(error, signature)
        if signature.matches(error.said, [frame_place(frame) for frame in error.frames]):
            return error
    return None


def satisfied(rule: Rule, error: LogError) -> bool:
    """True when a signature of the rule finds the failure."""
    places = [frame_place(frame) for frame in error.frames]
    return any(signature.matches(error.said, places) for signature in rule.signatures)


def frame_place(frame: LogFrame) -> str:
    return f"{frame.path}:{frame.function}"


def made(text: str, stage: Stage, rule: Rule) -> LogError:
    """A failure with a text that was made from an expression."""
    if LOGGED.search(text):
        return LogError("", text, stage, level="WARNING")
    if stage is Stage.ARGPARSE and ("error: " in text or text.startswith(("argument ", "unrecognized", "ambiguous"))):
        return LogError("argparse", text.rpartition("error: ")[2] if "error: " in text else text, stage)
    if stage is Stage.ARGPARSE and "Unexpected keyword argument" in text:
        return LogError(
            "argparse", f"argument --attention-config: 1 validation error for AttentionConfig\n{text}", stage
        )
    if ASSERTED.match(text):
        return LogError("AssertionError", text, stage)
    return read_error(text, stage, rule, guess="RuntimeError" if stage.order > 1 else "ValueError")


def read_error(text: str, stage: Stage, rule: Rule, guess: str = "RuntimeError") -> LogError:
    """``Type: text`` as the checker writes it, in the form in which vLLM's log shows it."""
    asserted = ASSERTED.match(text)
    if asserted is not None:
        return LogError("AssertionError", "", stage, (LogFrame(UNKNOWN_PLACE, 112, "__init__", asserted.group(1)),))
    found = EXCEPTION.match(text)
    if found is None:
        if stage is Stage.ARGPARSE and rule.severity is Severity.ERROR:
            return LogError("argparse", text, stage)
        if LOGGED.search(text):
            return LogError("", text, stage, level="WARNING")
        kind, message = ("torch.AcceleratorError" if CUDA.match(text) else guess), text
    else:
        kind, message = found.group(1), (found.group(2) or "")
    if kind == "SystemExit":
        return LogError("argparse", message, stage)
    kind, message = MODULES.get(kind, kind), message or ALWAYS.get(kind, "")
    if kind == "pydantic_core._pydantic_core.ValidationError":
        message = validation(message, rule)
    if CUDA.match(message) and "\n" not in message:
        message = f"{message}\n{CUDA_TAIL}"
    message = DEEP_GEMM.sub(r"(/workspace/.deps/deepgemm-src/\1:56)", message)
    if message == "CUDA out of memory.":
        message = OUT_OF_MEMORY
    return whole(LogError(kind, message, stage))


def validation(text: str, rule: Rule) -> str:
    """Pydantic's three lines around the message of a validator."""
    if re.search(r"\d+ validation errors? for ", text):
        return text
    named = [found.group(1) for item in rule.signatures if (found := re.search(r"for (\w+Config)", item.text))]
    known = [name for pattern, name in CLASSES if re.search(pattern, text)]
    owner = next(iter([*named, *known]), "VllmConfig")
    kind, said = (
        ("assertion_error", text) if text.startswith("Assertion failed, ") else ("value_error", f"Value error, {text}")
    )
    return (
        f"1 validation error for {owner}\n"
        f"  {said} [type={kind}, input_value=ArgsKwargs((), {{'model': 'd...y_factory': None}}),"
        f" input_type=ArgsKwargs]\n    For further information visit https://errors.pydantic.dev/2.12/v/{kind}"
    )


def with_frame(rule: Rule, error: LogError) -> LogError:
    """The failure with the frame that raises it: as the rule was verified, and as a signature asks for it."""
    raising = raised_in(rule, error)
    if raising is not None:
        if error.frames and error.frames[-1].path == UNKNOWN_PLACE:
            raising = replace(raising, code=error.frames[-1].code)
            error = replace(error, frames=error.frames[:-1])
        error = replace(error, frames=(*error.frames, raising))
    if satisfied(rule, error):
        return error
    for signature in rule.signatures:
        if signature.frame and (not signature.text or compiled(signature.text).search(error.said)):
            return add_frame(error, signature)
    return error


def raised_in(rule: Rule, error: LogError) -> LogFrame | None:
    """The place in vLLM that the rule was read in, as the innermost frame."""
    if not error.fatal or error.kind in ("", "argparse"):
        return None
    for item in rule.verified:
        found = WHERE.match(str(item.get("where", "")))
        if found and item.get("how") == "code":
            code = RAISING.get(error.short_kind, f"raise {error.short_kind}(")
            path = found.group(1) if found.group(1).startswith("vllm/") else f"vllm/{found.group(1)}"
            return LogFrame(path, 112, found.group(2).rpartition(".")[2], code)
    return None


def add_frame(error: LogError, signature: Signature) -> LogError:
    frame = frame_for(signature)
    if frame is None:
        return error
    return replace(error, frames=(*error.frames, frame))


def frame_for(signature: Signature) -> LogFrame | None:
    """A frame the signature finds: one that is recorded, else one made from the expression."""
    pattern = compiled(signature.frame)
    for known in table()["frames"].values():
        for item in known:
            if pattern.search(f"{item['path']}:{item['function']}"):
                release, line = next(iter(item["lines"].items()))
                assert release
                return LogFrame(item["path"], line, item["function"], item["code"])
    text = text_for(signature.frame)
    if text is None:
        return None
    if text.endswith("/"):
        text += IN_FOLDERS.get(text, "nvidia/model.py:forward")
        text = f"vllm/v1/{text}" if text.startswith("spec_decode/") else text
    path, _, function = text.strip().rpartition(":") if ":" in text else (text.strip(), "", "")
    if not path or not path.endswith(".py"):
        path, function = ("vllm/models/deepseek_v4/nvidia/model.py", text) if not path else (f"{path}.py", function)
    path = path.lstrip("/")
    if not path.startswith(("vllm/", *(f"{name}/" for name in PACKAGES))):
        path = f"vllm/models/{path}" if path.startswith("deepseek_v4") else f"vllm/models/deepseek_v4/{path}"
        if re.match(r"vllm/models/deepseek_v4/(v1|config|engine|model_executor|distributed|models|compilation)/", path):
            path = path.replace("vllm/models/deepseek_v4/", "vllm/")
    frame = LogFrame(path, 214, function or "forward", "")
    return frame if pattern.search(frame_place(frame)) else None
