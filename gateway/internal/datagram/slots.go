package datagram

const (
	// slotCount is the number of datagrams of local programs in flight to their carriers.
	// When all slots are in use, the app TUN is not read, and its queue drops like that of a
	// network card.
	slotCount = 256
	// slotSize holds any packet. Memory is allocated as it is touched.
	slotSize = 65 << 10
	// spareSlot is never sent from: what is read into it goes back to the network.
	spareSlot = slotCount
)

// slots is the memory that datagrams are sent from: the app TUN is read into it, and every
// port has registered it. A slot belongs to a port until the send has completed.
type slots struct {
	mem  []byte
	free []uint16
	used [slotCount]slotUse
}

// slotUse is the port that sends from a slot.
type slotUse struct {
	port *port
	wrs  int // work requests sent from it
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

// put returns a slot from which nothing is being sent.
func (o *slots) put(slot uint16) {
	if slot != spareSlot {
		o.free = append(o.free, slot)
	}
}

// bytes returns the memory of a slot.
func (o *slots) bytes(slot uint16) []byte {
	at := int(slot) * slotSize
	return o.mem[at : at+slotSize : at+slotSize]
}

// lend records that a port sends from a slot.
func (o *slots) lend(slot uint16, p *port, wrs int) {
	o.used[slot] = slotUse{port: p, wrs: wrs}
}

// returned is called for the completion of a slot. It returns the number of its work
// requests, or 0 if the slot does not belong to the port.
func (o *slots) returned(slot uint16, p *port) int {
	if int(slot) >= slotCount || o.used[slot].port != p {
		return 0
	}
	n := o.used[slot].wrs
	o.used[slot] = slotUse{}
	o.put(slot)
	return n
}

// reclaim frees all slots of a port that is gone.
func (o *slots) reclaim(p *port) {
	for i := range o.used {
		o.returned(uint16(i), p)
	}
}
