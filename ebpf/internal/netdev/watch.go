package netdev

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Watch returns a channel that signals, until quit, that something has changed that programs and proofs depend on:
// devices, addresses, routing rules and routes, those settings of devices that netlink reports (reverse-path filter,
// forwarding), and nftables. It does not say what has changed, so lost messages count as changes. Changes of iptables
// rules send no message.
func Watch(quit <-chan struct{}) (<-chan struct{}, error) {
	changed := make(chan struct{}, 1)
	var socks []*nl.NetlinkSocket
	for _, group := range [][]uint{
		{
			unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
			unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
			unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
		},
		{unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES},
	} {
		s, err := nl.Subscribe(int(group[0]), group[1:]...)
		if err != nil && group[0] == unix.NETLINK_NETFILTER {
			continue // a kernel without nftables
		}
		if err != nil {
			for _, s := range socks {
				s.Close()
			}
			return nil, fmt.Errorf("messages of changes: %w", err)
		}
		socks = append(socks, s)
	}
	ended := make(chan struct{}, len(socks))
	for _, s := range socks {
		go readChanges(s, quit, changed, ended)
	}
	go func() {
		<-quit
		for _, s := range socks {
			s.Close() // ends Receive
		}
		for range socks {
			<-ended
		}
		close(changed)
	}()
	return changed, nil
}

// watchPause is the delay after a socket has failed.
const watchPause = time.Second

// readChanges signals that messages have come. It does not wait for the receiver, because a socket that is read late
// loses messages.
func readChanges(s *nl.NetlinkSocket, quit <-chan struct{}, changed, ended chan<- struct{}) {
	defer func() { ended <- struct{}{} }()
	for {
		if _, _, err := s.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
			select {
			case <-quit:
				return
			case <-time.After(watchPause):
			}
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// tries bounds the attempts. Only on a host that does nothing else would every single one of them be disturbed by a
// change.
const tries = 32

// Whole calls ask until nothing changed during the call, and returns the last answer in any case. Two errors tell of a
// change: ErrDumpInterrupted of a netlink dump (NLM_F_DUMP_INTR of linux/netlink.h), and ENOSPC of BPF_PROG_QUERY,
// whose buffer has room for as many programs as there were just before. A complete list may still be outdated when the
// caller looks at it; the caller must follow the events for that.
func Whole[T any](ask func() (T, error)) (list T, err error) {
	for range tries {
		list, err = ask()
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.ENOSPC) {
			break
		}
	}
	return list, err
}
