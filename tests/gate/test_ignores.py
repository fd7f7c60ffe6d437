from __future__ import annotations

from pathlib import Path

import pytest

from dsv4check.engine.rule import Severity
from dsv4check.gate.directives import parse_directives, parse_ignores
from dsv4check.gate.ignores import apply_configured, apply_ignores, directive_findings, facts_at
from dsv4check.gate.own_rules import OWN_RULES
from dsv4check.gate.records import GateFinding, LaunchResult
from dsv4check.gate.settings import load_settings
from dsv4check.launchfiles.text import SourceText
from tests.gate.results import RULES, finding, launch

NONE: frozenset[int] = frozenset()


def source(text: str) -> SourceText:
    return SourceText("a.sh", text)


def applied(
    text: str, *launches: LaunchResult, heads: tuple[frozenset[int], ...] | None = None
) -> tuple[list[tuple[str, int, str | None]], list[tuple[str, str]]]:
    done, own = apply_ignores(
        launches, heads or (NONE,) * len(launches), parse_ignores(source(text)), path="a.sh", rules=RULES
    )
    marks = [(item.rule, item.region.line, item.ignored) for one in done for item in one.findings]
    return marks, [(item.rule, item.message) for item in own]


# Line 1 is where the launch begins.
SCRIPT = "vllm serve x \\{0}\n  --a \\{1}\n  --b{2}\n"


def script(*comments: str) -> str:
    return SCRIPT.format(*(f" {comment}".rstrip() for comment in (*comments, "", "", "")[:3]))


def test_behind_a_line_it_covers_that_line() -> None:
    one = launch(finding("KV001", 2), finding("KV001", 3), finding("ME003", 2))
    marks, own = applied(script("", "# dsv4check: ignore[KV001] r"), one)
    assert marks == [("KV001", 2, "r"), ("KV001", 3, None), ("ME003", 2, None)]
    assert own == []


def test_on_a_line_of_its_own_it_covers_the_next() -> None:
    one = launch(finding("KV001", 5), finding("KV001", 6))
    marks, own = applied("vllm serve x \\\n# dsv4check: ignore[KV001] r\n# and\n\n --a \\\n --b\n", one)
    assert marks == [("KV001", 5, "r"), ("KV001", 6, None)]
    assert own == []


@pytest.mark.parametrize(
    ("end", "covered"), [((3, 4), True), ((2, 10), True), ((1, 9), False), ((2, 1), False), ((4, 1), True)]
)
def test_a_region_of_several_lines(end: tuple[int, int], covered: bool) -> None:
    one = launch(finding("KV001", 1, end=end), line=9)
    marks, own = applied("a\nb # dsv4check: ignore[KV001] r\nc\n", one)
    assert marks[0][2] == ("r" if covered else None)
    assert bool(own) is not covered


def test_on_the_first_line_of_a_launch_it_covers_all_of_it() -> None:
    first = launch(finding("KV001", 2), finding("KV001", 3), finding("ME003", 1), line=1)
    second = launch(finding("KV001", 6), line=5, name="line 5")
    marks, own = applied("# dsv4check: ignore[KV001] r\n" + script(), launch(finding("KV001", 4), line=2), second)
    assert marks == [("KV001", 4, "r"), ("KV001", 6, None)]
    marks, own = applied(script("# dsv4check: ignore[KV001,ME003] r"), first, second)
    assert marks == [("KV001", 2, "r"), ("KV001", 3, "r"), ("ME003", 1, "r"), ("KV001", 6, None)]
    assert own == []


def test_on_a_head_line_it_covers_all_of_the_launch() -> None:
    one = launch(finding("KV001", 9), line=8)
    other = launch(finding("KV001", 19), line=18, name="line 18")
    text = "a\n" * 3 + "- name: vllm # dsv4check: ignore[KV001] r\n" + "b\n" * 20
    marks, own = applied(text, one, other, heads=(frozenset({4, 6}), frozenset({14})))
    assert marks == [("KV001", 9, "r"), ("KV001", 19, None)]
    assert own == []


def test_by_name() -> None:
    marks, own = applied("x # dsv4check: ignore[auto-on-packed-layout] r\n", launch(finding("KV001", 1)))
    assert marks == [("KV001", 1, "r")]
    assert own == []


