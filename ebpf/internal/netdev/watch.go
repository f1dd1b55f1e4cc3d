package netdev

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Watch tells that something has changed that programs and proofs follow, until quit: devices,
// addresses, rules and routes of routing, the settings of devices that netlink tells of
// (reverse-path filter, forwarding), and nftables. It does not tell what has changed, so
// messages that were lost are changes, too. The trap: rules of iptables change in silence.
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

// watchPause is how long a socket that fails is left alone.
const watchPause = time.Second

// readChanges passes the fact of messages on. It does not wait for the receiver: a socket that is
// read late loses messages.
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
