package testnet

import (
	"slices"

	"github.com/smcgw/smcgw/packet"
)

// Options says what a box does to the TCP options of all hosts.
type Options struct {
	// StripSYN, StripSYNACK and StripRest are kinds that are overwritten by NOPs on SYNs, on SYN-ACKs and on all other
	// segments.
	StripSYN, StripSYNACK, StripRest []byte
	// Turn reverses the order of the options, including ours.
	Turn bool
}

func (o Options) any() bool {
	return o.Turn || len(o.StripSYN)+len(o.StripSYNACK)+len(o.StripRest) > 0
}

// apply changes the frame, and reports whether it did.
func (o Options) apply(frame []byte) bool {
	v, ok := viewFrame(frame)
	if !ok {
		return false
	}
	list := v.Options()
	before := slices.Clone(list)
	kinds := o.StripRest
	switch v.Flags() & synAck {
	case packet.FlagSYN:
		kinds = o.StripSYN
	case synAck:
		kinds = o.StripSYNACK
	}
	for _, kind := range kinds {
		list.Blank(kind)
	}
	if o.Turn {
		var turned []byte
		for _, one := range list.All() {
			turned = append(slices.Clone(one), turned...)
		}
		n := copy(list, turned)
		for i := range list[n:] {
			list[n+i] = packet.KindNOP
		}
	}
	if slices.Equal(before, list) {
		return false
	}
	v.mend()
	return true
}
