from __future__ import annotations

import time

import pytest

from dsv4check.gate.globs import matches

CASES = [
    # glob, paths it names, paths it does not
    ("*.yaml", ["a.yaml", "x/a.yaml", "x/y/a.yaml", "/abs/a.yaml"], ["a.yml", "a.yaml.bak", "yaml"]),
    ("vendor", ["vendor", "vendor/a.yaml", "x/vendor/y/a.yaml"], ["vendored/a.yaml", "x/my-vendor/a"]),
    ("vendor/", ["vendor/a.yaml", "x/vendor/a.yaml", "vendor/x/y"], ["vendor", "x/vendor"]),
    ("/vendor", ["vendor", "vendor/a"], ["x/vendor", "x/vendor/a"]),
    ("./vendor", ["vendor", "vendor/a"], ["x/vendor"]),
    ("deploy/*.yaml", ["deploy/a.yaml"], ["deploy/x/a.yaml", "x/deploy/a.yaml", "a.yaml", "deploy/a.yml"]),
    ("deploy/*/a.yaml", ["deploy/x/a.yaml"], ["deploy/a.yaml", "deploy/x/y/a.yaml"]),
    ("deploy/**/a.yaml", ["deploy/a.yaml", "deploy/x/a.yaml", "deploy/x/y/a.yaml"], ["a.yaml", "x/deploy/a.yaml"]),
    ("deploy/**", ["deploy/a", "deploy/x/a"], ["deploy", "x/deploy/a"]),
    ("**/deploy/*.sh", ["deploy/a.sh", "x/deploy/a.sh", "x/y/deploy/a.sh"], ["deploy/x/a.sh"]),
    ("**/a/**/b", ["a/b", "x/a/b", "x/a/y/z/b", "x/a/y/b/c"], ["a", "b", "b/a"]),
    ("**", ["a", "a/b", "/abs/a"], []),
    ("**/", ["a/b"], ["a"]),
    ("**/**", ["a", "a/b"], []),
    ("a**b", ["a-b", "ab", "x/a..b"], ["a/b"]),
    ("?.sh", ["a.sh", "x/b.sh"], ["ab.sh", ".sh"]),
    ("[ab].sh", ["a.sh", "b.sh"], ["c.sh"]),
    ("[!ab].sh", ["c.sh"], ["a.sh"]),
    ("[*].sh", ["*.sh"], ["a.sh"]),
    ("[a.sh", ["[a.sh"], ["a.sh"]),
    ("deploy", ["deploy", "./deploy/a", "deploy//a"], []),
    ("Deploy", ["Deploy"], ["deploy"]),
    ("/srv/*.yaml", ["/srv/a.yaml"], ["/srv/x/a.yaml"]),
    ("srv/*.yaml", ["srv/a.yaml"], ["/srv/a.yaml"]),
    ("a b/ü*", ["a b/über.yaml"], ["a b/x"]),
    ("", [], ["a", "a/b"]),
    ("/", [], ["a", "a/b"]),
    ("!a", ["!a"], ["a", "b"]),
]


@pytest.mark.parametrize(("glob", "path"), [(glob, path) for glob, named, _ in CASES for path in named])
def test_named(glob: str, path: str) -> None:
    assert matches(path, glob)


@pytest.mark.parametrize(("glob", "path"), [(glob, path) for glob, _, others in CASES for path in others])
def test_not_named(glob: str, path: str) -> None:
    assert not matches(path, glob)


@pytest.mark.parametrize("glob", ["**/a/" * 30 + "b", "*a" * 60 + "b", "**/" * 200 + "b"])
def test_no_glob_is_slow(glob: str) -> None:
    begun = time.process_time()
    assert not matches("a/" * 1000 + "a" * 200, glob)
    assert time.process_time() - begun < 1
