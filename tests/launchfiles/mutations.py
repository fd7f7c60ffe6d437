"""Files garbled in the ways that hand edits and broken transfers garble them."""

from __future__ import annotations

from hypothesis import strategies as st

_NOISE = st.lists(
    st.sampled_from(
        [*"\"'`{}[]()<>$\\#:;,=-@%&*!|~ \t\r\n\x00\u00e9\u00a0\U0001f600a", "<<EOF", "${", "- ", "EOF", "\\u", "&a"]
    ),
    max_size=8,
).map("".join)


@st.composite
def mutated(draw: st.DrawFn, text: str) -> str:
    """The text with a few lines deleted, doubled, moved or garbled, and maybe cut off."""
    lines = text.splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(lines) - 1, 0)))
        if not lines:
            break
        match draw(st.sampled_from(("delete", "double", "garble", "insert", "join", "indent"))):
            case "delete":
                del lines[at]
            case "double":
                lines.insert(at, lines[at])
            case "garble":
                column = draw(st.integers(0, len(lines[at])))
                width = draw(st.integers(0, 5))
                lines[at] = lines[at][:column] + draw(_NOISE) + lines[at][column + width :]
            case "insert":
                lines.insert(at, draw(_NOISE) + "\n")
            case "join":
                lines[at] = lines[at].rstrip("\r\n")
            case "indent":
                lines[at] = draw(st.sampled_from((" ", "  ", "\t"))) + lines[at]
    result = "".join(lines)
    return result[: draw(st.integers(0, len(result)))] if draw(st.booleans()) else result
