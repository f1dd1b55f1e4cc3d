package bench

import (
	"encoding/binary"
	"time"
)

// work is the purpose of a data connection.
type work uint8

// The works. The first bytes of a data connection, its order, select one.
const (
	// workUpload: the server reads to the end and answers with the number of bytes, 8 bytes long.
	workUpload work = 1 + iota
	// workDownload: the server writes for a time and closes.
	workDownload
	// workEcho: the server sends back what it receives.
	workEcho
	// workRequest: the server answers with size bytes and closes.
	workRequest
)

// The limits of an order; a server refuses larger ones.
const (
	maxOrderSize = 1 << 20
	maxOrderTime = time.Minute
)

// orderSize is the length of an order: magic(4) version(1) work(1) zero(2) size(4) milliseconds(4) session(16). It also
// is the request.
const orderSize = 32

// order requests a work in a session.
type order struct {
	work    work
	size    uint32 // size of the answer to a request, or of the messages of an echo
	time    time.Duration
	session [sessionSize]byte
}

func (o order) bytes() []byte {
	b := append([]byte(dataMagic), dataVersion, byte(o.work), 0, 0)
	b = binary.BigEndian.AppendUint32(b, o.size)
	b = binary.BigEndian.AppendUint32(b, uint32(o.time.Milliseconds()))
	return append(b, o.session[:]...)
}

// parseOrder parses an order and refuses one beyond the limits.
func parseOrder(b []byte) (o order, err error) {
	if len(b) < orderSize {
		return o, errShort
	}
	o = order{
		work: work(b[5]), size: binary.BigEndian.Uint32(b[8:]),
		time: time.Duration(binary.BigEndian.Uint32(b[12:])) * time.Millisecond, session: [sessionSize]byte(b[16:]),
	}
	switch {
	case string(b[:4]) != dataMagic || b[4] != dataVersion || b[6] != 0 || b[7] != 0:
		return order{}, malformed("order %x", b[:8])
	case o.work < workUpload || o.work > workRequest:
		return order{}, malformed("work %d", o.work)
	case o.size > maxOrderSize:
		return order{}, malformed("size %d, more than %d", o.size, maxOrderSize)
	case o.time > maxOrderTime:
		return order{}, malformed("%v of work, more than %v", o.time, maxOrderTime)
	}
	return o, nil
}
