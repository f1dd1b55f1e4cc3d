package monitoring

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// browser is a headless Chromium with one tab, driven by its DevTools protocol over a pair of pipes: messages are
// JSON documents, each followed by a NUL.
type browser struct {
	t       *testing.T
	in      *os.File
	session string

	mu      sync.Mutex // guards everything below
	next    int
	waiting map[int]chan message
	loads   chan struct{}
	faults  []string // complaints of the console, or of the browser itself
	asked   []string // addresses that it has requested
}

// message is an answer or an event.
type message struct {
	ID     int
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *struct{ Message string }
}

// startBrowser starts Chromium on a host and opens a tab. It ends with the test.
func startBrowser(t *testing.T, h *testnet.Host) *browser {
	t.Helper()
	dir, err := os.MkdirTemp("", "smcgw-browser-") //nolint:usetesting // it is removed behind the process
	require.NoError(t, err)
	toRead, in, err := os.Pipe()
	require.NoError(t, err)
	out, toWrite, err := os.Pipe()
	require.NoError(t, err)
	cmd := h.Command(context.Background(), "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--user-data-dir="+dir, "--remote-debugging-pipe")
	cmd.ExtraFiles = []*os.File{toRead, toWrite}
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_CACHE_HOME="+dir)
	var said bytes.Buffer
	cmd.Stderr = &said
	require.NoError(t, cmd.Start())
	require.NoError(t, toRead.Close())
	require.NoError(t, toWrite.Close())
	b := &browser{t: t, in: in, waiting: map[int]chan message{}, loads: make(chan struct{}, 100)}
	var reading sync.WaitGroup
	reading.Go(func() { b.read(out) })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("chromium: %.2000s", said.String())
		}
		_, _ = in.WriteString(`{"id":1000000,"method":"Browser.close"}` + "\x00")
		late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		late.Stop()
		_ = in.Close()
		_ = out.Close()
		reading.Wait()
		require.Eventually(t, func() bool { return os.RemoveAll(dir) == nil }, patience, 100*time.Millisecond)
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// read delivers answers to their callers, and records events.
func (b *browser) read(out *os.File) {
	r := bufio.NewReaderSize(out, 1<<20)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			return
		}
		b.mu.Lock()
		if c := b.waiting[m.ID]; m.ID != 0 && c != nil {
			delete(b.waiting, m.ID)
			c <- m
		}
		b.note(m)
		b.mu.Unlock()
	}
}

// note records an event. The caller holds the lock.
func (b *browser) note(m message) {
	switch m.Method {
	case "Page.loadEventFired":
		b.loads <- struct{}{}
	case "Runtime.exceptionThrown", "Security.certificateError":
		b.faults = append(b.faults, string(m.Params))
	case "Runtime.consoleAPICalled", "Log.entryAdded":
		b.faults = append(b.faults, m.Method+" "+string(m.Params))
	case "Network.requestWillBeSent":
		var p struct{ Request struct{ URL string } }
		_ = json.Unmarshal(m.Params, &p)
		b.asked = append(b.asked, p.Request.URL)
	}
}

// call executes a command and returns its result in result.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	if params == nil {
		params = struct{}{}
	}
	answer := make(chan message, 1)
	b.mu.Lock()
	b.next++
	doc := map[string]any{"id": b.next, "method": method, "params": params}
	if b.session != "" {
		doc["sessionId"] = b.session
	}
	b.waiting[b.next] = answer
	b.mu.Unlock()
	text, err := json.Marshal(doc)
	require.NoError(b.t, err)
	_, err = b.in.Write(append(text, 0))
	require.NoError(b.t, err)
	select {
	case m := <-answer:
		require.Nil(b.t, m.Error, method)
		if result != nil {
			require.NoError(b.t, json.Unmarshal(m.Result, result))
		}
	case <-time.After(patience):
		require.FailNow(b.t, "no answer to "+method)
	}
}

// screen is the screen of a reader.
type screen struct {
	name          string
	width, height int
	mobile, dark  bool
}

// show opens an address on a screen and waits until it is loaded.
func (b *browser) show(url string, s screen) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": s.width, "height": s.height, "deviceScaleFactor": 1, "mobile": s.mobile}, nil)
	scheme := "light"
	if s.dark {
		scheme = "dark"
	}
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	for len(b.loads) > 0 {
		<-b.loads
	}
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	select {
	case <-b.loads:
	case <-time.After(patience):
		require.FailNow(b.t, "page not loaded")
	}
}

// eval returns the value of an expression.
func eval[T any](b *browser, expression string) (value T) {
	b.t.Helper()
	var answer struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &answer)
	require.Empty(b.t, answer.ExceptionDetails, expression)
	require.NoError(b.t, json.Unmarshal(answer.Result.Value, &value), expression)
	return value
}

// picture takes a picture of the screen's size from the top of the page.
func (b *browser) picture(s screen) []byte {
	b.t.Helper()
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{
		"format": "png", "captureBeyondViewport": true, "clip": map[string]any{"x": 0, "y": 0, "width": s.width, "height": s.height, "scale": 1},
	}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	require.NoError(b.t, err)
	return png
}

// quiet checks that there were no complaints, and that only addresses with the prefix, or data in the page, were
// requested.
func (b *browser) quiet(prefix string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.faults)
	for _, url := range b.asked {
		require.True(b.t, strings.HasPrefix(url, prefix) || strings.HasPrefix(url, "data:") || url == "about:blank", fmt.Sprintf("%q was asked for", url))
	}
}
