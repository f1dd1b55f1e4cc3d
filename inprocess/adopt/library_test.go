package adopt

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess/scan"
	"github.com/smcgw/smcgw/lab/testnet"
)

// made is the library as make builds it.
func made(t *testing.T, file, compiler string) string {
	testnet.Require(t, "make", "objdump", compiler)
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	out, err := exec.Command("make", "-C", root, "-s", "--no-print-directory", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return filepath.Join(root, file)
}

// install installs the library into the directory of packages below another.
func install(t *testing.T, dir string) {
	testnet.Require(t, "make", "gcc", "musl-gcc")
	root, found := strings.CutSuffix(dir, Installed)
	require.True(t, found)
	out, err := exec.Command("make", "-C", "../..", "-s", "--no-print-directory", "install-lib", "DESTDIR="+root, "PREFIX=/usr").CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// run starts a program with the library.
func run(t *testing.T, compiler, library string, command ...string) {
	source := filepath.Join(t.TempDir(), "x.c")
	require.NoError(t, os.WriteFile(source, []byte("#include <stdio.h>\n#include <string.h>\nint main(void) { char line[4096]; FILE *f = fopen(\"/proc/self/maps\", \"r\"); while (fgets(line, sizeof line, f)) if (strstr(line, \"libsmcgw\")) return 0; return 9; }"), 0o600))
	program := strings.TrimSuffix(source, ".c")
	out, err := exec.Command(compiler, "-o", program, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	command = append(command, program)
	c := exec.Command(command[0], command[1:]...)
	c.Env = []string{"LD_PRELOAD=" + library, "LD_BIND_NOW=1"}
	if len(command) > 1 { // an emulator sets them for the program
		c.Env = []string{"QEMU_SET_ENV=LD_PRELOAD=" + library + ",LD_BIND_NOW=1"}
	}
	out, err = c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, out)
}

// TestVersions: the library asks glibc for nothing newer than 2.31, no other library is
// needed, and it loads.
func TestVersions(t *testing.T) {
	for _, c := range []struct {
		file, compiler string
		emulator       []string
	}{
		{"bin/libsmcgw.so", "gcc", nil},
		{"bin/arm64/libsmcgw.so", "aarch64-linux-gnu-gcc", []string{"qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"}},
	} {
		t.Run(c.file, func(t *testing.T) {
			library := made(t, c.file, c.compiler)
			out, err := exec.Command("objdump", "-Tp", library).Output()
			require.NoError(t, err)
			versions := regexp.MustCompile(`\bGLIBC_2\.(\d+)`).FindAllSubmatch(out, -1)
			require.NotEmpty(t, versions)
			for _, v := range versions {
				n, err := strconv.Atoi(string(v[1]))
				require.NoError(t, err)
				require.LessOrEqual(t, n, 31, "objdump -T %s; inprocess/lib/glibc.h gives functions their old versions", library)
			}
			for _, n := range regexp.MustCompile(`(?m)^\s+NEEDED\s+(\S+)$`).FindAllSubmatch(out, -1) {
				require.Contains(t, []string{"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}, string(n[1]))
			}
			if c.emulator != nil {
				testnet.Require(t, c.emulator[0])
			}
			run(t, c.compiler, library, c.emulator...)
		})
	}
}

func TestMusl(t *testing.T) {
	library := made(t, "bin/libsmcgw-musl.so", "musl-gcc")
	out, err := exec.Command("objdump", "-Tp", library).Output()
	require.NoError(t, err)
	require.NotContains(t, string(out), "GLIBC_")
	run(t, "musl-gcc", library)
}

// TestContainer: the device of packages has a program of a container start with the library.
func TestContainer(t *testing.T) {
	testnet.Require(t, "root", "podman", "crun", "conmon", "gcc", "unshare")
	dir := t.TempDir()
	install(t, filepath.Join(dir, Installed))
	spec, err := filepath.Abs("../../packaging/cdi/smcgw.json")
	require.NoError(t, err)
	// A container of cat and what it and the library need, which all of glibc has. All that the host would see is mounted over.
	script := filepath.Join(dir, "script")
	require.NoError(t, os.WriteFile(script, []byte(`set -eu
mount --make-rprivate /
mkdir -p root/proc root/dev root/sys root/etc root/tmp root/run root/usr/lib mnt && cd root
for f in /bin/cat $(ldd /bin/cat | grep -o '/[^ ]*') $(ldd ../usr/lib/smcgw/libsmcgw.so | grep -o '/[^ ]*'); do mkdir -p ".${f%/*}"; cp "$f" ".$f"; done
cd ..
mount -t tmpfs none mnt && mkdir mnt/upper mnt/work
mount -t overlay -o lowerdir=/usr/lib,upperdir=mnt/upper,workdir=mnt/work none /usr/lib
cp -r usr/lib/smcgw /usr/lib/
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs none /run
mkdir -p /run/smcgw/in-process /run/cdi && cp "$1" /run/cdi/
for device in "" --device=smcgw.dev/in-process=all; do
	podman --root "$PWD/storage" --runroot /run/storage --storage-driver vfs run --rm --network none --cgroups disabled --log-driver none \
		--ulimit nofile=1024:1024 --ulimit nproc=1024:1024 $device --rootfs "$PWD/root" /bin/cat /proc/self/maps
	echo "end"
done
`), 0o600))
	c := exec.Command("unshare", "-m", "bash", script, spec)
	c.Dir = dir
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	require.NoError(t, err, "%s", stderr.String())
	without, with, _ := strings.Cut(string(out), "end\n")
	require.Contains(t, without, "/cat")
	require.NotContains(t, without, Name)
	require.Contains(t, with, "/usr/lib/smcgw/"+Name)
	require.NotContains(t, stderr.String(), "ld.so")
}

// TestSetUserID: the list of the loader counts for set-user-ID programs, too, and the library does nothing in them; in others
// it tracks connections, for which it makes a slab.
func TestSetUserID(t *testing.T) {
	testnet.Require(t, "root", "gcc", "unshare", "setpriv", "/usr/bin/python3")
	dir := t.TempDir()
	install(t, filepath.Join(dir, Installed))
	script := filepath.Join(dir, "script")
	require.NoError(t, os.WriteFile(script, []byte(`set -eu
mount --make-rprivate /
chmod 755 .. . && mount -t tmpfs -o mode=755 none /mnt && cp usr/lib/smcgw/libsmcgw.so /mnt/ && cp "$(realpath /usr/bin/python3)" /mnt/python3
program=/mnt/python3
mount -t tmpfs -o mode=755 none /run && mkdir -p /run/smcgw/in-process
mount -t overlay -o lowerdir=/etc,upperdir="$PWD/upper",workdir="$PWD/work" none /etc
/usr/bin/python3 -c 'import socket, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind("/run/smcgw/in-process/broker.sock"); s.listen(); time.sleep(60)' &
broker=$!
while ! [ -S /run/smcgw/in-process/broker.sock ]; do sleep 0.01; done
chmod 666 /run/smcgw/in-process/broker.sock
echo /mnt/libsmcgw.so >/etc/ld.so.preload
for mode in 755 4755; do
	chmod $mode $program
	setpriv --reuid 65534 --regid 65534 --clear-groups env PYTHONHOME=/usr $program -c 'import socket
l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen()
a = socket.create_connection(l.getsockname()); b, _ = l.accept()
for i in range(100): a.sendall(b"x" * 100); b.recv(100)
print(open("/proc/self/maps").read())'
	echo "end"
done
kill $broker
`), 0o600))
	for _, name := range []string{"upper", "work"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	c := exec.Command("unshare", "-mn", "bash", "-c", "ip link set lo up && exec bash "+script)
	c.Dir = dir
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	require.NoError(t, err, "%s", stderr.String())
	plain, secure, _ := strings.Cut(string(out), "end\n")
	for _, maps := range []string{plain, secure} {
		require.Contains(t, maps, "/mnt/"+Name)
	}
	require.Contains(t, plain, "memfd:smcgw")
	require.NotContains(t, secure, "memfd:smcgw")
	require.NotContains(t, stderr.String(), "ld.so")
}

func TestLibraryIsFound(t *testing.T) {
	root := t.TempDir()
	bin, lib := filepath.Join(root, "bin"), filepath.Join(root, "lib", "smcgw")
	require.NoError(t, os.MkdirAll(bin, 0o700))
	require.NoError(t, os.MkdirAll(lib, 0o700))
	own := filepath.Join(bin, "smcgw")
	put := func(at string) string {
		require.NoError(t, os.WriteFile(at, nil, 0o600))
		return at
	}
	var missing *LibraryError
	_, err := Library(scan.Musl, "", own)
	if !strings.Contains(err.Error(), "/usr/lib/smcgw/libsmcgw-musl.so") {
		t.Fatal(err)
	}
	require.ErrorAs(t, err, &missing)
	installed := put(filepath.Join(lib, "libsmcgw-musl.so"))
	got, err := Library(scan.Musl, "", own)
	require.NoError(t, err)
	require.Equal(t, installed, got)
	beside := put(filepath.Join(bin, "libsmcgw-musl.so"))
	got, err = Library(scan.Musl, "", own)
	require.NoError(t, err)
	require.Equal(t, beside, got)
	got, err = Library(scan.Glibc, installed, own)
	require.NoError(t, err)
	require.Equal(t, installed, got)
	_, err = Library(scan.Glibc, put(filepath.Join(root, "a b.so")), own)
	require.ErrorIs(t, err, errSeparator)
	_, err = Library(scan.Glibc, filepath.Join(root, "none"), own)
	require.ErrorAs(t, err, &missing)
}

func TestEnvironment(t *testing.T) {
	got := Environment([]string{"A=b", "LD_PRELOAD=/x.so", "SMCGW_RUN=1", "SMCGW_SOCKET=/old"}, "/l.so", "/s", 1<<64-1)
	require.Equal(t, []string{"A=b", "LD_PRELOAD=/l.so:/x.so", "SMCGW_SOCKET=/s", "SMCGW_RUN=" + strconv.FormatUint(1<<64-1, 10)}, got)
	require.Contains(t, Environment(nil, "/l.so", "/s", 1), "LD_PRELOAD=/l.so")
}
