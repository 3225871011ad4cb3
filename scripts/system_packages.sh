#!/bin/sh
# Installs the Debian packages that the live tests use; if that is not possible, reports the skipped ones.
set -eu

missing=""
for pair in prometheus:prometheus gcc:gcc prometheus-node-exporter:prometheus-node-exporter \
            prometheus-alertmanager:prometheus-alertmanager chromium:chromium openssl:openssl \
            victoria-metrics:victoria-metrics; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair##*:}"
done
# Debian keeps PostgreSQL's programs out of PATH
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
case "$missing" in *" gcc"*) missing="$missing libc6-dev" ;; esac
[ -n "$missing" ] || exit 0

skip() {
    echo "packages: not installed:$missing ($1); the tests that need them are skipped"
    exit 0
}

command -v apt-get >/dev/null 2>&1 || skip "apt-get not found"
if [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo"
else
    skip "root required"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "packages: installing$missing with apt-get"
export DEBIAN_FRONTEND=noninteractive
install() {
    # the tests start their own servers on free ports: RUNLEVEL=1 keeps the packages from starting theirs
    # shellcheck disable=SC2086 # word splitting is intended
    $as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -q --no-install-recommends $missing
}
install >"$log" 2>&1 || { $as_root apt-get update -q && install; } >"$log" 2>&1 || {
    tail -n 5 "$log"
    skip "apt-get failed, see above"
}
