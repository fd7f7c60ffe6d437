from __future__ import annotations

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dsv4check.launchfiles import yaml_compose, yaml_nodes
from dsv4check.launchfiles.records import Context
from dsv4check.launchfiles.text import Located, SourceText
from dsv4check.launchfiles.yaml_compose import TEMPLATE
from dsv4check.launchfiles.yaml_nodes import Document, get, items, key_of, nodes, pairs, text_of


def read(text: str) -> tuple[list[Document], Context]:
    context = Context(SourceText("some.yaml", text))
    return yaml_nodes.yaml_documents(Located.verbatim(context.source), context), context


def only(text: str) -> Document:
    documents, context = read(text)
    assert context.problems == []
    assert len(documents) == 1
    return documents[0]


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def _loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_compose, "_Loader", getattr(yaml, request.param))


def traced(text: str, *keys: str) -> tuple[str, str, str]:
    """Value, what stands for it, and what stands at the place of each character."""
    document = only(text)
    word = document.word(get(document.root, *keys))
    assert word is not None
    assert len(word.offsets) == len(word.text)
    return word.text, text[word.span.start : word.span.stop], "".join(text[at] for at in word.offsets)


@pytest.mark.usefixtures("_loader")
@pytest.mark.parametrize(
    ("source", "value", "span", "places"),
    [
        ("a: b\n", "b", "b", "b"),
        ("a: 0.90 # half\n", "0.90", "0.90", "0.90"),
        ("é: ü\r\na: yes\r\n", "yes", "yes", "yes"),
        ("\U0001f600: x\na: &x !!str  b c\n", "b c", "b c", "b c"),
        ("a: one\n  two\n\n  three\n", "one two\nthree", "one\n  two\n\n  three", "one\ntwo\nthree"),
        ("a: 'it''s'\n", "it's", "'it''s'", "it's"),
        ("a: 'x  \r\n\r\n   y'\r\n", "x\ny", "'x  \r\n\r\n   y'", "x\ry"),
        (r'a: "q\"\n\u00e9\x41"' + "\n", 'q"\néA', r'"q\"\n\u00e9\x41"', "q\\\\\\\\"),
        ('a: "one \\\n   two\n  three"\n', "one two three", '"one \\\n   two\n  three"', "one two\nthree"),
        ("a: |\n  x\n    y\n\n  z\nb: 1\n", "x\n  y\n\nz\n", "|\n  x\n    y\n\n  z\n", "x\n  y\n\nz\n"),
        ("a: |2- # note\n    x\n   y\n\n", "  x\n y", "|2- # note\n    x\n   y", "  x\n y"),
        ("a: &s |+\n  x\n\n\nb: 1\n", "x\n\n\n", "|+\n  x\n\n\n", "x\n\n\n"),
        (
            "a: >-\n  x\n  y\n\n  z\n    w\n  v\n",
            "x y\nz\n  w\nv",
            ">-\n  x\n  y\n\n  z\n    w\n  v",
            "x\ny\nz\n  w\nv",
        ),
        ("a: >\r\n  x\r\n  y\r\n", "x y\n", ">\r\n  x\r\n  y\r", "x\ry\r"),
        ("a: |\n  x", "x", "|\n  x", "x"),
        ("a: |\n  x\n# a comment\nb: 1\n", "x\n", "|\n  x\n", "x\n"),
        ('{"a":\t"x\\/y"}', "x/y", '"x\\/y"', "x\\y"),
    ],
)
def test_a_scalar_is_traced_to_its_characters(source: str, value: str, span: str, places: str) -> None:
    assert traced(source, "a") == (value, span, places)


LINES = st.lists(st.text("ab \\'\"#:é-\t", max_size=6), min_size=1, max_size=5)
STYLES = st.sampled_from(["plain", "'", '"', "|", "|-", "|+", ">", ">-", ">+", "|2", ">1-"])


