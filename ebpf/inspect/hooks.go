package inspect

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
)

// HookRoom is the largest number of programs at one hook of a cgroup or device (BPF_CGROUP_MAX_PROGS, BPF_MPROG_MAX).
const HookRoom = 64

// Hook is an attach point that the gateway shares with other agents.
type Hook struct {
	// Name says what is hooked and where, such as "connect4 of /sys/fs/cgroup".
	Name string
	// Programs are the names of the attached programs in their order. A name is empty if the caller may not see it
	// (CAP_SYS_ADMIN).
	Programs []string
	// Err is the reason why they could not be listed.
	Err error
}

// Hooks returns what is attached where a gateway attaches: to a cgroup, and to network devices of the namespace of the
// calling thread.
func Hooks(cgroup string, devices []string) (list []Hook) {
	for _, h := range []struct {
		name string
		at   bpf.AttachType
	}{{"connect4", bpf.AttachCGroupInet4Connect}, {"connect6", bpf.AttachCGroupInet6Connect}, {"sockops", bpf.AttachCGroupSockOps}} {
		if cgroup == "" {
			break
		}
		list = append(list, hookOf(h.name+" of "+cgroup, h.at, func() (int, func(), error) {
			f, err := os.Open(cgroup)
			if err != nil {
				return 0, nil, err
			}
			return int(f.Fd()), func() { _ = f.Close() }, nil
		}))
	}
	for _, d := range devices {
		for _, h := range []struct {
			name string
			at   bpf.AttachType
		}{{"tcx ingress", bpf.AttachTCXIngress}, {"tcx egress", bpf.AttachTCXEgress}} {
			list = append(list, hookOf(h.name+" of "+d, h.at, func() (int, func(), error) {
				i, err := net.InterfaceByName(d)
				if err != nil {
					return 0, nil, err
				}
				return i.Index, func() {}, nil
			}))
		}
	}
	return list
}

// hookOf returns the programs of one hook.
func hookOf(name string, at bpf.AttachType, target func() (int, func(), error)) Hook {
	h := Hook{Name: name}
	fd, done, err := target()
	if err != nil {
		h.Err = err
		return h
	}
	defer done()
	found, err := netdev.Whole(func() (*link.QueryResult, error) {
		return link.QueryPrograms(link.QueryOptions{Target: fd, Attach: at})
	})
	if err != nil {
		h.Err = err
		return h
	}
	for _, p := range found.Programs {
		h.Programs = append(h.Programs, programName(p.ID))
	}
	return h
}

// programName returns the name of a program, or "" if the program is gone or the caller may not see it.
func programName(id bpf.ProgramID) string {
	p, err := bpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer func() { _ = p.Close() }()
	info, err := p.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// Object is a program or a map of a gateway on this machine, as the kernel lists it.
type Object struct {
	Kind       string `json:"kind"` // program or map
	ID         uint32 `json:"id"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	MaxEntries uint32 `json:"max_entries,omitempty"` // of a map
	Bytes      uint64 `json:"bytes,omitempty"`       // of kernel memory
}

// maxObjects bounds how many programs and how many maps Objects examines.
const maxObjects = 16384

// Objects returns the programs and maps of all gateways of this machine. It requires CAP_SYS_ADMIN.
func Objects() ([]Object, error) {
	var list []Object
	var id bpf.ProgramID
	var err error
	for range maxObjects {
		if id, err = bpf.ProgramGetNextID(id); err != nil {
			break
		}
		o, mine, errOne := programObject(id)
		if errOne != nil {
			return list, errOne
		}
		if mine {
			list = append(list, o)
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return list, fmt.Errorf("list programs: %w", err)
	}
	var mapID bpf.MapID
	for range maxObjects {
		if mapID, err = bpf.MapGetNextID(mapID); err != nil {
			break
		}
		o, mine, errOne := mapObject(mapID)
		if errOne != nil {
			return list, errOne
		}
		if mine {
			list = append(list, o)
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return list, fmt.Errorf("list maps: %w", err)
	}
	return list, nil
}

func programObject(id bpf.ProgramID) (o Object, mine bool, err error) {
	p, err := bpf.NewProgramFromID(id)
	if errors.Is(err, os.ErrNotExist) { // it is gone
		return o, false, nil
	}
	if err != nil {
		return o, false, fmt.Errorf("program %d: %w", id, err)
	}
	defer func() { _ = p.Close() }()
	info, err := p.Info()
	if err != nil {
		return o, false, fmt.Errorf("program %d: %w", id, err)
	}
	o = Object{Kind: "program", ID: uint32(id), Name: info.Name, Type: info.Type.String()}
	o.Bytes, _ = info.Memlock()
	return o, isOwn(o.Name), nil
}

func mapObject(id bpf.MapID) (o Object, mine bool, err error) {
	m, err := bpf.NewMapFromID(id)
	if errors.Is(err, os.ErrNotExist) {
		return o, false, nil
	}
	if err != nil {
		return o, false, fmt.Errorf("map %d: %w", id, err)
	}
	defer func() { _ = m.Close() }()
	info, err := m.Info()
	if err != nil {
		return o, false, fmt.Errorf("map %d: %w", id, err)
	}
	o = Object{Kind: "map", ID: uint32(id), Name: info.Name, Type: info.Type.String(), MaxEntries: info.MaxEntries}
	o.Bytes, _ = info.Memlock()
	return o, isOwn(o.Name), nil
}

// isOwn reports whether name is that of a program or map of a gateway.
func isOwn(name string) bool { return strings.HasPrefix(name, "smcgw_") }

// Unoffering maps the names of the devices on which no offer can leave to the reason and, after a colon, what to do.
// infiniBand says that IPoIB may carry.
func Unoffering(links []netlink.Link, infiniBand bool) map[string]string {
	reasons := map[string]string{}
	for index, use := range netdev.UsesOf(links, infiniBand) {
		i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == index })
		if use.Why != "" {
			reasons[links[i].Attrs().Name] = use.Why
		}
	}
	return reasons
}

// DeviceNotes returns notes about those of the named devices that exist in the namespace of the calling thread and
// carry no offers.
func DeviceNotes(names []string, infiniBand bool) (notes []string) {
	if len(names) == 0 {
		return nil
	}
	links, err := netlink.LinkList()
	if err != nil {
		return []string{fmt.Sprintf("devices: they could not be listed: %v", err)}
	}
	reasons := Unoffering(links, infiniBand)
	for _, name := range names {
		if why := reasons[name]; why != "" {
			notes = append(notes, fmt.Sprintf("devices: %s %s", name, why))
		}
	}
	return notes
}
