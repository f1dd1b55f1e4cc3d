package process

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// Capability is a privilege that a gateway needs.
type Capability struct {
	// Number is the kernel's number, Name the name in capabilities(7).
	Number int
	Name   string
	// For says what it is for, to operators.
	For string
	// Optional means that a gateway works without it, except for what it is for.
	Optional bool
}

// Capabilities returns everything that guardian and daemon keep (docs/OPERATIONS.md "What it
// needs"). The kernel checks them only when memory, programs or the network are set up, and
// the optional one when programs in process are inspected. None of them allows signalling
// processes of other users.
func Capabilities() []Capability {
	return []Capability{
		{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "devices, attaching programs", false},
		{unix.CAP_BPF, "CAP_BPF", "loading programs and maps", false},
		{unix.CAP_PERFMON, "CAP_PERFMON", "programs that follow pointers of the kernel", false},
		{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "what programs with the library are made of: without it they stay native", true},
	}
}

// errMissing means that a gateway cannot work with the privileges that it was started with.
var errMissing = errors.New("needs root, or the capabilities of OPERATIONS.md \"What it needs\"")

// requireCapabilities names the capabilities that this process lacks. The kernel's own errors
// would name a limit or a program instead.
func requireCapabilities() error {
	have := cap.GetProc()
	var missing []string
	for _, c := range Capabilities() {
		if ok, err := have.GetFlag(cap.Effective, cap.Value(c.Number)); !c.Optional && (err != nil || !ok) {
			missing = append(missing, fmt.Sprintf("%s (%s)", c.Name, c.For))
		}
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("%w; missing: %s", errMissing, strings.Join(missing, ", "))
}

// AdminGroup is the group that may read the admin socket, if the host has it.
const AdminGroup = "smcgw"

// Confine starts the keeper of the legs' namespace, and opens cgroup2 if it is not mounted
// and settings that are read-only; these steps take privileges that nothing else needs. Then
// it permanently gives up every privilege except Capabilities, for every thread of this
// process and everything it will start: in the permitted, effective, inheritable, bounding
// and ambient sets, with no_new_privs. A member of the admin socket's group may give files to
// that group without a capability, so root joins that group.
func Confine() error {
	if err := requireCapabilities(); err != nil {
		return err
	}
	if err := openSettings(); err != nil {
		return err
	}
	if err := startLegs(); err != nil {
		return err
	}
	if err := openCgroup(); err != nil {
		return err
	}
	raiseMemlock()
	var keep []cap.Value
	for _, c := range Capabilities() {
		keep = append(keep, cap.Value(c.Number))
	}
	return confineTo(keep...)
}

// raiseMemlock raises the limit on locked memory as far as the process's present privileges
// allow: RDMA adapters lock the memory of connections. If the limit stays low, requests
// refused because of it say so.
func raiseMemlock() {
	all := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if unix.Setrlimit(unix.RLIMIT_MEMLOCK, &all) == nil || unix.Getrlimit(unix.RLIMIT_MEMLOCK, &all) != nil {
		return
	}
	all.Cur = all.Max
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &all)
}

// confineTo gives up every privilege except keep. Credentials are per thread; the library
// changes those of all threads.
func confineTo(keep ...cap.Value) error {
	joinAdminGroup()
	if alreadyConfined(keep) {
		return nil
	}
	if err := cap.ResetAmbient(); err != nil {
		return fmt.Errorf("give up privileges: ambient set: %w", err)
	}
	for c := range cap.MaxBits() {
		if slices.Contains(keep, c) {
			continue
		}
		// Without CAP_SETPCAP the set remains; no_new_privs makes it harmless.
		if err := cap.DropBound(c); err != nil && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("give up privileges: bounding set: %w", err)
		}
	}
	if err := keepCapabilities(keep); err != nil {
		return fmt.Errorf("give up privileges: %w", err)
	}
	if _, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return fmt.Errorf("give up privileges: no_new_privs: %w", err)
	}
	return nil
}

// alreadyConfined reports whether the process that started this one has already given up
// everything except keep. In that case nothing may be changed: a change gives every thread
// credentials of its own, even if they are equal, and the kernel refuses a write to an RDMA
// device by a thread whose credentials are not those with which the device was opened.
func alreadyConfined(keep []cap.Value) bool {
	if nnp, err := cap.Prctl(unix.PR_GET_NO_NEW_PRIVS); err != nil || nnp != 1 {
		return false
	}
	have := cap.GetProc()
	for c := range cap.MaxBits() {
		on, err := have.GetFlag(cap.Permitted, c)
		if err != nil || on && !slices.Contains(keep, c) {
			return false
		}
		if ambient, err := cap.GetAmbient(c); err != nil || os.Geteuid() != 0 && ambient != on {
			return false
		}
	}
	return true
}

// keepCapabilities drops all others. A program started by root gets the rest by itself, a
// program of another user gets them as ambient capabilities.
func keepCapabilities(keep []cap.Value) error {
	have, left := cap.GetProc(), cap.NewSet()
	flags, ambient := []cap.Flag{cap.Permitted, cap.Effective}, os.Geteuid() != 0
	if ambient {
		flags = append(flags, cap.Inheritable)
	}
	var kept []cap.Value
	for _, c := range keep {
		on, err := have.GetFlag(cap.Permitted, c)
		if err != nil {
			return fmt.Errorf("read capabilities: %w", err)
		}
		if on {
			kept = append(kept, c)
		}
	}
	for _, f := range flags {
		if err := left.SetFlag(f, true, kept...); err != nil {
			return fmt.Errorf("choose capabilities: %w", err)
		}
	}
	if err := left.SetProc(); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	if !ambient {
		return nil
	}
	if err := cap.SetAmbient(true, kept...); err != nil {
		return fmt.Errorf("ambient set: %w", err)
	}
	return nil
}

// joinAdminGroup adds this process to the group of the admin socket, if the group exists and
// the process may do so. Otherwise the socket belongs to root alone.
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
	_ = syscall.Setgroups(append(groups, gid))
}

// netSettings is where the kernel's settings of network namespaces are.
const netSettings = "/proc/sys/net"

// openSettings makes the network settings writable if a container engine has made all of
// /proc/sys read-only. It does so in the container's mount namespace, so the change ends with
// it. The gateway has to change settings of its own devices and of the namespace of its
// sockets. Without permission it does nothing, and the datapath reports what is missing.
func openSettings() error {
	if os.Getenv(RoleEnv) != "" {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(netSettings, &st); err != nil || st.Flags&unix.ST_RDONLY == 0 {
		return nil //nolint:nilerr // a kernel without them needs none
	}
	err := unix.Mount(netSettings, netSettings, "", unix.MS_BIND, "")
	if err == nil {
		err = unix.Mount("", netSettings, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", netSettings, err)
	}
	return nil
}
