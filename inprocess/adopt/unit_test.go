package adopt

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// tree is a host with these files; a text that begins with -> is a link.
func tree(t *testing.T, files map[string]string) *Installation {
	h := &Installation{Root: t.TempDir(), Library: Installed}
	for name, text := range files {
		file := filepath.Join(h.Root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		if len(text) > 2 && text[:2] == "->" {
			require.NoError(t, os.Symlink(text[2:], file))
		} else {
			require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		}
	}
	return h
}

func someUnits(t *testing.T) *Installation {
	return tree(t, map[string]string{
		"usr/lib/smcgw/lib64/libsmcgw.so":             "",
		"usr/lib/systemd/system/redis.service":        "[Unit]\nRootDirectory=/not-of-a-service\n[Service]\nExecStart=-/usr/bin/redis-server --port 1\n",
		"etc/systemd/system/redis-alias.service":      "->/usr/lib/systemd/system/redis.service",
		"usr/lib/systemd/system/worker@.service":      "[Service]\nExecStart=/usr/bin/worker %i\n",
		"etc/systemd/system/masked.service":           "->/dev/null",
		"usr/lib/systemd/system/masked.service":       "[Service]\n",
		"usr/lib/systemd/system/empty.service":        "",
		"usr/lib/systemd/system/own.service":          "[Service]\nEnvironment=A=b \"LD_PRELOAD=/usr/lib/libjemalloc.so\"\n",
		"usr/lib/systemd/system/reset.service":        "[Service]\nEnvironment=LD_PRELOAD=x\n",
		"etc/systemd/system/reset.service.d/10.conf":  "[Service]\nEnvironment=\n",
		"usr/lib/systemd/system/chroot.service":       "[Service]\nRootDirectory=/srv\n",
		"usr/lib/systemd/system/late.service":         "[Service]\n",
		"run/systemd/system/late.service.d/root.conf": "[Service]\nRootImage=/srv/\\\nimage\n",
		"usr/lib/systemd/system/careful.service":      "[Service]\nDynamicUser=yes\nInaccessiblePaths=-/usr/lib\nRestrictAddressFamilies=AF_INET AF_INET6\nSystemCallFilter=@system-service\nTemporaryFileSystem=/run:ro\n",
		"usr/lib/systemd/system/exec.service":         "[Service]\nNoExecPaths=/\nExecPaths=/usr/bin/redis-server /usr/lib /lib\n",
		"usr/lib/systemd/system/noexec.service":       "[Service]\nNoExecPaths=/run /usr/lib/smcgw/\nExecPaths=/usr /usr/lib/smc\n",
		"usr/lib/systemd/system/smcgw.service":        "[Service]\nExecStart=/usr/bin/smcgw up -c /etc/smcgw/smcgw.yaml\n",
		"etc/systemd/system/gateway-b.service":        "[Service]\nExecStart=ip netns exec b smcgw --json up\n",
		"usr/lib/systemd/system/unrestricted.service": "[Service]\nDynamicUser=no\nRestrictAddressFamilies=~AF_PACKET\n",
		"usr/lib/systemd/system/few.service":          "[Service]\nRestrictAddressFamilies=~AF_PACKET AF_UNIX\n",
		"usr/lib/systemd/system/strict.service":       "[Service]\nSystemCallFilter=@basic-io @network-io\nSystemCallFilter=@io-event @file-system:EPERM memfd_create\n",
		"usr/lib/systemd/system/denies.service":       "[Service]\nSystemCallFilter=~@clock @ipc\n",
		"usr/lib/systemd/system/polite.service":       "[Service]\nSystemCallFilter=~@clock @ipc:EPERM\n",
		"usr/lib/systemd/system/errors.service":       "[Service]\nSystemCallFilter=read write\nSystemCallErrorNumber=EPERM\n",
		"usr/lib/systemd/system/allows.service":       "[Service]\nSystemCallFilter=@system-service\nSystemCallFilter=~@privileged\n",
		"etc/systemd/system/round.service":            "->about.service",
		"etc/systemd/system/about.service":            "->round.service",
		"etc/systemd/system/linked.service":           "->/opt/linked.service",
		"opt/linked.service":                          "[Service]\nExecStart=/opt/linked\n",
	})
}

func TestUnit(t *testing.T) {
	h := someUnits(t)
	for name, own := range map[string]string{
		"redis": "redis.service", "redis.service": "redis.service", "redis-alias": "redis.service", "worker@1": "worker@1.service", "linked": "linked.service",
	} {
		u, err := h.Unit(name)
		require.NoError(t, err, name)
		require.Equal(t, own, u.Name)
		require.NoError(t, u.Refusal(), name)
		require.NotEmpty(t, u.Programs())
	}
	u, err := h.Unit("redis")
	require.NoError(t, err)
	require.Equal(t, []string{"/usr/bin/redis-server"}, u.Programs())
	for name, text := range map[string]string{
		"none": "there is none of this name", "none@1": "no none@.service", "masked": "it is masked", "empty": "it is masked", "round": "circle",
		"": "not the name", "x.socket": "not the name", "../../x": "not the name", "@1": "not the name", "a b": "not the name", "..": "not the name",
	} {
		_, err := h.Unit(name)
		require.ErrorIs(t, err, ErrUnit, name)
		require.ErrorContains(t, err, text, name)
	}
}

func TestRefusalsAndWarnings(t *testing.T) {
	h := someUnits(t)
	for name, text := range map[string]string{
		"smcgw": "it starts the gateway itself", "gateway-b": "it starts the gateway itself", "own": "sets LD_PRELOAD itself", "chroot": "RootDirectory=/srv", "late": "RootImage=/srv/ image",
		"strict": "where the library calls kill, tkill, waitid, rt_sigaction, rt_sigprocmask, ioctl, madvise, mremap: add SystemCallFilter=kill tkill waitid rt_sigaction rt_sigprocmask ioctl madvise mremap ", "denies": "memfd_create",
	} {
		u, err := h.Unit(name)
		require.NoError(t, err)
		require.ErrorContains(t, u.Refusal(), text)
		_, err = h.EnableUnit(u)
		require.ErrorIs(t, err, ErrUnit)
		require.NoFileExists(t, filepath.Join(h.Root, dropInFile(u.Name)))
	}
	for name, want := range map[string]int{"reset": 0, "unrestricted": 0, "exec": 0, "noexec": 1, "careful": 5, "few": 1, "polite": 1, "errors": 1, "allows": 1} {
		u, err := h.Unit(name)
		require.NoError(t, err)
		require.NoError(t, u.Refusal())
		require.Len(t, u.Warnings(Installed), want, name)
	}
}

// TestLibraryCalls: no system call of the library is forgotten, but for those that systemd always permits, and those that
// every program makes, or makes before the library does.
func TestLibraryCalls(t *testing.T) {
	known := strings.Fields("futex getpid gettid nanosleep prlimit64  close openat read write newfstatat  close_range epoll_ctl epoll_pwait2 execveat preadv2 pwritev2")
	for _, of := range libraryCalls {
		known = append(known, strings.Fields(of.names)...)
	}
	sources, err := filepath.Glob("../lib/*.[ch]")
	require.NoError(t, err)
	made := regexp.MustCompile(`\bSYS\(([a-z0-9_]{2,})`)
	for _, file := range sources {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, call := range made.FindAllStringSubmatch(string(text), -1) {
			require.Contains(t, known, call[1], file)
		}
	}
}

// TestOverruled: a unit whose other files would take the library from it is refused, as systemd reads them.
func TestOverruled(t *testing.T) {
	const sets = "[Service]\nEnvironment=LD_PRELOAD=/usr/lib/libjemalloc.so\n"
	h := tree(t, map[string]string{
		"usr/lib/systemd/system/mysqld.service":          "[Service]\nEnvironmentFile=-/etc/default/none\nEnvironmentFile=-/etc/sysconfig/my*\n",
		"etc/sysconfig/mysql":                            "# as MySQL documents it\nLD_PRELOAD=/usr/lib64/libjemalloc.so.1\n",
		"usr/lib/systemd/system/quiet.service":           "[Service]\nEnvironmentFile=/etc/sysconfig/quiet\nUnsetEnvironment=LD_PRELOADS\n",
		"etc/sysconfig/quiet":                            "#LD_PRELOAD=x\n",
		"usr/lib/systemd/system/unset.service":           "[Service]\nUnsetEnvironment=A LD_PRELOAD\n",
		"usr/lib/systemd/system/late.service":            "[Service]\n",
		"etc/systemd/system/late.service.d/over.conf":    "[Service]\nEnvironment=\nEnvironment=A=b\n",
		"usr/lib/systemd/system/early.service":           "[Service]\n",
		"etc/systemd/system/early.service.d/10.conf":     "[Service]\nEnvironment=\n",
		"usr/lib/systemd/system/hidden.service":          "[Service]\n",
		"usr/lib/systemd/system/hidden.service.d/a":      sets,
		"usr/lib/systemd/system/hidden.service.d/a.conf": sets,
		"etc/systemd/system/hidden.service.d/a.conf":     "->/dev/null",
		"usr/lib/systemd/system/order.service":           "[Service]\n",
		"usr/lib/systemd/system/order.service.d/z.conf":  sets,
		"etc/systemd/system/order.service.d/a.conf":      "[Service]\nEnvironment=\n",
		"usr/lib/systemd/system/a-b-c@.service":          "[Service]\n",
		"etc/systemd/system/a-.service.d/x.conf":         sets,
		"usr/lib/systemd/system/a-b.service":             "[Service]\n",
		"usr/lib/systemd/system/ab.service":              "[Service]\n",
	})
	for name, text := range map[string]string{
		"mysqld": "EnvironmentFile=/etc/sysconfig/mysql sets LD_PRELOAD", "unset": "UnsetEnvironment= takes LD_PRELOAD away",
		"late":  "/etc/systemd/system/late.service.d/over.conf, which is read after 50-smcgw-in-process.conf, empties Environment=",
		"order": "sets LD_PRELOAD itself", "a-b-c@1": "sets LD_PRELOAD itself", "a-b": "sets LD_PRELOAD itself",
		"quiet": "", "early": "", "hidden": "", "ab": "",
	} {
		u, err := h.Unit(name)
		require.NoError(t, err, name)
		if text == "" {
			require.NoError(t, u.Refusal(), name)
		} else {
			require.ErrorContains(t, u.Refusal(), text, name)
		}
	}
	file := filepath.Join(h.Root, etc, "service.d", "all.conf") // of all services
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(sets), 0o644))
	u, err := h.Unit("ab")
	require.NoError(t, err)
	require.ErrorContains(t, u.Refusal(), "sets LD_PRELOAD itself")
}

