"""Messages survive the way there and back; anything else is refused."""

from __future__ import annotations

import pytest

from dsv4check.rehearsal.protocol import (
    Launch,
    ProtocolError,
    RehearsedStage,
    SimulatedDevice,
    StageResult,
    Status,
    complete,
    decode,
    encode,
    launch_from_json,
    launch_to_json,
    result_from_json,
)


def test_a_launch_survives_the_wire() -> None:
    launch = Launch(
        "serve",
        ("{model:0}", "-tp", "8"),
        SimulatedDevice("10.3", "NVIDIA B300 SXM6 AC", 4, 275040),
        env={"A": "ü\n"},
        models=(("deepseek-ai/DeepSeek-V4-Flash", {"compress_ratios": [0, 4]}),),
        weights=((("embed.weight", "BF16", (129280, 4096)), ("norm.weight", "", None)), None),
        files=(("c.yaml", "tensor-parallel-size: 8\n"),),
        stage_timeout=3.5,
    )
    line = encode("launch", id=1, launch=launch_to_json(launch))
    assert line.count(b"\n") == 1
    assert launch_from_json(decode(line)["launch"]) == launch


@pytest.mark.parametrize("line", [b"", b"[]", b"nonsense", b'{"protocol": 1}', b'{"type": "ready"}', b"[" * 100000])
def test_other_lines_are_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(line)


@pytest.mark.parametrize("missing", ["stage", "status", "seconds", "detail"])
def test_a_result_needs_all_its_parts(missing: str) -> None:
    message = {
        "stage": "argparse",
        "status": "ok",
        "seconds": 1,
        "exception": "",
        "message": "",
        "where": "",
        "detail": {},
    }
    assert result_from_json(message) == StageResult(RehearsedStage.ARGPARSE, Status.OK, 1.0)
    del message[missing]
    with pytest.raises(ProtocolError):
        result_from_json(message)


def test_an_incomplete_launch_is_refused() -> None:
    with pytest.raises(ProtocolError):
        launch_from_json({"argv": []})


def test_missing_stages_are_filled_up() -> None:
    done = [StageResult(RehearsedStage.ARGPARSE, Status.OK)]
    broken = complete(done, reason="it died")
    assert [item.status for item in broken.stages[:3]] == [Status.OK, Status.UNAVAILABLE, Status.NOT_REACHED]
    assert broken.stages[1].message == "it died"
    failed = complete([*done, StageResult(RehearsedStage.ENGINE_CONFIG, Status.FAILED)], reason="it died")
    assert failed.unavailable is None, "a verdict that was reached stays one"
