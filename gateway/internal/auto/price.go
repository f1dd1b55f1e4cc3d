package auto

import "github.com/smcgw/smcgw/gateway/config"

// autoPrice is what a carrier costs more than kernel TCP, in the bytes that must
// be carried to make up for it: per move (a read from, or a write to, the local
// application's socket) and per connection (its handshake and rings). These are
// estimates of what cannot win, not measurements: what bulk gains where it is
// carried is compared (learner.compare).
type autoPrice struct{ move, conn uint64 }

// autoPrices are those of the carriers that can pay. The relay never does: its
// bytes take both the kernel's TCP and ours.
var autoPrices = map[config.Carrier]autoPrice{
	config.CarrierShm:  {move: 16 << 10, conn: 8 << 20},
	config.CarrierSoft: {move: 32 << 10, conn: 32 << 20},
	config.CarrierHW:   {move: 16 << 10, conn: 8 << 20},
	config.CarrierIB:   {move: 16 << 10, conn: 8 << 20},
}

// Score is how many times bytes make up for what connections and moves cost by a carrier.
func Score(carrier config.Carrier, conns, moves, bytes uint64) float64 {
	p := autoPrices[carrier]
	s := sums{paid: bytes, price: conns*p.conn + moves*p.move}
	return s.score()
}

// sums are what some connections of a service have shown while they were
// carried.
type sums struct {
	conns   uint64  // that began
	settled int     // that have ended, or lasted long enough to tell
	moves   uint64  // reads and writes of local applications' sockets
	bytes   uint64  // of both directions
	paid    uint64  // of these, the ones on carriers that can pay
	price   uint64  // what the connections and moves cost
	seconds float64 // that they lasted, added up
}

// add takes in what one connection did since the last time.
func (s *sums) add(e evidence) {
	if e.begun {
		s.conns++
	}
	if e.settled {
		s.settled++
	}
	s.moves += e.moves
	s.bytes += e.bytes
	s.seconds += e.seconds
	p, pays := autoPrices[e.carrier]
	if !pays {
		p = autoPrices[config.CarrierSoft]
	} else {
		s.paid += e.bytes
	}
	s.price += e.moves * p.move
	if e.begun {
		s.price += p.conn
	}
}

// decay halves the sums, so that what was long ago counts less.
func (s *sums) decay() {
	s.conns, s.moves, s.bytes, s.paid, s.price = s.conns/2, s.moves/2, s.bytes/2, s.paid/2, s.price/2
	s.settled, s.seconds = s.settled/2, s.seconds/2
}

// score is how many times the bytes have paid for the rest: carrying is worth it
// from 1 on.
func (s *sums) score() float64 {
	if s.price == 0 {
		return 0
	}
	return float64(s.paid) / float64(s.price)
}

// plenty reports whether n times as much has been seen as is enough to judge: as
// many connections as are sampled, or traffic that speaks for itself.
func (s *sums) plenty(n uint64) bool { return uint64(s.settled) >= n*Samples || s.much(n) }

// much reports whether traffic speaks for itself.
func (s *sums) much(n uint64) bool { return s.moves >= n*autoMoves || s.bytes >= n*autoBytes }

// mean is what a connection moved.
func (s *sums) mean() float64 { return quotient(s.bytes, s.conns) }

const (
	autoMoves = 512
	autoBytes = 64 << 20
)

func quotient(n, by uint64) float64 {
	if by == 0 {
		return 0
	}
	return float64(n) / float64(by)
}
