package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// resolveTimeout bounds each of the two steps of a resolution in the kernel.
const resolveTimeout = 2 * time.Second

// portSpaceTCP is the port space of connections (RDMA_PS_TCP).
const portSpaceTCP = 0x0106

// Resolver resolves the route of an identifier.
type Resolver struct {
	Handle uint32
	Do     func(Command) error   // executes a command
	Await  func(EventKind) error // waits for an event of the identifier, or one that reports an error
}

// Resolve resolves the route to an address, from any local address unless one is given.
func (r *Resolver) Resolve(local, remote netip.AddrPort) error {
	src, err := SockaddrOf(local)
	if err != nil {
		return err
	}
	dst, err := SockaddrOf(remote)
	if err != nil {
		return err
	}
	ms := uint32(resolveTimeout / time.Millisecond)
	if err := r.Do(ResolveAddr{ID: r.Handle, TimeoutMS: ms, Src: src, Dst: dst}); err != nil {
		return err
	}
	if err := r.Await(AddrResolved); err != nil {
		return err
	}
	if err := r.Do(ResolveRoute{ID: r.Handle, TimeoutMS: ms}); err != nil {
		return err
	}
	return r.Await(RouteResolved)
}

// Resolve asks the kernel for the path from local, or from any local address if it is invalid, to remote. On a host
// without the kernel's manager the error is ErrAbsent; an address that no adapter reaches is an *EventError or
// *CommandError.
func Resolve(ctx context.Context, local, remote netip.Addr) (Path, error) {
	f, err := Open()
	if err != nil {
		return Path{}, fmt.Errorf("path to %v: %w", remote, err)
	}
	p, err := resolveBy(ctx, f, local, remote)
	if err = errors.Join(err, f.Close()); err != nil {
		return Path{}, fmt.Errorf("path to %v: %w", remote, err)
	}
	return p, nil
}

// kernel is what Resolve sends its commands to: a File.
type kernel interface {
	Call(c Command, answer []byte) error
	Next(ctx context.Context, answer []byte) error
}

// resolveBy resolves without a manager: only the caller's goroutine uses the kernel, so that it may be locked to a
// thread.
func resolveBy(ctx context.Context, k kernel, local, remote netip.Addr) (p Path, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*resolveTimeout)
	defer cancel()
	create := CreateID{UID: 1, Space: portSpaceTCP, QP: verbs.QPTRC}
	answer := make([]byte, create.AnswerSize())
	if err := k.Call(create, answer); err != nil {
		return p, err
	}
	r := Resolver{
		Handle: native.Uint32(answer),
		Do:     func(c Command) error { return k.Call(c, nil) },
		Await:  func(kind EventKind) error { return awaitFrom(ctx, k, kind) },
	}
	var src netip.AddrPort
	if local.IsValid() {
		src = netip.AddrPortFrom(local, 0)
	}
	if err := r.Resolve(src, netip.AddrPortFrom(remote, 0)); err != nil {
		return p, err
	}
	q := Query{r.Handle, QueryPath}
	answer = make([]byte, q.AnswerSize())
	if err := k.Call(q, answer); err != nil {
		return p, err
	}
	if p, err = parsePath(answer); err != nil {
		return p, err
	}
	init := InitQPAttr{r.Handle, verbs.QPSInit}
	answer = make([]byte, init.AnswerSize())
	if err := k.Call(init, answer); err != nil {
		return p, err
	}
	var attr QPAttr
	err = attr.Parse(answer)
	p.PKeyIndex = attr.PKeyIndex
	return p, err
}

// awaitFrom waits for an event of the only identifier.
func awaitFrom(ctx context.Context, k kernel, kind EventKind) error {
	answer := make([]byte, EventSize)
	for {
		var ev Event
		err := k.Next(ctx, answer)
		if err == nil {
			_, err = ev.Parse(answer)
		}
		switch {
		case err != nil:
			return err
		case ev.Kind == kind:
			return nil
		}
		if err := ev.Failure(); err != nil {
			return err
		}
	}
}
