package load

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft"
)

// Shapes of the soft jobs: the region that is written to, again and again, and
// the receives that wait.
const (
	regionSize = 1 << 20
	receives   = 1024
	sendDepth  = 1024
)

// device is an open soft device with its loop.
type device struct {
	dev  *soft.Device
	pd   verbs.PD
	loop *verbs.Loop
	turn func() bool // of the job; only the loop touches it
}

func openDevice(addr netip.Addr) (*device, error) {
	dev, err := soft.Open(soft.Config{Addrs: []netip.Addr{addr}})
	if err != nil {
		return nil, err
	}
	d := &device{dev: dev}
	if d.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	d.loop, err = verbs.NewLoop(dev, 0, func() bool { return d.turn != nil && d.turn() })
	return d, err
}

// doing runs f in the loop.
func (d *device) doing(f func() error) error {
	var err error
	if e := d.loop.Do(func() { err = f() }); e != nil {
		return e
	}
	return err
}

// endpoint is what one side tells the other of its queue pair.
type endpoint struct {
	QPN, PSN, RKey uint32
	Addr           uint64
	IP             netip.Addr
}

// link is one queue pair with its memory.
type link struct {
	d      *device
	job    *Job
	cq     verbs.CQ
	qp     verbs.QP
	mr     verbs.MR
	remote endpoint
	before soft.Stats
	wcs    []verbs.WC
	wr     verbs.SendWR
	sge    [1]verbs.SGE
	recv   verbs.RecvWR
	rsge   [1]verbs.SGE
	err    error // of the job, set in the loop
}

