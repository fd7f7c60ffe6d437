"""``--fix`` in manifests, units, images and code: ``⟪old→new⟫`` marks what is to change, all else stays as it is."""

from __future__ import annotations

import pytest

from tests.gate.fixing import MODEL, assert_fixed

FP8 = "--kv-cache-dtype fp8"
BF16 = "⟪bfloat16→fp8⟫"
ADDED = f"⟪→ {FP8}⟫"
TRITON = "--attention-backend TRITON_MLA"
IMAGE = "vllm/vllm-openai:v0.24.0"


def pod(*lines: str, end: str = "\n") -> str:
    """A deployment with one container; ``lines`` stand below its image."""
    head = (
        "apiVersion: apps/v1", "kind: Deployment", "metadata: {name: flash}", "spec:", "  template:", "    spec:",
        "      containers:", "      - name: vllm", f"        image: {IMAGE}",
    )  # fmt: skip
    return "".join(f"{line}{end}" for line in (*head, *(f"        {line}" for line in lines)))


def compose(*lines: str) -> str:
    return f"services:\n  a:\n    image: {IMAGE}\n" + "".join(f"    {line}\n" for line in lines)


def added(indent: str, *items: str, end: str = "\n") -> str:
    return "⟪→" + "".join(f"{indent}{item}{end}" for item in items) + "⟫"


