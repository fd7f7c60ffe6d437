"""The same launch written as files of different kinds."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence

Words = Sequence[str]
Env = Mapping[str, str]


def script(model: str, words: Words, env: Env, image: str) -> str:
    lines = ["#!/bin/bash", "set -euo pipefail"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    flags = " \\\n  ".join([shlex.quote(model), *map(shlex.quote, words)])
    return "\n".join([*lines, f"exec vllm serve {flags} 2>&1 | tee server.log"]) + "\n"


def docker_run(model: str, words: Words, env: Env, image: str) -> str:
    variables = " ".join(f"-e {name}={shlex.quote(value)}" for name, value in env.items())
    flags = " ".join(map(shlex.quote, words))
    return f"docker run --rm --gpus all --ipc host {variables} \\\n  {image} \\\n  {shlex.quote(model)} {flags}\n"


def kubernetes(model: str, words: Words, env: Env, image: str) -> str:
    container = {
        "name": "vllm",
        "image": image,
        "args": [model, *words],
        "env": [{"name": name, "value": value} for name, value in env.items()],
    }
    # JSON is YAML: quoting is then that of JSON.
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "dsv4"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    return json.dumps(manifest, indent=1, ensure_ascii=False)


def kubernetes_shell(model: str, words: Words, env: Env, image: str) -> str:
    indent = " " * 10
    flags = f" \\\n{indent}  ".join([shlex.quote(model), *map(shlex.quote, words)])
    pairs = (f"\n        - {{name: {name}, value: {json.dumps(value)}}}" for name, value in env.items())
    block = "\n        env:" + "".join(pairs) if env else ""
    # The lines of a word of several lines are indented like the block.
    broken = any("\n" in word for word in words)
    flags = " ".join(map(shlex.quote, [model, *words])).replace("\n", "\n" + indent) if broken else flags
    return f"""\
apiVersion: v1
kind: Pod
metadata: {{name: dsv4}}
spec:
      containers:
      - name: vllm
        image: {image}{block}
        command: [/bin/bash, -lc]
        args:
        - |
{indent}set -e
{indent}exec vllm serve {flags}
"""


def compose(model: str, words: Words, env: Env, image: str) -> str:
    # A dollar in a compose file starts a variable.
    def quoted(text: str) -> str:
        return json.dumps(text.replace("$", "$$"), ensure_ascii=False)

    items = "".join(f"\n      - {quoted(word)}" for word in [model, *words])
    variables = "".join(f"\n      {name}: {quoted(value)}" for name, value in env.items())
    block = f"\n    environment:{variables}" if env else ""
    return f"services:\n  vllm:\n    image: {image}{block}\n    command:{items}\n"


def dockerfile(model: str, words: Words, env: Env, image: str) -> str:
    variables = "".join(f"ENV {name}={shlex.quote(value)}\n" for name, value in env.items())
    return f"FROM {image}\n{variables}CMD {json.dumps([model, *words], ensure_ascii=False)}\n"


def unit(model: str, words: Words, env: Env, image: str) -> str:
    def quoted(text: str) -> str:
        text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$").replace("\n", "\\n")
        return f'"{text}"'

    lines = ["[Unit]", "Description=dsv4", "[Service]"]
    lines += ["Environment=" + quoted(f"{name}={value}") for name, value in env.items()]
    flags = " \\\n  ".join(quoted(word) for word in [model, *words])
    return "\n".join([*lines, f"ExecStart=/usr/bin/vllm serve {flags}"]) + "\n"


KINDS: dict[str, tuple[str, Callable[[str, Words, Env, str], str]]] = {
    "script": ("run.sh", script),
    "docker run": ("docker.sh", docker_run),
    "kubernetes": ("deployment.yaml", kubernetes),
    "kubernetes with a shell": ("pod.yaml", kubernetes_shell),
    "compose": ("compose.yaml", compose),
    "Dockerfile": ("Dockerfile", dockerfile),
    "systemd": ("dsv4.service", unit),
}
