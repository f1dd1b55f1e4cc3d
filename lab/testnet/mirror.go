package testnet

import (
	"bytes"

	"github.com/smcgw/smcgw/packet"
)

// mirror remembers the option of each flow's SYN and adds it to the SYN-ACK. The zero value is ready to use. It forgets
// flows only when it knows mirrorLimit of them, which is plenty for a test.
type mirror struct {
	options map[string][]byte // by addresses and ports of the SYN
}

const mirrorLimit = 65536

// pass handles one frame (virtio header, Ethernet, IP, TCP). It returns the frame to send, and whether it has grown.
func (m *mirror) pass(frame []byte) ([]byte, bool) {
	v, ok := viewFrame(frame)
	if !ok || v.Flags()&packet.FlagSYN == 0 {
		return frame, false
	}
	found, whole := walkOptions(v.Options())
	if v.Flags()&packet.FlagACK == 0 {
		m.remember(v, found)
		return frame, false
	}
	known := m.options[v.key(true)]
	if found != nil || known == nil || !whole {
		return frame, false
	}
	return v.grow(append([]byte{1, 1}, known...))
}

func (m *mirror) remember(v frameView, option []byte) {
	if m.options == nil || len(m.options) >= mirrorLimit {
		m.options = map[string][]byte{}
	}
	if option == nil {
		// A retransmission without the option leaves nothing to echo.
		delete(m.options, v.key(false))
		return
	}
	m.options[v.key(false)] = bytes.Clone(option)
}

// findOption returns our option within TCP options, or nil.
func findOption(options packet.OptionList) []byte {
	ours, _ := walkOptions(options)
	return ours
}

// walkOptions finds our option, and reports whether the list is whole: a list that ends early or is malformed cannot be
// appended to.
func walkOptions(options packet.OptionList) (ours []byte, whole bool) {
	end := 0
	for at, o := range options.All() {
		end = at + len(o)
		if ours == nil && o.Ours() {
			ours = o
		}
	}
	for _, b := range options[end:] {
		if b != packet.KindNOP {
			return ours, false
		}
	}
	return ours, true
}

// grow appends options (a whole number of words) to the TCP header if there is room, and updates all lengths and
// checksums.
func (v frameView) grow(options []byte) ([]byte, bool) {
	size := len(v.TCP) + len(options)
	if size > packet.TCPMaxLen {
		return v.frame, false
	}
	out := make([]byte, 0, len(v.frame)+len(options))
	out = append(out, make([]byte, vnetHeaderLen)...) // nothing left to offload
	out = append(out, v.frame[vnetHeaderLen:v.end()]...)
	out = append(out, options...)
	out = append(out, v.frame[v.end():v.last]...)
	packet.TCP(out[v.l4:]).SetHeaderLen(size)
	return v.finished(out), true
}
