#!/usr/bin/env bash
# The whole way on one machine, from nothing but python3: two of Hugging Face's models are compiled on a local Ray
# cluster for this CPU and for an NVIDIA GPU that need not be there, published, and then pulled and run by a process
# that can not compile.
#
#   bash deploy/try.sh          the store is a folder, .try/store
#   bash deploy/try.sh --s3     the store is a real S3 server on loopback, its data in .try/s3
#
# May be interrupted and run again: what is published stays, everything that was started is stopped. To begin anew,
# remove .try. STAX_TRY_PYTHON chooses the Python (default python3), STAX_TRY_TORCH the requirement for torch.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${STAX_TRY_PYTHON:-python3}
TORCH=${STAX_TRY_TORCH:-torch==2.13.0}
TRY=$PWD/.try
BIN=$TRY/venv/bin
MODELS=(gpt2 llama)
source deploy/jobs.sh

start_s3() {
    local name ports=() port
    for name in master volume filer s3 admin; do
        port=$(free_port)
        ports+=("-$name.port=$port")
        [ "$name" != s3 ] || ENDPOINT=http://127.0.0.1:$port
    done
    mkdir -p "$TRY/s3"
    # These two are the server's own credentials, and so the client's. Only the S3 port asks for them.
    export AWS_ACCESS_KEY_ID=try AWS_SECRET_ACCESS_KEY=try-secret AWS_EC2_METADATA_DISABLED=true
    start s3 env GOMEMLIMIT=300MiB "$BIN/weed" -logtostderr=true mini -dir="$TRY/s3" \
        -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.telemetry=false -admin.ui=false -webdav=false "${ports[@]}" \
        -s3.port.iceberg=0 -s3.port.lance=0 -s3.autoCreateBucket=false -bucket=stax
    await s3 "$BIN/stax" ls --store "s3://stax/demo?endpoint=$ENDPOINT"
    STAX_STORE="s3://stax/demo?endpoint=$ENDPOINT"
}

start_ray() {
    local port
    port=$(free_port)
    # A token of this run's own: only who has it may give this cluster work.
    RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
    export RAY_AUTH_MODE RAY_AUTH_TOKEN
    # NOTE: the machine may be full for other reasons: Ray is not to end the work for it.
    STOP_WITH=KILL start ray env RAY_memory_monitor_refresh_ms=0 "$BIN/ray" start --head --block \
        --node-ip-address=127.0.0.1 --port="$port" --include-dashboard=false --disable-usage-stats \
        --temp-dir="$WORK/ray" --object-store-memory=80000000
    await ray grep -q "Ray runtime started" "$WORK/ray.out"
    STAX_FARM=127.0.0.1:$port
}

case ${1:-} in
    "" | --s3) ;;
    *) die "unknown argument '$1': nothing, or --s3" ;;
esac

command -v g++ >/dev/null || apt_or_die g++ "no C++ compiler"
virtual_environment "$TRY/venv" compile,triton,farm,demo
SECONDS=0
export STAX_STORE=file://$TRY/store STAX_FARM= STAX_CACHE_DIR=$TRY/cache PYTHONPATH=$PWD/deploy/demo
export PATH=$BIN:$PATH
[ -z "${1:-}" ] || start_s3
start_ray

say "stax doctor"
stax doctor --build cuda:sm_90 | tee "$WORK/doctor"
level=$(awk '/runs cpu/ { print $NF }' "$WORK/doctor")

for model in "${MODELS[@]}"; do
    shown stax warm "$model:model" --inputs "$model:inputs" --dynamic --tag "demo-$model" \
        --target "cpu:$level" --target cuda:sm_90 --json "$WORK/$model.warm.json"
done
shown stax ls
say "stop ray: from here on nothing is compiled"
stop ray

shown python deploy/demo/eager.py "$WORK" "${MODELS[@]}"
say "a new process: no compiler on its path, an empty cache"
foreground env -i PATH= HOME="$WORK" STAX_CACHE_DIR="$WORK/cold" \
    AWS_ACCESS_KEY_ID="${AWS_ACCESS_KEY_ID:-}" AWS_SECRET_ACCESS_KEY="${AWS_SECRET_ACCESS_KEY:-}" \
    AWS_EC2_METADATA_DISABLED=true \
    "$BIN/python" deploy/demo/cold.py "$STAX_STORE" "$WORK" "cpu:$level" "${MODELS[@]}"
say "done; run it again to see the hits, remove .try to begin anew"
