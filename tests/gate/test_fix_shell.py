"""``--fix`` in shell text: ``⟪old→new⟫`` marks what is to change, all else stays as it is."""

from __future__ import annotations

import pytest

from tests.gate.fixing import MODEL, assert_fixed

FP8 = "--kv-cache-dtype fp8"
BF16 = "⟪bfloat16→fp8⟫"
ADDED = f"⟪→ {FP8}⟫"
TRITON = "--attention-backend TRITON_MLA"

CASES = {
    "a value": f"vllm serve {MODEL} -tp 8 --kv-cache-dtype {BF16}\n",
    "a joined value": f"vllm serve {MODEL} -tp 8 --kv-cache-dtype={BF16}\n",
    "no newline at the end": f"vllm serve {MODEL} -tp 8 --kv-cache-dtype {BF16}",
    "double quotes": f'vllm serve {MODEL} -tp 8 --kv-cache-dtype "{BF16}"\n',
    "a joined value in quotes": f"vllm serve {MODEL} -tp 8 --kv-cache-dtype='{BF16}'\n",
    "quoted as a whole": f'vllm serve {MODEL} -tp 8 "--kv-cache-dtype={BF16}" # for speed\n',
    "quoted in the middle": f"vllm serve {MODEL} -tp 8 --kv-cache-dtype ⟪bf'loat'16→fp8⟫\n",
    "a variable on the line": f"VLLM_X=bfloat16 vllm serve {MODEL} -tp 8 --kv-cache-dtype {BF16}\n",
    "continued": f"vllm serve {MODEL} \\\n  -tp 8 \\\n  --kv-cache-dtype {BF16} \\\n  --port 8000\n",
    "continued with CRLF": f"vllm serve {MODEL} \\\r\n  -tp 8 \\\r\n  --kv-cache-dtype {BF16}\r\n",
    "tabs": f"\tvllm\tserve\t{MODEL}\t-tp\t8\t\\\n\t\t--kv-cache-dtype\t{BF16}\n",
    "text around": f"# Größe – 设置\necho 'é bfloat16'\nvllm serve {MODEL} -tp 8 --kv-cache-dtype {BF16} # ü\n",
    "an array": (
        f"ARGS=(\n  -tp 8 # ranks\n  # bfloat16 is wrong\n  --kv-cache-dtype {BF16}\n)\n"
        f'vllm serve {MODEL} "${{ARGS[@]}}"\n'
    ),
    "a variable": f'KV={BF16}\nvllm serve {MODEL} -tp 8 --kv-cache-dtype "$KV"\n',
    "a quoted variable": f'KV="{BF16}"\nvllm serve {MODEL} -tp 8 --kv-cache-dtype=$KV\n',
    "a string of flags": f'FLAGS="-tp 8 --kv-cache-dtype {BF16}"\nvllm serve {MODEL} $FLAGS\n',
    "a default": f"vllm serve {MODEL} -tp 8 --kv-cache-dtype ${{KV:-{BF16}}}\n",
    "bash -lc in single quotes": f"srun bash -lc 'vllm serve {MODEL} -tp 8 --kv-cache-dtype {BF16}'\n",
    "bash -lc in double quotes": f'bash -lc "cd /x && vllm serve {MODEL} -tp 8 --kv-cache-dtype {BF16}"\n',
    "docker run": (
        f"docker run --rm -p 8000:8000 vllm/vllm-openai:v0.24.0 \\\n  --model {MODEL} -tp 8 \\\n"
        f"  --kv-cache-dtype {BF16}\n"
    ),
    "a here-document": f"cat > run.sh <<'EOF'\nvllm serve {MODEL} -tp 8 --kv-cache-dtype {BF16}\nEOF\n",
    "added": f"vllm serve {MODEL} -tp 8{ADDED}\n",
    "added without newline": f"vllm serve {MODEL} -tp 8{ADDED}",
    "added behind continued lines": f"vllm serve {MODEL} \\\n  -tp 8{ADDED}\necho done\n",
    "added behind CRLF lines": f"vllm serve {MODEL} \\\r\n  -tp 8{ADDED}\r\necho done\r\n",
    "added in front of a pipe": f"vllm serve {MODEL} -tp 8{ADDED} 2>&1 | tee log\n",
    "added in front of a comment": f"vllm serve {MODEL} -tp 8{ADDED} # eight\n",
    "added in front of the background": f"vllm serve {MODEL} -tp 8{ADDED} > log &\nwait\n",
    "added behind a variable": f"TP=8\nvllm serve {MODEL} -tp $TP{ADDED}\n",
    "added behind the model's variable": f"MODEL={MODEL}\nvllm serve $MODEL{ADDED}\n",
    "added behind quoted variables": f'M={MODEL} TP="8"\nvllm serve "$M" -tp \\\n "${{TP}}"{ADDED} | tee log\n',
    "added behind a default": f"vllm serve {MODEL} -tp ${{TP:-8}}{ADDED}\n",
    "added in an array": f'A=(\n  --port 80\n  -tp 8{ADDED} # ranks\n)\nvllm serve {MODEL} "${{A[@]}}"\n',
    "added in a string of flags": f'FLAGS="--port 80 -tp 8{ADDED}"\nvllm serve {MODEL} $FLAGS\n',
    "added in quotes": f"ssh host 'vllm serve {MODEL} -tp 8{ADDED}'\n",
    "removed": f"vllm serve {MODEL} -tp 8 {FP8}⟪ {TRITON}→⟫ --port 80\n",
    "removed at the end": f"vllm serve {MODEL} -tp 8 \\\n  {FP8}⟪ \\\n  {TRITON}→⟫\n",
    "removed at the end, CRLF": f"vllm serve {MODEL} -tp 8 \\\r\n  {FP8}⟪ \\\r\n  {TRITON}→⟫\r\n",
    "removed in the middle": f"vllm serve {MODEL} -tp 8 \\\n⟪  {TRITON} \\\n→⟫  {FP8}\n",
    "removed in the middle, CRLF": f"vllm serve {MODEL} -tp 8 \\\r\n⟪\t{TRITON} \\\r\n→⟫\t{FP8}\r\n",
    "removed on two lines": (f"vllm serve {MODEL} {FP8} \\\n⟪  --attention-backend \\\n  TRITON_MLA \\\n→⟫  -tp 8\n"),
    "removed in front of a pipe": f"vllm serve {MODEL} -tp 8 {FP8}⟪ {TRITON}→⟫ | tee log\n",
    "removed in front of a pipe on its line": f"vllm serve {MODEL} -tp 8 {FP8}⟪ \\\n  {TRITON}→⟫ | tee log\n",
    "removed with its quotes": f"vllm serve {MODEL} -tp 8 {FP8}⟪ --attention-backend 'TRITON_MLA'→⟫\n",
    "removed from an array": (f'A=(\n  -tp 8\n  # why \\\n⟪  {TRITON}\n→⟫  {FP8}\n)\nvllm serve {MODEL} "${{A[@]}}"\n'),
    "removed with its variable": f'B=TRITON_MLA\nvllm serve {MODEL} -tp 8⟪ --attention-backend "$B"→⟫ {FP8}\n',
    "renamed": f"vllm serve {MODEL} -tp 8 --kv-cache-⟪type→dtype⟫ fp8\n",
    "renamed, joined": f"vllm serve {MODEL} -tp 8 --kv-cache-⟪type→dtype⟫=fp8\n",
    "a key of JSON removed": (
        f"vllm serve {MODEL} -tp 8 {FP8} --speculative-config "
        '\'{"method": "mtp", "num_speculative_tokens": 1⟪, "foo": 2→⟫}\'\n'
    ),
    "a key of JSON removed in double quotes": (
        f"vllm serve {MODEL} -tp 8 {FP8} --speculative-config "
        '"{\\"method\\":\\"mtp\\",\\"num_speculative_tokens\\":1⟪,\\"foo\\":2→⟫}"\n'
    ),
    "a key of JSON added": (
        f'vllm serve {MODEL} -tp 8 {FP8} --speculative-config=\'{{"method":"mtp"⟪→,"num_speculative_tokens":1⟫}}\'\n'
    ),
    "a key of JSON added inside quotes": (
        f'bash -c "vllm serve {MODEL} -tp 8 {FP8} --speculative-config '
        '\'{\\"method\\":\\"mtp\\"⟪→,\\"num_speculative_tokens\\":1⟫}\'"\n'
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    assert_fixed(CASES[case])
