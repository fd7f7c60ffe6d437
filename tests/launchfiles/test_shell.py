"""Launches in shell text, and the place of every word."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4check.launchfiles.extract import extract
from dsv4check.launchfiles.records import Context, Launch
from dsv4check.launchfiles.text import SourceText
from tests.launchfiles.mutations import mutated
from tests.launchfiles.reading import check_places, context_of, env, texts, word, written

SCRIPT = """#!/bin/sh
# eight cards: it's all of them
export CUDA_VISIBLE_DEVICES=0,1,2,3   # all
MODEL=deepseek-ai/DeepSeek-V4-Pro
PORT="${PORT:-8888}"
ARGS=(--block-size 256)
if [ -n "$EXTRA" ]; then ARGS+=(--enforce-eager); fi

A=0 \\
vllm serve $MODEL --host 0.0.0.0 --port $PORT \\
--compilation-config '{"mode":0}' "${ARGS[@]}" \\
-tp 1 2>&1 | tee server.log
"""

NEIGHBOURS = {"x.env": "A=1\nTP=4\n", "env.sh": "export TP=4\nEXTRA=--foo\n"}


def read(text: str, path: str = "run.sh", **more: object) -> tuple[Context, list[Launch]]:
    context = context_of(text, path, neighbour=NEIGHBOURS.get, **more)
    found = extract(context)
    check_places(context, list(found.launches))
    return context, list(found.launches)


def words(text: str, path: str = "run.sh") -> list[list[str]]:
    return [texts(launch) for launch in read(text, path)[1]]


def spelled(text: str) -> list[str]:
    """What stands in the file for each word of the last launch."""
    context, launches = read(text)
    return [written(context, item) for item in launches[-1].server.words]


def test_a_whole_script() -> None:
    context, (launch,) = read(SCRIPT)
    assert texts(launch) == [
        *("deepseek-ai/DeepSeek-V4-Pro", "--host", "0.0.0.0", "--port", "8888", "--compilation-config", '{"mode":0}'),
        *("--block-size", "256", "${ARGS[@]}", "-tp", "1"),
    ]
    assert env(launch) == {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "A": "0"}
    assert word(launch, "${ARGS[@]}").open == ("${ARGS[@]}",)
    assert written(context, word(launch, "8888")) == "8888"
    assert written(context, word(launch, '{"mode":0}')) == "'{\"mode\":0}'"
    assert not context.problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm serve M --x 'a b' \"c\"", ["M", "--x", "'a b'", '"c"']),
        ('vllm serve é --x "ü b"\t-tp\t8', ["é", "--x", '"ü b"', "-tp", "8"]),
        ("vllm serve M \\\r\n  -tp 8\r\n", ["M", "-tp", "8"]),
        ("A=8\nvllm serve M -tp $A", ["M", "-tp", "8"]),
        ('A="8"\nvllm serve M -tp ${A}', ["M", "-tp", '"8"']),
        ('S=\'{"a": 1}\'\nvllm serve M --s "$S"', ["M", "--s", "'{\"a\": 1}'"]),
        ("X='-tp 8 --x'\nvllm serve M $X", ["M", "-tp", "8", "--x"]),
        ("A=8\nvllm serve M --x=a$A", ["M", "--x=a$A"]),
        ("A=1\nB=2\nvllm serve $A$B", ["$A$B"]),
        ("A=x\nA+=y\nvllm serve $A", ["$A"]),
        ('vllm serve ${A:-M} ${B:-"x y"}', ["M", '"x y"']),
        ('vllm serve "${A:-${B:-z}}"', ["z"]),
        ('vllm serve $M "$N"', ["$M", '"$N"']),
        ("A=(-tp 8 '{}')\nvllm serve M \"${A[@]}\"", ["M", "-tp", "8", "'{}'"]),
        ("bash -lc 'vllm serve M --x \"a b\" -tp 8'", ["M", "--x", '"a b"', "-tp", "8"]),
        ('TP=8\nbash -c "vllm serve M -tp $TP --a=$TP-x --z"', ["M", "-tp", "8", "--a=", "--z"]),
        ("TP=8\ncat > r.sh <<EOF\nvllm serve M -tp $TP --b \\$Q\nEOF", ["M", "-tp", "8", "--b", "$Q"]),
        ("source env.sh\nvllm serve M -tp $TP $EXTRA", ["M", "-tp", "$TP", "$EXTRA"]),
    ],
)
def test_places_of_words(text: str, expected: list[str]) -> None:
    assert spelled(text) == expected


def test_offsets_inside_nested_quotes() -> None:
    text = 'srun bash -c "vllm serve M --x \\"a b\\" -tp 8"'
    _context, (launch,) = read(text)
    for item in launch.server.words:
        assert "".join(text[offset] for offset in item.offsets) == item.text


def test_a_value_from_outside_the_file_stands_where_it_is_used() -> None:
    context, (launch,) = read('bash -c "vllm serve M -tp $TP --x"', variables={"TP": "16"})
    assert texts(launch) == ["M", "-tp", "16", "--x"]
    assert written(context, word(launch, "16")) == "$TP"
    assert written(context, word(launch, "--x")) == "--x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("set -a; . ./x.env; set +a\nvllm serve M", {"A": "1", "TP": "4"}),
        (". x.env\nvllm serve M", {}),
        ("export A=1 B=2\nunset A\nvllm serve M", {"B": "2"}),
        ("declare -x A=1\nlocal B=2\nvllm serve M", {"A": "1"}),
        ('[ -n "$Q" ] && export A=1\nvllm serve M', {}),
        ('Q=1\n[ -n "$Q" ] && export A=1\nvllm serve M', {"A": "1"}),
        ("f() { export A=1; }\nvllm serve M", {}),
        ("f() { export A=1; }\nf\nvllm serve M", {"A": "1"}),
        ("(export A=1)\nvllm serve M", {}),
        ("sudo -E env A=1 B='x y' vllm serve M", {"A": "1", "B": "x y"}),
        ("docker exec -e A=1 -it c vllm serve M", {"A": "1"}),
    ],
)
def test_environment(text: str, expected: dict[str, str]) -> None:
    _context, launches = read(text)
    assert env(launches[-1]) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("pkill -f 'vllm serve'", 'echo "vllm serve M"', "grep 'vllm serve' x", "# vllm serve M", "vllm chat --x"),
        *(
            "vllm bench serve --model M",
            "curl http://x/vllm serve M",
            "docker pull vllm/vllm-openai",
            "which vllm serve",
        ),
        *("docker logs vllm serve", "pip install vllm", "vllm serve --help", 'exec "$@"', "uv pip install vllm serve"),
        *("sudo pkill -f 'vllm serve M'", "ssh h pkill -f 'vllm serve M'", "kubectl exec p -- pgrep -f vllm serve"),
        *("docker exec c pkill -f 'vllm serve'", "timeout 5 grep vllm serve x", "docker compose up -d vllm serve"),
        *("cat <<EOF\nvllm serve M\nit's good\nEOF", "cat > a.md <<EOF\nvllm serve M\nEOF", "serve M -tp 8"),
        *("read -r -d '' U <<EOF\nvllm serve M\nEOF", ": <<'EOF'\nvllm serve M\nEOF", "python - <<E\nvllm serve M\nE"),
    ],
)
def test_what_is_no_launch(text: str) -> None:
    context, launches = read(text)
    assert launches == []
    assert context.problems == []


@pytest.mark.parametrize(
    "text",
    [
        *(
            "if ! vllm serve M; then x; fi",
            "(cd x && A=1 vllm serve M)",
            "timeout 10 vllm serve M",
            "time vllm serve M",
        ),
        *(
            "nohup vllm serve M > log 2>&1 &",
            "{ vllm serve M; } | tee x",
            "vllm serve M > >(tee x) 2>&1",
            "vllm serve M \\",
        ),
        *(
            "srun bash -c 'vllm serve M'",
            "mpirun -np 2 vllm serve M",
            "ssh host vllm serve M",
            "ssh h 'cd x; vllm serve M'",
        ),
        *("tmux new -d -s a 'vllm serve M'", "tmux send-keys -t a 'vllm serve M' C-m", "screen -dmS x vllm serve M"),
        *("apptainer exec --nv vllm.sif vllm serve M", "enroot start --rw vllm vllm serve M", "xargs vllm serve M"),
        *(
            "kubectl exec -it p -- vllm serve M",
            "docker exec -d c vllm serve M",
            "docker exec c bash -c 'vllm serve M'",
        ),
        *(
            "docker compose -f x run --rm s vllm serve M",
            "docker-compose run s vllm serve M",
            "numactl -N 0 vllm serve M",
        ),
        *("ray job submit --address x -- vllm serve M", "uv run vllm serve M", "conda run -n x vllm serve M"),
        *("CMD='vllm serve M'\neval $CMD", 'CMD=(vllm serve M)\n"${CMD[@]}"', "bash <<EOF\nvllm serve M\nEOF"),
        *("cat <<EOF | bash\nvllm serve M\nEOF", "ssh h <<'EOF'\nvllm serve M\nEOF", "tee r.sh <<E\nvllm serve M\nE"),
        *("function f() { vllm serve M; }", "f()\n{\n vllm serve M\n}", "case x in (a) vllm serve M;; esac"),
        *("while true; do vllm serve M; done", "if (vllm serve M); then x; fi", "sudo -E vllm serve M"),
    ],
)
def test_launches_behind_wrappers_and_keywords(text: str) -> None:
    context, launches = read(text)
    assert [texts(launch) for launch in launches] == [["M"]]
    assert context.problems == []


@pytest.mark.parametrize(
    "before",
    [
        *(
            "x=$((1 << 2))",
            "((x++))",
            "(( x = 1 << 2 ))",
            "[[ $x =~ ^[a-z]+$ ]]",
            "[[ $x =~ ^(a|b)$ ]]",
            "cat <<< 'x y'",
        ),
        *("diff <(sort a) <(sort b)", "echo $'it\\'s'", 'echo "it\'s"', 'x=`echo "a b"`', "y=${x//\\'/}", "# it's"),
        *("echo ${#arr[@]} ${x%%.*}", 'x="$(cmd "with quotes" \')\')"', "echo a # it's", 'x="${y//\\"/}"', "echo \\'"),
        *("X=$(cat <<EOF\nit's )\nEOF\n)", 'x="$(case $y in a) echo ")";; esac)"', 'echo "${x:-it\'s}"'),
        *(
            "case x in a|b) ;; *) ;; esac",
            "for ((i=0;i<3;i++)); do x; done",
            "cat <<'EOF' >x\nit's\nEOF",
            "x=$(# it's\necho)",
        ),
        *("echo `echo 'a)' \"b\"`", "x=$( (a; b) )", 'echo "$(echo "$(echo ")")")"', "x=(a # it's\n b)"),
    ],
)
def test_valid_text_in_front_is_no_false_alarm(before: str) -> None:
    context, launches = read(f"{before}\nvllm serve M\n")
    assert context.problems == []
    assert [texts(launch) for launch in launches] == [["M"]]


def test_here_documents() -> None:
    quoted = "VAR=3\ncat > r.sh <<'EOF'\nvllm serve $VAR\nEOF\n"
    _context, (launch,) = read(quoted)
    assert launch.server.words[0].open == ("$VAR",)
    assert words(quoted.replace("'EOF'", "EOF")) == [["3"]]
    context, launches = read('cat > r.sh <<EOF\n#!/bin/sh\nvllm serve "M\nEOF\n')
    assert launches == []
    assert [(item.line, item.why.partition(";")[0]) for item in context.problems] == [
        (3, "the double quote is never closed")
    ]


def test_a_quote_that_is_never_closed_is_said() -> None:
    context, launches = read("vllm serve M\nvllm serve 'N\n")
    assert [texts(launch) for launch in launches] == [["M"]]
    assert [(item.line, item.skipped) for item in context.problems] == [(2, False)]


def test_slurm_header() -> None:
    text = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:h100:8   # all\nsrun vllm serve M\n"
    context, (launch,) = read(text)
    assert launch.format == "slurm"
    stated = [launch.gpu, launch.gpus, launch.nodes]
    assert [item and item.value for item in stated] == ["h100", "8", "2"]
    assert [item and context.source.text[item.span.start : item.span.stop] for item in stated] == ["h100", "8", "2"]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("--gpus-per-node=8", (None, "8", None)),
        ("--gpus-per-node h200:8", ("h200", "8", None)),
        ("-N 2 -G 16", (None, "8", "2")),
        ("-N2 --gpus=h100:15", ("h100", None, "2")),
        ("--gres=gpu", (None, "1", None)),
        ("--gres=nvme:1,gpu:4", (None, "4", None)),
        ("--nodes=1-4", (None, None, None)),
        ("--nodes=$N", (None, None, None)),
        ("--time=8", (None, None, None)),
    ],
)
def test_slurm_options(header: str, expected: tuple[str | None, ...]) -> None:
    _context, (launch,) = read(f"#SBATCH {header}\nvllm serve M\n")
    assert tuple(item and item.value for item in (launch.gpu, launch.gpus, launch.nodes)) == expected


def test_image_of_srun_and_apptainer() -> None:
    for text, image in (
        ("srun --container-image=vllm/vllm-openai:v0.24.0 vllm serve M", "vllm/vllm-openai:v0.24.0"),
        ("srun --container-image nvcr.io#nvidia/vllm:1 bash -c 'vllm serve M'", "nvcr.io/nvidia/vllm:1"),
        ("apptainer exec --nv docker://vllm/vllm-openai:v0.24.0 vllm serve M", "vllm/vllm-openai:v0.24.0"),
        ("apptainer run --nv docker://vllm/vllm-openai:v0.24.0 M", "vllm/vllm-openai:v0.24.0"),
        ("srun --container-image=/a/b.sqsh vllm serve M", None),
    ):
        _context, (launch,) = read(text)
        assert (launch.image.value if launch.image else None) == image
        assert texts(launch) == ["M"]


def test_recipes() -> None:
    make = (
        "M ?= x\nserve: deps\n\t@echo 'vllm serve'\n\t-A=$$B vllm serve $(M) \\\n\t  -tp $$TP\n\nall: ; vllm serve N\n"
    )
    context, launches = read(make, "Makefile")
    assert [texts(launch) for launch in launches] == [["x", "-tp", "$TP"], ["N"]]
    assert launches[0].server.words[0].open == ()
    assert [written(context, item) for item in launches[0].server.words] == ["$(M)", "-tp", "$$TP"]
    assert words("web: vllm serve M -tp 8\nworker: python x.py\n", "Procfile") == [["M", "-tp", "8"]]
    just = "serve tp='8':\n    @vllm serve {{ m }} -tp {{tp}}\nrun:\n  #!/bin/bash\n  A=1\n  vllm serve $A\n"
    context, launches = read(just, "justfile")
    assert [texts(launch) for launch in launches] == [["${m}", "-tp", "${tp}"], ["1"]]
    assert written(context, launches[0].server.words[0]) == "{{ m }}"


def test_lines_of_a_recipe_are_shells_of_their_own() -> None:
    assert words("a:\n\tTP=8\n\tvllm serve M -tp $$TP\n", "Makefile") == [["M", "-tp", "$TP"]]
    assert words(".ONESHELL:\na:\n\tTP=8\n\tvllm serve M -tp $$TP\n", "Makefile") == [["M", "-tp", "8"]]


HOSTILE = ['"', "$((", "${", "\\", "`", "'", "$(", "<<E\n", "case x in a)\n", 'A+=("${A[@]}" x)\n', "if "]


@pytest.mark.parametrize("piece", [*HOSTILE, "vllm serve M\n", "docker exec ", "${a:-", "f(){ ", "ssh "])
def test_hostile_text_is_read_fast(piece: str) -> None:
    start = time.process_time()
    extract(context_of("A=(vllm);A=vllm\n" + piece * (100_000 // len(piece)), "a.sh"))
    assert time.process_time() - start < 2


def test_scripts_that_multiply_are_cut_off() -> None:
    text = "X='" + 'bash -c "$X";' * 300 + '\'\nexport X\nbash -c "$X" vllm'
    context = context_of(text, "a.sh")
    extract(context)
    assert any("too much shell text" in item.why for item in context.problems)


@settings(max_examples=150, deadline=None)
@given(mutated(SCRIPT))
def test_a_garbled_script_never_raises(text: str) -> None:
    read(text)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([*HOSTILE, " vllm serve M ", "\n", ")", "}", "x", "$A", "${A[@]}", ";;", "esac", "\t#"]))
)
def test_random_text_never_raises(parts: list[str]) -> None:
    read("".join(parts))


def test_manifests_in_here_documents() -> None:
    text = (
        "kubectl apply -f - <<EOF\napiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  containers:\n"
        "  - image: vllm/vllm-openai:v0.24.0\n    args: [a/b, -tp, '8']\nEOF\nvllm serve c/d\n"
    )
    context = Context(SourceText("apply.sh", text))
    found = extract(context).launches
    assert [launch.format for launch in found] == ["shell", "kubernetes"]
    inner = found[1].server
    assert [word.text for word in inner.words] == ["a/b", "-tp", "8"]
    assert context.source.place(inner.words[0].span.start) == (8, 12)


def test_variables_of_a_makefile() -> None:
    text = (
        "MODEL := a/$(NAME)\nNAME = b\nTP ?= 8   # all\nexport VLLM_PORT=5\nLATER := $(NAME)\n"
        "serve:\n\tvllm serve $(LATER) -tp $(TP) --port $$PORT --x $(shell date)\n"
    )
    context = Context(SourceText("Makefile", text))
    (launch,) = extract(context).launches
    assert [word.text for word in launch.server.words] == ["b", "-tp", "8", "--port", "$PORT", "--x", "$(shell date)"]
    assert launch.server.words[4].open == ("$PORT",)
    assert {name: item.value for name, item in launch.server.env.items()} == {"VLLM_PORT": "5"}


def test_an_empty_array_leaves_no_word() -> None:
    text = 'A=()\nvllm serve a/b "${A[@]}" -tp 4 "" x"${A[@]}"y "${A[@]}"\n'
    (launch,) = extract(Context(SourceText("a.sh", text))).launches
    assert [word.text for word in launch.server.words] == ["a/b", "-tp", "4", "", "xy"]
