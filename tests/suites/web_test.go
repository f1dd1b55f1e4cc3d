package suites

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// web has web servers, with CPython's client and curl, which compare every body.
var web = []suite{
	{
		name: "nginx", limit: 20 * time.Minute, least: 59, needs: []string{"nginx", "/usr/bin/python3.11", "openssl"},
		run: func(r *round) results {
			www := r.site()
			r.certificate()
			r.file("nginx.conf", nginxConfig)
			server := r.start(r.command("nginx", "-p", r.dir, "-c", "nginx.conf", "-e", "stderr"), "127.0.0.1:8101")
			got := results{}
			for _, s := range []struct {
				name, port string
				flags      []string
			}{
				{"sendfile", "8101", nil},
				{"buffers", "8102", []string{"--gzip"}},
				{"proxy", "8103", nil},
				{"threads", "8104", []string{"--gzip"}},
				{"proxy-unbuffered", "8105", nil},
				{"tls", "8106", []string{"--tls"}},
			} {
				r.check(got, r.command("/usr/bin/python3.11", append([]string{
					r.script("webclient.py"), s.name, s.port, www, "--reload", strconv.Itoa(server.Pid()), "--signal", "HUP",
				}, s.flags...)...))
			}
			return got
		},
	}, {
		name: "apache-prefork", limit: 20 * time.Minute, least: 31, needs: []string{"/usr/sbin/apache2", "/usr/bin/python3.11"},
		run: func(r *round) results {
			www := r.site()
			server := r.apache()
			got := results{}
			for _, s := range [][]string{{"sendfile", "8201"}, {"mmap", "8202", "--gzip"}, {"proxy", "8203"}} {
				r.check(got, r.command("/usr/bin/python3.11", append([]string{
					r.script("webclient.py"), s[0], s[1], www, "--reload", strconv.Itoa(server), "--signal", "USR1",
				}, s[2:]...)...))
			}
			return got
		},
	}, {
		name: "curl", limit: 15 * time.Minute, least: 10, needs: []string{"curl", "/usr/sbin/apache2"},
		run: func(r *round) results {
			r.site()
			r.apache()
			return r.checked(r.command("bash", r.script("curl.sh")))
		},
	},
}

const nginxConfig = `
worker_processes 2; error_log stderr error; pid nginx.pid; daemon off;
events { worker_connections 512; }
http {
	access_log off;
	sendfile_max_chunk 0; # a worker that has sent so much at once has no timer, and a reload ends it in the middle of a body
	client_header_timeout 900; client_body_timeout 900; send_timeout 900; keepalive_timeout 900; proxy_read_timeout 900; proxy_send_timeout 900;
	client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
	root www; types { text/plain txt; } default_type application/octet-stream;
	ssl_certificate cert.pem; ssl_certificate_key key.pem;
	upstream up { server 127.0.0.1:8101; keepalive 8; }
	server { listen 127.0.0.1:8101; sendfile on; tcp_nopush on; }
	server { listen 127.0.0.1:8102; sendfile off; gzip on; }
	server { listen 127.0.0.1:8103; location / { proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ""; } }
	server { listen 127.0.0.1:8104; sendfile on; gzip on; aio threads; output_buffers 2 32k; }
	server { listen 127.0.0.1:8105; location / { proxy_pass http://up; proxy_buffering off; } }
	server { listen 127.0.0.1:8106 ssl; }
}
`

