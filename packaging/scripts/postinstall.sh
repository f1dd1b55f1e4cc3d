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
systemd-tmpfiles --create smcgw.conf
systemctl daemon-reload
if systemctl is-active --quiet smcgw.service; then
	# The new program takes over; connections that are carried go on.
	systemctl reload smcgw.service ||
		echo "smcgw: the gateway before goes on; why is in journalctl -u smcgw. Try again: systemctl reload smcgw" >&2
elif ! systemctl is-enabled --quiet smcgw.service; then
	echo "smcgw: not started. To begin: edit /etc/smcgw/smcgw.yaml, then systemctl enable --now smcgw"
fi