@pytest.mark.usefixtures("_loader")
@settings(deadline=None)
@given(LINES, STYLES, st.sampled_from(["\n", "\r\n"]), st.integers(0, 3), st.booleans())
@example(["a", "", "", " b", "c"], ">", "\n", 0, True)
@example(["a\\", "", "  b"], '"', "\r\n", 0, True)
def test_every_character_comes_from_where_it_is_said_to(
    lines: list[str], style: str, line_end: str, deeper: int, last: bool
) -> None:
    indent = line_end + "  " + " " * deeper
    body = indent.join(lines)
    if style == "'":
        body = "'" + body.replace("'", "''") + "'"
    elif style == '"':
        body = '"' + body.replace('"', '\\"') + '"'
    elif style != "plain":
        body = style + indent + body
    text = f"# é{line_end}k:{line_end}  a: {body}" + (f"{line_end}b: 1{line_end}" if last else "")
    documents, _context = read(text)
    if len(documents) != 1 or (node := get(documents[0].root, "k", "a")) is None:
        return
    word = documents[0].word(node)
    if word is None:
        return
    assert word.text == node.value
    assert len(word.offsets) == len(word.text)
    assert list(word.offsets) == sorted(word.offsets)
    assert all(word.span.start <= at < word.span.stop for at in word.offsets)
    for char, at in zip(word.text, word.offsets, strict=True):
        source = text[at]
        # A plain text that begins with a quote is a quoted one.
        escaped = source == "\\" and body.startswith('"')
        assert source == char or (char in " \n" and source in "\r\n") or escaped


@settings(deadline=None)
@given(
    STYLES,
    st.text(st.characters(codec="utf-8", exclude_characters="\r\x00\x85\u2028\u2029\ufeff"), max_size=30),
    st.integers(10, 60),
)
def test_what_a_writer_of_yaml_writes_is_traced_throughout(style: str, value: str, width: int) -> None:
    style = style[:1] if style != "plain" else ""
    text = yaml.dump({"a": value}, default_style=style or None, width=width, allow_unicode=True)
    document = only(text)
    word = document.word(get(document.root, "a"))
    assert word is not None
    assert word.text == value
    # No two characters share a place: the alignment came out.
    assert len(set(word.offsets)) == len(value)


@pytest.mark.parametrize("text", ["a: ~", "a:", "a: null", "a: [x]", "b: 1", "a: !x"])
def test_null_and_collections_are_no_words(text: str) -> None:
    document = only(text)
    assert document.word(get(document.root, "a")) is None


def test_text_that_only_looks_like_null_is_a_word() -> None:
    document = only("a: '~'\nb: !!str\nc: ''\n")
    assert [text_of(get(document.root, key)) for key in "abc"] == ["~", "", ""]


def test_text_inside_a_template_s_braces_is_open() -> None:
    document = only("a: '--tp={{ .Values.tp }}'\nb: ${{ env.X }}\n")
    found = [document.word(get(document.root, key)) for key in "ab"]
    assert [word and word.open for word in found] == [("{{ .Values.tp }}",), ("${{ env.X }}",)]


def test_merge_keys_and_keys_that_are_there_twice() -> None:
    document = only("x: &x {a: 1, b: 1, c: 1}\ny: &y {b: 2, c: 2}\nz:\n  <<: [*x, *y]\n  c: 3\n  c: 4\nw: {<<: *y}\n")
    node = get(document.root, "z")
    assert {key.value: text_of(value) for key, value in pairs(node)} == {"a": "1", "b": "1", "c": "4"}
    assert text_of(get(node, "b")) == "1"
    assert text_of(get(node, "c")) == "4"
    assert text_of(get(document.root, "w", "b")) == "2"
    key = key_of(node, "c")
    assert key is not None
    assert document.span(key).start == document.text.text.index("c: 4")


def test_aliases_are_walked_once() -> None:
    document = only("a: &a [x, {b: c}]\nd: *a\ne: *a\n")
    assert [node.value for node in nodes(document.root) if isinstance(node, yaml.ScalarNode)] == list("axbcde")
    assert items(get(document.root, "d")) is items(get(document.root, "e"))