def test_without_a_reason_it_has_no_effect() -> None:
    marks, own = applied("x # dsv4check: ignore[KV001]\n", launch(finding("KV001", 1)))
    assert marks == [("KV001", 1, None)]
    assert own == [("GT001", "ignore[KV001] without a reason; expected one behind the bracket")]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("KV009", "no rule 'KV009'; did you mean KV001?"),
        ("kv001", "no rule 'kv001'; did you mean KV001?"),
        ("auto-on-packed", "no rule 'auto-on-packed'; did you mean auto-on-packed-layout?"),
        ("zzz", "no rule 'zzz'"),
        ("GT003", "GT003 is a rule of the gate itself; those cannot be ignored"),
        ("ignore-unused", "ignore-unused is a rule of the gate itself; those cannot be ignored"),
    ],
)
def test_a_rule_that_is_not_known(written: str, said: str) -> None:
    marks, own = applied(f"x # dsv4check: ignore[{written},KV001] r\n", launch(finding("KV001", 1)))
    assert marks == [("KV001", 1, "r")]
    assert len(own) == 1
    assert own[0][0] == "GT002"
    # Of several near names any will do.
    assert own[0][1].startswith(said[: said.index("KV00") if written == "KV009" else None])


def test_each_rule_that_covers_nothing_is_named() -> None:
    text = "vllm serve x \\\n --a # dsv4check: ignore[KV001,ME003,block-size-refused] r\n# dsv4check: ignore[KV001] s\n"
    marks, own = applied(text, launch(finding("KV001", 2), finding("ME003", 1)))
    assert marks == [("KV001", 2, "r"), ("ME003", 1, None)]
    assert own == [
        ("GT003", "ME003 covers no finding; it stands for line 2"),
        ("GT003", "block-size-refused covers no finding; it stands for line 2"),
        ("GT003", "KV001 covers no finding; no line follows that it could stand for"),
    ]


def test_two_that_cover_the_same_are_both_used_and_the_first_reason_stays() -> None:
    text = "# dsv4check: ignore[KV001] first\nx # dsv4check: ignore[auto-on-packed-layout] second\n"
    marks, own = applied(text, launch(finding("KV001", 2), line=2))
    assert marks == [("KV001", 2, "first")]
    assert own == []


def test_of_a_launch_that_was_not_checked_nothing_is_unused() -> None:
    unchecked = launch(line=1, verdict=None)
    checked = launch(line=5, name="line 5", verdict="pass")
    assert applied("x # dsv4check: ignore[KV001] r\n", unchecked)[1] == []
    text = "x\n a # dsv4check: ignore[KV001] r\n\n\ny # dsv4check: ignore[KV001] s\n"
    assert applied(text, unchecked, checked)[1] == [("GT003", "KV001 covers no finding; it stands for line 5")]


def test_findings_of_the_gate_itself_are_whole() -> None:
    text = "x\ny  # dsv4check: ignore[KV001] r\n"
    _, (own,) = apply_ignores([launch()], [NONE], parse_ignores(source(text)), path="d/a.sh", rules=RULES)
    assert isinstance(own, GateFinding)
    assert (own.rule, own.name, own.severity) == ("GT003", "ignore-unused", Severity.WARNING)
    assert (own.path, own.launch, own.stage, own.active) == ("d/a.sh", "", None, True)
    assert (own.region.line, own.region.column, own.region.token) == (2, 4, "# dsv4check: ignore[KV001] r")
    assert len(own.fingerprint) == 16
    moved = parse_ignores(source("\n\n" + text))
    _, (again,) = apply_ignores([launch()], [NONE], moved, path="d/a.sh", rules=RULES)
    assert again.fingerprint == own.fingerprint
    assert again.region != own.region


def test_own_rules() -> None:
    assert list(OWN_RULES) == ["GT001", "GT002", "GT003", "GT004", "GT005"]
    errors = {rule.id for rule in OWN_RULES.values() if rule.severity is Severity.ERROR}
    assert errors == {"GT001", "GT004"}
    assert len({rule.name for rule in OWN_RULES.values()}) == 5
    assert all(rule.summary.endswith(".") and rule.help.endswith(".") for rule in OWN_RULES.values())


HEADER = "#!/bin/sh\n# dsv4check: vllm=0.25.1 gpus=8\n\n"


