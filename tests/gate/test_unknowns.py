"""Words that the file does not settle: what is tried, and that nothing is said that another value would remove."""

from __future__ import annotations

import pytest

from dsv4check.deployment import Command
from dsv4check.engine.rule import Severity
from dsv4check.gate.records import LaunchResult
from dsv4check.gate.unknowns import MAX_VARIANTS, Unknowns, unknowns_of
from dsv4check.inputs.flags.parser import parse_flags
from dsv4check.releases.flag_table import load_flag_table
from tests.gate.fixing import MODEL, checked, result

FP8 = "--kv-cache-dtype fp8"


def unknowns(flags: str, vllm: str = "0.24.0", gpus: int | None = None) -> Unknowns:
    (judged,) = checked(f"vllm serve {MODEL} {flags}\n").judged
    table = load_flag_table(vllm)
    return unknowns_of(judged.words, parse_flags(Command(("vllm", "serve"), judged.tokens), table), table, gpus)


def tried(flags: str, **more: object) -> list[str]:
    """The commands that are tried, without the model."""
    variants = unknowns(flags, **more).variants  # type: ignore[arg-type]
    assert len({len(variant) for variant in variants}) == 1
    return [" ".join(word.text for word in variant[1:] if word is not None) for variant in variants]


def said(answer: LaunchResult) -> set[str]:
    assert answer.not_checked == ""
    return {finding.rule for finding in answer.findings if finding.severity is not Severity.NOTE}


CASES = {
    "-tp $TP": [f"-tp {size}" for size in (1, 2, 4, 8, 16)],
    "-tp ${TP}": [f"-tp {size}" for size in (1, 2, 4, 8, 16)],
    "--tensor-parallel-size=$TP": [f"--tensor-parallel-size={size}" for size in (1, 2, 4, 8, 16)],
    '--tensor-parallel-size="${TP}"': [f"--tensor-parallel-size={size}" for size in (1, 2, 4, 8, 16)],
    "-tp $(nvidia-smi -L | wc -l)": [f"-tp {size}" for size in (1, 2, 4, 8, 16)],
    "--max-model-len $L --port 80": [f"--max-model-len {size} --port 80" for size in (1024, 8192, 131072, 1048576)],
    "--max-model-len ${K}k": [f"--max-model-len {size}k" for size in (1024, 8192, 131072, 1048576)],
    "--port $PORT": ["--port 8000"],
    "--port $((BASE + RANK))": ["--port 8000"],
    "--seed $S": [f"--seed {number}" for number in (0, 1, 2, 8, 64, 4096, 1048576)],
    "--gpu-memory-utilization $U": [f"--gpu-memory-utilization {share}" for share in (0.5, 0.9, 0.99)],
    "--host $HOST --served-model-name $NAME": ["--host $HOST --served-model-name $NAME"],
    "--download-dir=/data/$USER": ["--download-dir=/data/$USER"],
    "--tokenizer-mode $MODE": ["", "--tokenizer-mode deepseek_v4"],
    "--enforce-eager $ARGS --port 80": ["--enforce-eager --port 80"],
    '"$@"': [""],
    "$X$Y -tp 8": ["-tp 8"],
    "--config $FILE -tp 8": ["-tp 8"],
    "--config=$FILE -tp 8": ["-tp 8"],
    "-tp$TP --port 80": ["--port 80"],
    "--${NAME} 8 -tp 8": ["8 -tp 8"],
    '--speculative-config "$SPEC" -tp 8': ["-tp 8"],
    '--speculative-config "{\\"method\\":\\"$M\\",\\"num_speculative_tokens\\":1}"': [""],
}


@pytest.mark.parametrize("flags", CASES)
def test_values(flags: str) -> None:
    assert tried(flags) == CASES[flags]


def test_choices_of_the_flag() -> None:
    found = tried("--kv-cache-dtype $KV")
    assert {"--kv-cache-dtype auto", "--kv-cache-dtype fp8", "--kv-cache-dtype bfloat16"} <= set(found)
    assert len(found) <= MAX_VARIANTS


def test_no_more_gpus_than_there_are() -> None:
    assert tried("-tp $TP", gpus=4) == ["-tp 1", "-tp 2", "-tp 4"]


def test_a_number_inside_json() -> None:
    found = tried('--speculative-config "{\\"method\\":\\"mtp\\",\\"num_speculative_tokens\\":$N}"')
    assert '--speculative-config {"method":"mtp","num_speculative_tokens":1}' in found
    assert all("$N" not in text and text for text in found)


def test_the_key_of_a_dotted_flag() -> None:
    found = tried("--speculative-config.method mtp --speculative-config.num_speculative_tokens $N")
    assert "--speculative-config.method mtp" in found
    assert "--speculative-config.method mtp --speculative-config.num_speculative_tokens 3" in found


def test_what_is_tried_is_said() -> None:
    found = unknowns("-tp $TP --port=$PORT --tokenizer-mode $M")
    assert found.tried == (
        "$TP (of --tensor-parallel-size): 1, 2, 4, 8, 16",
        "$PORT (of --port): 8000",
        "$M (of --tokenizer-mode): left out, deepseek_v4",
    )
    assert (found.further, found.settled) == ((), False)


def test_further_flags_are_said() -> None:
    found = unknowns('$ARGS "$@" --x-$Y $ARGS')
    assert found.further == ("$ARGS", "$@", "$Y")
    assert found.tried == ()
    assert not found.settled


def test_a_known_command_is_settled() -> None:
    found = unknowns("-tp 8")
    assert found.settled
    assert len(found.variants) == 1
    assert None not in found.variants[0]


