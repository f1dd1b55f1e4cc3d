#!/bin/sh
# dpkg calls it with "remove", "purge" or "upgrade", rpm with the number of versions
# that stay. dpkg removes the configuration itself; rpm keeps what was changed.
set -e
case $1 in
remove | 0)
	rm -rf /run/smcgw
	;;
purge)
	rm -rf /run/smcgw /var/lib/smcgw /etc/smcgw
	if getent passwd smcgw >/dev/null; then userdel smcgw; fi
	if getent group smcgw >/dev/null; then groupdel smcgw; fi
	;;
*) exit 0 ;;
esac
[ ! -d /run/systemd/system ] || systemctl daemon-reload
