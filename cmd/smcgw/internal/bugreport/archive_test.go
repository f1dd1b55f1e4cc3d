package bugreport

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
)

// made is when the archives of the tests were made.
func made() time.Time { return time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC) }

// files unpacks an archive.
func files(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	require.NoError(t, err)
	all := map[string]string{}
	for in := tar.NewReader(zip); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		require.EqualValues(t, 0o600, h.Mode)
		content, err := io.ReadAll(in)
		require.NoError(t, err)
		all[strings.TrimPrefix(h.Name, directory)] = string(content)
	}
}

// says is a part.
func says(name, text string, err error) Part {
	return Part{Name: name, Read: func(context.Context) ([]byte, error) { return []byte(text), err }}
}

func TestArchive(t *testing.T) {
	var b bytes.Buffer
	m, err := Write(t.Context(), &b, []Part{
		says("a.txt", "all is well", nil),
		says("none.txt", "", errors.New("no permission")),
		says("half.txt", "half", errors.New("it ended")),
	}, nil, made())
	require.NoError(t, err)
	got := files(t, b.Bytes())
	require.Equal(t, "all is well", got["a.txt"])
	require.Equal(t, "half", got["half.txt"])
	require.NotContains(t, got, "none.txt")
	var inside Manifest
	require.NoError(t, json.Unmarshal([]byte(got[manifestName]), &inside))
	require.Equal(t, m, inside)
	text, err := json.Marshal(m)
	require.NoError(t, err)
	require.Equal(t, `{"schema":"smcgw.bugreport/v1","made":"2026-11-22T09:30:00Z","entries":[{"name":"a.txt","bytes":11},`+
		`{"name":"none.txt","bytes":0,"error":"no permission"},{"name":"half.txt","bytes":4,"error":"it ended"}]}`, string(text))
}

// An archive has a bound, whatever the parts say.
func TestArchiveIsBounded(t *testing.T) {
	var parts []Part
	for range 8 {
		parts = append(parts, says("large.txt", strings.Repeat("x", 1001), nil))
	}
	m, err := write(t.Context(), io.Discard, parts, nil, made(), bounds{part: 1000, total: 3500})
	require.NoError(t, err)
	total := 0
	for _, e := range m.Entries {
		require.LessOrEqual(t, e.Bytes, 1000)
		require.True(t, e.Cut)
		total += e.Bytes
	}
	require.Equal(t, 3500, total)
	require.Equal(t, 500, m.Entries[3].Bytes)
	require.LessOrEqual(t, 20000*600, usual().part, "a document of many connections is whole")
}

// A writer that fails is an error.
func TestArchiveNotWritten(t *testing.T) {
	_, err := Write(t.Context(), brokenWriter{}, []Part{says("a.txt", "x", nil)}, nil, made())
	require.ErrorIs(t, err, io.ErrClosedPipe)
}

type brokenWriter struct{}

