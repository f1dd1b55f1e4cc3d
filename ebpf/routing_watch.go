package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Network managers remove rules and routes they do not know: systemd-networkd
// does, by default, whenever it configures a device. Without ours the segments
// of applications' connections to the gateway are lost, so they are put back at
// once; TCP repeats what was lost meanwhile.

// watchRouting reports that rules or routes like ours were removed, until quit.
// It is called on a thread of the namespace. Messages that were lost count as
// such.
func watchRouting(cfg Config, quit <-chan struct{}) (<-chan struct{}, error) {
	sock, err := nl.Subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("rule messages: %w", err)
	}
	removed := make(chan struct{}, 1)
	go func() {
		<-quit
		sock.Close() // ends Receive
	}()
	go func() {
		defer close(removed)
		for {
			msgs, _, err := sock.Receive()
			if err != nil && !errors.Is(err, unix.ENOBUFS) {
				return // closed; the monitor looks at the rules from time to time all the same
			}
			if err != nil || removesRouting(cfg, msgs) {
				select {
				case removed <- struct{}{}:
				default:
				}
			}
		}
	}()
	return removed, nil
}

// removesRouting tells whether one of the messages may be about rules or routes
// of ours.
func removesRouting(cfg Config, msgs []syscall.NetlinkMessage) bool {
	for _, m := range msgs {
		switch m.Header.Type {
		case unix.RTM_DELRULE:
			return true
		case unix.RTM_DELROUTE:
			if t := routeTable(m.Data); t == cfg.Table || t == cfg.Table+1 {
				return true
			}
		}
	}
	return false
}

// routeTable returns the table of a message about a route, 0 if it has none: the
// attribute, or the field, which is too small for most.
func routeTable(b []byte) int {
	if len(b) < unix.SizeofRtMsg {
		return 0
	}
	table := int(nl.DeserializeRtMsg(b).Table)
	attrs, err := nl.ParseRouteAttr(b[unix.SizeofRtMsg:])
	if err != nil {
		return table
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.RTA_TABLE && len(a.Value) >= 4 {
			return int(binary.NativeEndian.Uint32(a.Value))
		}
	}
	return table
}

// repair puts back the rules that are missing, and with them the routes, which
// are also put back if something says that they may be missing: to look them up
// would read the whole table of the host's routes.
func (r *routing) repair(app, lo int, routes bool, log *slog.Logger) error {
	for _, f := range r.families {
		have, err := r.nl.RuleList(f)
		if err != nil {
			return fmt.Errorf("rules: %w", err)
		}
		missing := 0
		for _, want := range r.rules(f) {
			if !hasRule(have, want) {
				missing++
			}
		}
		if missing == 0 && !routes {
			continue
		}
		if err := r.add(f, app, lo); err != nil {
			return err
		}
		if missing > 0 {
			log.Warn("routing rules of ours were removed, put back", "ipv6", f == unix.AF_INET6, "rules", missing)
		}
	}
	return nil
}
