#!/usr/bin/env bash
# Checks that an example runs in containers as its README says: compose_example.sh own_task. Prints "ok" last, or
# "skipped: ..." where no engine runs. Leaves nothing behind but the image. WHEELS is that of containers.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tests/system/containers.sh
example=$1
export COMPOSE_PROJECT_NAME=fedsketch-example FEDSKETCH_IMAGE=fedsketch-example FEDSKETCH_LISTEN=127.0.0.1:18444
unset NODES SERVER_NAMES TEST_DATA
scratch=$(mktemp -d)
chmod 755 "$scratch"
trap 'docker compose --profile command down --volumes --timeout 5 > /dev/null 2>&1 || true; rm -rf "$scratch"' EXIT

echo "== a package that is not there ends the build"
said=$(PLUGINS=examples/nowhere docker compose build 2>&1) && fail "an image was built without the package"
[[ $said == *"there is no examples/nowhere"* ]] || fail "the build ended for another reason: $said"

echo "== as the README says"
eval "$(grep '^export PLUGINS' "examples/$example/README.md")"
docker compose build --quiet
docker compose up --detach || fail "the services did not start"
docker compose run --rm -T fedsketch "experiment=$example" rounds=1 "${patient[@]}" ||
    fail "the run did not complete"
docker compose exec -T serverapp sh -c 'test -s /runs/*/model.safetensors' || fail "there is no model"
for number in 0 1 2; do
    docker compose exec -T "supernode-$number" fedsketch-enroll /node/device --verify | ledger_has 1 ||
        fail "device $number has not written down its round"
done

echo "== a device whose owner does not allow the package refuses"
docker compose --profile command down --volumes --timeout 5 > /dev/null 2>&1
grep -v '^plugins' "$POLICY" > "$scratch/policy.toml"
export POLICY=$scratch/policy.toml
docker compose up --detach
said=$(docker compose run --rm -T fedsketch "experiment=$example" rounds=1 clients.retries=0 "${patient[@]}" 2>&1) &&
    fail "devices played what their owners do not allow"
[[ $said == *"owner does not allow the "* ]] || fail "the run ended for another reason: $said"
echo ok
