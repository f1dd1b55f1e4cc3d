package process

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Capability is a privilege that a gateway needs.
type Capability struct {
	// Number is the kernel's, Name as in capabilities(7).
	Number int
	Name   string
	// For is what it is for, for operators.
	For string
}

// Capabilities are all that guardian and daemon keep (docs/OPERATIONS.md "What it
// needs"). The kernel checks them only where memory, programs or the network are set
// up; none of them reads files or signals processes of others.
func Capabilities() []Capability {
	return []Capability{
		{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "devices, attaching programs"},
		{unix.CAP_BPF, "CAP_BPF", "loading programs and maps"},
		{unix.CAP_PERFMON, "CAP_PERFMON", "programs that follow pointers of the kernel"},
	}
}

// AdminGroup may read the admin socket, if the host has it.
const AdminGroup = "smcgw"

// confinedEnv tells a process that it has been confined already.
const confinedEnv = "SMCGW_CONFINED"

// Confine starts the keeper of the legs' namespace, which takes a privilege that
// nothing else needs, and then gives up every privilege but Capabilities, for this
// process and all that it will start: in the permitted, effective, inheritable, bounding and ambient
// sets, and for good (no_new_privs). Credentials belong to threads and a Go program
// has many, so it changes one and starts the program anew from that: it returns
// only in the new program, with the same process id, arguments and environment, or
// with an error. A member of the group of the admin socket may give files to that
// group without a capability: root becomes one.
func Confine() error {
	if os.Getenv(confinedEnv) != "" {
		return os.Unsetenv(confinedEnv)
	}
	if err := startLegs(); err != nil {
		return err
	}
	return confineTo(Capabilities())
}

// confineTo gives up every privilege but keep, and starts the program anew.
func confineTo(keep []Capability) error {
	runtime.LockOSThread() // for ever: the thread is not like the others any more
	if err := confineThread(keep); err != nil {
		return fmt.Errorf("give up privileges: %w", err)
	}
	err := unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), confinedEnv+"=1"))
	return fmt.Errorf("start anew with fewer privileges: %w", err)
}

func confineThread(keep []Capability) error {
	joinAdminGroup()
	last, err := lastCapability()
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("ambient set: %w", err)
	}
	for c := range last + 1 {
		if slices.ContainsFunc(keep, func(k Capability) bool { return k.Number == c }) {
			continue
		}
		// Without CAP_SETPCAP the set stays; no_new_privs makes it harmless.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("bounding set: %w", err)
		}
	}
	if err := keepCapabilities(keep); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	return nil
}

// keepCapabilities drops all others from the sets of the thread. A program that
// root starts gets what is left by itself, that of another user as ambient
// capabilities.
func keepCapabilities(keep []Capability) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&head, &sets[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	var mask [2]uint32
	for _, c := range keep {
		mask[c.Number/32] |= 1 << (c.Number % 32)
	}
	ambient := os.Geteuid() != 0
	for i := range sets {
		sets[i].Permitted &= mask[i]
		sets[i].Effective &= mask[i]
		sets[i].Inheritable = 0
		if ambient {
			sets[i].Inheritable = sets[i].Permitted
		}
	}
	if err := unix.Capset(&head, &sets[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	for _, c := range keep {
		if !ambient || sets[c.Number/32].Permitted&(1<<(c.Number%32)) == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c.Number), 0, 0); err != nil {
			return fmt.Errorf("ambient %s: %w", c.Name, err)
		}
	}
	return nil
}

// joinAdminGroup adds this thread to the group of the admin socket, where that and
// the right to do so exist: the socket is root's alone otherwise.
func joinAdminGroup() {
	g, err := user.LookupGroup(AdminGroup)
	if err != nil {
		return
	}
	gid, err := strconv.Atoi(g.Gid)
	groups, errHave := unix.Getgroups()
	if err != nil || errHave != nil || gid == os.Getegid() || slices.Contains(groups, gid) {
		return
	}
	_ = setThreadGroups(append(groups, gid))
}

// lastCapability returns the highest one the kernel knows.
func lastCapability() (int, error) {
	text, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return 0, fmt.Errorf("last capability: %w", err)
	}
	last, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || last < 0 || last > 63 {
		return 0, fmt.Errorf("last capability: %q", text)
	}
	return last, nil
}
