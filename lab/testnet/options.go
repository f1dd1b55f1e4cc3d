package testnet

import "slices"

// Kinds of TCP options.
const (
	OptionMSS         = 2
	OptionWindowScale = 3
	OptionSACK        = 4 // permitted
	OptionSACKBlocks  = 5
	OptionTimestamps  = 8
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
	if !ok || len(v.options()) == 0 {
		return false
	}
	kinds := o.StripRest
	switch v.flags() & 0x12 {
	case 0x02:
		kinds = o.StripSYN
	case 0x12:
		kinds = o.StripSYNACK
	}
	list, ok := splitOptions(v.options())
	if !ok {
		return false
	}
	before := slices.Clone(v.options())
	for _, one := range list {
		if slices.Contains(kinds, one[0]) {
			fillNOPs(one)
		}
	}
	if o.Turn {
		turned := make([]byte, 0, len(before))
		for _, one := range slices.Backward(list) {
			turned = append(turned, one...)
		}
		copy(v.options(), turned) // an end of the list is never reached
		fillNOPs(v.options()[len(turned):])
	}
	if slices.Equal(before, v.options()) {
		return false
	}
	v.fixChecksum()
	return true
}

func fillNOPs(b []byte) {
	for i := range b {
		b[i] = 1
	}
}

// splitOptions returns the options of a list, except NOPs, as subslices of it, and whether the list is well-formed.
func splitOptions(options []byte) (list [][]byte, ok bool) {
	for len(options) > 0 && options[0] != 0 {
		if options[0] == 1 {
			options = options[1:]
			continue
		}
		if len(options) < 2 || options[1] < 2 || int(options[1]) > len(options) {
			return nil, false
		}
		list, options = append(list, options[:options[1]]), options[options[1]:]
	}
	return list, true
}