// TestEnableUnit: enabling and disabling leave what others wrote, and twice is once.
func TestEnableUnit(t *testing.T) {
	h := someUnits(t)
	other := filepath.Join(h.Root, etc, "redis.service.d", "memory.conf")
	require.NoError(t, os.MkdirAll(filepath.Dir(other), 0o755))
	require.NoError(t, os.WriteFile(other, []byte("[Service]\nMemoryMax=1G\n"), 0o644))
	for _, name := range []string{"redis-alias", "worker@1"} {
		for _, changed := range []bool{true, false} {
			u, err := h.Unit(name)
			require.NoError(t, err)
			got, err := h.EnableUnit(u)
			require.NoError(t, err)
			require.Equal(t, changed, got)
		}
	}
	file := filepath.Join(h.Root, etc, "redis.service.d", DropIn)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(text), "[Service]\nEnvironment=\"LD_PRELOAD=/usr/lib/smcgw/$LIB/libsmcgw.so\"\n")
	st, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), st.Mode())
	units, err := h.Units()
	require.NoError(t, err)
	require.Equal(t, []string{"redis.service", "worker@1.service"}, units)

	require.NoError(t, os.Remove(filepath.Join(h.Root, "usr/lib/systemd/system/worker@.service"))) // it is gone meanwhile
	for _, name := range []string{"redis-alias", "worker@1"} {
		for _, changed := range []bool{true, false} {
			_, got, err := h.DisableUnit(name)
			require.NoError(t, err)
			require.Equal(t, changed, got, name)
		}
	}
	require.FileExists(t, other)
	require.NoDirExists(t, filepath.Join(h.Root, etc, "worker@1.service.d"))
	units, err = h.Units()
	require.NoError(t, err)
	require.Empty(t, units)
}

