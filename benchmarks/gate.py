#!/usr/bin/env python3
"""`dsv4check gate` over 100, 1,000 and 10,000 Kubernetes manifests: time, memory, growth.

Every manifest holds a DeepSeek-V4 launch of its own: release, GPU, layout, lengths, draft and names differ, about one
in six fails and gets a fix searched. With --check exits with 1 beyond 60 s of 2 CPUs (120 s of CPU time, scaled as in
speed.py on a slow machine), 500 MB, or growth that is not linear.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUDGET_S = 60.0
BUDGET_MB = 500.0
USUAL_FLOOR_MS = 110.0
RELEASES = ("0.24.0", "0.25.1", "0.26.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
GPUS = (("NVIDIA-H200", 8), ("NVIDIA-B200", 8), ("NVIDIA-H100-80GB-HBM3", 8), ("NVIDIA-B300", 8))
MODELS = ("DeepSeek-V4-Flash", "DeepSeek-V4-Flash-0731", "DeepSeek-V4-Pro", "DeepSeek-V4-Pro-0813")
MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
  namespace: inference
  labels: {{app: {name}, team: serving}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      nodeSelector:
        nvidia.com/gpu.product: {gpu}
      containers:
      - name: vllm
        image: vllm/vllm-openai:v{release}
        command: ["vllm", "serve", "deepseek-ai/{model}"]
        args:
{args}
        env:
        - {{name: VLLM_ENGINE_READY_TIMEOUT_S, value: "3600"}}
        - name: HF_TOKEN
          valueFrom: {{secretKeyRef: {{name: hf-token, key: token}}}}
        ports: [{{containerPort: 8000, name: http}}]
        resources:
          limits: {{nvidia.com/gpu: "{gpus}", memory: 400Gi}}
          requests: {{nvidia.com/gpu: "{gpus}", cpu: "32", memory: 300Gi}}
        startupProbe:
          httpGet: {{path: /health, port: 8000}}
          periodSeconds: 10
          failureThreshold: 360
        volumeMounts:
        - {{name: hf, mountPath: /root/.cache/huggingface}}
      volumes:
      - name: hf
        persistentVolumeClaim: {{claimName: hf-cache}}
"""


def manifest(number: int, random_: random.Random) -> str:
    """One manifest; the same number gives the same text."""
    gpu, gpus = random_.choice(GPUS)
    model = random_.choice(MODELS)
    words = ["--tensor-parallel-size", str(gpus), "--enable-expert-parallel"]
    if random_.random() < 0.9:
        words += ["--kv-cache-dtype", "fp8"]
    words += ["--block-size", "256", f"--max-model-len={random_.randrange(64, 1024) * 1024}"]
    words += [f"--max-num-seqs={random_.randrange(8, 512)}", f"--gpu-memory-utilization=0.{random_.randrange(88, 94)}"]
    words += ["--tokenizer-mode=deepseek_v4", "--tool-call-parser=deepseek_v4", "--enable-auto-tool-choice"]
    if random_.random() < 0.3:
        tokens = random_.randrange(1, 4)
        words += ["--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": tokens})]
    args = "\n".join(f"        - {json.dumps(word) if not word.startswith('-') else word}" for word in words)
    return MANIFEST.format(
        name=f"dsv4-{number}",
        replicas=random_.randrange(1, 4),
        gpu=gpu,
        gpus=gpus,
        model=model,
        release=random_.choice(RELEASES),
        args=args,
    )


def measure(count: int, jobs: int) -> dict[str, float]:
    """Seconds, CPU seconds and MB (of all processes together) of one run over ``count`` manifests."""
    with tempfile.TemporaryDirectory() as folder:
        random_ = random.Random(7)
        for number in range(count):
            path = Path(folder) / f"team-{number % 50}" / f"deployment-{number}.yaml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(manifest(number, random_), encoding="utf-8")
        call = [sys.executable, "-m", "dsv4check", "gate", ".", "--isolated", "--jobs", str(jobs), "--fail-on", "never"]
        call += ["--output", "sarif=report.sarif", "--format", "json"]
        before = os.times()
        start = time.perf_counter()
        with open(Path(folder) / "report.json", "wb") as out:
            process = subprocess.Popen(call, cwd=folder, stdout=out)
            peak = 0.0
            while process.poll() is None:
                peak = max(peak, resident(process.pid))
                time.sleep(0.05)
        assert process.returncode == 0, process.returncode
        wall = time.perf_counter() - start
        after = os.times()
        report = json.loads((Path(folder) / "report.json").read_text(encoding="utf-8"))
    assert report["summary"]["launches"] == count, report["summary"]
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"manifests": count, "seconds": wall, "cpu": cpu, "mb": peak, "failing": report["summary"]["fail"]}


def resident(pid: int) -> float:
    """MB of a process and those it has started, what they share counted once."""
    total = 0.0
    for member in (pid, *children(pid)):
        try:
            text = Path(f"/proc/{member}/smaps_rollup").read_text(encoding="ascii")
        except OSError:
            continue
        line = next((line for line in text.splitlines() if line.startswith("Pss:")), "Pss: 0 kB")
        total += int(line.split()[1]) / 1024
    return total


def children(pid: int) -> list[int]:
    """Processes below one, where the system tells (Linux)."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text(encoding="ascii").split()]
        except OSError:
            continue
    return [*found, *(below for child in found for below in children(child))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 1000, 10000])
    options = parser.parse_args()
    rows = [measure(count, options.jobs) for count in options.counts]
    for row in rows:
        print(
            f"{row['manifests']:>6.0f} manifests: {row['seconds']:6.1f} s, {row['cpu']:6.1f} s of CPU time,"
            f" {1000 * row['cpu'] / row['manifests']:5.1f} ms each, {row['mb']:4.0f} MB; {row['failing']:.0f} fail"
        )
    if not options.check:
        return 0
    floor = min(_timed([sys.executable, "-c", "import typer, pydantic; pydantic.TypeAdapter"]) for _ in range(5))
    scale = max(1.0, floor / USUAL_FLOOR_MS)
    last = rows[-1]
    allowed = 2 * BUDGET_S * scale * last["manifests"] / 10000
    problems = []
    if last["cpu"] > allowed:
        problems.append(f"{last['cpu']:.0f} s of CPU time, allowed are {allowed:.0f}")
    if last["mb"] > BUDGET_MB:
        problems.append(f"{last['mb']:.0f} MB, allowed are {BUDGET_MB:.0f}")
    if len(rows) > 1:
        before = rows[-2]
        growth = (last["cpu"] / last["manifests"]) / (before["cpu"] / before["manifests"])
        if growth > 1.3:
            problems.append(f"a manifest costs {growth:.2f} times as much among {last['manifests']:.0f}")
    for problem in problems:
        print(f"too much: {problem}")
    return 1 if problems else 0


def _timed(call: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(call, check=True)
    return (time.perf_counter() - start) * 1000


if __name__ == "__main__":
    sys.exit(main())
