package admin

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/lab/testnet"
)

// otherUserEnv makes TestAdminOtherUser do what it says: "SOCKET ask" or "SOCKET
// flood N".
const otherUserEnv = "SMCGW_TEST_OTHER_USER"

// TestAdminOtherUser is not a test: it is the process of another user.
func TestAdminOtherUser(t *testing.T) {
	order := strings.Fields(os.Getenv(otherUserEnv))
	if len(order) == 0 {
		t.Skip("only run by other tests")
	}
	if order[1] == "flood" {
		floodAdmin(order[0])
		return
	}
	out := json.NewEncoder(os.Stdout)
	for _, r := range requests() {
		r.Status = r.send(order[0])
		_ = out.Encode(r)
	}
}

// adminRequest is one request to the admin socket and its answer; 0: none.
type adminRequest struct {
	Method, Path string
	Status       int
}

// requests are all verbs there are, and some there may be, by every method.
func requests() (list []adminRequest) {
	for _, path := range []string{
		"/v1/status", "/v1/stats", "/v1/conns", "/v1/peers", "/v1/policy", "/v1/devices", "/v1/version", "/metrics",
		"/v1/off", "/v1/on", "/v1/peers/flush", "/v1/trial", "/v1/drain", "/v1/demote", "/v1/set", "/v1/handover", "/v1/reload", "/", "*",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "get", "NONSENSE"} {
			list = append(list, adminRequest{Method: method, Path: path})
		}
	}
	return list
}

// send writes the request by hand, since a client would correct it.
func (r adminRequest) send(socket string) int {
	c, err := net.DialTimeout("unix", socket, 10*time.Second)
	if err != nil {
		return 0
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	body := `{"peer":"10.0.0.1","port":4792,"action":"pass","carrier":""}`
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-HTTP-Method-Override: POST\r\nContent-Length: %d\r\n\r\n%s",
		r.Method, r.Path, len(body), body)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// floodAdmin holds as many connections as it is let, some with half a request.
func floodAdmin(socket string) {
	var held []net.Conn
	for i := range 300 {
		c, err := net.DialTimeout("unix", socket, time.Second)
		if err != nil {
			continue
		}
		if i%2 == 1 {
			_, _ = c.Write([]byte("POST /v1/off HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"))
		}
		held = append(held, c)
	}
	fmt.Println("flooding", len(held))
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test ends
}

// asUser runs TestAdminOtherUser with other credentials.
func asUser(t *testing.T, order string, uid uint32, groups []uint32) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestAdminOtherUser$")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), otherUserEnv+"="+order)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 4242, Groups: groups}}
	return cmd
}

// openAdmin is an admin server in a directory that every user can enter.
func openAdmin(t *testing.T) *testAdmin {
	t.Helper()
	return startAdmin(t, func(c *config.Config) {
		dir, err := os.MkdirTemp("/tmp", "smcgw-admin") //nolint:usetesting // open to other users
		require.NoError(t, err)
		require.NoError(t, os.Chmod(dir, 0o755))
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		c.Admin = dir + "/s"
	})
}

// TestAdminForOtherUsers: another user changes nothing, by no request there is or
// may be; a member of the socket's group may read. The method decides, before the
// path is looked at, so that a new verb cannot be left out.
func TestAdminForOtherUsers(t *testing.T) {
	testnet.Require(t, "root")
	a := openAdmin(t)
	gid := a.server.socket.gid
	ask := func(groups []uint32) map[adminRequest]int {
		out, err := asUser(t, a.cfg.Admin+" ask", 4242, groups).Output()
		require.NoError(t, err)
		got := map[adminRequest]int{}
		for line := range bytes.Lines(out) {
			var r adminRequest
			if json.Unmarshal(line, &r) == nil {
				got[adminRequest{Method: r.Method, Path: r.Path}] = r.Status
			}
		}
		require.Len(t, got, len(requests()))
		return got
	}
	for r, status := range ask(nil) {
		require.Zero(t, status, "the mode of the socket keeps others out: %+v", r)
	}
	require.NoError(t, os.Chmod(a.cfg.Admin, 0o666)) // and if the mode is loosened:
	for r, status := range ask([]uint32{4243}) {
		require.Contains(t, []int{0, 400, 403}, status, "%+v", r)
	}
	read := 0
	for r, status := range ask([]uint32{4243, gid}) {
		if r.Method != "GET" && r.Method != "HEAD" {
			require.Contains(t, []int{0, 400, 403}, status, "%+v", r)
		} else if status == 200 {
			read++
		}
	}
	require.Equal(t, 2*8, read, "the nouns")
	require.Equal(t, []bool{false}, a.ctl.switched(), "nobody has switched anything")
	tried, _ := a.ctl.trials()
	require.Empty(t, tried)
	require.Equal(t, 200, adminRequest{Method: "POST", Path: "/v1/off"}.send(a.cfg.Admin), "root may")
}

// TestAdminFlood: a member of the group that holds all the connections it can get
// keeps neither root nor, for ever, its own from the socket.
func TestAdminFlood(t *testing.T) {
	testnet.Require(t, "root")
	a := openAdmin(t)
	cmd := asUser(t, a.cfg.Admin+" flood", 4242, []uint32{a.server.socket.gid})
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(stdout)
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), "flooding ")
	for range 20 {
		start := time.Now()
		_, err := a.client.Status(t.Context())
		require.NoError(t, err)
		require.Less(t, time.Since(start), clientTimeout)
		a.client.Close()
	}
	require.Equal(t, 200, adminRequest{Method: "POST", Path: "/v1/off"}.send(a.cfg.Admin))
	require.NoError(t, stdin.Close())
	for lines.Scan() {
	}
	require.NoError(t, cmd.Wait())
}
