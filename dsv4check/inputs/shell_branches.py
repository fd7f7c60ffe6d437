"""What a shell script's variables hold where its branches meet again, and the outcome of its conditions."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final, TypeVar

from dsv4check.inputs.shell_values import Script, Value, Word
from dsv4check.records import dataclass, field

_T = TypeVar("_T")
LONGEST: Final = 1 << 16
"""Characters of a value, and words of an array, that are followed."""
_NUMERIC: Final = ("-eq", "-ne", "-gt", "-ge", "-lt", "-le")
_PATTERN: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class _State:
    """One name: its value, its array, whether that is not known, and what of it is exported."""

    value: Value | None
    array: tuple[Word, ...] | None
    unsure: bool
    exported: Value | None


@dataclass(slots=True)
class _Frame:
    """An open ``if``, ``case``, loop, function or subshell."""

    keyword: str
    outside: bool | None
    """Whether the text around it is run."""
    name: str = ""
    subject: Word | None = None
    taken: bool | None = None
    """Whether the branch that is being read is taken."""
    decided: bool | None = False
    """Whether an earlier branch was taken."""
    complete: bool = False
    """One of the branches is taken for certain."""
    before: dict[str, _State] = field(default_factory=dict)
    """What was changed in the branch that is being read, as it was before."""
    branches: list[tuple[bool | None, dict[str, _State]]] = field(default_factory=list)
    local: set[str] = field(default_factory=set)


class Branches:
    """Follows a script's variables through its branches."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._frames: list[_Frame] = []
        self._functions: dict[str, dict[str, _State]] = {}

    @property
    def active(self) -> bool | None:
        """Whether the text at this place is run; None where that is not known."""
        if not self._frames:
            return True
        return _both(self._frames[-1].outside, self._frames[-1].taken)

    @property
    def subject(self) -> Word | None:
        """The word behind the innermost ``case``."""
        return self._frames[-1].subject if self._frames else None

    def open(self, keyword: str, *, name: str = "", subject: Word | None = None) -> None:
        """Something that ends with a keyword of its own begins."""
        frame = _Frame(keyword, self.active, name, subject)
        if keyword == "{":
            frame.taken = True
        self._frames.append(frame)

    def decide(self, verdict: bool | None) -> None:
        """The branch that begins is taken if no earlier one was and ``verdict`` is True."""
        if not self._frames:
            return
        frame = self._frames[-1]
        free = None if frame.decided is None else not frame.decided
        frame.taken = _both(free, verdict)
        if frame.taken is True:
            frame.decided = True
        elif frame.taken is None:
            frame.decided = None
        if verdict is True:
            # Either this branch or an earlier one: one of them for certain.
            frame.complete = True

    def next(self, keyword: str) -> bool:
        """A branch ends and another one follows; False where none of that kind is open."""
        if not self._frames or self._frames[-1].keyword != keyword:
            return False
        self._end_branch(self._frames[-1])
        return True

    def close(self, keywords: Sequence[str]) -> None:
        """The innermost frame of one of these kinds ends."""
        if not any(frame.keyword in keywords for frame in self._frames[-_MOST_FORGOTTEN:]):
            return
        while self._frames:
            found = self._frames[-1].keyword in keywords
            self._close()
            if found:
                return

    def close_all(self) -> None:
        """The end of the text."""
        while self._frames:
            self._close()

    def set(self, name: str, value: Value, *, append: bool, exports: bool, local: bool = False) -> None:
        """``NAME=value`` or ``NAME+=value``."""
        state = self._touch(name, local=local)
        variables = self._script.variables
        unsure = False
        if append:
            unsure = state.unsure
            if state.array is not None and state.value is None:
                unsure = True
            elif state.value is not None:
                value = _joined(state.value, value)
        if len(value.text) > LONGEST:
            value, unsure = Value(""), True
        variables.values[name] = value
        if unsure:
            variables.unsure.add(name)
        else:
            variables.unsure.discard(name)
        if exports or state.exported is not None:
            self._script.exported[name] = value

    def set_array(self, name: str, items: list[Word], *, append: bool, local: bool = False) -> None:
        """``NAME=(...)`` or ``NAME+=(...)``."""
        state = self._touch(name, local=local)
        variables = self._script.variables
        words = [*(state.array or ()), *items] if append else items
        variables.arrays[name] = words
        if (append and state.unsure) or len(words) > LONGEST >> 4:
            variables.arrays[name] = []
            variables.unsure.add(name)
        else:
            variables.unsure.discard(name)

    def export(self, name: str) -> None:
        """``export NAME`` of what is set already."""
        self._touch(name)
        value = self._script.variables.values.get(name)
        if value is not None:
            self._script.exported[name] = value

    def declare(self, name: str) -> None:
        """``local NAME`` without a value."""
        self._touch(name, local=True)

    def unset(self, name: str) -> None:
        """``unset NAME``."""
        self._touch(name)
        self._apply(name, _State(None, None, False, None))

    def forget(self, name: str) -> None:
        """A name gets a value that is not known."""
        self._touch(name)
        self._script.variables.unsure.add(name)

    def call(self, name: str) -> None:
        """A function is called that was defined before: what it sets is set."""
        for changed, state in self._functions.get(name, {}).items():
            self._touch(changed)
            self._apply(changed, state)

    def _touch(self, name: str, *, local: bool = False) -> _State:
        """Remember what a name held before it is changed."""
        state = self._state(name)
        if self._frames:
            self._frames[-1].before.setdefault(name, state)
            if local:
                function = next((frame for frame in reversed(self._frames[-99:]) if frame.keyword == "function"), None)
                if function is not None:
                    function.local.add(name)
        return state

    def _state(self, name: str) -> _State:
        variables = self._script.variables
        array = variables.arrays.get(name)
        return _State(
            variables.values.get(name),
            None if array is None else tuple(array),
            name in variables.unsure,
            self._script.exported.get(name),
        )

    def _apply(self, name: str, state: _State) -> None:
        variables = self._script.variables
        _put(variables.values, name, state.value)
        _put(variables.arrays, name, None if state.array is None else list(state.array))
        _put(self._script.exported, name, state.exported)
        if state.unsure:
            variables.unsure.add(name)
        else:
            variables.unsure.discard(name)

    def _end_branch(self, frame: _Frame) -> None:
        """Keep what the branch has set, and go back to what was known before it."""
        frame.branches.append((frame.taken, {name: self._state(name) for name in frame.before}))
        for name, state in frame.before.items():
            self._apply(name, state)
        frame.before = {}
        frame.taken = False

    def _close(self) -> None:
        frame = self._frames[-1]
        if frame.keyword == "{":
            self._frames.pop()
            for name, state in frame.before.items():
                if self._frames:
                    self._frames[-1].before.setdefault(name, state)
            return
        self._end_branch(frame)
        self._frames.pop()
        if frame.keyword == "(":
            return
        if frame.keyword == "function":
            changed = frame.branches[-1][1]
            self._functions[frame.name] = {k: v for k, v in changed.items() if k not in frame.local}
            return
        possible = [(taken, states) for taken, states in frame.branches if taken is not False]
        for name in dict.fromkeys(name for _taken, states in possible for name in states):
            before = self._touch(name)
            outcomes = [states.get(name, before) for _taken, states in possible]
            if not frame.complete:
                outcomes.append(before)
            self._apply(name, _merged(name, outcomes, before))


