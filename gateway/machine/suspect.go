package machine

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
)

// suspect is a process that may belong to a gateway.
type suspect struct {
	pid     int
	device  bool     // it holds a device of a gateway
	sockets []string // inodes of sockets that listen like an admin socket
	found   Found
	answers bool
}

// find lists the gateways of a namespace.
func (s *space) find(ctx context.Context) []Found {
	var suspects []*suspect
	var closed []int // look like gateways but cannot be inspected
	for _, pid := range s.pids {
		device, sockets, err := s.holds(pid)
		switch {
		case err != nil && !errors.Is(err, os.ErrNotExist) && looksLikeOne(pid):
			closed = append(closed, pid)
		case device || len(sockets) > 0 && privileged(pid):
			suspects = append(suspects, &suspect{pid: pid, device: device, sockets: sockets})
		}
	}
	var asked sync.WaitGroup
	for _, p := range suspects {
		asked.Go(func() { p.found, p.answers = s.answering(ctx, p) })
	}
	asked.Wait()
	return gatewaysOf(suspects, closed)
}

// gatewaysOf lists the suspects that answer, and one process of each gateway that does not.
func gatewaysOf(suspects []*suspect, silent []int) (list []Found) {
	guardians, served := map[int]bool{}, map[string]bool{} // served: sockets of those that answer
	for _, p := range suspects {
		if !p.answers {
			continue
		}
		list = append(list, p.found)
		guardians[process.GuardianOf(p.pid)] = true
		for _, inode := range p.sockets {
			served[inode] = true
		}
	}
	for _, p := range suspects {
		inherited := slices.ContainsFunc(p.sockets, func(inode string) bool { return served[inode] })
		if !p.answers && (p.device || !inherited && looksLikeOne(p.pid)) {
			silent = append(silent, p.pid)
		}
	}
	for _, pid := range silent {
		if !guardians[pid] && !slices.Contains(silent, process.GuardianOf(pid)) {
			list = append(list, Found{PID: pid})
		}
	}
	return list
}

// looksLikeOne is for processes that cannot be queried: it recognizes the command line of a
// gateway, which other verbs do not have.
func looksLikeOne(pid int) bool {
	line, _ := os.ReadFile(process.File(pid, "cmdline"))
	args := strings.Split(string(line), "\x00")
	return len(args) > 1 && strings.HasPrefix(filepath.Base(args[0]), "smcgw") && slices.Contains(args[1:], "up")
}

// privileged reports whether a process has every privilege that a gateway keeps. Others are
// not queried, since any process can create sockets.
func privileged(pid int) bool {
	own, errOwn := os.Readlink("/proc/self/ns/user")
	its, errIts := os.Readlink(process.File(pid, "ns/user"))
	status, errStatus := os.ReadFile(process.File(pid, "status"))
	_, line, _ := strings.Cut(string(status), "\nCapEff:")
	line, _, _ = strings.Cut(line, "\n")
	has, errHas := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if errors.Join(errOwn, errIts, errStatus, errHas) != nil || own != its {
		return false
	}
	return !slices.ContainsFunc(process.Capabilities(), func(c process.Capability) bool { return !c.Optional && has>>c.Number&1 == 0 })
}

// holds reports whether a process holds a device of a gateway, and returns the inodes of the
// admin sockets it holds.
func (s *space) holds(pid int) (device bool, sockets []string, err error) {
	fds, err := os.ReadDir(process.File(pid, "fd"))
	if err != nil {
		return false, nil, err
	}
	for _, fd := range fds {
		to, _ := os.Readlink(process.File(pid, "fd/"+fd.Name()))
		inode, ok := strings.CutPrefix(to, "socket:[")
		if inode = strings.TrimSuffix(inode, "]"); ok && s.admin[inode] != "" {
			sockets = append(sockets, inode)
		}
		if to == "/dev/net/tun" && !device {
			info, _ := os.ReadFile(process.File(pid, "fdinfo/"+fd.Name()))
			device = bytes.Contains(info, []byte("iff:\t"+ownDevice))
		}
	}
	return device, sockets, nil
}

// answering looks for an admin socket on which a process answers.
func (s *space) answering(ctx context.Context, p *suspect) (Found, bool) {
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	for _, inode := range p.sockets {
		place := s.admin[inode]
		for _, path := range []string{place, place + config.DrainingSuffix} {
			for _, socket := range []string{path, filepath.Join(process.File(p.pid, "root"), path)} {
				if answers(ctx, socket, p.pid) {
					return Found{PID: p.pid, Path: path, Socket: socket}, true
				}
			}
		}
	}
	return Found{}, false
}

// answers reports whether a process answers as a gateway on a socket.
func answers(ctx context.Context, socket string, pid int) bool {
	c := admin.NewClient(socket)
	defer c.Close()
	if at, err := c.DaemonPID(ctx); err != nil || at != pid {
		return false
	}
	_, err := c.Version(ctx)
	return err == nil
}
