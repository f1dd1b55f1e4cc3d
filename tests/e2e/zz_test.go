package e2e

import (
	"testing"
	"time"

	"github.com/smcgw/smcgw/internal/testnet"
)

func TestZZ(t *testing.T) {
	w := newWorld(t, testnet.Config{})
	w.serve(w.h2)
	g1, g2 := w.up(w.h1, settings{}), w.up(w.h2, settings{})
	for range 2 {
		start := time.Now()
		e := w.mustApp(w.h1, "transfer", "-up", "100000000", "-down", "0", "-to", w.h2.AddrPort4(transferPort).String())
		t.Logf("%v: %+v", time.Since(start), e)
		w.carriedBy(e, w.via)
		start = time.Now()
		e = w.mustApp(w.h1, "transfer", "-up", "100000000", "-down", "100000000", "-to", w.h2.AddrPort4(transferPort).String())
		t.Logf("both %v: %+v", time.Since(start), e)
		w.carriedBy(e, w.via)
	}
	for _, g := range []*gw{g1, g2} {
		out, _ := g.cli("devices", "--counters")
		t.Log(out)
	}
}
