package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"go.yaml.in/yaml/v3"
)

// Bounds of a key file.
const (
	minKeyLen   = 16 // bytes: too long to guess
	maxKeyLen   = 512
	maxKeys     = 8 // the current one and some in transition
	maxKeyBytes = 16 << 10
)

// LoadKeys reads security.psk_file: one key per line, of 16 to 512 bytes, without surrounding
// space. Empty lines and lines that begin with # are skipped. The first key is used for what
// this gateway begins; all are accepted. The file must be a regular file that only its owner
// can write and only its owner and group can read. An empty path means no keys. The error
// never contains anything from the file.
func LoadKeys(path string) ([][]byte, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for its writer
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("key file: %w: the gateway's user must read it: chgrp smcgw, chmod 640", err)
	case err != nil:
		return nil, fmt.Errorf("key file: %w", err)
	}
	defer f.Close()
	if err := checkKeyFile(f); err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyBytes+1))
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	keys, err := parseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return keys, nil
}

// KeyFilesIn lists what a possibly invalid configuration has in places where names of key
// files belong: all of section security, and every psk_file elsewhere. That includes a key
// that was put there by mistake. It returns an error if the text is not YAML.
func KeyFilesIn(text []byte) (names []string, err error) {
	root, err := parseYAML(text)
	if err != nil || root == nil {
		return nil, err
	}
	const section, field = "security", "psk_file"
	var walk func(n *yaml.Node, inside bool)
	walk = func(n *yaml.Node, inside bool) {
		if n.Kind == yaml.ScalarNode && inside && n.Value != field {
			names = append(names, n.Value)
		}
		for i, c := range n.Content {
			behind := n.Kind == yaml.MappingNode && i%2 == 1 && (n.Content[i-1].Value == section || n.Content[i-1].Value == field)
			walk(c, inside || behind)
		}
	}
	walk(root, false)
	return names, nil
}

// checkKeyFile requires a file that no other user can read or write. The group may read it:
// systemd passes credentials that way.
func checkKeyFile(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	switch mode := fi.Mode(); {
	case !mode.IsRegular():
		return errors.New("not a regular file")
	case mode.Perm()&0o004 != 0:
		return fmt.Errorf("mode %#o: every user can read it: chgrp smcgw, chmod 640", mode.Perm())
	case mode.Perm()&0o022 != 0:
		return fmt.Errorf("mode %#o: others than its owner can write it: chgrp smcgw, chmod 640", mode.Perm())
	}
	return nil
}

// parseKeys parses the lines of a key file.
func parseKeys(text []byte) ([][]byte, error) {
	if len(text) > maxKeyBytes {
		return nil, fmt.Errorf("larger than %d bytes", maxKeyBytes)
	}
	var keys [][]byte
	number := 0
	for line := range bytes.Lines(text) {
		number++
		key := bytes.TrimSpace(line)
		switch {
		case len(key) == 0 || key[0] == '#':
			continue
		case len(key) < minKeyLen:
			return nil, fmt.Errorf("line %d: a key of %d bytes; the least is %d", number, len(key), minKeyLen)
		case len(key) > maxKeyLen:
			return nil, fmt.Errorf("line %d: a key of %d bytes; the most is %d", number, len(key), maxKeyLen)
		case len(keys) == maxKeys:
			return nil, fmt.Errorf("line %d: more than %d keys", number, maxKeys)
		}
		keys = append(keys, bytes.Clone(key))
	}
	if len(keys) == 0 {
		return nil, errors.New("no key in it")
	}
	return keys, nil
}
