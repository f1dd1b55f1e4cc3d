package policy

import (
	"encoding/binary"
	"math"
	"net/netip"
)

// Share is the share of the connections of a rule that is carried: those whose [Place] is below it.
type Share uint32

// Special shares. ShareDefault means the share of the rollout; as the share of a rollout it means ShareAll.
const (
	ShareDefault Share = 0
	ShareNone    Share = 1
	ShareAll     Share = math.MaxUint32
)

// ShareOf returns the share for a percentage, 0 to 100.
func ShareOf(percent float64) Share {
	switch {
	case percent <= 0:
		return ShareNone
	case percent >= 100:
		return ShareAll
	default:
		return max(ShareNone+1, Share(percent/100*math.MaxUint32))
	}
}

// Threshold returns the share as the programs compare it.
func (s Share) Threshold() uint32 {
	switch s {
	case ShareDefault:
		return uint32(ShareAll)
	case ShareNone:
		return 0
	default:
		return uint32(s)
	}
}

// Rollout says which of the connections that rules select are carried. The zero value means all.
type Rollout struct {
	// Share is that of rules without a share of their own.
	Share Share
}

// Place returns the position of a connection among all. It is the same at both ends and constant while the connection
// begins. The programs compute the same (outside_share).
func Place(a, b netip.AddrPort) uint32 {
	return uint32(mix(mixedEnd(a)+mixedEnd(b)) >> 32)
}

// mixedEnd hashes one end of a connection. An IPv4 address is in the first four bytes, as in the programs' keys.
func mixedEnd(end netip.AddrPort) uint64 {
	var b [16]byte
	copy(b[:], end.Addr().Unmap().AsSlice())
	x := mix(binary.LittleEndian.Uint64(b[:]))
	x = mix(x ^ binary.LittleEndian.Uint64(b[8:]))
	return mix(x ^ uint64(end.Port()))
}

// mix is the finalizer of MurmurHash3.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// inside reports whether a connection is in the share of a rule. One without ends is.
func (p *Policy) inside(r *Rule, q *Query) bool {
	if !q.Local.IsValid() || !q.Remote.IsValid() {
		return true
	}
	share := r.Share
	if share == ShareDefault {
		share = p.Rollout.Share
	}
	t := share.Threshold()
	return t == uint32(ShareAll) || Place(q.Local, q.Remote) < t
}

// Shares returns the shares of the rules as the programs have them; 0 means that of the rollout.
func (p *Policy) Shares() (list [MaxRules]uint32) {
	for i, r := range p.rules {
		if r.Share != ShareDefault {
			list[i] = max(r.Share.Threshold(), 1)
		}
	}
	return list
}
