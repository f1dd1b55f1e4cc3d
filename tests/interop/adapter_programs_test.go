package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/negotiate"
)

// Ports of programs, all in the policy. The same servers also listen nativePort above them, on ports that are not in
// it: connections to those are native.
const (
	redisPort  = 6379
	iperfPort  = 5201
	webPort    = 8080
	talkPort   = 7020
	nativePort = 10000
)

// adapterWork is what the distribution's stock programs do in two guests.
type adapterWork struct {
	port  uint16
	serve string // a script that starts the servers of the second guest, on two ports, and returns
	// client uses a server at an address and port, checks what it gets, and returns.
	client func(ctx context.Context, t *testing.T, p *adapterPair, host string, port uint16)
	atOnce int // how many connections must exist at the same time
	// burst: more connections begin at once than an emulated gateway can make queue pairs for in time, which leaves
	// some native.
	burst bool
}

// workTries is how often a work is repeated until all its connections are carried: an emulated machine may stand
// still for a moment, in which connections are native.
const workTries = 6

// lateReasons are the reasons why adapters do not carry a connection between machines that stand still at times.
var lateReasons = []string{
	negotiate.ReasonGatewayStale.String(), negotiate.ReasonHandshakeTimeout.String(), negotiate.ReasonOfferUnanswered.String(),
	negotiate.ReasonCarrierUnreachable.String(), negotiate.ReasonAcceptLost.String(), negotiate.ReasonAppUnreachable.String(),
	negotiate.ReasonClientGone.String(), negotiate.ReasonPeerNoOption.String(), negotiate.ReasonDeviceFailed.String(),
	negotiate.ReasonRateLimit.String(), report.DemotedByPeer,
}

func (p *adapterPair) redis(ctx context.Context, t *testing.T) { p.work(ctx, t, redisWork) }
func (p *adapterPair) iperf(ctx context.Context, t *testing.T) { p.work(ctx, t, iperfWork) }
func (p *adapterPair) web(ctx context.Context, t *testing.T)   { p.work(ctx, t, webWork) }
func (p *adapterPair) rush(ctx context.Context, t *testing.T)  { p.work(ctx, t, rushWork) }
func (p *adapterPair) churn(ctx context.Context, t *testing.T) { p.work(ctx, t, churnWork) }
func (p *adapterPair) big(ctx context.Context, t *testing.T)   { p.work(ctx, t, bigWork) }

// work does the work natively, and then until all its connections are carried, or for a burst some of them once. No
// try may fail.
func (p *adapterPair) work(ctx context.Context, t *testing.T, w adapterWork) {
	t.Helper()
	// A guardian would end a gateway that gets no time for two seconds.
	for i := range p.guest {
		p.gateway(ctx, t, i, adapterSettings{}, withFlag("--no-guardian")...)
	}
	require.Equal(t, report.DeviceActive, p.device(ctx, t, 0).State)
	server := startIn(t, p.guest[1], "sh", "-c", w.serve+"\nexec sleep 100000")
	host := p.guest[1].Addr4.String()
	for _, port := range []uint16{w.port, w.port + nativePort} {
		p.sh(ctx, t, 1, fmt.Sprintf("until ss -Hltn sport = :%d | grep -q .; do sleep .2; done", port))
	}
	defer server.Kill()

	defer func() {
		if t.Failed() {
			for i := range p.guest {
				t.Logf("guest %d: %+v", i, p.status(ctx, t, i))
			}
			for _, c := range append(p.conns(ctx, t, 0, w.port), p.conns(ctx, t, 0, w.port, "--closed")...) {
				t.Logf("%+v", c)
			}
		}
	}()
	start, before := time.Now(), p.received(ctx, t, 0)
	w.client(ctx, t, p, host, w.port+nativePort)
	t.Logf("native: %v", time.Since(start).Round(time.Millisecond))
	for _, c := range p.past(ctx, t, w.port+nativePort) {
		require.Equal(t, report.EndNative, c.End, "the control is native: %+v", c)
	}
	require.Less(t, p.received(ctx, t, 0)-before, uint64(100), "nothing of the control is on adapters")

	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort)) // first make sure that the carrier works between them
	packets := [2]uint64{p.received(ctx, t, 0), p.received(ctx, t, 1)}
	for try, carried := 1, 0; ; try++ {
		seen := p.past(ctx, t, w.port)
		start := time.Now()
		most := p.watch(ctx, t, w.port, func() { w.client(ctx, t, p, host, w.port) })
		spent := time.Since(start).Round(time.Millisecond)
		conns := p.past(ctx, t, w.port)
		others, late := 0, map[string]int{}
		for key, c := range conns {
			if _, old := seen[key]; old {
				delete(conns, key)
			} else if c.Carrier != report.CarrierHW || c.Demoted != "" {
				others++
				late[c.Reason+c.Demoted]++
				require.Contains(t, lateReasons, c.Reason+c.Demoted, "%+v", c)
			}
		}
		carried += len(conns) - others
		t.Logf("try %d: %v, %d connections, %d of them too late for adapters: %v; %d carried at a time", try, spent, len(conns), others, late, most)
		whole := others == 0 && len(conns) > 0 && most >= w.atOnce
		if whole || w.burst && carried > 0 {
			for i := range p.guest {
				require.Greater(t, p.received(ctx, t, i), packets[i]+10, "packets of guest %d", i)
				require.NotContains(t, p.sh(ctx, t, i, "ss -Hulnp"), "smcgw", "soft is not open")
			}
			return
		}
		require.Less(t, try, workTries, "all connections are rdma-hw in one try")
	}
}

