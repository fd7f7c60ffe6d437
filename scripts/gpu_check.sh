#!/usr/bin/env bash
# Probe the GPU of this machine in one command: scripts/gpu_check.sh
# Writes probe.json and probe.txt to $OUT (default: ./gpu-check). Ends with 0 only when the kernel ran and agreed.
#
# Where vLLM is not installed, prepare a folder beforehand where its wheel can be had, and take it along:
#   scripts/gpu_check.sh --pack DIR [--vllm RELEASE] [--wheel FILE] [-- vllm serve ...]
#   GPU_CHECK_CARRY=DIR scripts/gpu_check.sh
# The release's PyTorch must be the GPU machine's: its compiled FlashMLA does not load into another.
# The interpreter is python3, or python where only that has PyTorch; PYTHON names another.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

has_torch() {
    "$1" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null
}

python=${PYTHON:-python3}
if [ "${1:-}" = "--pack" ]; then
    shift
    exec "$python" "$here/gpu_check.py" pack "$@"
fi
if [ $# -gt 0 ]; then
    echo "gpu_check: unexpected $1; only --pack DIR takes arguments" >&2
    exit 2
fi
if [ -z "${PYTHON:-}" ] && ! has_torch python3 && has_torch python; then
    python=python
fi
arguments=(run --out "${OUT:-gpu-check}")
if [ -n "${GPU_CHECK_CARRY:-}" ]; then
    arguments+=(--carry "$GPU_CHECK_CARRY")
fi
exec timeout --kill-after=5 290 "$python" "$here/gpu_check.py" "${arguments[@]}"
