#!/bin/sh
# dpkg calls it with "remove" or "upgrade", rpm with the number of versions that stay.
set -e
case $1 in
remove | 0) ;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl disable --quiet --now smcgw.service || true
fi
# What a gateway that was killed has left. Gateways that run elsewhere go on.
/usr/bin/smcgw cleanup --if-orphaned >/dev/null || true
