package testnet

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

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
	if !ok || v.flags()&0x02 == 0 {
		return frame, false
	}
	found, whole := walkOptions(v.options())
	if v.flags()&0x10 == 0 {
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
func findOption(options []byte) []byte {
	ours, _ := walkOptions(options)
	return ours
}

// walkOptions finds our option, and reports whether the list is whole: a list that ends early or is malformed cannot be
// appended to.
func walkOptions(options []byte) (ours []byte, whole bool) {
	end := 0
	for at, o := range packet.OptionList(options).All() {
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

// frameView has the offsets of the headers of a TCP frame.
type frameView struct {
	frame  []byte
	ip     int // offset of the IP header
	tcp    int // offset of the TCP header
	end    int // end of the TCP header
	v6     bool
	ipLast int // end of the IP packet
}

func viewFrame(frame []byte) (frameView, bool) {
	v := frameView{frame: frame, ip: vnetHeaderLen + 14}
	p, ok := ipOf(frame)
	if !ok || !p.Whole() {
		return v, false
	}
	t, err := p.TCP()
	v.v6, v.tcp, v.ipLast = p.V6(), v.ip+len(p.Header), v.ip+p.Total
	v.end = v.tcp + len(t)
	return v, err == nil
}

// ipOf parses the IP packet of a frame.
func ipOf(frame []byte) (packet.IP, bool) {
	const at = vnetHeaderLen + 14
	if len(frame) < at {
		return packet.IP{}, false
	}
	p, err := packet.ParseIP(frame[at:])
	kind := binary.BigEndian.Uint16(frame[at-2:])
	return p, err == nil && (kind == unix.ETH_P_IP && !p.V6() || kind == unix.ETH_P_IPV6 && p.V6())
}

func (v frameView) flags() byte { return v.frame[v.tcp+13] }

func (v frameView) options() []byte { return v.frame[v.tcp+20 : v.end] }

// addresses returns the source and destination.
func (v frameView) addresses() (src, dst []byte) {
	if v.v6 {
		return v.frame[v.ip+8 : v.ip+24], v.frame[v.ip+24 : v.ip+40]
	}
	return v.frame[v.ip+12 : v.ip+16], v.frame[v.ip+16 : v.ip+20]
}

// key identifies the flow as seen from the sender or, if reverse, from the receiver.
func (v frameView) key(reverse bool) string {
	src, dst := v.addresses()
	sport, dport := v.frame[v.tcp:v.tcp+2], v.frame[v.tcp+2:v.tcp+4]
	if reverse {
		src, dst, sport, dport = dst, src, dport, sport
	}
	return string(src) + string(sport) + string(dst) + string(dport)
}

// grow appends options (a whole number of words) to the TCP header if there is room, and updates all lengths and
// checksums.
func (v frameView) grow(options []byte) ([]byte, bool) {
	size := v.end - v.tcp + len(options)
	if size > 60 {
		return v.frame, false
	}
	out := make([]byte, 0, len(v.frame)+len(options))
	out = append(out, make([]byte, vnetHeaderLen)...) // nothing left to offload
	out = append(out, v.frame[vnetHeaderLen:v.end]...)
	out = append(out, options...)
	out = append(out, v.frame[v.end:v.ipLast]...)
	packet.TCP(out[v.tcp:]).SetHeaderLen(size)
	v.frame, v.ipLast, v.end = out, len(out), v.tcp+size
	v.fixLengths()
	v.fixChecksum()
	return out, true
}

func (v frameView) fixLengths() {
	packet.SetPayloadLen(v.frame[v.ip:v.tcp], v.ipLast-v.tcp)
}

func (v frameView) fixChecksum() { _ = packet.SetTCPChecksum(v.frame[v.ip:v.ipLast]) } // it was read before
