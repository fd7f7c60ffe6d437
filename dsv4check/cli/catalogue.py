"""``dsv4check explain``, ``rules`` and ``releases``: what the checker knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dsv4check.cli.output import Format
from dsv4check.engine.signature import Signature
from dsv4check.errors import InputError
from dsv4check.report.blocks import Block, Heading, Paragraph, Table

_RULES_OPTION = typer.Option(help="Folder with further rules.")


def explain(
    rule_id: Annotated[str, typer.Argument(metavar="ID", help="Rule id (KV001) or name.")],
    rules: Annotated[Path | None, _RULES_OPTION] = None,
    output: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,
) -> None:
    """Print everything known about one rule."""
    from dsv4check.engine.rule import load_rules

    loaded = load_rules(rules)
    rule = next((item for item in loaded if rule_id.upper() == item.id or rule_id.lower() == item.name), None)
    if rule is None:
        from difflib import get_close_matches

        names = [item.id for item in loaded] + [item.name for item in loaded]
        close = get_close_matches(rule_id.upper(), names, 1) or get_close_matches(rule_id.lower(), names, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"no rule {rule_id!r}{hint} (`dsv4check rules` lists them)")
    if output is Format.JSON:
        from dsv4check.report.plain_values import plain_record

        print(json.dumps(plain_record(rule), indent=2, ensure_ascii=False))
        return
    from dsv4check.report.text_format import render_blocks

    print(render_blocks(_explanation(rule)), end="")


def rules(
    rules_dir: Annotated[Path | None, typer.Option("--rules", help="Folder with further rules.")] = None,
    output: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,
) -> None:
    """List all rules."""
    from dsv4check.engine.rule import load_rules

    loaded = load_rules(rules_dir)
    if output is Format.JSON:
        from dsv4check.report.plain_values import plain_record

        print(json.dumps([plain_record(rule) for rule in loaded], indent=2, ensure_ascii=False))
        return
    from dsv4check.report.text_format import render_blocks

    rows = tuple((rule.id, rule.severity.value, rule.stage.value, rule.vllm or "", rule.summary) for rule in loaded)
    table = Table(("id", "severity", "stage", "vLLM", "what it finds"), rows)
    print(render_blocks([table, Paragraph(f"{len(rows)} rules", indent=0)]), end="")


def releases(
    output: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,
) -> None:
    """List the vLLM releases there are facts for."""
    from dsv4check.releases.facts import known_releases, load_facts

    listing = [_release(load_facts(name)) for name in known_releases()]
    if output is Format.JSON:
        print(json.dumps(listing, indent=2))
        return
    from dsv4check.report.text_format import render_blocks

    rows = tuple(
        (
            item["release"],
            item["auto_kv_dtype"],
            ", ".join(item["layouts"]),
            item["sm12x_class"] or "-",
            item["flashinfer"] or "-",
            item["transformers"] or "-",
            item["torch"] or "-",
        )
        for item in listing
    )
    header = ("release", "kv auto", "layouts", "class on SM12x", "flashinfer", "transformers", "torch")
    print(render_blocks([Table(header, rows)]), end="")


def _release(facts: Any) -> dict[str, Any]:
    kv, attention = facts.section("kv_cache"), facts.section("attention")
    packages = facts.section("pins").get("packages", {})
    return {
        "release": facts.version,
        "auto_kv_dtype": kv["packed"]["auto"],
        "layouts": ["fp8_ds_mla", "plain"] if "plain" in kv else ["fp8_ds_mla"],
        "sm12x_class": attention["default"].get("12"),
        "flashinfer": packages.get("flashinfer-python"),
        "transformers": packages.get("transformers"),
        "torch": packages.get("torch"),
    }


def _explanation(rule: Any) -> list[Block]:
    from dsv4check.engine.edits import edits_text
    from dsv4check.engine.rule import FoundIn

    blocks: list[Block] = [
        Heading(f"{rule.id} {rule.name}"),
        Paragraph(rule.summary),
        Table(
            (),
            tuple(
                (label, value)
                for label, value in (
                    ("Severity", rule.severity.value),
                    ("Certainty", rule.certainty.value),
                    ("Stage", rule.stage.value),
                    ("Found in", "logs alone: no launch shows it" if rule.found_in is FoundIn.LOG else ""),
                    (
                        "vLLM",
                        rule.vllm
                        or ("only the development builds below" if rule.development else "all known releases"),
                    ),
                    ("Fixed in", rule.fixed_in or ""),
                    ("References", ", ".join(rule.references)),
                )
                if value
            ),
        ),
    ]
    if rule.development:
        blocks.append(Heading("Development builds it is known for"))
        blocks += [
            Paragraph(f"{item.base}.dev{item.first if item.first is not None else 0} to {item.last or 'open end'}")
            for item in rule.development
        ]
    if rule.code is not None:
        from dsv4check.engine.code_marks import marks_from_record
        from dsv4check.report.code_words import code_lines

        blocks.append(Heading("How a vLLM tree shows it (counts before the version where one is at hand)"))
        blocks += [
            # Code is not wrapped: a quoted piece is one line in every place it is quoted.
            Paragraph(f"- {line}", indent=2 + 2 * depth, verbatim=True)
            for depth, line in code_lines(marks_from_record(rule.code))
        ]
    if rule.when:
        blocks.append(Heading("Holds when"))
        blocks.append(Paragraph(json.dumps(rule.when, ensure_ascii=False)))
    blocks += [Heading("What it says"), Paragraph(rule.message)]
    if rule.error:
        blocks += [Heading("vLLM prints"), Paragraph(rule.error)]
    if rule.signatures:
        blocks.append(Heading("In a log"))
        blocks += [Paragraph(_in_words(item), verbatim=True) for item in rule.signatures]
    if rule.advice:
        blocks.append(Heading("What to do on the machine"))
        blocks += [Paragraph(f"- {text}") for text in rule.advice]
    if rule.fixes or rule.no_fix or not rule.advice:
        blocks.append(Heading("Fixes tried"))
        blocks += [Paragraph(f"- {edits_text(fix['edits'])}") for fix in rule.fixes] or [
            Paragraph(rule.no_fix or "none")
        ]
    blocks.append(Heading("How it is known"))
    blocks += [Paragraph(", ".join(f"{key}: {value}" for key, value in item.items())) for item in rule.verified]
    return blocks


def _in_words(signature: Signature) -> str:
    if not signature.frame:
        return signature.text
    return f"{signature.text}   in {signature.frame}" if signature.text else f"any error in {signature.frame}"