_MOST_FORGOTTEN: Final = 99
"""Open frames that a closing keyword is searched in."""


def _both(first: bool | None, second: bool | None) -> bool | None:
    if first is False or second is False:
        return False
    return None if first is None or second is None else True


def _put(table: dict[str, _T], name: str, value: _T | None) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = value


def _joined(first: Value, second: Value) -> Value:
    places = [*(first.offsets or [-1] * len(first.text)), *(second.offsets or [-1] * len(second.text))]
    return Value(first.text + second.text, places, (*first.open, *second.open))


def _merged(name: str, outcomes: list[_State], before: _State) -> _State:
    """What is known where several branches meet of which nobody knows which was taken."""
    if all(_same(outcome, outcomes[0]) for outcome in outcomes):
        return outcomes[0]
    arrays = [outcome.array for outcome in outcomes]
    known = before.array or ()
    if before.array is not None and not any(outcome.unsure for outcome in outcomes):
        added = [array for array in arrays if array is not None and array[: len(known)] == known]
        if len(added) == len(arrays):
            # Words are only added: those before them are known.
            last = next(array for array in added if len(array) > len(known))[len(known)]
            text = f"${{{name}[@]}}"
            places = [last.start] * len(text)
            further = Word(text, last.line, last.column, 0, last.start, last.stop, places, (text,))
            return _State(before.value, (*known, further), False, before.exported)
    return _State(outcomes[0].value, outcomes[0].array, True, None)


def _same(one: _State, other: _State) -> bool:
    same = (one.value and one.value.text) == (other.value and other.value.text) and one.unsure == other.unsure
    exported = (one.exported and one.exported.text) == (other.exported and other.exported.text)
    arrays = [None if item.array is None else [word.text for word in item.array] for item in (one, other)]
    return same and exported and arrays[0] == arrays[1]


def matches_pattern(subject: Word | None, patterns: Sequence[Word]) -> bool | None:
    """Whether the word behind ``case`` matches one of the patterns; None where that is not known."""
    if any(word.text == "*" and word.plain for word in patterns):
        return True
    if subject is None or subject.open or len(subject.text) > 200:
        return None
    answer: bool | None = False
    for word in patterns:
        if word.open or len(word.text) > 100 or ("\\" in word.text or "[" in word.text):
            answer = None
        elif fnmatchcase(subject.text, word.text) if word.plain == len(word.text) else subject.text == word.text:
            return True
    return answer


def outcome_of(words: Sequence[Word]) -> bool | None:
    """The outcome of ``[ ... ]``, ``[[ ... ]]`` or ``test ...`` on known values; None for anything else."""
    texts = [word.text for word in words[:8]]
    if not texts or len(words) > 7:
        return None
    if texts in (["true"], [":"]):
        return True
    if texts == ["false"]:
        return False
    if any(word.open for word in words):
        return None
    if (texts[0] == "[" and texts[-1] == "]") or (texts[0] == "[[" and texts[-1] == "]]"):
        texts = texts[1:-1]
    elif texts[0] == "test":
        texts = texts[1:]
    else:
        return None
    negated = texts[:1] == ["!"] and len(texts) > 1
    outcome = _compared(texts[1:] if negated else texts)
    return outcome if outcome is None or not negated else not outcome


def _compared(texts: list[str]) -> bool | None:
    match texts:
        case [operator, value] if operator in ("-n", "-z"):
            return (value != "") == (operator == "-n")
        case [value] if not value.startswith("-"):
            return value != ""
        case [left, "=" | "==", right] if not _PATTERN & set(right):
            return left == right
        case [left, "!=", right] if not _PATTERN & set(right):
            return left != right
        case [left, operator, right] if operator in _NUMERIC and _is_number(left) and _is_number(right):
            a, b = int(left), int(right)
            return {"-eq": a == b, "-ne": a != b, "-gt": a > b, "-ge": a >= b, "-lt": a < b, "-le": a <= b}[operator]
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20
