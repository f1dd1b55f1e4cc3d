package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// datagramFault is what happens to the network while programs exchange datagrams.
type datagramFault struct {
	name string
	box  testnet.Box
	// server, if not nil, is what happens to what the server sends instead.
	server *testnet.Box
	// path: only the carrier's path is bad, so that everything is native after a while and then nothing is lost.
	path bool
	did  func(testnet.BoxStats) uint64
}

func noRoCE() testnet.Box { return testnet.Box{UDP: testnet.Datagrams{Port: rdmaPort, Loss: 1000}} }

var datagramFaults = []datagramFault{
	{name: "loss", box: testnet.Box{Loss: 30}, did: lost},
	{name: "duplication", box: testnet.Box{Dup: 100}, did: func(s testnet.BoxStats) uint64 { return s.Duplicated }},
	{name: "reordering", box: testnet.Box{Reorder: 100, Delay: time.Millisecond}, did: func(s testnet.BoxStats) uint64 { return s.Reordered }},
	{name: "delay", box: testnet.Box{Delay: 100 * time.Millisecond}, did: hopped},
	{name: "corruption", box: testnet.Box{Corrupt: testnet.Corruption{Chance: 50}}, did: corrupted},
	{name: "corrupt headers", box: testnet.Box{Corrupt: testnet.Corruption{Chance: 50, Headers: true}}, did: corrupted},
	{name: wrongRoCE, box: testnet.Box{Corrupt: testnet.Corruption{Chance: 100, Mend: true, UDPPort: rdmaPort}}, did: corrupted},
	{name: "partition", box: testnet.Box{Blackhole: true}, did: blackholed},
	{name: "deaf client", server: &testnet.Box{Blackhole: true}, did: blackholed},
	{name: "no RoCE to the server", box: noRoCE(), server: noServerFault, path: true, did: lost},
	{name: "no RoCE to the client", server: new(noRoCE()), path: true, did: lost},
	{name: "no large RoCE", box: testnet.Box{UDP: testnet.Datagrams{Port: rdmaPort, Larger: 300}}, path: true, did: func(s testnet.BoxStats) uint64 { return s.Larger }},
	{name: "little RoCE", box: testnet.Box{UDP: testnet.Datagrams{Port: rdmaPort, Rate: 300}}, did: func(s testnet.BoxStats) uint64 { return s.TooFast }},
	{name: "smaller MTU", box: testnet.Box{PathMTU: testnet.PathMTU{Bytes: 1000, Silent: true}}, did: tooBig},
}

type datagramCell struct {
	fault datagramFault
	via   report.Carrier
}

// TestFaultNetworkDatagrams checks that, whatever the network does, datagrams are lost only as UDP's are: none
// arrives that was not sent, or twice, or with other bytes. If only the carrier's path is bad, everything is native
// soon; afterwards everything is carried again.
func TestFaultNetworkDatagrams(t *testing.T) {
	t.Parallel()
	total := newTally(t)
	var cells []datagramCell
	for _, f := range datagramFaults {
		for _, via := range []report.Carrier{report.CarrierShm, report.CarrierSoft} {
			if via == report.CarrierSoft || !f.path && f.name != wrongRoCE && f.name != "little RoCE" {
				cells = append(cells, datagramCell{f, via})
			}
		}
	}
	for _, c := range matrix.Cells(t, cells, 1) {
		t.Run(c.fault.name+"/"+string(c.via), func(t *testing.T) { c.run(t, total) })
	}
}

func (c datagramCell) run(t *testing.T, total *tally) {
	d := newDatagramWorld(t)
	d.via = c.via
	d.begin(t, false)
	d.serve(d.h2) // gateways find each other again by TCP
	clients := d.startPingPong(t)
	start, err := d.net.BoxStats()
	require.NoError(t, err)
	server := c.fault.box
	if c.fault.server != nil {
		server = *c.fault.server
	}
	require.NoError(t, d.h1.SetBox(c.fault.box))
	require.NoError(t, d.h2.SetBox(server))
	if c.fault.path {
		require.Eventually(t, func() bool {
			e, err := d.h1.RunApp(t.Context(), "ping-udp", "-to", d.h2.AddrPort4(echoUDP).String(), "-count", "50", "-size", "24,1000,1400", "-patient", "-limit", "100ms")
			return err == nil && e.Lost == 0
		}, 30*time.Second, 100*time.Millisecond, "native, without loss\n%s", d.dumpUDP())
	} else {
		time.Sleep(2 * time.Second)
	}
	require.NoError(t, d.net.SetBox(testnet.Box{}))
	stats, err := d.net.BoxStats()
	require.NoError(t, err)
	total.faults(int64(c.fault.did(stats) - c.fault.did(start)))
	if c.via == report.CarrierSoft {
		require.Greater(t, c.fault.did(stats), c.fault.did(start), "the box did its work")
	}
	d.ping(t, d.h1, d.h2.AddrPort6(echoUDP).String(), "-count", "20", "-patient")
	for _, one := range clients {
		require.NoError(t, one.CloseInput())
	}
	for _, one := range clients {
		e := result(t, one)
		require.Zero(t, e.Failed, "%+v", e)
		require.Positive(t, e.OK)
		arrived := got(t, d.server, e.Local)
		if c.fault.box.Dup == 0 {
			require.LessOrEqual(t, arrived, e.OK+e.Lost, "none arrives twice: %+v", e)
		}
		total.add(1, e.Received, int64(e.Failed))
		t.Logf("%s: answered %d, lost %d, late %d", e.Remote, e.OK, e.Lost, e.Late)
	}
	if c.via == report.CarrierSoft { // a bad path is remembered for a minute
		if !matrix.Whole() {
			return
		}
		d.patience = 80 * time.Second
	} else {
		d.meetAgain(t)
	}
	d.now(t, true)
}
