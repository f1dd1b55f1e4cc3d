package resolve

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"time"
)

// Cookie is what a gateway with a key demands in a RESOLVE before it believes it. The gateway has sent it to the
// sender's address shortly before, for this very query. So a recorded query is worthless later or from elsewhere, and
// the gateway keeps no state about senders.
type Cookie [16]byte

// cookieInterval is how long the same cookie is given out; it is accepted for as long again.
const cookieInterval = 30 * time.Second

// cookieJar makes and recognises cookies.
type cookieJar struct {
	secret [32]byte
	born   time.Time
}

func newCookieJar(nonce func() [16]byte) cookieJar {
	var j cookieJar
	a, b := nonce(), nonce()
	copy(j.secret[:], a[:])
	copy(j.secret[16:], b[:])
	return j
}

// epoch returns the number of intervals since the first use.
func (j *cookieJar) epoch(now time.Time) uint64 {
	if j.born.IsZero() {
		j.born = now
	}
	return uint64(max(now.Sub(j.born), 0) / cookieInterval)
}

// make returns the cookie for the query with the given nonce between two ends.
func (j *cookieJar) make(epoch uint64, local, from netip.AddrPort, nonce QueryNonce) Cookie {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 8+2*(16+2)+len(nonce)), epoch)
	for _, end := range []netip.AddrPort{local, from} {
		ip := end.Addr().As16()
		b = binary.BigEndian.AppendUint16(append(b, ip[:]...), end.Port())
	}
	h := hmac.New(sha256.New, j.secret[:])
	h.Write(append(b, nonce[:]...))
	return Cookie(h.Sum(nil)[:len(Cookie{})])
}

// fresh returns the cookie to give out at now.
func (j *cookieJar) fresh(local, from netip.AddrPort, nonce QueryNonce, now time.Time) Cookie {
	return j.make(j.epoch(now), local, from, nonce)
}

// knows reports whether c was given out for this query in the current interval or the one before.
func (j *cookieJar) knows(c Cookie, local, from netip.AddrPort, nonce QueryNonce, now time.Time) bool {
	e := j.epoch(now)
	for _, told := range []uint64{e, max(e, 1) - 1} {
		if want := j.make(told, local, from, nonce); hmac.Equal(want[:], c[:]) {
			return true
		}
	}
	return false
}
