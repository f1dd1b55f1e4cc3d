package datagram

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/verbs"
)

// adapterTime is how long the kernel waits for the link address of a host on the link that does not answer
// (rdma_addr_find_l2_eth_by_grh: 1000 ms): ibv_create_ah of an adapter.
const adapterTime = time.Second

type slowNetwork struct{ Network }

func (n slowNetwork) DeviceAt(local, remote netip.Addr) (Device, error) {
	d, err := n.Network.DeviceAt(local, remote)
	if err == nil {
		d.Device = slowDevice{d.Device}
	}
	return d, err
}

type slowDevice struct{ verbs.Device }

func (d slowDevice) AllocPD() (verbs.PD, error) {
	p, err := d.Device.AllocPD()
	return slowPD{p}, err
}

type slowPD struct{ verbs.PD }

func (p slowPD) CreateAH(a verbs.AHAttr) (verbs.AH, error) {
	time.Sleep(adapterTime)
	return p.PD.CreateAH(a)
}

// TestQueriesKeepNoShardWaiting: queries of hosts that do not answer ARP must not keep the loop from its turn.
func TestQueriesKeepNoShardWaiting(t *testing.T) {
	h := newHosts(t, config.DeviceSoft)
	h.stop(0)
	h.stop(1)
	h.edit = func(_ int, list []Fabric) { list[0] = slowNetwork{list[0].(Network)} }
	h.start(1)
	e := h.engine(1)
	to := netip.AddrPortFrom(pairAddrs[1], h.port)
	for i := range byte(4) {
		from := netip.AddrFrom4([4]byte{127, 77, 1, i + 1})
		c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, h.port)))
		require.NoError(t, err)
		defer c.Close()
		r := resolve.Resolve{
			Nonce: resolve.QueryNonce{i + 1}, MinVersion: negotiate.MinVersion, MaxVersion: negotiate.Version, GatewayID: [16]byte{9, i}, Target: to,
			Offers: []resolve.UDOffer{{Kind: negotiate.CarrierSoft, MTU: 1024, QPN: 77, QKey: 5, GID: verbs.GIDOf(from), UDPPort: h.soft}},
		}
		_, err = c.WriteToUDPAddrPort(resolve.AppendResolve(nil, &r), to)
		require.NoError(t, err)
	}
	var late time.Duration
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		late = max(late, e.s.Late(time.Now()))
	}
	t.Log("the loop was late by", late)
	require.Less(t, late, adapterTime/2)
}
