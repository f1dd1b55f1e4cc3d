package gateway

const (
	// dgramSlotCount is how many datagrams of local programs are under way to
	// their carriers at once. When all are, A is not read, and its queue drops as
	// that of a network card does.
	dgramSlotCount = 256
	// dgramSlotSize holds any packet. Memory is taken as it is touched.
	dgramSlotSize = 65 << 10
)

// dgramSlots is the memory that datagrams are sent from: A is read into it, and
// every port has it registered. A slot is its port's until the send has
// completed.
type dgramSlots struct {
	mem  []byte
	free []uint16
	used [dgramSlotCount]dgramUse
}

// dgramUse is who has a slot.
type dgramUse struct {
	port *dgramPort
	wrs  int // work requests that send from it
}

func newDgramSlots() *dgramSlots {
	o := &dgramSlots{mem: make([]byte, dgramSlotCount*dgramSlotSize), free: make([]uint16, 0, dgramSlotCount)}
	for i := range dgramSlotCount {
		o.free = append(o.free, uint16(dgramSlotCount-1-i))
	}
	return o
}

// take returns a free slot.
func (o *dgramSlots) take() (uint16, bool) {
	n := len(o.free)
	if n == 0 {
		return 0, false
	}
	slot := o.free[n-1]
	o.free = o.free[:n-1]
	return slot, true
}

// put gives a slot back that nothing is sent from.
func (o *dgramSlots) put(slot uint16) { o.free = append(o.free, slot) }

// bytes is the memory of a slot.
func (o *dgramSlots) bytes(slot uint16) []byte {
	at := int(slot) * dgramSlotSize
	return o.mem[at : at+dgramSlotSize : at+dgramSlotSize]
}

// lend notes that a port sends from a slot.
func (o *dgramSlots) lend(slot uint16, p *dgramPort, wrs int) {
	o.used[slot] = dgramUse{port: p, wrs: wrs}
}

// returned is called for the completion of a slot; it tells how many work
// requests that were, 0 if the slot is not the port's.
func (o *dgramSlots) returned(slot uint16, p *dgramPort) int {
	if int(slot) >= dgramSlotCount || o.used[slot].port != p {
		return 0
	}
	n := o.used[slot].wrs
	o.used[slot] = dgramUse{}
	o.put(slot)
	return n
}

// reclaim takes back all slots of a port that is gone.
func (o *dgramSlots) reclaim(p *dgramPort) {
	for i := range o.used {
		o.returned(uint16(i), p)
	}
}
