"""Messages of InputError stay on one line whatever they quote."""

from dsv4check.errors import InputError


def test_control_characters_are_escaped() -> None:
    assert str(InputError("file 'a\nb\x1b[31m': no")) == "file 'a\\nb\\x1b[31m': no"
    assert str(InputError("модель 模型 ok")) == "модель 模型 ok"
