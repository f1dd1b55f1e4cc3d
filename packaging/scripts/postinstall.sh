#!/bin/sh
# dpkg calls it with "configure", rpm with the number of versions that are installed.
set -e
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers smcgw.conf
else
	getent passwd smcgw >/dev/null ||
		useradd --system --user-group --no-create-home --home-dir /var/lib/smcgw --shell /usr/sbin/nologin smcgw
fi
[ -d /run/systemd/system ] || exit 0
# An upgrade leaves the directories to their user, which a drop-in may have changed.
[ -d /run/smcgw/in-process ] && [ -d /var/lib/smcgw ] || systemd-tmpfiles --create smcgw.conf
systemctl daemon-reload
if systemctl is-active --quiet smcgw.service; then
	# The new program takes over; connections that are carried go on.
	systemctl reload smcgw.service ||
		printf '%s\n' "smcgw: the new version has not taken over, and the gateway before goes on:" \
			"  journalctl -u smcgw says why; systemctl reload smcgw tries again," \
			"  and systemctl restart smcgw resets what is carried" >&2
elif ! systemctl is-enabled --quiet smcgw.service; then
	printf '%s\n' "smcgw: not started. systemctl enable --now smcgw only observes at first;" \
		"  what comes next: /usr/share/doc/smcgw/operations/quickstart.md"
fi