def problems(text: str) -> list[tuple[int, str, bool]]:
    _documents, context = read(text)
    return [(problem.line, problem.why, problem.skipped) for problem in context.problems]


def test_a_broken_document_loses_only_itself() -> None:
    text = "a: 1\n---\n# é\nb: c: d\n---\n'never closed\n--- # third\nc: 3\n...\nd: 4\n---\n# nothing\n"
    documents, context = read(text)
    assert [pairs(document.root)[0][0].value for document in documents] == ["a", "c", "d"]
    assert [(p.line, p.skipped) for p in context.problems] == [(4, False), (7, False)]
    assert context.problems[0].why == "not YAML: mapping values are not allowed in this context"
    assert documents[2].span(documents[2].root).start == text.index("d: 4")


def test_directives_in_front_of_a_document() -> None:
    assert text_of(get(only("%YAML 1.1\n# x\n---\na: 1\n").root, "a")) == "1"


@pytest.mark.parametrize(
    "text",
    ["a: 1\n{{- if .Values.x }}\nb: 2\n{{- end }}\n", "image: {{ .Values.image }}\n", "a:\n{% for x in y %}\n- 1\n"],
)
def test_a_template_is_skipped(text: str) -> None:
    documents, context = read(text)
    assert documents == []
    assert [(p.why, p.skipped) for p in context.problems] == [(TEMPLATE, True)]


def test_characters_that_yaml_does_not_allow() -> None:
    assert problems("a: 1\nb: \x07\n") == [(2, "not YAML: character U+0007 is not allowed", False)]


@pytest.mark.usefixtures("_loader")
@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{a: " * 100_000,
        "[" * 5_000 + "]" * 5_000,
        "- " * 50_000,
        "? " * 5_000,
        "".join(" " * depth + "a:\n" for depth in range(300)),
    ],
)
def test_text_that_is_nested_too_deeply_is_refused(text: str) -> None:
    documents, context = read(text)
    assert documents == []
    assert len(context.problems) == 1


def test_brackets_in_strings_nest_nothing() -> None:
    assert only("a: '" + "[" * 500 + "'\n").root is not None


def test_aliases_that_stand_for_too_much_and_for_themselves() -> None:
    rows = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    rows += [
        f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]" for before, name in zip("abcdefg", "bcdefgh", strict=True)
    ]
    assert problems("\n".join(rows)) == [(6, "aliases stand for more than 200,000 values", False)]
    assert problems("a: 1\nb: &b [*b]\n") == [(2, "not YAML that can be read: an alias contains itself", False)]
    chain = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: *a{n - 1}}}\n" for n in range(1, 400))
    assert get(only(chain).root, "a399") is not None
    assert len(pairs(get(only(chain).root, "a399"))) <= 1


def test_very_many_documents() -> None:
    documents, context = read("---\na\n" * 20_000)
    assert len(documents) == yaml_nodes.MAX_DOCUMENTS
    assert [p.line for p in context.problems] == [2 * yaml_nodes.MAX_DOCUMENTS + 1]


def test_json_keeps_its_places() -> None:
    text = '{\n\t"a":\t["x\ty", "\\ud83d\\ude00"],\n\t"b": "\\\\ud83d"\n}\n'
    document = only(text)
    assert [text_of(item) for item in items(get(document.root, "a"))] == ["x\ty", "\ufffd\ufffd"]
    assert text_of(get(document.root, "b")) == "\\ud83d"
    assert text[document.span(get(document.root, "b")).start :].startswith('"\\\\ud83d"')  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.text(st.sampled_from("ab:- \n\t'\"{}[]&*!|>#%@,?é\r\x00\u2028---~<"), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    documents, _context = read(text)
    for document in documents:
        for node in nodes(document.root):
            span = document.span(node)
            assert 0 <= span.start <= span.stop <= len(text)
            word = document.word(node)
            assert word is None or all(0 <= at <= len(text) for at in word.offsets)
