# What the scripts that try containers share; they read it with `source`. WHEELS=DIR is a folder with a CPU wheel of
# torch, where PyTorch's own index is not reached (default: where pip's find-links point).
skip() { echo "skipped: $1"; exit 0; }
fail() { echo "failed: $1" >&2; docker compose logs --no-color --tail 60 >&2 || true; exit 1; }
command -v docker > /dev/null || skip "there is no docker here."
docker info > /dev/null 2>&1 || skip "no container engine answers."
docker compose version > /dev/null 2>&1 || skip "docker has no compose here."

linked=$(python3 -m pip config get global.find-links 2> /dev/null || true)
if [ -z "${WHEELS:-}" ] && compgen -G "$linked/torch-*.whl" > /dev/null; then WHEELS=$linked; fi
export WHEELS=${WHEELS:-docker/wheels}
# Where no registry is reached, an engine may have a base image of its own under the plain name.
if [ -z "${PYTHON_IMAGE:-}" ] && docker image inspect python:3.11-slim > /dev/null 2>&1; then
    export PYTHON_IMAGE=python:3.11-slim
fi

patient=(secagg.stage_timeout=300 clients.timeout=1200) # for runs on a busy machine
ledger_has() { # ROUNDS: reads what `fedsketch-enroll --verify` prints
    grep -E "^Rounds: $1 of .*, ($1 of them settled, 0|0 of them settled, $1) answered"
}
