package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"go.yaml.in/yaml/v3"
)

// Bounds of a key file.
const (
	minKeyLen   = 16 // bytes: a guess must be hopeless
	maxKeyLen   = 512
	maxKeys     = 8 // the present one, and some that are being changed
	maxKeyBytes = 16 << 10
)

// LoadKeys reads security.psk_file: one key per line, of 16 to 512 bytes, with no
// space around it; empty lines and those that begin with # are skipped. The first key
// is used for what this gateway begins, all are believed. The file must be a
// regular one that only its owner can write and only its owner and group can
// read. An empty path is no keys. Its error never holds anything of the file.
func LoadKeys(path string) ([][]byte, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
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

// KeyFilesIn lists what a configuration that may be wrong otherwise has where the names of
// key files belong: all of its section security, and each psk_file elsewhere. A key that was
// put there by mistake is among them. Its error: the text is no YAML.
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

// checkKeyFile wants a file that no other user reads or writes. The group may
// read it: that is how systemd hands over credentials.
func checkKeyFile(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	switch mode := fi.Mode(); {
	case !mode.IsRegular():
		return errors.New("not a regular file")
	case mode.Perm()&0o004 != 0:
		return fmt.Errorf("mode %#o: everybody can read it; chmod 600", mode.Perm())
	case mode.Perm()&0o022 != 0:
		return fmt.Errorf("mode %#o: others than its owner can write it; chmod 600", mode.Perm())
	}
	return nil
}

// parseKeys reads the lines of a key file.
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
