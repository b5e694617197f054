#!/bin/sh
# Installs missing distribution packages of the kinds given as arguments (test/packages.txt), with sudo unless root. Prints their names.
# On other systems than Debian and Ubuntu it only lists missing tools and package names.
set -eu
list=$(dirname "$0")/packages.txt
wanted=
for kind in "$@"; do
    wanted="$wanted $(awk -v kind="$kind" '$1 == kind { print $2 }' "$list")"
done
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    for tool in gcc make pkg-config; do command -v "$tool" >/dev/null || echo "missing: $tool"; done
    echo "not Debian or Ubuntu; install the equivalents of:$wanted"
    exit 0
fi
missing=
for package in $wanted; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "installing:$missing"
as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
# Package lists may be absent or old: update them only if the first try fails.
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends $missing >/dev/null 2>&1 || {
    $as_root apt-get update >/dev/null
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends $missing >/dev/null
}