const apacheConfig = `
ServerRoot DIR
ServerName h
PidFile DIR/apache.pid
DefaultRuntimeDir DIR
Mutex file:DIR
ErrorLog DIR/apache.log
LoadModule mpm_prefork_module MODULES/mod_mpm_prefork.so
LoadModule authz_core_module MODULES/mod_authz_core.so
LoadModule mime_module MODULES/mod_mime.so
LoadModule filter_module MODULES/mod_filter.so
LoadModule deflate_module MODULES/mod_deflate.so
LoadModule proxy_module MODULES/mod_proxy.so
LoadModule proxy_http_module MODULES/mod_proxy_http.so
LoadModule dav_module MODULES/mod_dav.so
LoadModule dav_fs_module MODULES/mod_dav_fs.so
TypesConfig /dev/null
AddType text/plain .txt
DocumentRoot DIR/www
StartServers 4
MaxRequestWorkers 64
MaxKeepAliveRequests 0
Timeout 900
KeepAliveTimeout 60
DavLockDB DIR/davlock
Listen 127.0.0.1:8201
Listen 127.0.0.1:8202
Listen 127.0.0.1:8203
Listen 127.0.0.1:8204
<VirtualHost *:8201>
EnableSendfile On
EnableMMAP Off
</VirtualHost>
<VirtualHost *:8202>
EnableSendfile Off
EnableMMAP On
AddOutputFilterByType DEFLATE text/plain
</VirtualHost>
<VirtualHost *:8203>
ProxyPass / http://127.0.0.1:8201/
</VirtualHost>
<VirtualHost *:8204>
DocumentRoot DIR/dav
<Directory DIR/dav>
Dav On
</Directory>
</VirtualHost>
`

// apache starts an Apache that forks children and returns its process.
func (r *round) apache() int {
	r.Helper()
	require.NoError(r, os.Mkdir(filepath.Join(r.dir, "dav"), 0o777))
	require.NoError(r, os.Chmod(filepath.Join(r.dir, "dav"), 0o777))
	r.file("apache.conf", strings.NewReplacer("DIR", r.dir, "MODULES", "/usr/lib/apache2/modules").Replace(apacheConfig))
	return r.start(r.command("/usr/sbin/apache2", "-f", filepath.Join(r.dir, "apache.conf"), "-D", "FOREGROUND"), "127.0.0.1:8201").Pid()
}

// site makes the files that the servers serve.
func (r *round) site() string {
	r.Helper()
	www := filepath.Join(r.dir, "www")
	require.NoError(r, os.Mkdir(www, 0o755))
	random := rand.NewChaCha8([32]byte{1})
	for _, n := range []int{0, 1, 999, 4096, 65535, 65536, 1 << 20, 5_000_000, 64 << 20} {
		b := make([]byte, n)
		_, _ = random.Read(b)
		r.file(fmt.Sprintf("www/%d.bin", n), string(b))
	}
	var text strings.Builder
	for i := range 40000 {
		fmt.Fprintf(&text, "line %d %d\n", i, random.Uint64()%1000)
	}
	r.file("www/text.txt", text.String())
	return www
}

func (r *round) certificate() {
	r.Helper()
	said, err := r.output(r.command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
		"-subj", "/CN=h", "-days", "2", "-keyout", "key.pem", "-out", "cert.pem"))
	require.NoError(r, err, said)
}

// file writes a file that the suite's programs may read.
func (r *round) file(name, text string) string {
	r.Helper()
	path := filepath.Join(r.dir, name)
	require.NoError(r, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// script copies a file of testdata to where the suite's programs can read it.
func (r *round) script(name string) string {
	r.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(r, err)
	return r.file(name, string(text))
}

// checked runs a program that has all cases of the suite.
func (r *round) checked(c *testnet.Cmd) results {
	r.Helper()
	got := results{}
	r.check(got, c)
	return got
}

// check runs a program that prints a line for each case: its name, a tab, its result. It logs any other output.
func (r *round) check(got results, c *testnet.Cmd) {
	r.Helper()
	said, err := r.output(c)
	for line := range strings.Lines(said) {
		name, result, ok := strings.Cut(strings.TrimSpace(line), "\t")
		switch {
		case !ok:
			r.Logf("%s: %s", filepath.Base(c.Path), line)
		case got[name] != "":
			require.FailNow(r, "a case twice", name)
		default:
			got[name] = result
		}
	}
	require.NoError(r, err, tail(said))
}
