package bugreport

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// bounds are the maximum sizes of a part and of an archive, in bytes before compression.
type bounds struct{ part, total int }

// usual returns bounds that suffice for the connections of a gateway that carries 50,000.
func usual() bounds { return bounds{part: 16 << 20, total: 48 << 20} }

// Schema names the format of Manifest.
const Schema = "smcgw.bugreport/v1"

// Part is a file of the archive.
type Part struct {
	Name string
	// Read returns its content. Content returned with an error is kept, too.
	Read func(context.Context) ([]byte, error)
}

// Entry describes the result of a part.
type Entry struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
	// Cut means that the part was longer, and this is its beginning. Redacted counts the secrets that were removed.
	Cut      bool   `json:"cut,omitempty"`
	Redacted int    `json:"redacted,omitempty"`
	Error    string `json:"error,omitempty"`
}

// Manifest is the document of bugreport, and the last file of an archive.
type Manifest struct {
	Schema  string    `json:"schema"`
	Made    time.Time `json:"made"`
	File    string    `json:"file,omitempty"`
	Entries []Entry   `json:"entries"`
}

// redacted replaces a secret.
const redacted = "[redacted]"

// directory holds the files of an archive.
const directory = "smcgw-bugreport/"

// manifestName is the file of the manifest.
const manifestName = "manifest.json"

// Write writes an archive of the parts. A part that cannot be read is noted in the manifest; only failing to write the
// archive is an error.
func Write(ctx context.Context, w io.Writer, parts []Part, secrets []string, made time.Time) (Manifest, error) {
	return write(ctx, w, parts, secrets, made, usual())
}

func write(ctx context.Context, w io.Writer, parts []Part, secrets []string, made time.Time, most bounds) (Manifest, error) {
	m := Manifest{Schema: Schema, Made: made.UTC().Truncate(time.Second), Entries: []Entry{}}
	zip := gzip.NewWriter(w)
	out := tar.NewWriter(zip)
	left := most.total
	for _, p := range parts {
		e, content := read(ctx, p, secrets, min(left, most.part))
		left -= len(content)
		m.Entries = append(m.Entries, e)
		if len(content) == 0 {
			continue
		}
		if err := file(out, p.Name, content, m.Made); err != nil {
			return m, err
		}
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = file(out, manifestName, text, m.Made)
	}
	if err := errors.Join(err, out.Close(), zip.Close()); err != nil {
		return m, fmt.Errorf("write archive: %w", err)
	}
	return m, nil
}

// read reads a part, removes secrets, and cuts it.
func read(ctx context.Context, p Part, secrets []string, most int) (Entry, []byte) {
	e := Entry{Name: p.Name}
	content, err := p.Read(ctx)
	if err != nil {
		e.Error = err.Error()
	}
	content, e.Redacted = Redact(content, secrets)
	said, _ := Redact([]byte(e.Error), secrets)
	e.Error = string(said)
	if len(content) > most {
		content, e.Cut = content[:most], true
	}
	e.Bytes = len(content)
	return e, content
}

// Redact removes secrets from a text and counts them, including quoted forms.
func Redact(text []byte, secrets []string) (rest []byte, count int) {
	for _, s := range written(secrets) {
		count += bytes.Count(text, []byte(s))
		text = bytes.ReplaceAll(text, []byte(s), []byte(redacted))
	}
	return text, count
}

// quotings is how often a text may be quoted in another: an error that quotes a value, in a document.
const quotings = 2

// written lists the forms in which a text can contain secrets, longest first, because one may be part of another.
func written(secrets []string) []string {
	forms := slices.DeleteFunc(slices.Clone(secrets), func(s string) bool { return s == "" })
	for begin, n := 0, 0; n < quotings; n++ {
		end := len(forms)
		for _, s := range forms[begin:end] {
			forms = append(forms, quoted(s)...)
		}
		begin = end
	}
	slices.Sort(forms)
	forms = slices.Compact(forms)
	slices.SortStableFunc(forms, func(a, b string) int { return len(b) - len(a) })
	return forms
}

// quoted returns a text as quoted by Go, by JSON's encoder and by logs in JSON, and by YAML, without the quotes.
func quoted(s string) []string {
	inner := func(q string) string { return q[1 : len(q)-1] }
	var plain bytes.Buffer
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string
	all, _ := json.Marshal(s)
	return []string{
		inner(strconv.Quote(s)), inner(strings.TrimSpace(plain.String())), inner(string(all)), strings.ReplaceAll(s, "'", "''"),
	}
}

// file adds a file.
func file(out *tar.Writer, name string, content []byte, made time.Time) error {
	h := &tar.Header{Name: directory + name, Mode: 0o600, Size: int64(len(content)), ModTime: made, Format: tar.FormatPAX}
	if err := out.WriteHeader(h); err != nil {
		return fmt.Errorf("write archive: %s: %w", name, err)
	}
	if _, err := out.Write(content); err != nil {
		return fmt.Errorf("write archive: %s: %w", name, err)
	}
	return nil
}
