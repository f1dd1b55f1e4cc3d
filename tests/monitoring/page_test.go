package monitoring

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// pictures names the environment variable with the directory for pictures of the page.
const pictures = "SMCGW_PICTURES"

// pictureAge is how much of the past the pictures show.
const pictureAge = 35 * time.Second

// TestStatusPage checks that the page of a gateway under load is readable on every screen: nothing is outside of it,
// nothing complains, nothing but the gateway is asked for anything, and the page follows what happens.
func TestStatusPage(t *testing.T) {
	testnet.Require(t, "chromium")
	w := newWorld(t)
	b := startBrowser(t, w.h1)
	url := w.page(t)
	// It takes a while to have a history.
	var version string
	require.Eventually(t, func() bool {
		st, err := w.g1.Status(t.Context())
		require.NoError(t, err)
		version = st.Version
		return st.FlowsTotal[report.CarrierShm] > 20 && st.FallbacksTotal["peer_no_option"] > 5
	}, patience, 100*time.Millisecond)
	if os.Getenv(pictures) != "" {
		time.Sleep(pictureAge)
	}
	for _, s := range []screen{
		{"desktop", 1240, 900, false, false},
		{"dark", 1240, 900, false, true},
		{"phone", 360, 780, true, false},
		{"phone-dark", 360, 780, true, true},
		{"narrow", 320, 600, true, false},
		{"tablet", 800, 1000, true, false},
	} {
		t.Run(s.name, func(t *testing.T) {
			b.t = t
			b.show(url, s)
			// Wait until the script has refreshed the page, and so has drawn what it draws.
			before := eval[string](b, `document.querySelector('.about').textContent`)
			require.Eventually(t, func() bool { return eval[string](b, `document.querySelector('.about').textContent`) != before }, patience, 100*time.Millisecond)
			if dir := os.Getenv(pictures); dir != "" {
				s.height = max(s.height, eval[int](b, `document.documentElement.scrollHeight`))
				require.NoError(t, os.WriteFile(filepath.Join(dir, s.name+".png"), b.picture(s), 0o600))
			}
			require.True(t, eval[bool](b, `document.querySelector('#ended').open = true`))
			require.LessOrEqual(t, eval[int](b, `document.documentElement.scrollWidth`), s.width, "it scrolls sideways")
			outside := eval[[]string](b, `[...document.querySelectorAll('main *')].filter(e => { const r = e.getBoundingClientRect();
				return r.width > 0 && (r.left < -0.5 || r.right > innerWidth + 0.5) }).map(e => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40))`)
			require.Empty(t, outside, "outside of the screen")
			require.Equal(t, s.dark, eval[bool](b, `getComputedStyle(document.body).backgroundColor.match(/\d+/g).reduce((a, n) => a + Number(n), 0) < 200`))
			require.Contains(t, eval[string](b, `document.querySelector('header').textContent`), "healthy")
			text := eval[string](b, `document.querySelector('main').innerText`)
			for _, want := range []string{"rdma-shm", "peer_no_option", "closed", w.h2.Addr4.String(), "active", "version " + version} {
				require.Contains(t, text, want)
			}
			require.NotContains(t, text, "NaN")
			require.Positive(t, eval[int](b, `document.querySelectorAll('svg.spark polyline').length`))
			b.quiet(url)
		})
	}
}

// page serves the page of h1's gateway, and returns its address.
func (w *world) page(t *testing.T) (url string) {
	t.Helper()
	p, err := w.h1.Start(w.program, "status", "--web", "--socket", filepath.Join(w.dir, w.h1.Name+".sock"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Kill() })
	require.Eventually(t, func() bool {
		url = regexp.MustCompile(`http://127\.0\.0\.1:\d+/\w+/`).FindString(p.Output())
		return url != ""
	}, patience, 10*time.Millisecond)
	return url
}
