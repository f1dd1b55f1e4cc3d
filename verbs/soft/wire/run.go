package wire

// Run computes the initial states of packets of one flow that have the same length and no extension headers, and whose
// BTHs differ only in the last word: those in the middle of a message. Only that word of their headers goes through the
// CRC.
type Run struct {
	family *family
	state  uint32 // after a BTH whose last word is zero, identification 0
}

// BeginRun prepares a run of datagrams with a UDP payload of n bytes. The last word of bth, as encoded by Append, is
// ignored.
func (c *ICRC) BeginRun(n int, bth []byte) Run {
	f := c.family
	var b [BTHLen]byte
	copy(b[:BTHLen-4], bth)
	return Run{f, f.afterBTH(c.state^f.lengths[n].state, b[:])}
}

// At returns what [ICRC.Begin] would: the state after the BTH whose last word is word. id is the IPv4 identification,
// ignored for IPv6.
func (r *Run) At(id uint16, word uint32) uint32 {
	t := &r.family.bth
	s := r.state ^ t[8][word>>24] ^ t[9][byte(word>>16)] ^ t[10][byte(word>>8)] ^ t[11][byte(word)]
	if int(id) < len(r.family.train) {
		return s ^ r.family.train[id]
	}
	return s ^ r.family.idAfterBTH(id)
}

// idAfterBTH returns the contribution of an identification after the BTH.
func (f *family) idAfterBTH(id uint16) uint32 {
	x := f.idHigh[id>>8] ^ f.idLow[id&0xff]
	return f.bth[0][byte(x)] ^ f.bth[1][byte(x>>8)] ^ f.bth[2][byte(x>>16)] ^ f.bth[3][x>>24]
}
