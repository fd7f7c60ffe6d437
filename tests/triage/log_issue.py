"""Bug reports in Markdown: vLLM's template with the output of collect_env, the command and the log."""

from __future__ import annotations

import shlex

from tests.triage.log_launch import Launch

RULE = "=============================="


def heading(text: str) -> list[str]:
    return [RULE, f"{text:^30}".rstrip(), RULE]


def environment(launch: Launch) -> str:
    """The output of collect_env, with what a launch states."""
    packages = {"torch": "2.11.0", "transformers": "5.5.3", "nvidia-nccl-cu12": "2.28.9", "numpy": "2.2.6"}
    flashinfer = launch.report.resolution.facts.get("flashinfer")
    if flashinfer:
        packages["flashinfer-python"] = str(flashinfer)
    packages.update({name: str(version) for name, version in (launch.source.get("packages") or {}).items()})
    rocm = launch.vendor == "amd"
    gpus = [f"GPU {number}: {launch.gpu_name}" for number in range(launch.gpu_count)]
    lines = [
        *heading("System Info"),
        "OS                           : Ubuntu 22.04.5 LTS (x86_64)",
        "GCC version                  : (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0",
        "Libc version                 : glibc-2.35",
        "",
        *heading("PyTorch Info"),
        f"PyTorch version              : {packages['torch']}+{'rocm7.0' if rocm else 'cu129'}",
        "Is debug build               : False",
        f"CUDA used to build PyTorch   : {'N/A' if rocm else '12.9'}",
        f"ROCM used to build PyTorch   : {'7.0.51831' if rocm else 'N/A'}",
        "",
        *heading("Python Environment"),
        "Python version               : 3.12.13 (main, Mar  4 2026, 09:23:07) [GCC 11.4.0] (64-bit runtime)",
        "",
        *heading("CUDA / GPU Info"),
        "Is CUDA available            : True",
        "CUDA runtime version         : 12.9.86",
        "CUDA_MODULE_LOADING set to   : ",
        "GPU models and configuration : ",
        *gpus,
        "",
        "Nvidia driver version        : 580.105.08",
        "cuDNN version                : Could not collect",
        "",
        *heading("CPU Info"),
        "Architecture:                            x86_64",
        "CPU(s):                                  192",
        "",
        *heading("Versions of relevant libraries"),
        *(f"[pip3] {name}=={version}" for name, version in sorted(packages.items())),
        "[conda] Could not collect",
        "",
        *heading("vLLM Info"),
        f"ROCM Version                 : {'7.0.51831' if rocm else 'Could not collect'}",
        f"vLLM Version                 : {launch.version}",
        "vLLM Build Flags:",
        "  CUDA Archs: 7.5 8.0 8.6 8.9 9.0 10.0 12.0; ROCm: Disabled; XPU: Disabled",
        "",
        *heading("Environment Variables"),
        *(f"{name}={value}" for name, value in launch.env.items()),
        "CUDA_VERSION=12.9.1",
        "VLLM_USAGE_SOURCE=production-docker-image",
        "PYTORCH_NVML_BASED_CUDA_CHECK=1",
        "TORCHINDUCTOR_COMPILE_THREADS=1",
    ]
    return "\n".join(lines)


def command(launch: Launch) -> str:
    """The command over several lines, with the variables in front of it."""
    words = [shlex.quote(word) for word in launch.words]
    lines = [f"export {name}={shlex.quote(value)}" for name, value in launch.env.items()]
    parts: list[str] = []
    for word in words:
        if word.startswith("-") or not parts:
            parts.append(word)
        else:
            parts[-1] += f" {word}"
    lines.append(" \\\n  ".join([f"vllm serve {shlex.quote(launch.model)}", *parts]))
    return "\n".join(lines)


def english_report(launch: Launch, log: str) -> str:
    model = launch.model.rpartition("/")[2]
    return f"""### Your current environment

<details>
<summary>The output of <code>python collect_env.py</code></summary>

```text
{environment(launch)}
```

</details>

### 🐛 Describe the bug

Serving {model} on {launch.gpu_count} x {launch.gpu_name} does not work for me. I start it with

```bash
{command(launch)}
```

and after a while it prints this:

<details>
<summary>Log</summary>

```
{log.rstrip()}
```

</details>

### Before submitting a new issue...

- [x] Make sure you already searched for relevant issues, and asked the chatbot living at the bottom right corner of \
the [documentation page](https://docs.vllm.ai/en/latest/), which can answer lots of frequently asked questions.
"""


def chinese_report(launch: Launch, log: str) -> str:
    model = launch.model.rpartition("/")[2]
    return f"""### Your current environment

<details>
<summary>The output of <code>python collect_env.py</code></summary>

```text
{environment(launch)}
```

</details>

### 🐛 Describe the bug

使用 vLLM {launch.version} 在 {launch.gpu_count} 张 {launch.gpu_name} 上部署 {model} 报错，服务无法正常工作。

启动命令：

```bash
{command(launch)}
```

报错信息如下，请问这是什么原因？

<details>
<summary>完整日志</summary>

```
{log.rstrip()}
```

</details>
"""