func newSoftLink(d *device, j *Job) (*link, error) {
	l := &link{d: d, job: j, wcs: make([]verbs.WC, 64), before: d.dev.Stats()}
	var err error
	if l.cq, err = d.dev.CreateCQ(verbs.CQAttr{Depth: 2 * (receives + sendDepth)}); err != nil {
		return nil, err
	}
	if l.mr, err = d.pd.AllocMR(regionSize, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return nil, err
	}
	if l.qp, err = d.pd.CreateQP(&verbs.QPInitAttr{
		SendCQ: l.cq, RecvCQ: l.cq, Type: verbs.QPTRC,
		Cap: verbs.QPCap{MaxSendWR: sendDepth, MaxRecvWR: receives, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
	}); err != nil {
		return nil, err
	}
	return l, verbs.Init(l.qp, verbs.AccessRemoteWrite)
}

func (l *link) endpoint(ip netip.Addr) endpoint {
	return endpoint{QPN: l.qp.Num(), RKey: l.mr.RKey(), Addr: l.mr.Addr(), IP: ip}
}

// connect is done in the loop, with the turn that the job takes from now on.
func (l *link) connect(remote endpoint, turn func() bool) error {
	l.remote = remote
	return l.d.doing(func() error {
		attr := verbs.ConnectAttr(remote.QPN)
		attr.AH = verbs.AHAttr{DGID: verbs.GIDOf(remote.IP), Port: 1}
		attr.PathMTU = mtuOf(l.job.MTU)
		if err := verbs.Connect(l.qp, attr); err != nil {
			return err
		}
		for range receives {
			if err := l.postRecv(); err != nil {
				return err
			}
		}
		l.d.turn = turn
		return nil
	})
}

func mtuOf(bytes int) verbs.MTU {
	for m := verbs.MTU256; m <= verbs.MTU4096; m++ {
		if m.Bytes() == bytes {
			return m
		}
	}
	return 0
}

func (l *link) postRecv() error {
	l.rsge[0] = verbs.SGE{Addr: l.mr.Addr(), Length: 64 << 10, LKey: l.mr.LKey()}
	l.recv.SGList = l.rsge[:]
	return l.qp.PostRecv(&l.recv)
}

// poll hands completions to f until there are none.
func (l *link) poll(f func(wc *verbs.WC) error) (worked bool) {
	for l.err == nil {
		n, err := l.cq.Poll(l.wcs)
		if err != nil {
			l.err = err
		}
		for i := range l.wcs[:n] {
			if l.wcs[i].Status != verbs.WCSuccess {
				l.err = fmt.Errorf("%v completed with %v: %w", l.wcs[i].Opcode, l.wcs[i].Status, verbs.ErrState)
			} else if err := f(&l.wcs[i]); err != nil {
				l.err = err
			}
		}
		worked = worked || n > 0
		if n < len(l.wcs) {
			break
		}
	}
	return worked
}

// close ends the queue pair and returns what the device counted.
func (l *link) close() (Counters, error) {
	err := l.d.doing(func() error {
		l.d.turn = nil
		return errors.Join(l.qp.Close(), l.cq.Close(), l.mr.Close())
	})
	return since(l.before, l.d.dev.Stats()), errors.Join(err, l.err)
}

// since is what the device counted between two times.
func since(a, b soft.Stats) Counters {
	return Counters{
		TxPackets: b.TxPackets - a.TxPackets, TxCalls: b.TxCalls - a.TxCalls, TxErrors: b.TxErrors - a.TxErrors,
		RxPackets: b.RxPackets - a.RxPackets, RxCalls: b.RxCalls - a.RxCalls, Retransmits: b.Retransmits - a.Retransmits,
		Timeouts: b.Timeouts - a.Timeouts, SequenceNAKs: b.SequenceNAKs - a.SequenceNAKs, SentNAKs: b.SentNAKs - a.SentNAKs,
	}
}

// softService is the far side: it returns pings, and posts the receives that a
// stream has used again.
type softService struct{ *link }

func newSoftService(d *device, j *Job) (*softService, error) {
	l, err := newSoftLink(d, j)
	if err != nil {
		return nil, err
	}
	return &softService{l}, nil
}

func (s *softService) ready() any { return s.endpoint(s.job.Server) }

func (s *softService) begin(ctl *control) error {
	var remote endpoint
	if err := ctl.receive(&remote); err != nil {
		return err
	}
	if err := s.connect(remote, s.serve); err != nil {
		return err
	}
	return ctl.send("connected")
}

func (s *softService) serve() bool {
	return s.poll(func(wc *verbs.WC) error {
		if wc.Opcode != verbs.WCRecv && wc.Opcode != verbs.WCRecvRDMAWithImm {
			return nil
		}
		if err := s.postRecv(); err != nil {
			return err
		}
		if s.job.Op == "ping" {
			return s.small(verbs.WRRDMAWriteWithImm, verbs.SendSignaled)
		}
		return nil
	})
}

func (s *softService) end() (report, error) {
	c, err := s.close()
	return report{Counters: c}, err
}

// small posts a message of the job's size whose payload is copied.
func (l *link) small(op verbs.WROpcode, flags verbs.SendFlags) error {
	l.wr = verbs.SendWR{
		Inline: l.mr.Bytes()[:l.job.Size], Opcode: op, Flags: flags | verbs.SendInline, RemoteAddr: l.remote.Addr, RKey: l.remote.RKey,
	}
	return l.qp.PostSend(&l.wr)
}

func softClient(j *Job, ctl *control) (r Result, err error) {
	d, err := openDevice(j.Local)
	if err != nil {
		return r, err
	}
	l, err := newSoftLink(d, j)
	if err != nil {
		return r, err
	}
	var remote endpoint
	var word string
	if err := ctl.receive(&remote); err != nil {
		return r, err
	}
	if err := ctl.send(l.endpoint(j.Local)); err != nil {
		return r, err
	}
	if err := ctl.receive(&word); err != nil {
		return r, err
	}
	done := make(chan struct{})
	turns := map[string]func(*link, *Result, chan struct{}) func() bool{
		"stream": (*link).stream, "rate": (*link).rate, "ping": (*link).ping,
	}
	turn := turns[j.Op]
	if turn == nil {
		return r, fmt.Errorf("%w: op %q", errUsage, j.Op)
	}
	cpu, start := cpuSeconds(), time.Now()
	if err := l.connect(remote, turn(l, &r, done)); err != nil {
		return r, err
	}
	<-done
	r.Seconds = time.Since(start).Seconds()
	used := cpuSeconds()
	r.Source, err = l.close()
	if err != nil {
		return r, err
	}
	return r, finish(ctl, &r, cpu+cpuSeconds()-used)
}
