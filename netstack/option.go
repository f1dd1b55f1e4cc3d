package netstack

import "encoding/binary"

// Our TCP option, docs/PROTOCOL.md "TCP option": kind 254 (RFC 6994), length 10, ExID "SMGW",
// version and role in one byte, flags, nonce.
const (
	optionKind    = 254
	optionLen     = 10
	optionExID    = "SMGW"
	optionVersion = 1
	// optionSpace is what the option takes with two NOPs in front, which keep
	// the header a multiple of four bytes.
	optionSpace = optionLen + 2

	roleOffer   = 1
	roleAccept  = 2
	roleConfirm = 3
)

// TCP option kinds this package reads or changes.
const (
	kindEOL        = 0
	kindNOP        = 1
	kindMSS        = 2
	kindWS         = 3
	kindSACKPermit = 4
	kindSACK       = 5
	kindTS         = 8
)

const (
	minTCPHeader = 20
	maxTCPHeader = 60
	// defaultMSS is what a peer that says nothing can receive (RFC 9293 3.7.1).
	defaultMSS = 536
	maxWS      = 14 // RFC 7323 2.3
)

// nextOption returns kind, offset of the value and its length of the option at
// i in the TCP header t, and where the next one starts. ok is false at the end
// and at the first malformed option; NOPs are stepped over.
func nextOption(t []byte, i int) (kind byte, off, n, next int, ok bool) {
	for i < len(t) && t[i] == kindNOP {
		i++
	}
	if i+1 >= len(t) || t[i] == kindEOL {
		return 0, 0, 0, len(t), false
	}
	l := int(t[i+1])
	if l < 2 || i+l > len(t) {
		return 0, 0, 0, len(t), false
	}
	return t[i], i + 2, l - 2, i + l, true
}

// options is what a TCP header says in its options.
type options struct {
	mss   uint16
	ws    int // -1: none
	ts    bool
	tsVal uint32
	// tsEcho is the timestamp of ours that the sender has seen last.
	tsEcho uint32
	sack   bool
	role   byte // 0: our option is absent
	nonce  uint16
}

// parseOptions reads the options of the TCP header t, which must be complete.
func parseOptions(t []byte) options {
	o := options{mss: defaultMSS, ws: -1}
	for kind, off, n, i, ok := nextOption(t, minTCPHeader); ok; kind, off, n, i, ok = nextOption(t, i) {
		v := t[off : off+n]
		switch {
		case kind == kindMSS && n == 2:
			o.mss = binary.BigEndian.Uint16(v)
		case kind == kindWS && n == 1:
			o.ws = min(int(v[0]), maxWS)
		case kind == kindSACKPermit && n == 0:
			o.sack = true
		case kind == kindTS && n == 8:
			o.ts, o.tsVal, o.tsEcho = true, binary.BigEndian.Uint32(v), binary.BigEndian.Uint32(v[4:])
		case kind == optionKind && o.role == 0:
			o.role, o.nonce = parseOption(v)
		}
	}
	return o
}

// parseOption reads the value of a kind 254 option. Role 0: not ours, or an
// unknown version or role, which docs/PROTOCOL.md treats as no option.
func parseOption(v []byte) (role byte, nonce uint16) {
	if len(v) != optionLen-2 || string(v[:4]) != optionExID || v[4]>>4 != optionVersion {
		return 0, 0
	}
	if role = v[4] & 15; role < roleOffer || role > roleConfirm {
		return 0, 0
	}
	return role, binary.BigEndian.Uint16(v[6:])
}

// appendOption appends two NOPs and the option.
func appendOption(b []byte, role byte, nonce uint16) []byte {
	b = append(b, kindNOP, kindNOP, optionKind, optionLen)
	b = append(b, optionExID...)
	return append(b, optionVersion<<4|role, 0, byte(nonce>>8), byte(nonce))
}

// withoutSACK returns the options area opts less its SACK blocks, padded by
// NOPs. It makes room for ours: blocks are advice and may be left out.
func withoutSACK(opts []byte) []byte {
	out := make([]byte, 0, len(opts))
	t := append(make([]byte, minTCPHeader), opts...)
	for kind, off, n, i, ok := nextOption(t, minTCPHeader); ok; kind, off, n, i, ok = nextOption(t, i) {
		if kind != kindSACK {
			out = append(out, t[off-2:off+n]...)
		}
	}
	for len(out)%4 != 0 {
		out = append(out, kindNOP)
	}
	return out
}

// blankOption overwrites every option of the given kind by NOPs.
func blankOption(t []byte, want byte) {
	for kind, off, n, i, ok := nextOption(t, minTCPHeader); ok; kind, off, n, i, ok = nextOption(t, i) {
		if kind != want {
			continue
		}
		for j := off - 2; j < off+n; j++ {
			t[j] = kindNOP
		}
	}
}