// past returns the connections of the first guest with a port that are over, carried or native, by address and time.
func (p *adapterPair) past(ctx context.Context, t *testing.T, port uint16) map[string]report.ConnInfo {
	t.Helper()
	require.Eventually(t, func() bool { return len(p.conns(ctx, t, 0, port)) == 0 }, time.Minute, 200*time.Millisecond, "they end")
	all := map[string]report.ConnInfo{}
	for _, c := range append(p.conns(ctx, t, 0, port, "--closed"), p.natives(ctx, t, port)...) {
		all[fmt.Sprint(c.Local, c.EndedAt)] = c
	}
	return all
}

// watch returns how many connections with a port adapters carried at the same time while do ran.
func (p *adapterPair) watch(ctx context.Context, t *testing.T, port uint16, do func()) (most int) {
	t.Helper()
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		most := 0
		for {
			select {
			case <-stop:
				done <- most
				return
			case <-time.After(500 * time.Millisecond):
			}
			out, err := p.guest[0].Run(ctx, guestProgram, "conns", "--json", "--socket", "/run/admin.sock")
			var all admin.ConnList
			if err != nil || json.Unmarshal([]byte(out), &all) != nil {
				continue
			}
			now := 0
			for _, c := range all.Conns {
				if c.Remote.Port() == port && c.Carrier == report.CarrierHW {
					now++
				}
			}
			most = max(most, now)
		}
	}()
	defer func() {
		close(stop)
		most = <-done
	}()
	do()
	return most
}

// redisWork uses many connections, one value of megabytes, and counting.
var redisWork = adapterWork{
	port: redisPort,
	serve: fmt.Sprintf(`for port in %d %d; do
	redis-server --port $port --bind 0.0.0.0 --protected-mode no --save "" --daemonize yes --logfile /run/redis.$port
done`, redisPort, redisPort+nativePort),
	client: func(ctx context.Context, t *testing.T, p *adapterPair, host string, port uint16) {
		cli := fmt.Sprintf("redis-cli -h %s -p %d", host, port)
		out := p.sh(ctx, t, 0, fmt.Sprintf("redis-benchmark -h %s -p %d -t set,get -n 1000 -c 8 -d 1000 --csv", host, port))
		for _, verb := range []string{"SET", "GET"} {
			require.Contains(t, out, `"`+verb+`","`)
		}
		require.NotContains(t, strings.ToLower(out), "error")
		p.sh(ctx, t, 0, "set -e; head -c 3000000 /dev/urandom | base64 -w0 >/tmp/value; test $("+cli+" -x set big </tmp/value) = OK; "+
			`test "$(`+cli+` get big | head -c 4000000 | sha256sum)" = "$(sha256sum </tmp/value)"`)
		require.Equal(t, "0", strings.TrimSpace(p.sh(ctx, t, 0, cli+" del counter >/dev/null; "+cli+" -r 100 incr counter >/dev/null; "+cli+" decrby counter 100")))
	},
}

