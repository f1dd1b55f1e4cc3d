package main

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/bench"
	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
)

// Each reason is explained once, and a service without an answer has a remedy, within the
// lines of a terminal.
func TestPingSummary(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.2:6379")
	r := &bench.PingReport{Native: 2, Failed: 2, Minimum: 0.0001, Median: 0.0002, Maximum: 0.0003, Tries: []bench.PingTry{
		{Service: at, Reason: "policy", DecidedBy: "local"},
		{Service: at, Reason: "policy", DecidedBy: "local"},
		{Service: at, Error: bench.NoAnswer},
		{Service: at, Error: bench.NoAnswer},
	}}
	require.Equal(t, ""+
		"0 carried, 0 relayed, 2 native, 2 without a connection; connect 100µs / 200µs /\n"+
		"300µs (least, median, most)\n"+
		"policy: No policy rule selects this connection.\n"+
		"  > Add a rule with action accelerate; with `way: in-process` it selects\n"+
		"    programs with the library only. The first rule that matches decides; `smcgw\n"+
		"    policy` lists them in order.\n"+
		"  > smcgw ping --offer says what the peer would do.\n"+
		"no answer: Nothing came back, although the SYN is sent again without the offer.\n"+
		"  > Look at the service, the firewall of its host and the way there. smcgw off\n"+
		"    and another try show that it is the same without smcgw.\n",
		pingSummary(screen.New(nil, 80, false), r))
	require.Equal(t, "10.0.0.2:6379  3  1.5ms  no connection: connection refused",
		pingLine(bench.PingTry{Service: at, Sequence: 3, ConnectSeconds: 0.0015, Error: "connection refused"}))
}
