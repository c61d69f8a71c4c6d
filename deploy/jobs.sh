# Sourced by deploy/try.sh and tests/run.sh: jobs that are stopped whatever happens, and a virtual environment.
# Wants bash with set -euo pipefail, and the current folder at the root of the project.
#
#   shown COMMAND...            say it, run it, wait for it
#   start NAME COMMAND...       a server, whose output goes to $WORK/NAME.out and $WORK/NAME.log; STOP_WITH=KILL
#                               before it when it takes long to end by itself
#   await NAME CONDITION...     until the condition holds; ends the script when the server has ended
#   stop NAME                   end a server now; the end of the script ends those that are left
#   virtual_environment DIR EXTRAS   make it, or reuse one of the same requirements
#   free_port                   a port of this machine that nobody uses now

set -m # every job leads its own process group: a signal reaches all of it, and nothing else
JOBS=()
WORK=$(mktemp -d "${TMPDIR:-/tmp}/stax.XXXXXX")

say() { printf '\033[1m[%4ds] %s\033[0m\n' "$SECONDS" "$*" >&2; }
die() { printf '%s: %s\n' "$0" "$*" >&2; exit 1; }
shown() { say "$*"; foreground "$@"; }

# Bash acts on a signal only between commands, so long ones run as jobs that it waits for.
foreground() {
    "$@" </dev/null &
    JOBS+=("$! TERM")
    local status=0
    wait $! || status=$?
    unset 'JOBS[-1]'
    return $status
}

start() { # NAME COMMAND...
    local name=$1
    shift
    say "start $name: $*"
    "$@" </dev/null >"$WORK/$name.out" 2>"$WORK/$name.log" &
    JOBS+=("$! ${STOP_WITH:-TERM}")
    disown # or bash would tell that it was killed
    printf '%s' $! >"$WORK/$name.pid"
}

await() { # NAME CONDITION...
    local name=$1 left=600
    shift
    until "$@" >/dev/null 2>&1; do
        if ! kill -0 "$(cat "$WORK/$name.pid")" 2>/dev/null || [ $((left -= 1)) = 0 ]; then
            tail -n 20 "$WORK/$name.out" "$WORK/$name.log" >&2
            die "$name did not start"
        fi
        sleep 0.1
    done
}

stop() { # NAME
    local pid job left=()
    pid=$(cat "$WORK/$1.pid")
    for job in "${JOBS[@]}"; do
        if [ "${job% *}" = "$pid" ]; then end "$job"; else left+=("$job"); fi
    done
    JOBS=(${left[@]+"${left[@]}"})
}

end() { kill "-${1#* }" -- "-${1% *}" 2>/dev/null || true; wait_or_kill "${1% *}"; } # JOB

stop_all() {
    local status=$? job
    trap '' INT TERM HUP
    trap - EXIT
    for job in ${JOBS[@]+"${JOBS[@]}"}; do kill "-${job#* }" -- "-${job% *}" 2>/dev/null || true; done
    for job in ${JOBS[@]+"${JOBS[@]}"}; do wait_or_kill "${job% *}"; done
    rm -rf "$WORK"
    exit "$status"
}

wait_or_kill() { # PID
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

virtual_environment() { # DIR EXTRAS
    local stamp=$1/requirements.sha256 want
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$PYTHON is older than 3.11"
    want=$({ "$PYTHON" -V; echo "$PWD $1 $2 $TORCH"; requirements; } | sha256sum)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then return; fi
    rm -rf "$1"
    "$PYTHON" -c 'import ensurepip' 2>/dev/null || apt_or_die python3-venv "no ensurepip"
    shown "$PYTHON" -m venv "$1"
    # NOTE: torch by its exact version: an open one may bring gigabytes of CUDA.
    shown "$1/bin/pip" install -qq --disable-pip-version-check "$TORCH" -e ".[$2]"
    printf '%s' "$want" >"$stamp"
}

free_port() {
    "$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
