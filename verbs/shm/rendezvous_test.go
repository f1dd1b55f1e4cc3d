package shm

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/verbstest"
)

func listening(t testing.TB, change ...func(*Config)) (*Device, string) {
	dir := t.TempDir()
	d := openDevice(t, dir, change...)
	_, err := d.Listen()
	require.NoError(t, err)
	return d, dir
}

func offer(t testing.TB, d *Device) *Peer {
	p, err := d.Offer()
	require.NoError(t, err)
	return p
}

func TestAttachSharesOnePeer(t *testing.T) {
	d, dir := listening(t)
	c := openDevice(t, dir)
	p := offer(t, d)
	require.False(t, p.Connected())
	var wg sync.WaitGroup
	got := make([]*Peer, 500)        // so many that some come when it is half done
	usable := make([]bool, len(got)) // at once: every peer that is returned is fully connected
	for i := range got {
		wg.Go(func() {
			got[i], _ = c.Attach(context.Background(), p.Name(), p.Key())
			usable[i] = c.vectors[0].portOf(got[i]) != nil
		})
	}
	wg.Wait()
	for i, g := range got {
		require.NotNil(t, g)
		require.True(t, usable[i])
		require.Same(t, got[0], g)
	}
	require.True(t, p.Connected())
	require.Equal(t, c.cfg.GatewayID, p.Gateway())
	require.Equal(t, d.cfg.GatewayID, got[0].Gateway())
	require.Equal(t, p.Key(), got[0].Key())
	require.Len(t, c.Peers(), 1)
	require.Same(t, p, peerByGateway(d, c.cfg.GatewayID))
}

// Both gateways offer and attach at once: two independent peers, and both sides
// name the same one by gateway id.
func TestBothDirections(t *testing.T) {
	for range 20 {
		dir := t.TempDir()
		a, b := openDevice(t, dir), openDevice(t, dir)
		for _, d := range []*Device{a, b} {
			_, err := d.Listen()
			require.NoError(t, err)
		}
		oa, ob := offer(t, a), offer(t, b)
		errs := make(chan error, 2)
		go func() { _, err := a.Attach(context.Background(), ob.Name(), ob.Key()); errs <- err }()
		go func() { _, err := b.Attach(context.Background(), oa.Name(), oa.Key()); errs <- err }()
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)
		pa, pb := peerByGateway(a, b.cfg.GatewayID), peerByGateway(b, a.cfg.GatewayID)
		require.NotNil(t, pa)
		require.NotNil(t, pb)
		require.Equal(t, pa.Key(), pb.Key())
		require.NoError(t, pa.Close())
		<-pb.Done()
		require.NotNil(t, peerByGateway(a, b.cfg.GatewayID), "the other one lives on")
	}
}

func TestKeys(t *testing.T) {
	d, dir := listening(t)
	c := openDevice(t, dir)
	p := offer(t, d)
	ctx := context.Background()
	_, err := c.Attach(ctx, p.Name(), newID())
	require.ErrorIs(t, err, ErrKey)
	_, err = c.Attach(ctx, p.Name(), p.Key())
	require.NoError(t, err)
	other := openDevice(t, dir)
	_, err = other.Attach(ctx, p.Name(), p.Key())
	require.ErrorIs(t, err, ErrKey, "an offer is for one")
	q := offer(t, d)
	require.NoError(t, q.Close())
	<-q.Done()
	_, err = other.Attach(ctx, q.Name(), q.Key())
	require.ErrorIs(t, err, ErrKey, "withdrawn")
	_, err = d.Attach(ctx, p.Name(), p.Key())
	require.ErrorIs(t, err, verbs.ErrInvalid, "to itself")
}

func TestNames(t *testing.T) {
	d := openDevice(t, t.TempDir())
	good := nameOf(newID())
	for _, name := range []string{
		"", ".sock", "../" + good, "/etc/passwd", good + "x", strings.ToUpper(good), good[1:], "a/" + good[2:], strings.Repeat("z", 32) + ".sock",
	} {
		_, err := d.Attach(context.Background(), name, newID())
		require.ErrorIs(t, err, ErrName, name)
	}
	_, err := d.Attach(context.Background(), good, newID())
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestOfferNeedsListener(t *testing.T) {
	d := openDevice(t, t.TempDir())
	_, err := d.Offer()
	require.ErrorIs(t, err, verbs.ErrState)
}

func TestLimitsOfPeers(t *testing.T) {
	d, dir := listening(t, func(c *Config) { c.MaxPeers = 2 })
	p := offer(t, d)
	offer(t, d)
	_, err := d.Offer()
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	c := openDevice(t, dir, func(c *Config) { c.MaxPeers = 1 })
	_, err = c.Attach(context.Background(), p.Name(), p.Key())
	require.NoError(t, err)
	_, err = c.Attach(context.Background(), p.Name(), newID())
	require.ErrorIs(t, err, verbs.ErrNoMemory)
}

// A pending peer has memory and queue pairs; only RTR needs an attached peer.
func TestPendingPeer(t *testing.T) {
	d, dir := listening(t)
	p := offer(t, d)
	mr, err := p.PD().AllocMR(65536, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	h := newHost(t, d, p)
	require.ErrorIs(t, verbs.Connect(h.qp, verbs.ConnectAttr(5)), verbs.ErrRemoteGone)
	require.Equal(t, verbs.QPSInit, h.qp.State())
	c := openDevice(t, dir)
	pc, err := c.Attach(context.Background(), p.Name(), p.Key())
	require.NoError(t, err)
	hc := newHost(t, c, pc)
	hc.connect(h.qp.Num())
	hc.post(7) // before the other side is RTR
	h.connect(hc.qp.Num())
	require.Equal(t, uint32(7), h.recv().ImmData)
	h.post(8)
	require.Equal(t, uint32(8), hc.recv().ImmData)
	h.close()
	hc.close()
	require.NoError(t, mr.Close())
}

func TestPendingPeerClosed(t *testing.T) {
	d, _ := listening(t)
	p := offer(t, d)
	mr, err := p.PD().AllocMR(65536, verbs.AccessLocalWrite)
	require.NoError(t, err)
	h := newHost(t, d, p)
	require.NoError(t, p.Close())
	<-p.Done()
	mr.Bytes()[0] = 1 // still mapped
	require.NoError(t, mr.Close())
	h.close()
	settled(p)
	require.Zero(t, p.refs)
	ran := false
	p.AfterGrace(func() { ran = true })
	require.True(t, ran)
}

func TestListenTwiceAndSweep(t *testing.T) {
	d, dir := listening(t)
	_, err := d.Listen()
	require.Error(t, err)
	stale := filepath.Join(dir, nameOf(newID()))
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: stale, Net: "unixpacket"})
	require.NoError(t, err)
	ln.SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
	other := openDevice(t, dir)
	_, err = other.Listen()
	require.NoError(t, err)
	_, err = os.Lstat(stale)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = other.Attach(context.Background(), nameOf(d.cfg.GatewayID), newID())
	require.ErrorIs(t, err, ErrKey, "the living listener was not swept")
}

func TestLongDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 200))
	a, b := openDevice(t, dir), openDevice(t, dir)
	_, err := a.Listen()
	require.NoError(t, err)
	st, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), st.Mode().Perm())
	p := offer(t, a)
	_, err = b.Attach(context.Background(), p.Name(), p.Key())
	require.NoError(t, err)
}

func TestOpenDirectoryRefused(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o777))
	d := openDevice(t, dir)
	_, err := d.Listen()
	require.ErrorIs(t, err, ErrCredentials)
	_, err = d.Attach(context.Background(), nameOf(newID()), newID())
	require.ErrorIs(t, err, ErrCredentials)
}

func TestAuthorised(t *testing.T) {
	require.True(t, authorised(0))
	require.True(t, authorised(uint32(os.Geteuid())))
	require.False(t, authorised(uint32(os.Geteuid())+1))
}

// A process of another user gets no answer even with the right key and an open
// directory.
func TestOtherUser(t *testing.T) {
	testnet.Require(t, "root")
	d, dir := listening(t)
	for p := dir; p != "/tmp" && p != "/"; p = filepath.Dir(p) {
		require.NoError(t, os.Chmod(p, 0o755))
	}
	require.NoError(t, os.Chmod(filepath.Join(dir, nameOf(d.cfg.GatewayID)), 0o777))
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "SHM_TEST_CHILD=outsider "+filepath.Join(dir, nameOf(d.cfg.GatewayID)))
	out, err := cmd.Output()
	require.NoError(t, err, string(out))
	require.Equal(t, "3 0 <nil>\n", string(out))
	eventually(t, patience, func() bool { return d.Stats().Refused == 1 }, "refusal counted")
}

// A listener that does not answer costs the handshake timeout.
func TestSilentListener(t *testing.T) {
	dir := t.TempDir()
	d := openDevice(t, dir, func(c *Config) { c.HandshakeTimeout = 50 * time.Millisecond })
	name := nameOf(newID())
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unixpacket"})
	require.NoError(t, err)
	defer ln.Close()
	start := time.Now()
	_, err = d.Attach(context.Background(), name, newID())
	require.ErrorIs(t, err, unix.ETIMEDOUT)
	require.GreaterOrEqual(t, time.Since(start), d.cfg.HandshakeTimeout)
	require.Less(t, time.Since(start), patience)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = d.Attach(ctx, name, newID())
	require.ErrorIs(t, err, context.Canceled)
}

func TestConfig(t *testing.T) {
	_, err := Open(Config{})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	err = Config{Vectors: 65, PeerQuota: 1, MaxPeers: -1, HandshakeTimeout: -1}.Validate()
	for _, want := range []string{"gateway id", "vectors", "quota", "max peers", "timeout"} {
		require.ErrorContains(t, err, want)
	}
	d := openDevice(t, t.TempDir())
	require.NotEmpty(t, d.Name())
	_, err = d.AllocPD()
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	require.NoError(t, d.Close())
	_, err = d.CreateCQ(verbs.CQAttr{Depth: 1})
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = d.Drive(0, verbstest.Deaf{})
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = d.Attach(context.Background(), nameOf(newID()), newID())
	require.ErrorIs(t, err, verbs.ErrClosed)
}

// peerByGateway returns a connected peer with that gateway id, nil if there is
// none. Two gateways that have both offered and attached share two peers; both
// find the same one, that of the lower key.
func peerByGateway(d *Device, id [16]byte) *Peer {
	var found *Peer
	for _, p := range d.Peers() {
		if p.Gateway() == id && (found == nil || bytes.Compare(p.key[:], found.key[:]) < 0) {
			found = p
		}
	}
	return found
}

// Whatever their numbers of vectors and quotas are, devices accept each other's memory.
func TestLargestMemory(t *testing.T) {
	require.Less(t, newLayout(maxVectors).arena+MaxPeerQuota, uint64(maxPeerMemory))
	_, _, pa, _ := met(t, func(c *Config) { c.Vectors, c.PeerQuota = maxVectors, MaxPeerQuota })
	require.True(t, pa.Connected())
}
