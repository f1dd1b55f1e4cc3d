package sysfs

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Messages and attributes of DCB (include/uapi/linux/dcbnl.h).
const (
	dcbIEEEGet = 21

	dcbIfname  = 1
	dcbIEEE    = 13
	dcbIEEEPFC = 2
	dcbIEEEApp = 3
	dcbAppData = 1

	dcbHeaderLen = 4
	pfcLen       = 2 // the part of struct ieee_pfc that is read: pfc_cap, pfc_en
	appLen       = 4 // struct dcb_app: selector, priority, protocol
	selectDSCP   = 5

	maxApps = 256
)

// Priorities is how a network device handles priorities, according to DCB.
type Priorities struct {
	// PFC lists the priorities for which the port pauses instead of dropping.
	PFC []int `json:"pfc"`
	// DSCP maps code points to priorities; empty: they are ignored.
	DSCP map[int]int `json:"dscp,omitempty"`
}

// priorities queries the kernel about a network device; nil: it has no DCB.
func priorities(device string) *Priorities {
	req := nl.NewNetlinkRequest(unix.RTM_GETDCB, unix.NLM_F_REQUEST)
	req.AddRawData([]byte{unix.AF_UNSPEC, dcbIEEEGet, 0, 0})
	req.AddData(nl.NewRtAttr(dcbIfname, nl.ZeroTerminated(device)))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil || len(msgs) != 1 {
		return nil
	}
	return parsePriorities(msgs[0])
}

// parsePriorities parses the answer to a request for all of IEEE 802.1Qaz.
func parsePriorities(msg []byte) *Priorities {
	if len(msg) < dcbHeaderLen {
		return nil
	}
	ieee, ok := attribute(msg[dcbHeaderLen:], dcbIEEE)
	if !ok {
		return nil
	}
	var p *Priorities
	if pfc, ok := attribute(ieee, dcbIEEEPFC); ok && len(pfc) >= pfcLen {
		p = &Priorities{PFC: []int{}, DSCP: map[int]int{}}
		for i := range 8 {
			if pfc[1]&(1<<i) != 0 {
				p.PFC = append(p.PFC, i)
			}
		}
	}
	apps, ok := attribute(ieee, dcbIEEEApp)
	if !ok {
		return p
	}
	if p == nil {
		p = &Priorities{PFC: []int{}, DSCP: map[int]int{}}
	}
	n := 0
	eachAttribute(apps, func(typ uint16, v []byte) bool {
		if typ == dcbAppData && len(v) >= appLen && v[0] == selectDSCP {
			p.DSCP[int(binary.NativeEndian.Uint16(v[2:]))] = int(v[1])
		}
		n++
		return n < maxApps
	})
	return p
}

// attribute returns the value of the first attribute of a type.
func attribute(b []byte, typ uint16) (value []byte, ok bool) {
	eachAttribute(b, func(t uint16, v []byte) bool {
		if t == typ {
			value, ok = v, true
		}
		return !ok
	})
	return value, ok
}

// eachAttribute calls f for the attributes in b until it returns false. An incomplete attribute ends the list.
func eachAttribute(b []byte, f func(typ uint16, v []byte) bool) {
	for len(b) >= unix.SizeofRtAttr {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			return
		}
		if !f(binary.NativeEndian.Uint16(b[2:])&^unix.NLA_F_NESTED, b[unix.SizeofRtAttr:n]) {
			return
		}
		b = b[min(len(b), (n+3)&^3):]
	}
}
