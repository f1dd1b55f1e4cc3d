package datagram

import (
	"bytes"
	"fmt"
	"time"
)

const (
	// asmPerPeer bounds the datagrams of one peer being reassembled, asmTotal those of all
	// peers. The oldest, of the peer or of all, makes room: pieces are sent together, so it
	// is the one that will not be completed.
	asmPerPeer = 16
	asmTotal   = 256
	// asmWindow is how far behind a peer's newest datagram another may be.
	asmWindow = 256
	// asmPatience is how long the next piece may take. Pieces are sent together.
	asmPatience = 50 * time.Millisecond
	// idRest is how long a sender leaves an id unused. Together with the window and the
	// patience, it ensures that pieces of two datagrams with the same id never mix.
	idRest = 2 * asmPatience
	// idBlock is the number of ids that share a time of last use.
	idBlock = 1 << (idBits - 2)
)

// pieceIDs allocates the ids of datagrams sent in pieces.
type pieceIDs struct {
	next uint16
	used [1 << idBits / idBlock]time.Time // last use of each block
}

// take returns the next id, or false if it was used too recently.
func (d *pieceIDs) take(now time.Time) (uint16, bool) {
	id := d.next & idMask
	used := &d.used[id/idBlock]
	if id%idBlock == 0 && now.Sub(*used) < idRest {
		return 0, false
	}
	*used = now
	d.next++
	return id, true
}

// partial is an incomplete datagram. All pieces but the last have the same length, and all
// have the same headers.
type partial struct {
	of           *reassembly
	older, newer *partial // in the pool

	id      uint16
	seen    time.Time // of the latest piece
	headers [headers6]byte
	ends    endPair
	hlen    int
	size    int // of each piece but the last; 0 until one of those has come
	count   int // number of pieces; 0 until the last one has come
	have    int
	lastLen int
	got     [(maxPieces + 63) / 64]uint64
	buf     []byte // headroom, then the payload; the last piece is kept at the very end until size is known
}

// asmBuffer is the size of a buffer for any payload behind its headroom.
const asmBuffer = headroom + maxPayload + 1

// asmPool is the memory of all reassemblies, bounded by asmTotal.
type asmPool struct {
	free           []*partial
	taken          int
	oldest, newest *partial // among those taken
}

// take returns an unused partial for r, as the newest one taken.
func (p *asmPool) take(r *reassembly) *partial {
	if p.taken == asmTotal {
		p.oldest.of.drop(p.oldest)
	}
	var t *partial
	if n := len(p.free); n > 0 {
		t = p.free[n-1]
		p.free = p.free[:n-1]
	} else {
		t = &partial{buf: make([]byte, asmBuffer)}
	}
	p.taken++
	*t = partial{of: r, older: p.newest, buf: t.buf}
	if p.newest == nil {
		p.oldest = t
	} else {
		p.newest.newer = t
	}
	p.newest = t
	return t
}

func (p *asmPool) put(t *partial) {
	if t.older == nil {
		p.oldest = t.newer
	} else {
		t.older.newer = t.newer
	}
	if t.newer == nil {
		p.newest = t.older
	} else {
		t.newer.older = t.older
	}
	t.of, t.older, t.newer = nil, nil, nil
	p.taken--
	p.free = append(p.free, t)
}

// reassembly reassembles the pieces from one peer. A datagram is delivered whole or not at
// all.
type reassembly struct {
	pool    *asmPool
	parts   []*partial // in the order of their first pieces
	newest  uint16
	dropped uint64 // datagrams dropped
}

// add adds one piece. msg begins with both headers, which ends names. If the piece completes
// a datagram, whole is its buffer, with the payload of n bytes at headroom; it is valid until
// the next call.
func (r *reassembly) add(now time.Time, imm immediate, ends endPair, msg []byte) (whole []byte, n int, err error) {
	hlen := ends.headersLen()
	piece := msg[hlen:]
	if len(piece) == 0 && imm.index > 0 {
		return nil, 0, fmt.Errorf("piece %d without bytes: %w", imm.index, errMalformed)
	}
	t := r.find(now, imm.id)
	if t == nil {
		t = r.begin(now, imm.id, ends, msg[:hlen])
	}
	if t.hlen != hlen || !bytes.Equal(t.headers[:hlen], msg[:hlen]) {
		r.drop(t)
		return nil, 0, fmt.Errorf("pieces of one datagram with different headers: %w", errMalformed)
	}
	t.seen = now
	if !t.put(imm, piece) {
		r.drop(t)
		return nil, 0, fmt.Errorf("piece %d of %d bytes does not fit: %w", imm.index, len(piece), errMalformed)
	}
	if t.count == 0 || t.have < t.count {
		return nil, 0, nil
	}
	n = (t.count-1)*t.size + t.lastLen
	r.remove(t)
	return t.buf, n, nil
}

