package doctor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Numbers of linux/netfilter/nf_tables.h.
const (
	subsystem = 10 // NFNL_SUBSYS_NFTABLES
	getChain  = 4  // NFT_MSG_GETCHAIN
	attrTable = 1  // NFTA_CHAIN_TABLE
	attrName  = 3  // NFTA_CHAIN_NAME
)

// Chains implements Probes.
func (this) Chains() ([]Chain, error) {
	req := nl.NewNetlinkRequest(subsystem<<8|getChain, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	messages, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	var list []Chain
	for _, m := range messages {
		c, err := parseChain(m)
		if err != nil {
			return list, err
		}
		list = append(list, c)
	}
	return list, nil
}

// errChain is a truncated nftables message.
var errChain = errors.New("nftables: a message that is cut short")

// parseChain parses struct nfgenmsg and the attributes after it (netlink(7)).
func parseChain(m []byte) (c Chain, err error) {
	const generic, head = 4, 4
	if len(m) < generic {
		return c, errChain
	}
	for m = m[generic:]; len(m) > 0; {
		if len(m) < head {
			return c, errChain
		}
		n, kind := int(binary.NativeEndian.Uint16(m)), binary.NativeEndian.Uint16(m[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)
		if n < head || n > len(m) {
			return c, errChain
		}
		value, _, _ := bytes.Cut(m[head:n], []byte{0})
		switch kind {
		case attrTable:
			c.Table = string(value)
		case attrName:
			c.Name = string(value)
		}
		m = m[min(len(m), (n+3)&^3):]
	}
	if c.Table == "" || c.Name == "" {
		return c, errChain
	}
	return c, nil
}
