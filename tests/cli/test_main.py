"""The program's commands."""

from __future__ import annotations

import subprocess
import sys

from typer.testing import CliRunner

from dsv4check.cli.main import COMMANDS, make_app


def test_every_command_is_listed_and_has_help() -> None:
    listing = CliRunner().invoke(make_app(), ["--help"])
    assert listing.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in listing.output, name
        single = CliRunner().invoke(make_app([name]), [name, "--help"])
        assert single.exit_code == 0
        assert single.output.startswith("Usage: "), single.output


def test_a_command_imports_none_of_the_others() -> None:
    code = (
        "import sys\nsys.argv[1:] = ['releases', '--help']\n"
        "from dsv4check.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted(name for name in sys.modules if name.startswith('dsv4check.cli.')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = done.stdout.splitlines()[-1]
    assert "cli.catalogue" in loaded
    assert "cli.gate" not in loaded
    assert "cli.rehearse" not in loaded