def test_too_many_combinations() -> None:
    names = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "max-model-len")
    flags = " ".join(f"--{name} ${name[:1].upper()}" for name in names)
    found = tried(flags)
    assert len(found) == MAX_VARIANTS == len(set(found))
    for value in (f"--{name} {size}" for name in names[:3] for size in (1, 2, 4, 8, 16)):
        assert any(value in text for text in found), value
    # One large value with all others small: what few GPUs are enough for.
    assert "--tensor-parallel-size 8 --pipeline-parallel-size 1 --data-parallel-size 1 --max-model-len 1024" in found


# -- nothing that is said is wrong ---------------------------------------------------------------------------

TRUE_OF_EVERY_VALUE = {
    "data_parallel_rank": {"PA029"},
    "numa_bind_nodes": {"PA035"},
    "numa_bind_cpus": {"PA035"},
    "kv_offloading_size": {"KC010", "KC021", "KC022"},
    "grpc_port": {"FL026"},
    "collect_detailed_traces": {"EN028"},
    "chat_template": {"TP006"},
}
"""The flag itself is at fault, whatever it says."""


@pytest.mark.parametrize("vllm", ["0.21.0", "0.24.0", "0.28.0", "0.33.0"])
@pytest.mark.parametrize("form", ["{} $X", "{}=${{X}}"])
def test_any_flag_with_an_unknown_value(vllm: str, form: str) -> None:
    base = {"tensor_parallel_size": "-tp 4", "kv_cache_dtype": FP8}
    table = load_flag_table(vllm)
    assert said(result(f"vllm serve {MODEL} -tp 4 {FP8}\n", vllm=vllm)) == set()
    wrong = {}
    for spec in table.by_dest.values():
        if not spec.takes_value or spec.dest in ("model", "config"):
            continue
        rest = " ".join(text for dest, text in base.items() if dest != spec.dest)
        found = said(result(f"vllm serve {MODEL} {rest} {form.format(spec.flag)}\n", vllm=vllm))
        if not found <= TRUE_OF_EVERY_VALUE.get(spec.dest, set()):
            wrong[spec.flag] = found
    assert wrong == {}


GOOD = [
    ("0.24.0", f"-tp 8 {FP8} --no-enable-chunked-prefill --max-num-batched-tokens 4096 --max-model-len 4096", {}),
    ("0.24.0", f"-tp 4 {FP8} --max-num-batched-tokens 8 --max-num-seqs 8 --max-model-len 65536", {}),
    ("0.24.0", f"-tp 8 {FP8} --block-size 256 --gpu-memory-utilization 0.9 --max-num-seqs 64", {"gpu": "H200"}),
    ("0.28.0", f"-tp 4 -dp 2 {FP8} --enable-expert-parallel --max-model-len 131072", {"gpu": "B200"}),
    (
        "0.33.0",
        f"-tp 8 {FP8} --tokenizer-mode deepseek_v4 --tool-call-parser deepseek_v4 --enable-auto-tool-choice",
        {},
    ),
    ("0.33.0", f"-tp 2 -pp 2 {FP8} --reasoning-parser deepseek_v4 --distributed-executor-backend mp", {}),
    ("0.26.0", f"-tp 8 {FP8} --attention-backend FLASHINFER_MLA_SPARSE_DSV4 --load-format auto", {"gpu": "B200"}),
    ("0.26.0", f'-tp 8 {FP8} --speculative-config {{\\"method\\":\\"mtp\\",\\"num_speculative_tokens\\":1}}', {}),
]


@pytest.mark.parametrize(("vllm", "flags", "facts"), GOOD)
def test_no_value_of_a_good_launch_is_missed(vllm: str, flags: str, facts: dict[str, object]) -> None:
    """Each value, each pair of values, and all values taken away: nothing may be said."""
    facts = {"vllm": vllm, **facts}
    assert said(result(f"vllm serve {MODEL} {flags}\n", **facts)) == set()
    words = flags.split()
    places = [at for at, word in enumerate(words) if at and words[at - 1].startswith("-") and word[0] not in "-"]
    hidden = [{at} for at in places] + [{a, b} for a in places for b in places if a < b] + [set(places)]
    for chosen in hidden:
        text = " ".join(f"$V{at}" if at in chosen else word for at, word in enumerate(words))
        assert said(result(f"vllm serve {MODEL} {text}\n", **facts)) == set(), text


@pytest.mark.parametrize("vllm", ["0.20.2", "0.24.0", "0.33.0"])
@pytest.mark.parametrize("gpu", ["H200", "B200", "B300"])
def test_what_is_fine_for_one_size_is_not_refused(vllm: str, gpu: str) -> None:
    fine = [
        size for size in range(1, 9) if not said(result(f"vllm serve {MODEL} -tp {size} {FP8}\n", vllm=vllm, gpu=gpu))
    ]
    answer = result(f"vllm serve {MODEL} -tp $TP {FP8}\n", vllm=vllm, gpu=gpu)
    assert fine
    assert said(answer) == set()
    assert answer.verdict == "pass"


def test_what_holds_for_every_value_is_said() -> None:
    answer = result(f"vllm serve {MODEL} -tp $TP --kv-cache-dtype fp8 --block-size 128 --port $PORT\n")
    assert said(answer) == {"KV012"}
    assert answer.verdict == "fail"
    assert any("$TP (of --tensor-parallel-size): 1, 2, 4, 8" in note for note in answer.notes)


def test_what_holds_for_some_values_is_an_open_question() -> None:
    answer = result(f"vllm serve {MODEL} -tp 8 --kv-cache-dtype $KV\n")
    assert said(answer) == set()
    assert any("$KV" in question.why for question in answer.not_evaluated)
