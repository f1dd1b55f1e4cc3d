package memhost

import (
	"bytes"
	"sync"
	"time"

	"github.com/smcgw/smcgw/netstack/link"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/packet"
)

// Faults is what happens between a host and the switch. Rates are
// probabilities per packet and direction.
type Faults struct {
	// Loss, Dup and Reorder are the rates of lost, doubled and late packets.
	Loss, Dup, Reorder float64
	// Delay is added to every packet, each way.
	Delay time.Duration
	// EatOffers drops SYNs with an offer.
	EatOffers bool
	// StripOffer, StripAccept and StripConfirm take the option out of SYNs,
	// SYN-ACKs and all other segments.
	StripOffer, StripAccept, StripConfirm bool
	// Mirror repeats the option of a SYN that leaves the host on the answer, as
	// boxes do that copy what they do not know.
	Mirror bool
	// Mute drops the handshake messages that the host's gateway sends.
	Mute bool
	// MuteConfirm drops the CONFIRMs alone.
	MuteConfirm bool
	// Misdirect names a queue pair that does not exist in the ACCEPTs that the
	// host's gateway sends, so that no proof of a carrier comes back.
	Misdirect bool
	// Lose drops a TCP segment that leaves the host if it says so: of these flags, that
	// begins so long after its connection's SYN. It may be called concurrently.
	Lose func(flags byte, offset uint32) bool
}

// SetFaults replaces what happens on the host's wire.
func (h *Host) SetFaults(f Faults) {
	h.box.set(f)
	imp := link.Impairment{Loss: f.Loss, Dup: f.Dup, Reorder: f.Reorder, Delay: f.Delay}
	up, down := imp, imp
	up.Filter, down.Filter = h.box.up, h.box.down
	h.wire.A().Impair(up)
	h.wire.B().Impair(down)
}

// box is the middlebox on a host's wire.
type box struct {
	mu      sync.Mutex // guards everything below
	f       Faults
	offered map[ebpf.Tuple]packet.Option // for Mirror
	begun   map[ebpf.Tuple]uint32        // for Lose: ISNs
}

// offeredLimit bounds the offers a mirroring box remembers, and the ISNs of one that
// loses segments.
const offeredLimit = 1024

func (b *box) set(f Faults) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.f, b.offered, b.begun = f, map[ebpf.Tuple]packet.Option{}, map[ebpf.Tuple]uint32{}
}

// up sees what leaves the host.
func (b *box) up(pkt []byte) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := parseSegment(pkt, outbound)
	if !ok {
		return pkt
	}
	if payload := pkt[s.tcpAt+s.tcpLen:]; b.f.Mute && bytes.HasPrefix(payload, eyecatcher) ||
		b.f.MuteConfirm && bytes.HasPrefix(payload, append(eyecatcher, byte(negotiate.TypeConfirm))) {
		return nil
	}
	if b.f.Lose != nil && b.loses(&s) {
		return nil
	}
	if b.f.Misdirect {
		s.misdirect()
	}
	if o, _ := s.option(); b.f.Mirror && s.offers() {
		if len(b.offered) >= offeredLimit {
			clear(b.offered)
		}
		b.offered[s.tuple] = o
	}
	return b.strip(&s)
}

// loses asks Lose about a segment of a connection whose SYN was seen.
func (b *box) loses(s *segment) bool {
	if s.synOnly() {
		if len(b.begun) >= offeredLimit {
			clear(b.begun)
		}
		b.begun[s.tuple] = s.seq
	}
	isn, known := b.begun[s.tuple]
	return known && b.f.Lose(s.flags, s.seq-isn)
}

// eyecatcher begins every handshake message; the type follows.
var eyecatcher = []byte("SMGW")[:4:4]

// misdirect rewrites an ACCEPT, which fits one segment and keeps its length.
func (s *segment) misdirect() {
	at := s.tcpAt + s.tcpLen
	a, n, err := negotiate.ParseAccept(s.raw[at:])
	if err != nil {
		return
	}
	for i := range a.Carriers {
		a.Carriers[i].SHM.QPN ^= 0x800
	}
	p := negotiate.AppendAccept(append([]byte(nil), s.raw[:at]...), &a)
	s.raw = append(p, s.raw[at+n:]...)
	s.setChecksum()
}

// down sees what arrives for the host.
func (b *box) down(pkt []byte) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := parseSegment(pkt, inbound)
	if !ok {
		return pkt
	}
	if o, mirror := b.offered[s.tuple]; mirror && s.synACK() {
		if !s.overwrite(packet.AppendOption(nil, o)) {
			s.addOption(o)
		}
		return s.raw
	}
	return b.strip(&s)
}

// strip does what both directions have in common.
func (b *box) strip(s *segment) []byte {
	if b.f.EatOffers && s.offers() {
		return nil
	}
	if b.f.StripOffer && s.synOnly() || b.f.StripAccept && s.synACK() ||
		b.f.StripConfirm && !s.has(packet.FlagSYN) {
		s.stripOption()
	}
	return s.raw
}
