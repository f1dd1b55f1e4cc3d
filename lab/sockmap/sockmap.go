package sockmap

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Programs are the programs of one cgroup.
type Programs struct {
	objs  sockmapObjects
	group link.Link
	maps  []link.RawAttachProgramOptions
}

// Counters count calls of the programs.
type Counters struct {
	Sent       uint64 // by connections in a map
	Redirected uint64 // of these, what went directly to the other end
	Received   uint64 // by accepted connections in a map
}

// Redirect passes what a connection of a cgroup sends directly to its other end, if that is in the cgroup, too.
func Redirect(group string) (*Programs, error) {
	return attach(group, func(o *sockmapObjects) (*ebpf.Program, []link.RawAttachProgramOptions) {
		return o.Note, []link.RawAttachProgramOptions{
			{Target: o.Ends.FD(), Program: o.Redirect, Attach: ebpf.AttachSkMsgVerdict},
		}
	})
}

// Watch looks at everything that the accepted connections of a cgroup receive and send, and lets it pass.
func Watch(group string) (*Programs, error) {
	return attach(group, func(o *sockmapObjects) (*ebpf.Program, []link.RawAttachProgramOptions) {
		return o.NoteAccepted, []link.RawAttachProgramOptions{
			{Target: o.Accepted.FD(), Program: o.PassReceived, Attach: ebpf.AttachSkSKBStreamVerdict},
			{Target: o.Accepted.FD(), Program: o.PassSent, Attach: ebpf.AttachSkMsgVerdict},
		}
	})
}

func attach(group string, which func(*sockmapObjects) (*ebpf.Program, []link.RawAttachProgramOptions)) (*Programs, error) {
	p := &Programs{}
	if err := loadSockmapObjects(&p.objs, nil); err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	note, verdicts := which(&p.objs)
	for _, v := range verdicts {
		if err := link.RawAttachProgram(v); err != nil {
			return nil, errors.Join(fmt.Errorf("attach to map: %w", err), p.Close())
		}
		p.maps = append(p.maps, v)
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: group, Attach: ebpf.AttachCGroupSockOps, Program: note})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach to control group: %w", err), p.Close())
	}
	p.group = l
	return p, nil
}

// Counters reads the counters.
func (p *Programs) Counters() (c Counters, err error) {
	for i, n := range []*uint64{&c.Sent, &c.Redirected, &c.Received} {
		if err := p.objs.Counters.Lookup(uint32(i), n); err != nil {
			return c, fmt.Errorf("counter: %w", err)
		}
	}
	return c, nil
}

// Close detaches the programs. Connections in the maps are ordinary again.
func (p *Programs) Close() error {
	var errs []error
	if p.group != nil {
		errs = append(errs, p.group.Close())
	}
	for _, v := range p.maps {
		errs = append(errs, link.RawDetachProgram(link.RawDetachProgramOptions{Target: v.Target, Program: v.Program, Attach: v.Attach}))
	}
	return errors.Join(append(errs, p.objs.Close())...)
}
