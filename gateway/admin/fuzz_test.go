package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
)

// trialRequest is a request with everything that is parsed beyond HTTP.
const trialRequest = "POST /v1/trial HTTP/1.1\r\nHost: smcgw\r\nContent-Length: 75\r\n\r\n" +
	`{"peer":"10.0.0.2","port":5201,"action":"accelerate","carrier":"rdma-soft"}`

// adminCodes are all that a request can be answered with.
var adminCodes = []int{
	http.StatusOK, http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusBadRequest, http.StatusForbidden,
	http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusConflict,
}

// askAdmin has a request served whose client has gone already, with the rights of
// a peer; false when it is no HTTP.
func askAdmin(t *testing.T, raw []byte, rights access) (*fakeControl, *httptest.ResponseRecorder, bool) {
	t.Helper()
	ctl := &fakeControl{}
	dir := t.TempDir()
	s := &Server{
		off: NewOffFlag(dir), log: slog.New(slog.DiscardHandler), ctl: ctl, src: ctl, life: t.Context(),
		socket: &adminSocket{path: dir + "/s"}, lists: newDocumentGate(), totals: newDocumentGate(),
	}
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
	if err != nil {
		return nil, nil, false
	}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), peerKey{}, rights))
	cancel()
	w := httptest.NewRecorder()
	s.adminMux().ServeHTTP(w, r.WithContext(ctx))
	return ctl, w, true
}

// FuzzAdminRequest: whatever a local program says on the admin socket is answered
// with a document or by net/http itself, nothing is left of a trial, and a peer
// that may only read changes nothing.
func FuzzAdminRequest(f *testing.F) {
	f.Add([]byte(trialRequest))
	for _, line := range []string{
		"GET /v1/conns?all=1&closed=maybe", "GET /v1/conns?all=%zz;closed=1", "HEAD /v1/status", "POST /v1/off", "POST /v1/peers/flush",
		"POST /v1/drain", "POST /v1/handover", "GET /v1/../v1//stats", "DELETE /v1/trial", "GET http://x/v1/devices", "POST /v1/trial",
	} {
		f.Add([]byte(line + " HTTP/1.1\r\nHost: x\r\n\r\n"))
	}
	for _, body := range []string{"{}", "null", "[]", `{"peer":"::1%eth0","port":70000}`, `{"peer":""} {}`, strings.Repeat("[", 5000)} {
		f.Add([]byte("POST /v1/trial HTTP/1.0\r\n\r\n" + body))
	}
	for _, post := range []string{
		`/v1/drain {"timeout_seconds":1e300}`, `/v1/drain {"timeout_seconds":-1}`, `/v1/drain {"timeout_seconds":3} {}`,
		`/v1/set {"name":"log.level","value":"debug"}`, `/v1/set {"name":"","valu":0}`,
	} {
		path, body, _ := strings.Cut(post, " ")
		f.Add([]byte("POST " + path + " HTTP/1.0\r\n\r\n" + body))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, rights := range []access{accessNone, accessRead, accessWrite} {
			ctl, w, ok := askAdmin(t, raw, rights)
			if !ok {
				return
			}
			require.Contains(t, adminCodes, w.Code)
			if w.Header().Get("Content-Type") == "application/json" && w.Body.Len() > 0 {
				require.True(t, json.Valid(w.Body.Bytes()), "%q", w.Body)
			}
			began, ended := ctl.trials()
			require.Len(t, began, ended)
			if rights != accessWrite {
				require.Empty(t, began)
				require.Empty(t, ctl.switched())
				require.Empty(t, ctl.drained)
			}
			if rights == accessNone {
				require.NotEqual(t, http.StatusOK, w.Code)
			}
		}
	})
}

// TestAdminRequestTruncated: a trial whose request is cut anywhere is no trial.
func TestAdminRequestTruncated(t *testing.T) {
	for n := range len(trialRequest) {
		ctl, w, ok := askAdmin(t, []byte(trialRequest[:n]), accessWrite)
		if !ok {
			continue
		}
		require.NotEqual(t, http.StatusOK, w.Code, "%q", trialRequest[:n])
		began, _ := ctl.trials()
		require.Empty(t, began)
	}
	ctl, w, ok := askAdmin(t, []byte(trialRequest), accessWrite)
	require.True(t, ok)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	began, ended := ctl.trials()
	require.Equal(t, 1, ended)
	require.True(t, slices.ContainsFunc(began, func(t config.Trial) bool { return t.Port == 5201 }))
}
