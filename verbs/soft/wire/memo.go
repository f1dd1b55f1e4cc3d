package wire

// Memo remembers of which datagrams [ICRC.VerifyWith] found the identification.
// What it finds follows from the length, the masked byte and what the CRC of the
// payload differs by from the ICRC; the trains of a sender repeat these, since
// their identifications begin at 0 each time. The zero value is empty. One
// goroutine at a time may use it.
type Memo struct {
	seen [memoSize]struct {
		family *family
		diff   uint32
		length uint16
		id     uint16
		masked byte
	}
}

// memoSize is a power of two above the datagrams of a train, of two lengths.
const (
	memoBits = 8
	memoSize = 1 << memoBits
)

// slot is where a difference is remembered.
func (*Memo) slot(diff uint32) uint32 { return diff * 0x9e3779b1 >> (32 - memoBits) }
