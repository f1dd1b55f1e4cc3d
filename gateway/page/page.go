package page

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string
	//go:embed page.js
	pageJS string
)

// Source provides what the page shows. Its methods have the same duties as those of
// admin.Control.
type Source interface {
	report.Source
	Status() report.Status
	Conns(q report.ConnQuery) []report.ConnInfo
	Peers() []report.PeerInfo
	Draining() *report.DrainInfo
}

// renderEvery limits how often the page is rendered, no matter how many browsers request it.
const renderEvery = time.Second

// Page is the status page of one gateway. Create it with New. Its handler is safe for
// concurrent use.
type Page struct {
	src     Source
	about   About
	past    history
	text    *template.Template
	headers map[string]string

	mu     sync.Mutex // guards everything below, held while the page is made
	made   []byte
	madeAt time.Time
}

// About identifies the gateway.
type About struct {
	Host, Version string
	// Rules returns the number of rules in effect.
	Rules func() int
}

// New returns the page of a gateway.
func New(src Source, about About) *Page {
	text := template.Must(template.New("page").Funcs(template.FuncMap{
		"size": size, "rate": rate, "count": count, "age": age, "plural": plural[int], "join": report.JoinCarriers, "percent": func(part float64) float64 { return 100 * part },
	}).Parse(pageHTML))
	return &Page{src: src, about: about, text: text, headers: map[string]string{
		"Content-Type": "text/html; charset=utf-8",
		// Allows only what is in the page, and the page itself.
		"Content-Security-Policy": fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'", hash(pageCSS), hash(pageJS)),
		"X-Content-Type-Options":  "nosniff",
		"Referrer-Policy":         "no-referrer",
		"Cache-Control":           "no-store",
		"X-Frame-Options":         "DENY",
	}}
}

// hash returns the CSP source expression for inline content.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	text, err := p.render(time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	for name, value := range p.headers {
		w.Header().Set(name, value)
	}
	_, _ = w.Write(text)
}

// render renders the page, or returns one that is recent enough.
func (p *Page) render(now time.Time) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.made != nil && now.Sub(p.madeAt) < renderEvery {
		return p.made, nil
	}
	var b bytes.Buffer
	if err := p.text.Execute(&b, p.view(now)); err != nil {
		return nil, fmt.Errorf("status page: %w", err)
	}
	p.made, p.madeAt = b.Bytes(), now
	return p.made, nil
}
