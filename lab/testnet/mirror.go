package testnet

import (
	"bytes"
	"encoding/binary"
)

// Our option on the wire, docs/PROTOCOL.md: kind 254, length 10, ExID "SMGW",
// version and role, flags, nonce.
const optionLen = 10

var optionHead = []byte{254, optionLen, 'S', 'M', 'G', 'W'}

// mirror remembers the option of each flow's SYN and puts it onto the SYN-ACK.
// The zero value is ready. Flows are never forgotten before mirrorLimit of
// them are known, which is plenty for a test.
type mirror struct {
	options map[string][]byte // by the addresses and ports of the SYN
}

const mirrorLimit = 65536

// pass handles one frame (virtio header, Ethernet, IP, TCP). It returns the
// frame to send on, and whether that was grown.
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
		// A bare retransmission leaves nothing to echo.
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

// walkOptions looks for our option, and tells whether the list is whole: one
// that ends early or is malformed cannot be appended to.
func walkOptions(options []byte) (ours []byte, whole bool) {
	for len(options) > 0 {
		switch {
		case options[0] == 1:
			options = options[1:]
			continue
		case options[0] == 0, len(options) < 2, options[1] < 2, int(options[1]) > len(options):
			return ours, false
		}
		n := int(options[1])
		if ours == nil && n == optionLen && bytes.HasPrefix(options, optionHead) {
			ours = options[:n]
		}
		options = options[n:]
	}
	return ours, true
}

// frameView locates the headers of a TCP frame without payload restrictions.
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
	if len(frame) < v.ip+20 {
		return v, false
	}
	ip := frame[v.ip:]
	switch binary.BigEndian.Uint16(frame[v.ip-2:]) {
	case 0x0800:
		if ip[9] != 6 || binary.BigEndian.Uint16(ip[6:])&0x1fff != 0 {
			return v, false
		}
		v.tcp = v.ip + max(int(ip[0]&15)*4, 20)
		v.ipLast = v.ip + int(binary.BigEndian.Uint16(ip[2:]))
	case 0x86dd:
		if len(ip) < 40 || ip[6] != 6 {
			return v, false
		}
		v.v6 = true
		v.tcp = v.ip + 40
		v.ipLast = v.tcp + int(binary.BigEndian.Uint16(ip[4:]))
	default:
		return v, false
	}
	if v.ipLast > len(frame) || v.ipLast < v.tcp+20 {
		return v, false
	}
	v.end = v.tcp + int(frame[v.tcp+12]>>4)*4
	return v, v.end >= v.tcp+20 && v.end <= v.ipLast
}

func (v frameView) flags() byte { return v.frame[v.tcp+13] }

func (v frameView) options() []byte { return v.frame[v.tcp+20 : v.end] }

// addresses returns source and destination.
func (v frameView) addresses() (src, dst []byte) {
	if v.v6 {
		return v.frame[v.ip+8 : v.ip+24], v.frame[v.ip+24 : v.ip+40]
	}
	return v.frame[v.ip+12 : v.ip+16], v.frame[v.ip+16 : v.ip+20]
}

// key names the flow, seen from the sender or (reverse) from the receiver.
func (v frameView) key(reverse bool) string {
	src, dst := v.addresses()
	sport, dport := v.frame[v.tcp:v.tcp+2], v.frame[v.tcp+2:v.tcp+4]
	if reverse {
		src, dst, sport, dport = dst, src, dport, sport
	}
	return string(src) + string(sport) + string(dst) + string(dport)
}

// grow appends options (a whole number of words) to the TCP header, if there
// is room, and completes every length and checksum.
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
	out[v.tcp+12] = byte(size/4)<<4 | out[v.tcp+12]&15
	v.frame, v.ipLast, v.end = out, len(out), v.tcp+size
	v.fixLengths()
	v.fixChecksum()
	return out, true
}

func (v frameView) fixLengths() {
	ip := v.frame[v.ip:v.tcp]
	if v.v6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(v.ipLast-v.tcp))
		return
	}
	binary.BigEndian.PutUint16(ip[2:], uint16(v.ipLast-v.ip))
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(0, ip)))
}

func (v frameView) fixChecksum() {
	seg := v.frame[v.tcp:v.ipLast]
	src, dst := v.addresses()
	pseudo := sum(sum(6+uint32(len(seg)), src), dst)
	binary.BigEndian.PutUint16(seg[16:], 0)
	binary.BigEndian.PutUint16(seg[16:], ^fold(sum(pseudo, seg)))
}

// sum adds 16-bit words, RFC 1071.
func sum(acc uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		acc += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		acc += uint32(b[0]) << 8
	}
	return acc
}

func fold(acc uint32) uint16 {
	for acc>>16 != 0 {
		acc = acc&0xffff + acc>>16
	}
	return uint16(acc)
}
