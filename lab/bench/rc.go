package bench

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/smcgw/smcgw/lab/loop"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft"
)

// rcProgram is a reliable connection of the soft device alone, without a TCP program, with one process per side: "serve
// ADDRESS", and "send LOCAL SERVER MTU SECONDS", which writes for that long and prints an [rcStream].
const rcProgram = "bench-rc"

// rcServing is what the server prints when it is ready.
const rcServing = "serving"

// rcPort is the port on which the two sides exchange the data of their queue pairs.
const rcPort = 7100

// The memory that is written to repeatedly, and the number of WRITEs in flight.
const (
	rcRegion = 1 << 20
	rcSize   = 256 << 10
	rcDepth  = 16
)

// rcStream is the result of a stream.
type rcStream struct {
	Bytes   int64   `json:"bytes"` // acknowledged ones
	Seconds float64 `json:"seconds"`
}

// bareStream sends a stream of RDMA WRITEs from the client's host to the server's.
func (c cable) bareStream(ctx context.Context, d time.Duration) (bytes, seconds float64, err error) {
	mtu := 1024
	if c.mtu >= 4096+80 {
		mtu = 4096
	}
	var r rcStream
	if err := c.client.runOurs(ctx, &r, rcProgram, "send", c.local.String(), c.addr.String(), strconv.Itoa(mtu), strconv.FormatFloat(d.Seconds(), 'f', -1, 64)); err != nil {
		return 0, 0, err
	}
	if r.Bytes == 0 || r.Seconds == 0 {
		return 0, 0, fmt.Errorf("%s: %w: %+v", rcProgram, testnet.ErrOutput, r)
	}
	return float64(r.Bytes), r.Seconds, nil
}

func rcMain(args []string) (any, error) {
	switch {
	case len(args) == 2 && args[0] == "serve":
		addr, err := netip.ParseAddr(args[1])
		if err != nil {
			return nil, err
		}
		return nil, rcServe(addr)
	case len(args) == 5 && args[0] == "send":
		local, err1 := netip.ParseAddr(args[1])
		server, err2 := netip.ParseAddr(args[2])
		mtu, err3 := strconv.Atoi(args[3])
		long, err4 := strconv.ParseFloat(args[4], 64)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return nil, err
		}
		return rcSend(local, server, mtu, time.Duration(long*float64(time.Second)))
	default:
		return nil, flag.ErrHelp
	}
}

// rcDevice is an open device with its loop. Only the loop accesses turn.
type rcDevice struct {
	*soft.Device
	pd   verbs.PD
	loop *loop.Loop
	turn func() bool
}

func rcOpen(addr netip.Addr) (*rcDevice, error) {
	dev, err := soft.Open(soft.Config{Addrs: []netip.Addr{addr}})
	if err != nil {
		return nil, err
	}
	d := &rcDevice{Device: dev}
	if d.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	d.loop, err = loop.New(dev, 0, func() bool { return d.turn != nil && d.turn() })
	return d, err
}

// doing runs f in the loop.
func (d *rcDevice) doing(f func() error) (err error) {
	if gone := d.loop.Do(func() { err = f() }); gone != nil {
		return gone
	}
	return err
}

// rcEnd is what one side tells the other about its queue pair.
type rcEnd struct {
	QPN, RKey uint32
	Addr      uint64
	IP        netip.Addr
	MTU       int
}

// rcPair is one queue pair with its memory.
type rcPair struct {
	d  *rcDevice
	cq verbs.CQ
	qp verbs.QP
	mr verbs.MR
}

