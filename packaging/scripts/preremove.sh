#!/bin/sh
# dpkg calls it with "remove" or "upgrade", rpm with the number of versions that stay.
set -e
case $1 in
remove | 0) ;;
*) exit 0 ;;
esac
# While the library is there: without it every program that starts would complain.
/usr/bin/smcgw preload disable --host >/dev/null || true
if grep -qs '^[^#]*/usr/lib/smcgw/.*libsmcgw\.so' /etc/ld.so.preload; then
	printf '%s\n' "smcgw: not removed: /etc/ld.so.preload cannot be changed, and names the library;" \
		"  take it out of that file first" >&2
	exit 1
fi
for file in /etc/systemd/system/*.service.d/50-smcgw-in-process.conf; do
	[ -e "$file" ] || continue
	unit=${file%.d/*}
	unit=${unit##*/}
	if /usr/bin/smcgw preload disable -- "$unit" >/dev/null; then
		printf '%s\n' "smcgw: $unit had the library; until it is restarted the programs that it starts say that they miss it" >&2
	fi
done
if [ -d /run/systemd/system ]; then
	systemctl disable --quiet --now smcgw.service || true
fi
# What a gateway that was killed has left. Gateways that run elsewhere go on.
/usr/bin/smcgw cleanup >/dev/null || true
