#!/bin/sh
# dpkg calls it with "remove" or "upgrade", rpm with the number of versions that stay.
set -e
case $1 in
remove | 0) ;;
*) exit 0 ;;
esac
# While the library is there: without it every program that starts would complain.
/usr/bin/smcgw preload disable --host >/dev/null || true
/usr/bin/smcgw preload status --json 2>/dev/null | grep -q '"units":\[\]' ||
	printf '%s\n' "smcgw: units start with the library: /etc/systemd/system/*/50-smcgw-in-process.conf is to be removed" >&2
if [ -d /run/systemd/system ]; then
	systemctl disable --quiet --now smcgw.service || true
fi
# What a gateway that was killed has left. Gateways that run elsewhere go on.
/usr/bin/smcgw cleanup --if-orphaned >/dev/null || true