func (d *rcDevice) pair() (p *rcPair, err error) {
	p = &rcPair{d: d}
	if p.cq, err = d.CreateCQ(verbs.CQAttr{Depth: 2 * rcDepth}); err != nil {
		return nil, err
	}
	if p.mr, err = d.pd.AllocMR(rcRegion, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return nil, err
	}
	p.qp, err = d.pd.CreateQP(&verbs.QPInitAttr{
		SendCQ: p.cq, RecvCQ: p.cq, Type: verbs.QPTRC,
		Cap: verbs.QPCap{MaxSendWR: rcDepth, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return nil, err
	}
	return p, verbs.Init(p.qp, verbs.AccessRemoteWrite)
}

// talk is the connection over which the two sides exchange rcEnds.
type talk struct {
	net.Conn
	*json.Encoder
	*json.Decoder
}

func newTalk(c net.Conn) talk { return talk{c, json.NewEncoder(c), json.NewDecoder(c)} }

// meet sends the other side the data of the pair, connects with the data that it gets, and returns that.
func (p *rcPair) meet(t talk, ip netip.Addr, mtu int) (peer rcEnd, err error) {
	if err := t.Encode(rcEnd{p.qp.Num(), p.mr.RKey(), p.mr.Addr(), ip, mtu}); err != nil {
		return peer, err
	}
	if err := t.Decode(&peer); err != nil {
		return peer, err
	}
	attr := verbs.ConnectAttr(peer.QPN)
	attr.AH = verbs.AHAttr{DGID: verbs.GIDOf(peer.IP), Port: 1}
	for attr.PathMTU = verbs.MTU256; attr.PathMTU < verbs.MTU4096 && attr.PathMTU.Bytes() < max(mtu, peer.MTU); {
		attr.PathMTU++
	}
	return peer, p.d.doing(func() error { return verbs.Connect(p.qp, attr) })
}

func (p *rcPair) close() error {
	return p.d.doing(func() error {
		p.d.turn = nil
		return errors.Join(p.qp.Close(), p.cq.Close(), p.mr.Close())
	})
}

// rcServe is the receiving side of any number of streams, one after the other.
func rcServe(addr netip.Addr) error {
	d, err := rcOpen(addr)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", netip.AddrPortFrom(addr, rcPort).String())
	if err != nil {
		return err
	}
	fmt.Println(rcServing)
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		if err := rcServeOne(d, c, addr); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		_ = c.Close()
	}
}

func rcServeOne(d *rcDevice, c net.Conn, addr netip.Addr) error {
	p, err := d.pair()
	if err != nil {
		return err
	}
	t := newTalk(c)
	if _, err = p.meet(t, addr, 0); err == nil {
		err = t.Encode("ready")
	}
	if err == nil {
		_ = t.Decode(new(string)) // wait until the stream is over
	}
	return errors.Join(err, p.close())
}

func rcSend(local, server netip.Addr, mtu int, d time.Duration) (r rcStream, err error) {
	dev, err := rcOpen(local)
	if err != nil {
		return r, err
	}
	p, err := dev.pair()
	if err != nil {
		return r, err
	}
	c, err := net.Dial("tcp", netip.AddrPortFrom(server, rcPort).String())
	if err != nil {
		return r, fmt.Errorf("reach the server: %w", err)
	}
	defer c.Close()
	t := newTalk(c)
	peer, err := p.meet(t, local, mtu)
	if err != nil {
		return r, err
	}
	if err := t.Decode(new(string)); err != nil {
		return r, fmt.Errorf("hear from the server: %w", err)
	}
	start, done := time.Now(), make(chan error, 1)
	err = dev.doing(func() error {
		dev.turn = p.stream(peer, start.Add(d), &r.Bytes, done)
		return nil
	})
	if err != nil {
		return r, err
	}
	err = <-done
	r.Seconds = time.Since(start).Seconds()
	return r, errors.Join(err, p.close())
}

// stream returns a turn function of the loop. It keeps as many WRITEs in flight as possible until the time is over,
// waits for the last of them, and counts their bytes.
func (p *rcPair) stream(peer rcEnd, end time.Time, bytes *int64, done chan<- error) func() bool {
	wcs := make([]verbs.WC, rcDepth)
	sge, at, under := make([]verbs.SGE, 1), 0, 0
	return func() bool {
		n, err := p.cq.Poll(wcs)
		for i := range wcs[:n] {
			if wcs[i].Status != verbs.WCSuccess {
				err = fmt.Errorf("%v completed with %v: %w", wcs[i].Opcode, wcs[i].Status, verbs.ErrState)
			}
			*bytes += int64(wcs[i].ByteLen)
		}
		under -= n
		over, worked := time.Now().After(end), n > 0
		for ; !over && under < rcDepth && err == nil; under++ {
			sge[0] = verbs.SGE{Addr: p.mr.Addr() + uint64(at), Length: rcSize, LKey: p.mr.LKey()}
			err = p.qp.PostSend(&verbs.SendWR{SGList: sge, Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: peer.Addr + uint64(at), RKey: peer.RKey})
			at, worked = (at+rcSize)%rcRegion, true
		}
		if err != nil || over && under == 0 {
			p.d.turn = nil
			done <- err
		}
		return worked
	}
}