// Write implements io.Writer.
func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// No key is in an archive, whichever part or error would have it.
func TestNoKeyInAnArchive(t *testing.T) {
	const first, second, pasted = "correct horse battery staple", "correct horse battery staple, longer", "c2VjcmV0LWtleS1pbi1wbGFjZS1vZi1hLWZpbGU="
	dir := t.TempDir()
	keys := filepath.Join(dir, "psk")
	require.NoError(t, os.WriteFile(keys, []byte("# ours\n"+first+"\n\n  "+second+"\n"), 0o600))
	escapedJSON := func(text string) string {
		doc, err := json.Marshal(text)
		require.NoError(t, err)
		return string(doc)
	}
	escapes := []func(string) string{strconv.Quote, escapedJSON}
	for name, c := range map[string]struct {
		config string
		keys   []string
	}{
		"a file":                {"security: { psk_file: " + keys + " }\n", []string{second, first}},
		"a quoted file":         {"security:\n  psk_file: \"" + keys + "\"\n", []string{second, first}},
		"a key for a file":      {"security: { psk_file: " + pasted + " }\n", []string{pasted}},
		"on the next line":      {"security:\n  psk_file: |\n    " + pasted + "\n", []string{pasted}},
		"one that looks rooted": {"security: { psk_file: /" + pasted + " }\n", []string{"/" + pasted}},
		"too long for a file":   {"security: { psk_file: " + strings.Repeat("k", 400) + " }\n", []string{strings.Repeat("k", 400)}},
		"in what is not valid":  {"mdoe: [\nsecurity: { psk_file: " + pasted + " }\n", []string{pasted}},
		"with spaces":           {"security: { psk_file: " + first + " }\n", []string{first}},
		"with all else":         {"security:\n  psk_file: \"" + `tr#b4, d\"r} 'x' \\ <&> é` + "\"\n", []string{`tr#b4, d"r} 'x' \ <&> é`}},
		"as a mapping":          {"security: { psk_file: { correct horse: battery staple } }\n", []string{"battery staple", "correct horse"}},
		"in the wrong place":    {"psk_file: " + first + "\n", []string{first}},
		"for the section":       {"security: " + first + "\n", []string{first}},
		"of lines":              {"security:\n  psk_file: |\n    " + pasted + "\n    " + first + "\n", []string{pasted, first}},
		"spaces, not valid":     {"mdoe: [\nsecurity:\n  psk_file: " + first + "\n", []string{first}},
		"quoted, not valid":     {"mdoe: [\nsecurity: { psk_file: '" + first + ", }' }\n", []string{first + ", }"}},
		"an anchor":             {"security:\n  psk_file: *" + pasted + "\n", []string{pasted}},
		"a file, not valid":     {"mdoe: [\nsecurity: { psk_file: " + keys + " } # ours\n", []string{second, first}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "smcgw.yaml")
			require.NoError(t, os.WriteFile(path, []byte("# a remark\n"+c.config), 0o600))
			secrets := Secrets(path)
			require.Subset(t, secrets, c.keys)
			said := strings.Join(c.keys, " and ")
			forms := []string{said}
			for _, escape := range escapes {
				forms = append(forms, escape(said), strconv.Quote(escape(said)), escapedJSON(escape(said)))
			}
			var b bytes.Buffer
			m, err := Write(t.Context(), &b, []Part{
				ConfigPart(path), says("log.txt", strings.Join(forms, "\n"), errors.New("near "+said+strconv.Quote(said))),
			}, secrets, made())
			require.NoError(t, err)
			for file, text := range files(t, b.Bytes()) {
				for _, k := range append(c.keys, first) {
					require.NotContains(t, text, k, file)
					for _, escape := range escapes {
						require.NotContains(t, text, strings.Trim(escape(k), `"`), file)
					}
				}
			}
			last := m.Entries[len(m.Entries)-1]
			require.Equal(t, len(forms)*len(c.keys), last.Redacted)
			require.Contains(t, last.Error, redacted)
		})
	}
	require.Empty(t, Secrets(filepath.Join(dir, "nothing.yaml")))
}

// The configuration is the effective one, with its notes and without remarks of its writer.
func TestConfigPart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "smcgw.yaml")
	require.NoError(t, os.WriteFile(path, []byte("mode: enforce # the password of the day is swordfish\n"), 0o600))
	text, err := ConfigPart(path).Read(t.Context())
	require.NoError(t, err)
	require.Contains(t, string(text), "mode: enforce #")
	require.Contains(t, string(text), "# note: policy: no rule accelerates")
	require.NotContains(t, string(text), "swordfish")
	_, err = ConfigPart(path + ".gone").Read(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Of the kernel's log only lines about gateways and what is below them are kept.
func TestKernelLogLines(t *testing.T) {
	require.Equal(t, "<6>[1] smcgw-a1: entered\n<4>[3] BPF: bad\n<6>mlx5_core 0000:3b\nOut of memory: oom-kill smcgw",
		string(about([]byte("<6>[1] smcgw-a1: entered\n<6>[2] usb 1-1: key for a door\n<4>[3] BPF: bad\n<6>mlx5_core 0000:3b\nsubpfx\nOut of memory: oom-kill smcgw"))))
}

// The journal is in the archive where there is one, without the keys.
func TestJournal(t *testing.T) {
	const key = "0123456789abcdef"
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	of := func() map[string]string {
		var b bytes.Buffer
		_, err := Write(t.Context(), &b, HostParts(), []string{key}, made())
		require.NoError(t, err)
		return files(t, b.Bytes())
	}
	require.NotContains(t, of(), "journal.log")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "journalctl"), []byte("#!/bin/sh\necho \"$* "+key+"\"\n"), 0o700)) //nolint:gosec // it is run
	log := of()["journal.log"]
	require.Contains(t, log, "-u smcgw.service -n 5000")
	require.NotContains(t, log, key)
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