// TestEnableUnitOfTree: a library that is not installed for both loaders would have each program complain.
func TestEnableUnitOfTree(t *testing.T) {
	h := tree(t, map[string]string{"usr/lib/systemd/system/x.service": "[Service]\n", "src/bin/libsmcgw.so": ""})
	h.Library = "/src/bin"
	u, err := h.Unit("x")
	require.NoError(t, err)
	_, err = h.EnableUnit(u)
	require.ErrorIs(t, err, ErrLibrary)
	require.ErrorContains(t, err, "make install")
	require.NoDirExists(t, filepath.Join(h.Root, etc))
}

// TestDisableFormerUnit: a name that is an alias by now has its own drop-in, which systemd reads for the other unit.
func TestDisableFormerUnit(t *testing.T) {
	h := tree(t, map[string]string{
		"usr/lib/systemd/system/mysql.service": "[Service]\n", "usr/lib/systemd/system/mariadb.service": "[Service]\n", "usr/lib/smcgw/lib/x86_64-linux-gnu/libsmcgw.so": "",
	})
	for _, name := range []string{"mysql", "mariadb"} {
		u, err := h.Unit(name)
		require.NoError(t, err)
		_, err = h.EnableUnit(u)
		require.NoError(t, err)
	}
	file := filepath.Join(h.Root, "usr/lib/systemd/system/mysql.service")
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Symlink("mariadb.service", file))
	own, changed, err := h.DisableUnit("mysql")
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, "mariadb.service", own)
	units, err := h.Units()
	require.NoError(t, err)
	require.Empty(t, units)
}

func TestParseUnitTruncated(t *testing.T) {
	text := []byte("[Unit]\nA=b\n[Service]\n# LD\nEnvironment=LD_PRELOAD=x \\\n  y\nRootDirectory=/srv\n")
	for n := range text {
		got := map[string][]string{}
		parseUnit(text[:n], got)
		require.LessOrEqual(t, len(got), 2, n)
		require.NotContains(t, got, "A")
	}
	got := map[string][]string{}
	parseUnit(text, got)
	require.Equal(t, map[string][]string{"Environment": {"LD_PRELOAD=x    y"}, "RootDirectory": {"/srv"}}, got)
}

func FuzzParseUnit(f *testing.F) {
	f.Add([]byte("[Service]\nEnvironment=LD_PRELOAD=x \\\n  y\nRootDirectory=/srv\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		u := Unit{Name: "x.service", settings: map[string][]string{}}
		parseUnit(text, u.settings)
		_ = u.Refusal()
		for _, w := range u.Warnings(Installed) {
			require.NotEmpty(t, w)
		}
		for _, p := range u.Programs() {
			require.True(t, filepath.IsAbs(p))
		}
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
