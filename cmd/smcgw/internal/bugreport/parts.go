package bugreport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/inspect"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// Document is a part with a JSON document.
func Document[T any](name string, get func(context.Context) (T, error)) Part {
	return Part{Name: name, Read: func(ctx context.Context) ([]byte, error) {
		doc, err := get(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(doc)
	}}
}

// DaemonParts are what a daemon tells.
func DaemonParts(c *admin.Client) []Part {
	return []Part{
		Document("status.json", c.Status),
		Document("stats.json", c.Stats),
		Document("devices.json", c.Devices),
		Document("peers.json", c.Peers),
		Document("conns.json", func(ctx context.Context) (admin.ConnList, error) { return c.Conns(ctx, report.ConnQuery{All: true}) }),
		Document("closed.json", func(ctx context.Context) (admin.ConnList, error) { return c.Conns(ctx, report.ConnQuery{Closed: true}) }),
		{Name: "metrics.txt", Read: c.Metrics},
	}
}

// HostParts are what the kernel tells, and what systemd keeps of a gateway's log.
func HostParts() []Part {
	parts := []Part{
		Document("objects.json", func(context.Context) ([]inspect.Object, error) { return inspect.Objects() }),
		{Name: "kernel.log", Read: func(context.Context) ([]byte, error) {
			log, err := kernelLog()
			return about(log), err
		}},
	}
	if journalctl, err := exec.LookPath("journalctl"); err == nil {
		parts = append(parts, Part{Name: "journal.log", Read: func(ctx context.Context) ([]byte, error) { return journal(ctx, journalctl) }})
	}
	return parts
}

// journalLines bounds what is taken of the journal.
const journalLines = 5000

// journal is the log of the unit, its last lines.
func journal(ctx context.Context, journalctl string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, journalctl, "--no-pager", "--quiet", "--utc", "-o", "short-iso-precise", "-u", "smcgw.service", "-n", strconv.Itoa(journalLines))
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("journalctl: %w", err)
	}
	return out, nil
}

// ConfigPart is the effective configuration.
func ConfigPart(path string) Part {
	return Part{Name: "config.yaml", Read: func(context.Context) ([]byte, error) {
		f, err := config.Load(path)
		if err != nil {
			return nil, err
		}
		text, err := f.YAML()
		if err != nil {
			return nil, err
		}
		for _, n := range f.Notes() {
			text = fmt.Appendf(text, "# note: %s\n", n)
		}
		return text, nil
	}}
}

// keyField finds what follows psk_file in a text that is no YAML, to the end of the line and
// also on the next one: in quotes, a word, and all of it.
var keyField = regexp.MustCompile(`psk_file["']?\s*:\s*(?:[|>][-+0-9]*\s*)?[*&!]?((?:"([^"\n]*)"|'([^'\n]*)'|["']?([^"'\s#,}]+))?.*)`)

// named lists what a configuration has where the names of key files belong.
func named(text []byte) [][]byte {
	values, err := config.KeyFilesIn(text)
	if err != nil {
		var found [][]byte
		for _, m := range keyField.FindAllSubmatch(text, -1) {
			found = append(found, m[1:]...)
		}
		return found
	}
	var found [][]byte
	for _, v := range values {
		found = append(found, []byte(v))
		found = slices.AppendSeq(found, bytes.Lines([]byte(v)))
	}
	return found
}

// Bounds of secrets: shorter than any key that a gateway takes, and more than it takes.
const (
	leastSecret = 8
	maxSecrets  = 256
)

// Secrets lists what an archive must not hold: the keys of a configuration, and a key that
// stands where the name of its file should be.
func Secrets(path string) (list []string) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	add := func(s []byte) {
		if s = bytes.TrimSpace(s); len(s) >= leastSecret && len(list) < maxSecrets {
			list = append(list, string(s))
		}
	}
	for _, name := range named(text) {
		name := string(name)
		if _, err := os.Stat(name); err != nil && !errors.Is(err, fs.ErrPermission) {
			add([]byte(name)) // a key in the place of a name, for all that is known
			continue
		}
		keys, _ := os.ReadFile(name) // usable or not: nothing of it goes out
		for line := range bytes.Lines(keys) {
			add(line)
		}
	}
	return list
}

// kernelLog is the kernel's ring of messages.
func kernelLog() ([]byte, error) {
	buf := make([]byte, 4<<20)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, buf)
	if err != nil {
		return nil, fmt.Errorf("kernel log: %w", err)
	}
	return buf[:n], nil
}

// words are those of lines of the kernel's log that a report keeps.
var words = regexp.MustCompile(`(?i)smcgw|\bbpf\b|infiniband|rdma|_rxe|mlx[45]|oom|segfault`)

// about keeps the lines of a log that are about gateways and what is below them.
func about(log []byte) (kept []byte) {
	for line := range bytes.Lines(log) {
		if words.Match(line) {
			kept = append(kept, line...)
		}
	}
	return kept
}
