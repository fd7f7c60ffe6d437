"""Launch commands as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4check.deployment import Command, Token
from dsv4check.errors import InputError
from dsv4check.inputs.command import MAX_TEXT, format_command, read_command
from dsv4check.problems import Origin


def words(command: Command) -> list[str]:
    return [token.text for token in command.tokens]


SCRIPT = """#!/bin/bash
set -euo pipefail
export VLLM_USE_V2_MODEL_RUNNER=1
MODEL=deepseek-ai/DeepSeek-V4-Flash   # the August checkpoint
TP=4
CUDA_VISIBLE_DEVICES=0,1 nohup vllm serve $MODEL \\
  --tensor-parallel-size "${TP}" \\
  --max-model-len ${LEN:-131072} \\
  # not this one: --enforce-eager \\
  > serve.log 2>&1 &
"""


def test_script_with_exports_variables_and_redirections() -> None:
    command = read_command(SCRIPT)
    assert command.program == ("nohup", "vllm", "serve")
    assert words(command) == [
        "deepseek-ai/DeepSeek-V4-Flash",
        "--tensor-parallel-size",
        "4",
        "--max-model-len",
        "131072",
    ]
    assert command.env == {"VLLM_USE_V2_MODEL_RUNNER": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert any("default '131072'" in note for note in command.notes)


def test_places_of_words_in_text() -> None:
    command = read_command("# start\nvllm serve M \\\n  -tp 8\n", source="run.sh")
    flag = command.tokens[1]
    assert (flag.text, flag.origin.line, flag.origin.column) == ("-tp", 3, 3)
    assert flag.origin.kind == "file"


@pytest.mark.parametrize(
    ("text", "program", "expected"),
    [
        ("vllm serve M -tp 8", ("vllm", "serve"), ["M", "-tp", "8"]),
        ("/opt/venv/bin/vllm serve M", ("/opt/venv/bin/vllm", "serve"), ["M"]),
        ("exec vllm serve M", ("exec", "vllm", "serve"), ["M"]),
        ("numactl --interleave=all vllm serve M", ("numactl", "--interleave=all", "vllm", "serve"), ["M"]),
        ("uv run --with ray vllm serve M", ("uv", "run", "--with", "ray", "vllm", "serve"), ["M"]),
        ("python3.12 -u -m vllm.entrypoints.cli.main serve M", None, ["M"]),
        ("serve M --enforce-eager", ("vllm", "serve"), ["M", "--enforce-eager"]),
        ("M --enforce-eager", (), ["M", "--enforce-eager"]),
        ("--model M -tp=8", (), ["--model", "M", "-tp=8"]),
        ("-- vllm serve M", ("vllm", "serve"), ["M"]),
        ("env -u X vllm serve M", ("env", "-u", "X", "vllm", "serve"), ["M"]),
        ("\ufeffvllm serve M", ("vllm", "serve"), ["M"]),
        (
            "uvx --from vllm==0.24.0 vllm serve M",
            ("uvx", "--from", "vllm==0.24.0", "vllm", "serve"),
            ["M"],
        ),
    ],
)
def test_programs(text: str, program: tuple[str, ...] | None, expected: list[str]) -> None:
    command = read_command(text)
    assert program is None or command.program == program
    assert words(command) == expected
    assert command.entrypoint == "serve"


def test_api_server_module() -> None:
    command = read_command("python -m vllm.entrypoints.openai.api_server --model M")
    assert command.entrypoint == "api_server"
    assert command.program == ("python", "-m", "vllm.entrypoints.openai.api_server")
    ignored = read_command("python -m vllm.entrypoints.openai.api_server org/model")
    assert any("only --model" in note for note in ignored.notes)


def test_env_command_and_assignments() -> None:
    command = read_command("sudo -E env A=1 B='x y' vllm serve M")
    assert command.env == {"A": "1", "B": "x y"}
    assert read_command("A=1 vllm serve M").env == {"A": "1"}
    assert read_command("A=b=c vllm serve M").env == {"A": "b=c"}
    assert read_command("uvx --from vllm==0.24.0 vllm serve M").env == {}
    # What is quoted as a whole assigns nothing.
    assert read_command('vllm serve M "A=1"').env == {}


@pytest.mark.parametrize(
    ("before", "env"),
    [
        ("export A=1 B=2; unset B", {"A": "1"}),
        ("declare -x A=1\ntypeset B=2", {"A": "1"}),
        ("A=1\nexport A", {"A": "1"}),
        ("export A=1; A=2", {"A": "2"}),
        ("A=1", {}),
    ],
)
def test_what_a_script_exports(before: str, env: dict[str, str]) -> None:
    assert read_command(f"{before}\nvllm serve M").env == env


@pytest.mark.parametrize(
    ("typed", "printed"),
    [
        ("env -i A=1 vllm serve M", "env -i A=1 vllm serve M"),
        ("env -u X A=1 vllm serve M", "env -u X A=1 vllm serve M"),
        ("sudo A=1 vllm serve M", "sudo A=1 vllm serve M"),
        ("nohup env A=1 vllm serve M", "A=1 nohup env vllm serve M"),
    ],
)
def test_assignments_are_printed_where_they_reach_the_server(typed: str, printed: str) -> None:
    command = read_command(typed)
    assert command.env == {"A": "1"}
    assert format_command(command) == printed
    assert read_command(printed).env == {"A": "1"}


def test_here_documents_are_no_commands() -> None:
    text = "cat > c.yaml <<'EOF'\n# it's\nvllm serve WRONG\nEOF\nvllm serve M -tp 8\n"
    assert words(read_command(text)) == ["M", "-tp", "8"]
    assert words(read_command(text.replace("\n", "\r\n"))) == ["M", "-tp", "8"]
    assert words(read_command("cat <<-A <<B\n'\n\tA\n\"\nB\nvllm serve M")) == ["M"]


def test_a_launch_that_is_only_written_to_a_script_is_read() -> None:
    command = read_command("cat > run.sh <<EOF\n#!/bin/bash\nvllm serve M -tp 8\nEOF\nbash run.sh\n", source="x")
    assert words(command) == ["M", "-tp", "8"]
    assert command.tokens[0].origin.line == 3
    with pytest.raises(InputError, match="'cat' starts no vLLM server"):
        read_command("cat <<EOF\nM\nEOF\n")


def test_arrays_and_defaults() -> None:
    command = read_command('ARGS=(-tp 8 --hf-overrides \'{"a": 1}\')\nvllm serve M "${ARGS[@]}" ${X-} ${Y:-z}\n')
    assert words(command) == ["M", "-tp", "8", "--hf-overrides", '{"a": 1}', "z"]


def test_ansi_c_quotes() -> None:
    assert words(read_command("vllm serve M --x $'it\\'s\\n' --y $\"z\"")) == ["M", "--x", "it's\n", "--y", "z"]


def test_unset_variables_stay_and_are_noted() -> None:
    arguments = read_command('vllm serve "$1" $@')
    assert words(arguments) == ["$1", "$@"]
    assert len([note for note in arguments.notes if "kept as written" in note]) == 2
    command = read_command("vllm serve $MODEL --port ${PORT} --api-key $(cat key)")
    assert words(command) == ["$MODEL", "--port", "${PORT}", "--api-key", "$(cat key)"]
    assert len([note for note in command.notes if "kept as written" in note]) == 3


def test_what_stands_behind_the_command_is_noted() -> None:
    command = read_command("vllm serve M -tp 8 2>&1 | tee log.txt")
    assert words(command) == ["M", "-tp", "8"]
    assert "left out: 2>&1" in command.notes
    assert "left out: | tee log.txt" in command.notes
    assert words(read_command("sleep 5 && vllm serve M; echo done")) == ["M"]


def test_blank_behind_a_backslash_is_noted() -> None:
    command = read_command("vllm serve M \\ \n  -tp 8")
    assert words(command) == ["M", "-tp", "8"]
    assert any("blanks follow the backslash" in note for note in command.notes)


def test_flags_behind_a_lost_continuation_are_noted() -> None:
    command = read_command("vllm serve M \\\n\n  -tp 8\n")
    assert words(command) == ["M"]
    assert "left out, as a shell would end the command before it: -tp 8" in command.notes
    assert read_command("vllm serve M\necho done").notes == ()


def test_no_break_spaces_are_noted() -> None:
    command = read_command("vllm serve M\u00a0-tp 8")
    assert words(command) == ["M", "-tp", "8"]
    assert any("no-break space" in note for note in command.notes)


def test_windows_line_ends() -> None:
    assert words(read_command("vllm serve M \\\r\n  -tp 8\r\n")) == ["M", "-tp", "8"]


def test_curly_quotes_are_explained() -> None:
    command = read_command("vllm serve M --hf-overrides \u201c{}\u201d")
    assert words(command)[-1] == "\u201c{}\u201d"
    assert any("curly" in note for note in command.notes)
    dashed = read_command("vllm serve M \u2014tp 8")
    assert dashed.notes == (
        "line 1: long dashes (\u2014) pasted from formatted text: a shell takes them as ordinary characters",
    )


def test_list_of_words_and_single_string() -> None:
    assert words(read_command(["vllm", "serve", "M", "--hf-overrides", '{"a": 1}'])) == [
        "M",
        "--hf-overrides",
        '{"a": 1}',
    ]
    assert words(read_command(["vllm serve M -tp 8"])) == ["M", "-tp", "8"]
    assert read_command(["A=1", "vllm", "serve", "M"]).env == {"A": "1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no command"),
        ("   \n", "no command"),
        ("vllm bench serve M", "starts no vLLM server"),
        ("docker run image", "starts no vLLM server"),
        ("vllm serve 'M", "line 1, column 12: the single quote is never closed"),
        ('vllm serve \\\n  "M', "line 2, column 3: the double quote is never closed"),
        ("vllm serve $(cat x", "never closed"),
        ("vllm\x00serve", "control character"),
        ("x" * (MAX_TEXT + 1), "longer than"),
    ],
)
def test_unusable_input(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("$", r"\$")):
        read_command(text, source="here")


def test_source_is_named() -> None:
    with pytest.raises(InputError, match=r"^run\.sh: no command"):
        read_command("", source="run.sh")


def test_format_breaks_long_commands_by_flag() -> None:
    text = "A=1 vllm serve deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 8 "
    text += '--speculative-config \'{"method":"mtp","num_speculative_tokens":1}\' --served-model-name a b'
    lines = format_command(read_command(text)).split(" \\\n  ")
    assert lines == [
        "A=1 vllm serve deepseek-ai/DeepSeek-V4-Flash",
        "--tensor-parallel-size 8",
        '--speculative-config \'{"method":"mtp","num_speculative_tokens":1}\'',
        "--served-model-name a b",
    ]


def test_format_quotes_the_value_of_a_joined_flag() -> None:
    assert format_command(read_command(["vllm", "serve", "M", '--hf-overrides={"a":1}'])) == (
        "vllm serve M --hf-overrides='{\"a\":1}'"
    )


def test_format_keeps_negative_numbers_with_their_flag() -> None:
    command = read_command("vllm serve M --max-model-len -1 " + "--served-model-name " + "x" * 100)
    assert "--max-model-len -1 \\" in format_command(command)


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)


@given(st.lists(st.one_of(TEXT, st.sampled_from(["--flag", "--a=b c", "-x", "$X", "${X}", "it's", "#", '{"a": 1}']))))
def test_formatting_then_reading_gives_the_same_words(texts: list[str]) -> None:
    command = Command(("vllm", "serve"), tuple(Token(text, Origin("flag", text)) for text in texts))
    assert words(read_command(format_command(command))) == texts


@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True), TEXT, max_size=4))
def test_formatting_then_reading_gives_the_same_environment(env: dict[str, str]) -> None:
    command = Command(("vllm", "serve"), (Token("M", Origin("flag", "M")),), env)
    assert dict(read_command(format_command(command)).env) == env


@given(st.text(max_size=200))
def test_arbitrary_text_is_read_or_refused_in_one_line(text: str) -> None:
    message = ""
    try:
        read_command(text)
    except InputError as error:
        message = str(error)
    assert "\n" not in message


@given(st.lists(st.text(max_size=30), max_size=8))
def test_arbitrary_words_are_read_or_refused(texts: list[str]) -> None:
    message = ""
    try:
        command = read_command(texts)
        assert [*command.program, *words(command)] or command.env
    except InputError as error:
        message = str(error)
    assert "\n" not in message