GPUS = ("resources:", "  limits:", "    nvidia.com/gpu: 8")
JSON_HEAD = '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c",\n'
MTP = '{"method": "mtp"⟪→, "num_speculative_tokens": 1⟫}'
KUBERNETES = {
    "a joined item": pod("args:", f"- --model={MODEL}", f"- --kv-cache-dtype={BF16}", "- --port=80"),
    "an item": pod("args:", "    - --model", f"    - {MODEL}", "    - --kv-cache-dtype", f"    - {BF16} # why", *GPUS),
    "CRLF": pod("args:", f"- --model={MODEL}", "- --kv-cache-dtype", f"- {BF16}", "- --port=80", end="\r\n"),
    "quotes stay": pod(
        "args:", f'  - "--model={MODEL}"', '  - "--kv-cache-dtype=fp8"', '  - "--block-size"', '  - "⟪128→256⟫"'
    ),
    "single quotes stay": pod("args:", f"- '--model={MODEL}'", "- '--kv-cache-dtype'", f"- '{BF16}'"),
    "a number gets quotes": pod(
        "args:", f"- --model={MODEL}", "- --kv-cache-dtype=fp8", "- --block-size", '- ⟪128→"256"⟫'
    ),
    "an item added": pod(
        "args:",
        f"  - --model={MODEL}",
        "  - -tp",
        '  - "8" # ranks\n' + added(" " * 10, "- --kv-cache-dtype", "- fp8") + "        resources: {}",
    ),
    "an item added with quotes": pod(
        "args:", f'- "--model={MODEL}"\n' + added(" " * 8, '- "--kv-cache-dtype"', '- "fp8"') + "        resources: {}"
    ),
    "an item added, CRLF": pod(
        "args:",
        f"-   --model={MODEL}\r\n"
        + added(" " * 8, "-   --kv-cache-dtype", "-   fp8", end="\r\n")
        + "        tty: true",
        end="\r\n",
    ),
    "an item added at the end": pod("args:", f"- --model={MODEL}").removesuffix("\n")
    + "⟪→\n        - --kv-cache-dtype\n        - fp8⟫",
    "a key of JSON": pod(
        "args:", f"- --model={MODEL}", "- --kv-cache-dtype=fp8", "- --speculative-config", f"- '{MTP}'"
    ),
    "a key of JSON in double quotes": pod(
        f'args: ["--model={MODEL}", "--kv-cache-dtype=fp8", "--speculative-config",'
        ' "{\\"method\\": \\"mtp\\"⟪→, \\"num_speculative_tokens\\": 1⟫}"]'
    ),
    "items removed": pod(
        "args:",
        f"- --model={MODEL}\n⟪        - --attention-backend\n        - TRITON_MLA # no\n→⟫"
        "        - --kv-cache-dtype=fp8",
    ),
    "the last items removed": pod(
        "args:",
        f"- --model={MODEL}",
        "- --kv-cache-dtype=fp8\n⟪        - --attention-backend\n        - TRITON_MLA\n→⟫        tty: true",
    ),
    "renamed": pod("args:", f"- --model={MODEL}", "- --kv-cache-⟪type→dtype⟫=fp8"),
    "flow list": pod(f'args: ["--model", "{MODEL}", "--kv-cache-dtype", "{BF16}"]'),
    "flow list without quotes": pod(f"args: [--model={MODEL}, --kv-cache-dtype={BF16}]"),
    "flow list, items added": pod(f'args: ["--model", "{MODEL}"⟪→, "--kv-cache-dtype", "fp8"⟫] # all'),
    "flow list on lines, items added": pod(
        "args: [",
        f'  "--model={MODEL}",',
        '  "--port=80"⟪→,⟫ # last\n' + added(" " * 10, '"--kv-cache-dtype",', '"fp8"') + "        ]",
    ),
    "flow list on lines with a comma": pod(
        "args: [",
        f'  "--model={MODEL}",',
        '  "--port=80", # last\n' + added(" " * 10, '"--kv-cache-dtype",', '"fp8",') + "        ]",
    ),
    "flow list, items removed": pod(
        f'args: ["--model={MODEL}", ⟪"--attention-backend", "TRITON_MLA", →⟫"--kv-cache-dtype=fp8"]'
    ),
    "flow list, the last items removed": pod(
        f'args: ["--model={MODEL}", "--kv-cache-dtype=fp8"⟪, "--attention-backend", "TRITON_MLA"→⟫]'
    ),
    "flow list on lines, items removed": pod(
        "args: [",
        f'  "--model={MODEL}",\n⟪          "--attention-backend",\n          "TRITON_MLA", # no\n→⟫'
        "          --kv-cache-dtype=fp8",
        "]",
    ),
    "flow list on lines, the last items removed": pod(
        "args: [",
        f'  "--model={MODEL}",',
        "  --kv-cache-dtype=fp8⟪,\n          --attention-backend,\n          TRITON_MLA→⟫",
        "]",
    ),
    "block scalar": pod(
        "command: [bash, -lc]",
        "args:",
        "- |",
        f"  exec vllm serve {MODEL} \\",
        f"    --kv-cache-dtype {BF16} \\",
        "    -tp 8",
    ),
    "block scalar, a flag removed": pod(
        "command: [bash, -lc]", "args:", "- |", f"  vllm serve {MODEL} {FP8}⟪ \\\n            {TRITON}→⟫"
    ),
    "block scalar, a flag added": pod(
        "command: [bash, -lc]", "args:", "- |", f"  vllm serve {MODEL} \\", f"    --port 80{ADDED} | tee log", "  wait"
    ),
    "folded scalar": pod(
        'command: ["bash", "-lc"]',
        "args:",
        "- >-",
        f"  vllm serve {MODEL}",
        f"  --kv-cache-dtype {BF16}",
        "  --port 80",
    ),
    "folded scalar, a flag added": pod(
        'command: ["bash", "-lc"]', "args:", "- >-", f"  vllm serve {MODEL}", f"  --port 80{ADDED}", *GPUS
    ),
    "folded scalar, a line removed": pod(
        'command: ["bash", "-lc"]', "args:", "- >-", f"  vllm serve {MODEL}\n⟪          {TRITON}\n→⟫          {FP8}"
    ),
    "text in double quotes": pod(f'command: ["bash", "-c", "vllm serve {MODEL} --kv-cache-dtype {BF16} --port 80"]'),
    "text in double quotes, JSON": pod(
        f'command: ["bash", "-c", "vllm serve {MODEL} {FP8} --speculative-config'
        ' \'{\\"method\\":\\"mtp\\"⟪→,\\"num_speculative_tokens\\":1⟫}\'"]'
    ),
    "text around": pod(
        "args: # Größe", f"- --model={MODEL} # 设置", f"- --kv-cache-dtype={BF16} # ü 😀", "- --port=80"
    ),
    "a variable": pod(
        "env:", "- name: KV", f"  value: {BF16}", f'args: ["--model={MODEL}", "--kv-cache-dtype", "$(KV)"]'
    ),
}
OTHERS = {
    "JSON": (
        "d.json",
        f'{JSON_HEAD}"image": "{IMAGE}", "args": ["--model", "{MODEL}", "--kv-cache-dtype", "{BF16}"]}}]}}}}\n',
    ),
    "JSON on lines": (
        "d.json",
        f'{JSON_HEAD}"image": "{IMAGE}", "args": [\n    "--model",\n    "{MODEL}"⟪→,⟫\n'
        + added("    ", '"--kv-cache-dtype",', '"fp8"')
        + "  ]}]}}\n",
    ),
    "compose, text": ("compose.yaml", compose(f"command: --model {MODEL} --kv-cache-dtype {BF16}")),
    "compose, folded text": (
        "compose.yaml",
        compose("command: >", f"  --model {MODEL}", f"  --port 80{ADDED}", "tty: true"),
    ),
    "compose, a list": ("compose.yaml", compose("command:", f"  - --model={MODEL}", f"  - --kv-cache-dtype={BF16}")),
    "compose, a default": (
        "compose.yaml",
        compose("command:", f"  - --model={MODEL}", "  - --kv-cache-dtype", f"  - ${{KV:-{BF16}}}"),
    ),
    "compose, a joined default": (
        "compose.yaml",
        compose("command:", f"  - --model={MODEL}", f"  - --kv-cache-dtype=${{KV:-{BF16}}}"),
    ),
    "Dockerfile": ("Dockerfile", f'FROM {IMAGE}\nCMD ["--model", "{MODEL}", "--kv-cache-dtype", "{BF16}"]\n'),
    "Dockerfile, items added": (
        "Dockerfile",
        f'FROM {IMAGE}\nCMD ["--model", "{MODEL}"⟪→, "--kv-cache-dtype", "fp8"⟫]\n',
    ),
    "Dockerfile, items removed": (
        "Dockerfile",
        f'FROM {IMAGE}\nCMD ["--model", "{MODEL}", {", ".join(map(repr, FP8.split()))}'.replace("'", '"')
        + '⟪, "--attention-backend", "TRITON_MLA"→⟫]\n',
    ),
    "Dockerfile, shell form": (
        "Dockerfile",
        f"FROM {IMAGE}\nENTRYPOINT []\nCMD vllm serve {MODEL} \\\n  # why\n  --kv-cache-dtype {BF16}\n",
    ),
    "systemd": (
        "a.service",
        f"[Service]\nExecStart=/usr/bin/vllm serve {MODEL} \\\n    --kv-cache-dtype {BF16} \\\n    --port 80\n",
    ),
    "systemd, added": (
        "a.service",
        f"[Service]\nExecStart=/usr/bin/vllm serve {MODEL} \\\n    --port 80{ADDED}\nUser=a\n",
    ),
    "systemd, removed": (
        "a.service",
        f"[Service]\nExecStart=/bin/vllm serve {MODEL} {FP8}⟪ \\\n    {TRITON}→⟫\nUser=a\n",
    ),
    "systemd, a variable": (
        "a.service",
        f"[Service]\nEnvironment=KV={BF16}\nExecStart=/bin/vllm serve {MODEL} --kv-cache-dtype ${{KV}}\n",
    ),
    "Python, a list": (
        "run.py",
        f"import subprocess\nsubprocess.run(['vllm', 'serve', '{MODEL}', '--kv-cache-dtype', '{BF16}'])\n",
    ),
    "Python, a list on lines": (
        "run.py",
        f"import subprocess\nsubprocess.run([\n    'vllm', 'serve', '{MODEL}',\n    '--port=80',  # ü\n"
        + added("    ", "'--kv-cache-dtype',", "'fp8',")
        + "])\n",
    ),
    "Python, keywords": (
        "run.py",
        f"from vllm import LLM\n\nllm = LLM(model='{MODEL}', kv_cache_dtype='{BF16}', tensor_parallel_size=8)\n",
    ),
    "Python, a number": (
        "run.py",
        f"from vllm import LLM\n\nllm = LLM('{MODEL}', kv_cache_dtype='fp8', block_size=⟪128→256⟫)\n",
    ),
    "Python, a key renamed": (
        "run.py",
        f"from vllm import LLM\n\nllm = LLM('{MODEL}', kv_cache_⟪type→dtype⟫='fp8', tensor_parallel_size=8)\n",
    ),
    "Python, a key of a mapping renamed": (
        "run.py",
        f"from vllm import LLM\n\nkw = {{'kv_cache_⟪type→dtype⟫': 'fp8'}}\nllm = LLM('{MODEL}', **kw)\n",
    ),
    "Python, a key removed": (
        "run.py",
        f"from vllm import LLM\n\nllm = LLM('{MODEL}', ⟪attention_backend='TRITON_MLA', →⟫kv_cache_dtype='fp8')\n",
    ),
    "Python, the last key removed": (
        "run.py",
        f"from vllm import LLM\n\nllm = LLM('{MODEL}', kv_cache_dtype='fp8'⟪, enable_lora=True→⟫)\n",
    ),
    "Python, a line removed": (
        "run.py",
        f"from vllm import LLM\n\nllm = LLM(\n    '{MODEL}',\n⟪    attention_backend='TRITON_MLA',  # no\n→⟫"
        "    kv_cache_dtype='fp8',\n)\n",
    ),
    "Python, a text": ("run.py", f'import os\n\nos.system("vllm serve {MODEL} --kv-cache-dtype {BF16}")\n'),
}


@pytest.mark.parametrize("case", KUBERNETES)
def test_kubernetes(case: str) -> None:
    assert_fixed(KUBERNETES[case], "d.yaml")


@pytest.mark.parametrize("case", OTHERS)
def test_others(case: str) -> None:
    name, text = OTHERS[case]
    assert_fixed(text, name)