// iperfWork runs one stream each way. Its control connection is carried, too.
var iperfWork = adapterWork{
	port:  iperfPort,
	serve: fmt.Sprintf("for port in %d %d; do iperf3 -s -p $port >/run/iperf.$port 2>&1 & done", iperfPort, iperfPort+nativePort),
	client: func(ctx context.Context, t *testing.T, p *adapterPair, host string, port uint16) {
		const size = 20 << 20
		for _, way := range []string{"", "-R"} {
			out := p.sh(ctx, t, 0, fmt.Sprintf("iperf3 -c %s -p %d -n %d -J %s", host, port, size, way))
			r, err := testnet.ParseIPerf3(out)
			require.NoError(t, err)
			require.GreaterOrEqual(t, r.SentBytes, int64(size))
			require.Greater(t, r.ReceivedBytes, int64(size/4)) // the receiver only counts until the sender is done
			t.Logf("port %d %s: %.0f Mb/s", port, way, r.BitsPerSecond/1e6)
		}
	},
}

// webServer is nginx with files that do not compress, one of which it sends slowly. A server that earlier work has
// left goes on.
var webServer = fmt.Sprintf(`mkdir -p /run/web
for f in page:100000 big:100000000; do
  [ -e /run/web/${f%%:*} ] || { head -c ${f#*:} /dev/urandom >/run/web/new; mv /run/web/new /run/web/${f%%:*}; }
done
cat >/run/nginx.conf <<'END'
user root;
worker_processes 1;
pid /run/nginx.pid;
error_log /run/nginx.log;
events { worker_connections 512; }
http {
  access_log off;
  client_body_temp_path /run/web; proxy_temp_path /run/web; fastcgi_temp_path /run/web; uwsgi_temp_path /run/web; scgi_temp_path /run/web;
  server {
    listen %d; listen %d;
    root /run/web;
    location = /page { limit_rate 20k; }
    location /held/ { alias /run/web/; limit_rate 2k; }
  }
}
END
ss -Hltn sport = :%d | grep -q . || nginx -e /run/nginx.log -c /run/nginx.conf
`, webPort, webPort+nativePort, webPort)

// webWork uses 64 connections at the same time, several of which begin each second. None ends before the last one has
// begun.
var webWork = adapterWork{
	port: webPort, serve: webServer, atOnce: 64,
	client: func(ctx context.Context, t *testing.T, p *adapterPair, host string, port uint16) {
		want := strings.Fields(p.sh(ctx, t, 1, "sha256sum /run/web/page"))[0]
		got := p.sh(ctx, t, 0, fmt.Sprintf(`for i in $(seq 64); do
	wget -q -O - http://%s:%d/held/page | sha256sum & sleep .2
done; wait`, host, port))
		require.Equal(t, 64, strings.Count(got, want), got)
	},
}

// rushWork begins 64 connections at once, each kept for a second request.
var rushWork = adapterWork{
	port: webPort, serve: webServer, burst: true,
	client: func(ctx context.Context, t *testing.T, p *adapterPair, host string, port uint16) {
		out := p.sh(ctx, t, 0, fmt.Sprintf("ab -k -s 120 -c 64 -n 128 http://%s:%d/page", host, port))
		require.Regexp(t, `Complete requests:\s+128\n`, out)
		require.Regexp(t, `Failed requests:\s+0\n`, out)
		require.Regexp(t, `HTML transferred:\s+12800000 bytes\n`, out)
		require.NotContains(t, out, "Non-2xx")
	},
}

// bigWork fetches 100 MB over one connection.
var bigWork = adapterWork{
	port: webPort, serve: webServer,
	client: func(ctx context.Context, t *testing.T, p *adapterPair, host string, port uint16) {
		want := strings.Fields(p.sh(ctx, t, 1, "sha256sum /run/web/big"))[0]
		got := strings.Fields(p.sh(ctx, t, 0, fmt.Sprintf("wget -q -O - http://%s:%d/big | sha256sum", host, port)))[0]
		require.Equal(t, want, got)
	},
}

// churnWork makes connections one after another, twelve at a time, that compare each byte.
var churnWork = adapterWork{
	burst: true,
	port:  talkPort,
	serve: fmt.Sprintf("SMCGW_TESTNET_APP=1 %s serve -quiet transfer=[::]:%d transfer=[::]:%d &", guestApps, talkPort, talkPort+nativePort),
	client: func(ctx context.Context, t *testing.T, p *adapterPair, host string, port uint16) {
		out := p.run(ctx, t, "churn", "-to", fmt.Sprintf("%s:%d", host, port), "-count", "60", "-parallel", "12", "-size", "300000")
		t.Log(strings.TrimSpace(out))
	},
}
