package datagram

const (
	// slotCount is how many datagrams of local programs are under way to
	// their carriers at once. When all are, A is not read, and its queue drops as
	// that of a network card does.
	slotCount = 256
	// slotSize holds any packet. Memory is taken as it is touched.
	slotSize = 65 << 10
	// spareSlot is sent from by no port: what lies there returns to the network.
	spareSlot = slotCount
)

// slots is the memory that datagrams are sent from: A is read into it, and
// every port has it registered. A slot is its port's until the send has
// completed.
type slots struct {
	mem  []byte
	free []uint16
	used [slotCount]slotUse
}

// slotUse is the port that sends from a slot.
type slotUse struct {
	port *port
	wrs  int // work requests that send from it
}

func newSlots() *slots {
	o := &slots{mem: make([]byte, (slotCount+1)*slotSize), free: make([]uint16, 0, slotCount)}
	for i := range slotCount {
		o.free = append(o.free, uint16(slotCount-1-i))
	}
	return o
}

// take returns a free slot.
func (o *slots) take() (uint16, bool) {
	n := len(o.free)
	if n == 0 {
		return 0, false
	}
	slot := o.free[n-1]
	o.free = o.free[:n-1]
	return slot, true
}

// put gives a slot back that nothing is sent from.
func (o *slots) put(slot uint16) {
	if slot != spareSlot {
		o.free = append(o.free, slot)
	}
}

// bytes is the memory of a slot.
func (o *slots) bytes(slot uint16) []byte {
	at := int(slot) * slotSize
	return o.mem[at : at+slotSize : at+slotSize]
}

// lend notes that a port sends from a slot.
func (o *slots) lend(slot uint16, p *port, wrs int) {
	o.used[slot] = slotUse{port: p, wrs: wrs}
}

// returned is called for the completion of a slot; it tells how many work
// requests that were, 0 if the slot is not the port's.
func (o *slots) returned(slot uint16, p *port) int {
	if int(slot) >= slotCount || o.used[slot].port != p {
		return 0
	}
	n := o.used[slot].wrs
	o.used[slot] = slotUse{}
	o.put(slot)
	return n
}

// reclaim takes back all slots of a port that is gone.
func (o *slots) reclaim(p *port) {
	for i := range o.used {
		o.returned(uint16(i), p)
	}
}
