from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dsv4check.api import check_request
from dsv4check.deployment import Command, Token
from dsv4check.errors import InputError
from dsv4check.inputs.flags.parser import parse_flags
from dsv4check.problems import Origin
from dsv4check.releases.flag_table import load_flag_table
from dsv4check.report.model import Report
from dsv4check.request import Request
from dsv4check.triage.argument_words import words_of
from dsv4check.triage.default_args import read_default_args
from dsv4check.triage.requesting import to_request
from dsv4check.triage.stated import read_stated
from tests.launches import all_rules, launch_request
from tests.test_cases import CASES, _launch
from tests.triage.readings import log_reading, log_run, printed_arguments, sampled_arguments

_BY_ID = {case["id"]: case for case in CASES}
_BANNER = " ▄▄ ▄█ █     █     █ ▀▄▀ █  version {}"

_UNSEEN = {
    "pub-ome-pro-h100-2node-tp8-pp2": "a JSON value that dotted flags replace leaves no trace",
    "ops-028-more-nonkv-memory": "a value that is the default is not printed",
}
"""Cases whose command says something that the printed arguments cannot show."""


def _report(request: Request) -> Report | None:
    try:
        return check_request(request, all_rules(), fixes=False)
    except InputError:
        return None


def _same(request: Request, again: Request) -> bool:
    # The machine and the packages do not stand in this line.
    again = replace(
        again,
        vllm=request.vllm,
        hardware=request.hardware,
        env=request.env,
        packages=request.packages,
        config_overrides=request.config_overrides,
        config_like=request.config_like,
    )
    reports = [_report(request), _report(again)]
    findings = [
        None if report is None else sorted((item.rule, item.severity.value, item.message) for item in report.findings)
        for report in reports
    ]
    return findings[0] == findings[1]


@pytest.mark.parametrize(("release", "case", "text"), sampled_arguments(), ids=lambda value: str(value)[:40])
def test_arguments_that_a_release_printed_give_the_findings_of_the_command(release: str, case: str, text: str) -> None:
    run = log_run([_BANNER.format(release), f"non-default args: {text}"])
    stated = read_stated(log_reading(run), run)
    assert stated.vllm == release
    assert not [fact for fact in stated.facts if fact.name == "note"]
    assert _same(launch_request(_launch(_BY_ID[case])), to_request(stated))


def test_every_case_survives_being_printed(figures: Callable[[str], None]) -> None:
    differ, checked = [], 0
    for case in CASES:
        request = launch_request(_launch(case))
        table = load_flag_table(request.vllm.release)
        flags = parse_flags(request.command, table)
        # What the parser refuses never comes to be printed.
        if flags.model is None or any(problem.exception for problem in flags.problems):
            continue
        checked += 1
        run = log_run([f"non-default args: {printed_arguments(flags.values, flags.model, table)}"])
        arguments = read_default_args(log_reading(run), run)
        assert arguments is not None
        assert not arguments.cut, case["id"]
        words = [flags.model, *words_of(arguments.values, table).words]
        command = Command(("vllm", "serve"), tuple(Token(word, Origin("flag", word)) for word in words))
        if not _same(request, replace(request, command=command)):
            differ.append(case["id"])
    figures(f"arguments printed and read back: {checked - len(differ)} of {checked} cases with the same findings")
    assert checked > 350
    assert set(differ) == set(_UNSEEN), differ


def _words(text: str, release: str = "0.33.0") -> list[str]:
    run = log_run([f"non-default args: {text}"])
    arguments = read_default_args(log_reading(run), run)
    assert arguments is not None
    return words_of(arguments.values, load_flag_table(release)).words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{'tensor_parallel_size': 8}", ["--tensor-parallel-size", "8"]),
        ("{'enable_prefix_caching': False}", ["--no-enable-prefix-caching"]),
        ("{'enforce_eager': True}", ["--enforce-eager"]),
        ("{'max_model_len': -1}", ["--max-model-len=-1"]),
        ("{'served_model_name': ['a', 'b']}", ["--served-model-name", "a", "b"]),
        ("{'speculative_config': {'method': 'mtp'}}", ["--speculative-config", '{"method":"mtp"}']),
        ("{'api_key': ['abc'], 'hf_token': '***'}", []),
        ("{'api_server_count': 8, 'data_parallel_size': 8}", ["--data-parallel-size", "8"]),
        (
            "{'kv_transfer_config': KVTransferConfig(kv_connector='NixlConnector', "
            "engine_id='271c942a-5b6e-4bbc-bb38-b4db0655e200', kv_buffer_device='cuda', kv_role='kv_both')}",
            ["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'],
        ),
        (
            "{'compilation_config': {'mode': <CompilationMode.NONE: 0>, 'backend': 'inductor', 'custom_ops': ['all'], "
            "'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, 'pass_config': {}}}",
            ["--compilation-config", '{"mode":"NONE","custom_ops":["all"],"cudagraph_mode":"FULL_AND_PIECEWISE"}'],
        ),
        (
            "{'attention_config': AttentionConfig(backend=<AttentionBackendEnum.FLASHMLA_SPARSE: 'vllm.a.B'>, "
            "flash_attn_version=None, indexer_kv_dtype='auto')}",
            ["--attention-config", '{"backend":"FLASHMLA_SPARSE"}'],
        ),
        ("{'ssl_keyfile': PosixPath('/k.pem'), 'port': 8001}", ["--ssl-keyfile", "/k.pem", "--port", "8001"]),
        ("{'lora_modules': [LoRAModulePath(name='a', path='b')]}", ["--lora-modules", '{"name":"a","path":"b"}']),
    ],
)
def test_values_become_words(text: str, words: list[str]) -> None:
    assert _words(text) == words


def test_a_flag_that_the_release_does_not_have_is_left_out_and_said() -> None:
    run = log_run([_BANNER.format("0.24.0"), "non-default args: {'model': 'm', 'made_up': 1, 'block_size': 64}"])
    stated = read_stated(log_reading(run), run)
    assert stated.words == ("--block-size", "64")
    assert "made_up: no flag of vLLM 0.24.0, left out" in [fact.value for fact in stated.facts]


def test_arguments_that_a_terminal_cut_into_lines_are_joined() -> None:
    run = log_run(["non-default args: {'model': 'deepseek-ai/DeepSeek-V4-Flash', 'tensor_par", "allel_size': 8}"])
    stated = read_stated(log_reading(run), run)
    assert stated.words == ("--tensor-parallel-size", "8")


def test_arguments_that_go_on_in_the_head_are_joined_without_prefixes() -> None:
    first = "non-default args: {'model': 'deepseek-ai/DeepSeek-V4-Flash', 'enforce_eager': True,"
    run = log_run([first])
    head = f"(APIServer pid=1) INFO 04-24 10:27:00 [utils.py:233] {first}\n(APIServer pid=1)  'block_size': 256}}\n"
    stated = read_stated(log_reading(run, head), run)
    assert stated.words == ("--enforce-eager", "--block-size", "256")


def test_arguments_whose_end_is_missing_give_what_is_there_and_say_so() -> None:
    run = log_run(["non-default args: {'model': 'deepseek-ai/DeepSeek-V4-Flash', 'block_size': 256, 'kv_cache_dt"])
    stated = read_stated(log_reading(run), run)
    assert stated.words == ("--block-size", "256")
    assert any("non-default args" in text for text in stated.missing)
