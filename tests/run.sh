#!/usr/bin/env bash
# The five verbs, the same at home and in CI. From nothing but python3 to the summary line of pytest.
#
#   bash tests/run.sh                      all: setup, check, test
#   bash tests/run.sh setup                make or reuse .venv-test
#   bash tests/run.sh test [PYTEST ARGS]   start a real S3 server and a real Ray cluster, run the tests
#   bash tests/run.sh check                formatter, linter, layers, types
#   bash tests/run.sh fix                  let the formatter and the linter mend what they can
#   bash tests/run.sh bench                tests/bench, one line a measurement
#
# STAX_TEST_PYTHON chooses the Python (default python3), STAX_TEST_TORCH the requirement for torch.
set -euo pipefail
set -m  # every job leads its own process group: a signal reaches all of it, and nothing else
cd "$(dirname "$0")/.."

PYTHON=${STAX_TEST_PYTHON:-python3}
TORCH=${STAX_TEST_TORCH:-torch==2.13.0}
EXTRAS=compile,triton,farm,demo,test,lint
VENV=$PWD/.venv-test
BIN=$VENV/bin
WORK=
JOBS=()

say() { printf '\033[1m[%4ds] %s\033[0m\n' "$SECONDS" "$*" >&2; }
die() { printf 'tests/run.sh: %s\n' "$*" >&2; exit 1; }
shown() { say "$*"; foreground "$@"; }

# Bash acts on a signal only between commands, so long ones run as jobs that it waits for.
foreground() {
    "$@" </dev/null &
    JOBS+=($!)
    local status=0
    wait $! || status=$?
    unset 'JOBS[-1]'
    return $status
}

stop_all() {
    local status=$?
    trap '' INT TERM
    trap - EXIT
    local pid
    for pid in ${JOBS[@]+"${JOBS[@]}"}; do kill -TERM -- "-$pid" 2>/dev/null || true; done
    for pid in ${JOBS[@]+"${JOBS[@]}"}; do wait_or_kill "$pid"; done
    [ -z "$WORK" ] || rm -rf "$WORK"
    exit "$status"
}

wait_or_kill() {
    local left=150
    while kill -0 -- "-$1" 2>/dev/null && [ $((left -= 1)) -gt 0 ]; do sleep 0.1; done
    kill -KILL -- "-$1" 2>/dev/null || true
}

trap stop_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

apt_or_die() { # PACKAGE WHY
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then die "$2: install $1"; fi
    shown apt-get -qq update
    shown env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "$1"
}

requirements() {
    "$PYTHON" -c 'import tomllib; d = tomllib.load(open("pyproject.toml", "rb"))
print(d["project"], d["build-system"], d["tool"]["setuptools"])'
}

setup() {
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$PYTHON is older than 3.11"
    command -v g++ >/dev/null || apt_or_die g++ "no C++ compiler"
    local stamp want
    stamp=$VENV/requirements.sha256
    want=$({ "$PYTHON" -V; echo "$PWD $TORCH $EXTRAS"; requirements; } | sha256sum)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then return; fi
    rm -rf "$VENV"
    "$PYTHON" -c 'import ensurepip' 2>/dev/null || apt_or_die python3-venv "no ensurepip"
    shown "$PYTHON" -m venv "$VENV"
    # NOTE: torch by its exact version: an open one may bring gigabytes of CUDA.
    shown "$BIN/pip" install -qq --disable-pip-version-check "$TORCH" -e ".[$EXTRAS]"
    printf '%s' "$want" >"$stamp"
}

check() {
    shown "$BIN/ruff" check .
    shown "$BIN/ruff" format --check .
    shown "$BIN/lint-imports" --no-logo
    shown "$BIN/pyright" --pythonpath "$BIN/python"
}

fix() {
    shown "$BIN/ruff" check --fix .
    shown "$BIN/ruff" format .
}

# A server tells on its first line, as one JSON object, what a client's environment must hold.
start() { # NAME COMMAND...
    local name=$1 said=$WORK/$1.json
    shift
    say "start $name: $*"
    "$@" </dev/null >"$said" 2>"$WORK/$name.log" &
    local pid=$!
    JOBS+=("$pid")
    until [ -s "$said" ] && head -n 1 "$said" | grep -q '}$'; do
        kill -0 "$pid" 2>/dev/null || { cat "$WORK/$name.log" >&2; die "$name did not start"; }
        sleep 0.1
    done
}

field() { # NAME FIELD
    "$BIN/python" -c 'import json, sys; print(json.loads(open(sys.argv[1]).readline())[sys.argv[2]])' \
        "$WORK/$1.json" "$2"
}

servers() {
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/stax-test.XXXXXX")
    start s3 "$BIN/python" tests/servers.py s3 "$WORK/s3" 0
    STAX_TEST_S3_ENDPOINT=$(field s3 endpoint)
    STAX_TEST_S3_BUCKET=$(field s3 bucket)
    AWS_ACCESS_KEY_ID=$(field s3 AWS_ACCESS_KEY_ID)
    AWS_SECRET_ACCESS_KEY=$(field s3 AWS_SECRET_ACCESS_KEY)
    export STAX_TEST_S3_ENDPOINT STAX_TEST_S3_BUCKET AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
    export AWS_EC2_METADATA_DISABLED=true
    start ray "$BIN/python" tests/farm_cluster.py "$WORK/ray"
    STAX_TEST_RAY_ADDRESS=$(field ray address)
    export STAX_TEST_RAY_ADDRESS
}

tests() {
    servers
    # The last line of a run is pytest's own.
    PATH=$BIN:$PATH STAX_TEST_REQUIRE=s3,ray shown "$BIN/python" -m pytest "$@"
}

bench() {
    local script
    for script in tests/bench/*.py; do
        [ -e "$script" ] || die "no measurements in tests/bench"
        shown "$BIN/python" "$script"
    done
}

verb=${1:-all}
[ $# -eq 0 ] || shift
case $verb in
    all) setup; check; tests ;;
    setup) setup ;;
    check | fix | bench) setup; "$verb" ;;
    test) setup; tests "$@" ;;
    *) die "unknown verb '$verb': all, setup, test, check, fix or bench" ;;
esac
