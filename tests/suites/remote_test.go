package suites

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// remote has ssh and rsync. The connection between ssh and sshd itself stays native: sshd passes it to a program that
// it executes or, told only to fork (-r), has it in two processes, the first of which is sandboxed. What is forwarded
// through it is promoted at both of its ends.
var remote = []suite{
	{
		name: "ssh", limit: 30 * time.Minute, least: 56, root: true, // the user who logs in needs a shell
		needs: []string{"/usr/sbin/sshd", "ssh", "scp", "sftp", "/usr/lib/openssh/sftp-server", "rsync", "curl", "nginx", "openssl"},
		run: func(r *round) results {
			r.site()
			r.certificate()
			r.file("nginx.conf", "user root;"+nginxConfig)
			r.start(r.command("nginx", "-p", r.dir, "-c", "nginx.conf", "-e", "stderr"), "127.0.0.1:8101")
			if err := os.Mkdir("/run/sshd", 0o755); !errors.Is(err, fs.ErrExist) { // where sshd confines what it does not trust
				require.NoError(r, err)
				defer os.Remove("/run/sshd")
			}
			for _, key := range []string{"hostkey", "key"} {
				said, err := r.output(r.command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key))
				require.NoError(r, err, said)
			}
			for port, flags := range map[int][]string{8022: {"-D", "-e"}, 8023: {"-D", "-e", "-r"}} {
				config := fmt.Sprintf(sshdConfig, port, r.dir)
				for _, v := range r.env { // its sessions have their own environment
					if strings.HasPrefix(v, "LD_PRELOAD=") {
						config += "SetEnv " + v
					} else if strings.HasPrefix(v, "SMCGW_SOCKET=") {
						config += " " + v + "\n"
					}
				}
				f := r.file(fmt.Sprintf("sshd.%d.conf", port), config)
				r.start(r.command("/usr/sbin/sshd", append(flags, "-f", f)...), fmt.Sprintf("127.0.0.1:%d", port))
			}
			r.file("ssh.conf", "Host h\nHostName 127.0.0.1\nUser root\nIdentityFile "+filepath.Join(r.dir, "key")+
				"\nIdentitiesOnly yes\nUserKnownHostsFile /dev/null\nStrictHostKeyChecking no\nLogLevel ERROR\n")
			return r.checked(r.command("bash", r.script("ssh.sh")))
		},
	}, {
		name: "rsync", limit: 15 * time.Minute, least: 20, needs: []string{"rsync"},
		run: func(r *round) results {
			r.file("rsyncd.conf", fmt.Sprintf("port = 8730\naddress = 127.0.0.1\nuse chroot = no\n[in]\npath = %s/in\nread only = no\n", r.dir))
			r.start(r.command("rsync", "--daemon", "--no-detach", "--config=rsyncd.conf"), "127.0.0.1:8730")
			return r.checked(r.command("bash", r.script("rsync.sh")))
		},
	},
}

const sshdConfig = `Port %d
ListenAddress 127.0.0.1
HostKey %[2]s/hostkey
AuthorizedKeysFile %[2]s/key.pub
StrictModes no
PidFile none
UsePAM no
PermitRootLogin yes
MaxStartups 100
LoginGraceTime 900
Subsystem sftp /usr/lib/openssh/sftp-server
`