def test_facts_of_a_launch() -> None:
    directives = parse_directives(source(HEADER + "# dsv4check: gpus=4\na\n# dsv4check: skip by hand\nb\n"))
    first = facts_at(directives, frozenset({5}))
    assert {key: item.value for key, item in first.facts.items()} == {"vllm": "0.25.1", "gpus": "4"}
    assert first.skip == ""
    second = facts_at(directives, frozenset({7}))
    assert {key: item.value for key, item in second.facts.items()} == {"vllm": "0.25.1", "gpus": "8"}
    assert second.skip == "by hand"
    assert facts_at(directives, frozenset({6})).skip == ""


def test_facts_that_no_launch_gets() -> None:
    text = HEADER + "# dsv4check: gpus=4\na\nb # dsv4check: skip by hand\n# dsv4check: ignor\n# dsv4check: gpus=2\n"
    directives = parse_directives(source(text))
    found = directive_findings(directives, [frozenset({5})], path="a.sh")
    assert [(item.rule, item.region.line, item.message.split(";")[0]) for item in found] == [
        ("GT005", 6, "skip for line 6, where no launch begins"),
        ("GT004", 7, "'ignor' is not understood"),
        ("GT005", 8, "facts for no line: none follows"),
    ]
    found = directive_findings(directives, [], path="a.sh")
    assert (found[0].rule, found[0].message) == ("GT005", "facts for a file that holds no launch")


CONFIG = """
exclude = []
[[ignore]]
path = "staging/**"
rules = ["KV001", "does-not-fit"]
reason = "old image"
launch = "vllm"
"""


def configured(
    folder: Path, text: str, *launches: LaunchResult, complete: bool = True
) -> tuple[list[tuple[str, str | None]], list[tuple[str, str, str, int]]]:
    (folder / ".dsv4check.toml").write_text(text)
    done, own = apply_configured(launches, load_settings(folder), rules=RULES, complete=complete)
    marks = [(item.path, item.ignored) for one in done for item in one.findings]
    return marks, [(item.rule, item.message, item.path, item.region.line) for item in own]


def test_ignores_of_the_configuration(tmp_path: Path) -> None:
    inside = launch(
        finding("KV001", path="staging/x/a.yaml"),
        finding("ME003", path="staging/x/a.yaml"),
        finding("KV002", path="staging/x/a.yaml"),
        path="staging/x/a.yaml",
        name="container vllm",
    )
    renamed = launch(finding("KV001", path="staging/b.yaml"), path="staging/b.yaml", name="container other")
    outside = launch(finding("KV001", path="a.yaml"), path="a.yaml", name="container vllm")
    marks, own = configured(tmp_path, CONFIG, inside, renamed, outside)
    assert marks == [
        ("staging/x/a.yaml", "old image"),
        ("staging/x/a.yaml", "old image"),
        ("staging/x/a.yaml", None),
        ("staging/b.yaml", None),
        ("a.yaml", None),
    ]
    assert own == []


def test_unused_and_unknown_ones_of_the_configuration(tmp_path: Path) -> None:
    met = launch(finding("KV001", path="staging/a.yaml"), path="staging/a.yaml", name="vllm")
    unmet = launch(path="a.yaml", name="vllm")
    said = ("GT003", "does-not-fit covers no finding in staging/** (launch vllm)", ".dsv4check.toml", 3)
    assert configured(tmp_path, CONFIG, met)[1] == [said]
    assert configured(tmp_path, CONFIG, met, complete=False)[1] == [said]
    assert [item[0] for item in configured(tmp_path, CONFIG, unmet)[1]] == ["GT003", "GT003"]
    assert configured(tmp_path, CONFIG, unmet, complete=False)[1] == []
    unchecked = launch(path="staging/b.yaml", name="vllm", verdict=None)
    assert configured(tmp_path, CONFIG, unchecked)[1] == []
    unknown = configured(tmp_path, CONFIG.replace('"does-not-fit"', '"KV0001"'), met)[1]
    assert unknown == [("GT002", "no rule 'KV0001'; did you mean KV001?", ".dsv4check.toml", 3)]


def test_ignores_of_a_configuration_above(tmp_path: Path) -> None:
    (tmp_path / ".dsv4check.toml").write_text(CONFIG)
    (tmp_path / "staging").mkdir()
    one = launch(finding("KV001"), finding("ME003"), name="vllm 1")
    done, own = apply_configured([one], load_settings(tmp_path / "staging"), rules=RULES)
    assert [item.ignored for item in done[0].findings] == ["old image", "old image"]
    assert own == []
