package demo

import "golang.org/x/sys/unix"

// daemons returns the processes of the gateway: the guardian is the one that
// was started, the daemon its child.
func (g *host) daemons() []int { return g.Children(g.proc.Pid()) }

func kill(pid int) error { return unix.Kill(pid, unix.SIGKILL) }
