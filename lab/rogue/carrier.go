package rogue

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/smcgw/smcgw/lab/loop"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
	"github.com/smcgw/smcgw/verbs/soft"
)

const (
	memorySize  = 1 << 20
	targetsSize = 4096 // at its beginning: where the peer writes its grants
	depth       = 512
)

// Device is an RDMA device of a rogue, driven by its own goroutine.
type Device struct {
	Soft *soft.Device // nil on shm
	Shm  *shm.Device  // nil on soft
	loop *loop.Loop
	cq   verbs.CQ
}

// OpenSoft opens a device on an address of the host on which within runs functions.
func OpenSoft(within func(func() error) error, addr netip.Addr) (*Device, error) {
	d := &Device{}
	err := within(func() (err error) {
		d.Soft, err = soft.Open(soft.Config{Addrs: []netip.Addr{addr}, Within: within})
		return err
	})
	if err != nil {
		return nil, err
	}
	return d, d.start(d.Soft)
}

// OpenShm opens a device that offers memory in a rendezvous directory.
func OpenShm(dir string, s Self) (*Device, error) {
	dev, err := shm.Open(shm.Config{Dir: dir, GatewayID: s.GatewayID, PeerQuota: 16 << 20, MaxPeers: 1 << 16})
	if err != nil {
		return nil, err
	}
	if _, err := dev.Listen(); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	d := &Device{Shm: dev}
	return d, d.start(dev)
}

func (d *Device) start(dev verbs.Device) error {
	var err error
	if d.cq, err = dev.CreateCQ(verbs.CQAttr{Depth: 1 << 14}); err == nil {
		d.loop, err = loop.New(dev, 0, d.turn)
	}
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	return nil
}

// turn discards completions.
func (d *Device) turn() bool {
	var wcs [64]verbs.WC
	n, _ := d.cq.Poll(wcs[:])
	return n > 0
}

// Close closes the device.
func (d *Device) Close() error {
	err := d.loop.Close()
	if d.Soft != nil {
		return errors.Join(err, d.Soft.Close())
	}
	return errors.Join(err, d.Shm.Close())
}

// Carrier is a queue pair with memory for one connection.
type Carrier struct {
	dev  *Device
	peer *shm.Peer
	qp   verbs.QP
	mr   verbs.MR
	psn  uint32

	Offer negotiate.CarrierOffer
	// Peer is the server's answer, and PeerConn its memory.
	Peer     negotiate.CarrierOffer
	PeerConn rsocket.ConnData
}

// NewCarrier makes a queue pair, and its description for a PROPOSAL. On shm each queue pair has an offer of its own.
func (d *Device) NewCarrier() (*Carrier, error) {
	c := &Carrier{dev: d, psn: rand.Uint32() & 0xffffff}
	var pd verbs.PD
	var err error
	if d.Soft != nil {
		pd, err = d.Soft.AllocPD()
	} else if c.peer, err = d.Shm.Offer(); err == nil {
		pd = c.peer.PD()
	}
	if err != nil {
		return nil, err
	}
	if c.mr, err = pd.AllocMR(memorySize, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return nil, err
	}
	c.qp, err = pd.CreateQP(&verbs.QPInitAttr{
		SendCQ: d.cq, RecvCQ: d.cq, Type: verbs.QPTRC,
		Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxInline: 64},
	})
	if err != nil {
		return nil, err
	}
	if err := verbs.Init(c.qp, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return nil, err
	}
	for range depth {
		if err := c.qp.PostRecv(&verbs.RecvWR{}); err != nil {
			return nil, err
		}
	}
	c.describe()
	return c, nil
}

func (c *Carrier) describe() {
	conn := rsocket.ConnData{
		Credits:   depth / 2,
		TargetSGL: rsocket.SGE{Addr: c.mr.Addr(), Key: c.mr.RKey(), Length: rsocket.MaxTargets},
		DataBuf:   rsocket.SGE{Addr: c.mr.Addr() + targetsSize, Key: c.mr.RKey(), Length: 256 << 10},
	}
	conn.Append(c.Offer.Conn[:0])
	if c.peer != nil {
		c.Offer.Kind = negotiate.CarrierSHM
		c.Offer.SHM = negotiate.SHMEndpoint{Name: c.peer.Name(), Key: c.peer.Key(), QPN: c.qp.Num()}
		return
	}
	port := c.dev.Soft.Port()
	c.Offer.Kind = negotiate.CarrierSoft
	c.Offer.RoCE = negotiate.RoCEEndpoint{
		GID: port.GIDs[0].GID, UDPPort: port.UDPPort, MTU: uint16(port.ActiveMTU.Bytes()), QPN: c.qp.Num(), PSN: c.psn,
	}
}

// Connect connects the queue pair as the ACCEPT says.
func (c *Carrier) Connect(a negotiate.Accept) error {
	to := negotiate.FindCarrier(a.Carriers, c.Offer.Kind)
	if to == nil {
		return fmt.Errorf("no %v in the accept: %w", c.Offer.Kind, verbs.ErrNotSupported)
	}
	c.Peer = *to
	var err error
	if c.PeerConn, err = rsocket.ParseConnData(to.Conn[:]); err != nil {
		return err
	}
	attr := verbs.ConnectAttr(to.SHM.QPN)
	if c.dev.Soft != nil {
		attr = verbs.QPAttr{
			DestQPNum: to.RoCE.QPN, RQPSN: to.RoCE.PSN, SQPSN: c.psn, PathMTU: verbs.MTU1024,
			AH:          verbs.AHAttr{DGID: to.RoCE.GID, UDPPort: to.RoCE.UDPPort, HopLimit: 64, Port: 1},
			MinRNRTimer: 12, Timeout: 14, RetryCnt: 3, RNRRetry: 3, MaxRDAtomic: 1, MaxDestRDAtomic: 1,
		}
	}
	return c.Do(func(qp verbs.QP) error { return verbs.Connect(qp, attr) })
}

// Do runs fn with the queue pair, which it may use in any way.
func (c *Carrier) Do(fn func(qp verbs.QP) error) (err error) {
	if lerr := c.dev.loop.Do(func() { err = fn(c.qp) }); lerr != nil {
		return lerr
	}
	return err
}

// Say writes n bytes to an address of the peer, with an immediate.
func (c *Carrier) Say(imm rsocket.Imm, to rsocket.SGE, n int) error {
	wr := verbs.SendWR{
		Opcode: verbs.WRRDMAWriteWithImm, ImmData: uint32(imm), RemoteAddr: to.Addr, RKey: to.Key,
		Flags: verbs.SendSignaled | verbs.SendPush,
	}
	if n > 0 {
		wr.SGList = []verbs.SGE{{Addr: c.mr.Addr(), Length: uint32(n), LKey: c.mr.LKey()}}
	}
	return c.Do(func(qp verbs.QP) error { return qp.PostSend(&wr) })
}

// Fill sets the bytes that Say sends.
func (c *Carrier) Fill(b []byte) { copy(c.mr.Bytes(), b) }

// Down returns a channel that is closed when the shm peer is down; nil on soft.
func (c *Carrier) Down() <-chan struct{} {
	if c.peer == nil {
		return nil
	}
	return c.peer.Done()
}

// Close releases everything.
func (c *Carrier) Close() error {
	err := c.Do(verbs.QP.Close)
	err = errors.Join(err, c.mr.Close())
	if c.peer != nil {
		err = errors.Join(err, c.peer.Close())
	}
	return err
}
