package soft

import "github.com/smcgw/smcgw/verbs"

// recvWQE is the receive of the message being received.
type recvWQE struct {
	id     uint64
	retire uint64
	sges   []verbs.SGE
	got    uint32 // bytes received
	active bool
}

// scatter appends data to the bytes received of the message.
func (w *recvWQE) scatter(p *pd, data []byte) verbs.WCStatus {
	n, status := p.scatter(w.sges, w.got, data)
	w.got += n
	return status
}

// scatter copies data to offset off of the memory of a list; n is how many bytes were copied before the end of the list
// or of what its keys cover.
func (p *pd) scatter(sges []verbs.SGE, off uint32, data []byte) (n uint32, status verbs.WCStatus) {
	for i := range sges {
		s := &sges[i]
		if len(data) == 0 {
			break
		}
		if off >= s.Length {
			off -= s.Length
			continue
		}
		dst := p.local(s, off, min(uint32(len(data)), s.Length-off), verbs.AccessLocalWrite)
		if dst == nil {
			return n, verbs.WCLocProtErr
		}
		data = data[copy(dst, data):]
		n += uint32(len(dst))
		off = 0
	}
	if len(data) > 0 {
		return n, verbs.WCLocLenErr
	}
	return n, verbs.WCSuccess
}

// room returns the size of the receive.
func (w *recvWQE) room() uint64 {
	n := uint64(0)
	for i := range w.sges {
		n += uint64(w.sges[i].Length)
	}
	return n
}