// find returns the datagram that a piece belongs to, or nil. It drops datagrams whose ids
// could be confused with those of newer ones.
func (r *reassembly) find(now time.Time, id uint16) *partial {
	r.expire(now)
	ahead := (id - r.newest) & idMask
	switch {
	case len(r.parts) == 0, ahead < idMask/2:
		r.newest = id
	case idMask+1-ahead > asmWindow: // not late but unrelated: start over
		r.clear()
		r.newest = id
	}
	for i := 0; i < len(r.parts); {
		if t := r.parts[i]; (r.newest-t.id)&idMask > asmWindow {
			r.drop(t)
			continue
		}
		i++
	}
	for _, t := range r.parts {
		if t.id == id {
			return t
		}
	}
	return nil
}

// begin starts reassembling one more datagram, making room if needed.
func (r *reassembly) begin(now time.Time, id uint16, ends endPair, headers []byte) *partial {
	if len(r.parts) == asmPerPeer {
		r.drop(r.parts[0])
	}
	t := r.pool.take(r)
	t.id, t.seen, t.ends, t.hlen = id, now, ends, len(headers)
	copy(t.headers[:], headers)
	r.parts = append(r.parts, t)
	return t
}

// put stores a piece. It returns false if the piece cannot belong to the datagram.
func (t *partial) put(imm immediate, piece []byte) bool {
	if t.got[imm.index/64]>>(imm.index%64)&1 != 0 {
		return true // a duplicate
	}
	switch {
	case !imm.last:
		if t.size == 0 {
			t.size = len(piece)
		}
		if t.size != len(piece) || t.size == 0 || t.count > 0 && imm.index >= t.count-1 {
			return false
		}
	case t.count > 0:
		return false // a second last piece
	case t.size == 0 && imm.index > 0: // its offset is not known yet
		t.count, t.lastLen = imm.index+1, len(piece)
		copy(t.buf[len(t.buf)-len(piece):], piece)
		t.mark(imm.index)
		return true
	default:
		t.count, t.lastLen = imm.index+1, len(piece)
	}
	return t.place(imm, piece)
}

// place copies a piece to its offset. The first piece that reveals the size also moves an
// early last piece into place.
func (t *partial) place(imm immediate, piece []byte) bool {
	early := !imm.last && t.count > 0 && t.have == 1 && t.got[(t.count-1)/64]>>((t.count-1)%64)&1 != 0
	total := imm.index*t.size + len(piece)
	if t.count > 0 {
		total = max(total, (t.count-1)*t.size+t.lastLen)
	}
	if !t.ends.fits(total) || imm.last && t.size > 0 && len(piece) > t.size || early && t.lastLen > t.size ||
		imm.last && t.above(imm.index) {
		return false
	}
	if early {
		copy(t.buf[headroom+(t.count-1)*t.size:], t.buf[len(t.buf)-t.lastLen:])
	}
	copy(t.buf[headroom+imm.index*t.size:], piece)
	t.mark(imm.index)
	return true
}

// above reports whether there is a piece beyond the last one.
func (t *partial) above(last int) bool {
	for i := last + 1; i < maxPieces; i++ {
		if t.got[i/64]>>(i%64)&1 != 0 {
			return true
		}
	}
	return false
}

func (t *partial) mark(index int) {
	t.got[index/64] |= 1 << (index % 64)
	t.have++
}

// expire drops datagrams whose pieces have stopped coming.
func (r *reassembly) expire(now time.Time) {
	for i := 0; i < len(r.parts); {
		if now.Sub(r.parts[i].seen) > asmPatience {
			r.drop(r.parts[i])
			continue
		}
		i++
	}
}

func (r *reassembly) drop(t *partial) {
	r.dropped++
	r.remove(t)
}

// clear drops everything.
func (r *reassembly) clear() {
	for len(r.parts) > 0 {
		r.drop(r.parts[0])
	}
}

func (r *reassembly) remove(t *partial) {
	for i, o := range r.parts {
		if o == t {
			r.parts = append(r.parts[:i], r.parts[i+1:]...)
			r.pool.put(t)
			return
		}
	}
}
