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

// DaemonParts returns the parts that a daemon provides.
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

// HostParts returns the parts from the kernel, and systemd's log of a gateway.
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

// journalLines bounds the lines taken from the journal.
const journalLines = 5000

// journal returns the last lines of the unit's log.
func journal(ctx context.Context, journalctl string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, journalctl, "--no-pager", "--quiet", "--utc", "-o", "short-iso-precise", "-u", "smcgw.service", "-n", strconv.Itoa(journalLines))
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("journalctl: %w", err)
	}
	return out, nil
}

// ConfigPart returns the part with the effective configuration.
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

// keyField matches what follows psk_file in invalid YAML, up to the end of the line and also on the next one: quoted
// text, a word, and everything.
var keyField = regexp.MustCompile(`psk_file["']?\s*:\s*(?:[|>][-+0-9]*\s*)?[*&!]?((?:"([^"\n]*)"|'([^'\n]*)'|["']?([^"'\s#,}]+))?.*)`)

// named lists the values that a configuration has in place of names of key files.
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

// Bounds of secrets: shorter, and longer, than any key that a gateway accepts.
const (
	leastSecret = 8
	maxSecrets  = 256
)

// Secrets lists what an archive must not contain: the keys of a configuration, and a key in place of the name of its
// file.
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
			add([]byte(name)) // it may be a key in place of a name
			continue
		}
		keys, _ := os.ReadFile(name) // even if unusable, its content must not leave the host
		for line := range bytes.Lines(keys) {
			add(line)
		}
	}
	return list
}

// kernelLog returns the kernel's ring buffer of messages.
func kernelLog() ([]byte, error) {
	buf := make([]byte, 4<<20)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, buf)
	if err != nil {
		return nil, fmt.Errorf("kernel log: %w", err)
	}
	return buf[:n], nil
}

// words matches the lines of the kernel's log that a report keeps.
var words = regexp.MustCompile(`(?i)smcgw|\bbpf\b|infiniband|rdma|_rxe|mlx[45]|oom|segfault`)

// about keeps the lines of a log about gateways and what they depend on.
func about(log []byte) (kept []byte) {
	for line := range bytes.Lines(log) {
		if words.Match(line) {
			kept = append(kept, line...)
		}
	}
	return kept
}
