package interop

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/tests/interop/guest"
)

// adapterParts are what happens between two hosts whose gateways carry on adapters. Every make test runs those of the
// sample.
var adapterParts = []struct {
	name   string
	sample bool
	run    func(*adapterPair, context.Context, *testing.T)
}{
	{"carries", true, (*adapterPair).carriesAll},
	{"rings", false, (*adapterPair).rings},
	{"rings with one adapter", false, (*adapterPair).ringsOfOne},
	{"rings and a link that goes down", false, (*adapterPair).ringsDown},
	{"redis", false, (*adapterPair).redis},
	{"many at a time", false, (*adapterPair).churn},
	{"iperf3", false, (*adapterPair).iperf},
	{"nginx", false, (*adapterPair).web},
	{"nginx at once", false, (*adapterPair).rush},
	{"100 MB", false, (*adapterPair).big},
	{"link goes down", false, (*adapterPair).linkGoesDown},
	{"address goes", false, (*adapterPair).addressGoes},
	{"driver is unloaded", false, (*adapterPair).unload},
	{"gateway is killed", false, (*adapterPair).gatewayKilled},
	{"host is killed", false, (*adapterPair).hostKilled},
	{"memlock", false, (*adapterPair).memlock},
	{"provider missing", false, (*adapterPair).providerMissing},
	{"library missing", false, (*adapterPair).libraryMissing},
	{"more than a completion queue holds", false, (*adapterPair).manyConnections},
	{"more than hw_flows", false, (*adapterPair).flowLimit},
	{"next carrier", false, (*adapterPair).nextCarrier},
	{"takeover", false, (*adapterPair).takeover},
	{"datagrams", false, (*adapterPair).datagrams},
	{"no guardian", true, (*adapterPair).noGuardian},
}

// adapterPart is how long a part may take in guests that get a tenth of a machine.
const adapterPart = 15 * time.Minute

// TestAdapterHosts checks that gateways on the adapters of two kernels carry what programs send, and nothing but
// adapters does, through everything that happens to adapters. No part may leave anything on them.
func TestAdapterHosts(t *testing.T) {
	p := newAdapterPair(patience(t, 10*time.Minute), t)
	for _, part := range adapterParts {
		if !part.sample && !thorough() {
			continue
		}
		t.Run(part.name, func(t *testing.T) {
			ctx := patience(t, adapterPart)
			p.ready(ctx, t)
			part.run(p, ctx, t)
			p.end(ctx, t)
		})
	}
}

// carriesAll moves bytes both ways over both families.
func (p *adapterPair) carriesAll(ctx context.Context, t *testing.T) {
	p.up(ctx, t, adapterSettings{})
	require.Equal(t, report.DeviceActive, p.device(ctx, t, 0).State)
	before := [2]uint64{p.received(ctx, t, 0), p.received(ctx, t, 1)}
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
	p.transfer(ctx, t, at(p.guest[1].Addr6, transferPort))
	for i := range p.guest {
		st := p.status(ctx, t, i)
		require.GreaterOrEqual(t, st.BytesTotal[report.CarrierHW].Tx, uint64(2*transferSize))
		require.GreaterOrEqual(t, st.BytesTotal[report.CarrierHW].Rx, uint64(2*transferSize))
		require.Greater(t, p.received(ctx, t, i)-before[i], uint64(2*transferSize/1024))
		require.NotContains(t, p.sh(ctx, t, i, "ss -Hulnp"), "smcgw", "soft is not open")
	}
}

// unload removes the first gateway's adapter while it has connections, and brings it back. The kernel waits for
// whatever has an adapter open.
func (p *adapterPair) unload(ctx context.Context, t *testing.T) {
	p.up(ctx, t, adapterSettings{})
	talk := p.talks(ctx, t)
	var done admin.Result
	p.ask(ctx, t, 0, &done, "demote", "--device", guest.Device)
	_, err := p.guest[0].Run(patience(t, time.Minute), "rdma", "link", "delete", guest.Device)
	require.NoError(t, err, "a process has it open")
	p.sh(ctx, t, 0, "rdma link add "+guest.Device+" type rxe netdev eth0")
	p.becomes(ctx, t, 0, report.DeviceActive)
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
	talk.goOn(ctx, t)
}
