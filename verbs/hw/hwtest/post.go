package hwtest

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// Post implements ibv.Context. It posts each list in order, receives first.
func (c *conn) Post(b *ibv.Batch) (refused int) {
	c.a.do("Post", func() {
		for i := range b.Recvs {
			if b.Recvs[i].Flags&ibv.FlagHead != 0 {
				refused += c.postRecvs(b, i)
			}
		}
		for i := range b.Sends {
			if b.Sends[i].Flags&ibv.FlagHead != 0 {
				refused += c.postSends(b, i)
			}
		}
	})
	return refused
}

// number returns the errno of a refused request, or of one after it.
func number(err error) int32 {
	var no unix.Errno
	if !errors.As(err, &no) {
		no = unix.EINVAL
	}
	return int32(no)
}

func (c *conn) postRecvs(b *ibv.Batch, i int) (refused int) {
	var failed error
	for ; i >= 0; i = int(b.Recvs[i].Next) {
		r := &b.Recvs[i]
		if failed == nil {
			failed = c.postRecv(b, r)
		} else {
			failed = unix.ECANCELED
		}
		if failed != nil {
			r.Err = number(failed)
			refused++
		}
	}
	return refused
}

func (c *conn) postRecv(b *ibv.Batch, r *ibv.Recv) error {
	if refuse := c.a.lib.RefuseRecv; refuse != nil {
		if err := refuse(r); err != nil {
			return err
		}
	}
	wr := verbs.RecvWR{WRID: r.WRID, SGList: b.SGEs[r.First:][:r.Count]}
	return errno(of[*pair](c, r.QP).qp.PostRecv(&wr))
}

func (c *conn) postSends(b *ibv.Batch, i int) (refused int) {
	var failed error
	for ; i >= 0; i = int(b.Sends[i].Next) {
		s := &b.Sends[i]
		if failed == nil {
			failed = c.postSend(b, s)
		} else {
			failed = unix.ECANCELED
		}
		if failed != nil {
			s.Err = number(failed)
			refused++
		}
	}
	return refused
}

func (c *conn) postSend(b *ibv.Batch, s *ibv.Send) error {
	if refuse := c.a.lib.RefuseSend; refuse != nil {
		if err := refuse(s); err != nil {
			return err
		}
	}
	wr := verbs.SendWR{
		WRID: s.WRID, Opcode: verbs.WROpcode(s.Opcode), Flags: verbs.SendFlags(s.Flags &^ ibv.FlagHead), ImmData: s.Imm,
		RemoteAddr: s.RemoteAddr, RKey: s.RKey, CompareAdd: s.CompareAdd, Swap: s.Swap, RemoteQPN: s.RemoteQPN, RemoteQKey: s.RemoteQKey,
	}
	if wr.Flags&verbs.SendInline != 0 {
		wr.Inline = b.Inline[s.First:][:s.Count]
	} else {
		wr.SGList = b.SGEs[s.First:][:s.Count]
	}
	if s.AH != 0 {
		wr.AH = of[verbs.AH](c, s.AH)
	}
	return errno(of[*pair](c, s.QP).qp.PostSend(&wr))
}
