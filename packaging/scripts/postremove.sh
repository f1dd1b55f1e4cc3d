#!/bin/sh
# dpkg calls it with "remove", "purge" or "upgrade", rpm with the number of versions
# that stay. dpkg removes the configuration itself; rpm keeps what was changed. Gateways
# of containers may have sockets and state in these directories, and go on.
set -e
elsewhere() { grep -qsx smcgw-guardian /proc/[0-9]*/comm; }
case $1 in
remove | 0)
	elsewhere || rm -rf /run/smcgw
	[ ! -d /etc/cdi ] || rmdir --ignore-fail-on-non-empty /etc/cdi # rpm leaves a directory that is no package's
	;;
purge)
	rm -rf /etc/smcgw
	if elsewhere; then
		printf '%s\n' "smcgw: gateways run elsewhere on this machine: /run/smcgw, /var/lib/smcgw and the user smcgw stay" >&2
	else
		rm -rf /run/smcgw /var/lib/smcgw
		if getent passwd smcgw >/dev/null; then userdel smcgw; fi
		if getent group smcgw >/dev/null; then groupdel smcgw; fi
	fi
	;;
*) exit 0 ;;
esac
[ ! -d /run/systemd/system ] || systemctl daemon-reload
