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
cd "$(dirname "$0")/.."

PYTHON=${STAX_TEST_PYTHON:-python3}
TORCH=${STAX_TEST_TORCH:-torch==2.13.0}
VENV=$PWD/.venv-test
BIN=$VENV/bin
source deploy/jobs.sh

setup() {
    command -v g++ >/dev/null || apt_or_die g++ "no C++ compiler"
    virtual_environment "$VENV" compile,triton,farm,demo,test,lint
}

check() {
    shown "$BIN/ruff" check .
    shown "$BIN/ruff" format --check .
    shown "$BIN/lint-imports" --no-logo --no-cache
    shown "$BIN/pyright" --pythonpath "$BIN/python"
}

fix() {
    shown "$BIN/ruff" check --fix .
    shown "$BIN/ruff" format .
}

# Both servers tell on their first line, as one JSON object, what a client must know.
field() { # NAME FIELD
    "$BIN/python" -c 'import json, sys; print(json.loads(open(sys.argv[1]).readline())[sys.argv[2]])' \
        "$WORK/$1.out" "$2"
}

servers() {
    start s3 "$BIN/python" tests/servers.py s3 "$WORK/s3" 0
    start ray "$BIN/python" tests/farm_cluster.py "$WORK/ray"
    await s3 grep -q '}$' "$WORK/s3.out"
    STAX_TEST_S3_ENDPOINT=$(field s3 endpoint)
    STAX_TEST_S3_BUCKET=$(field s3 bucket)
    AWS_ACCESS_KEY_ID=$(field s3 AWS_ACCESS_KEY_ID)
    AWS_SECRET_ACCESS_KEY=$(field s3 AWS_SECRET_ACCESS_KEY)
    export STAX_TEST_S3_ENDPOINT STAX_TEST_S3_BUCKET AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
    export AWS_EC2_METADATA_DISABLED=true
    await ray grep -q '}$' "$WORK/ray.out"
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
