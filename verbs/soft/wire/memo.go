package wire

// Memo caches the identifications that [ICRC.VerifyWith] found. The result depends only on the length, the masked byte
// and the difference between the CRC and the ICRC, and these repeat in the trains of a sender, whose identifications
// begin at 0 each time. The zero value is empty. It must not be used by two goroutines at a time.
type Memo struct {
	seen [memoSize]struct {
		family *family
		diff   uint32
		length uint16
		id     uint16
		masked byte
	}
}

// memoSize is a power of two larger than the number of datagrams in a train, of two lengths.
const (
	memoBits = 8
	memoSize = 1 << memoBits
)

// slot returns the slot of a difference.
func (*Memo) slot(diff uint32) uint32 { return diff * 0x9e3779b1 >> (32 - memoBits) }
