package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// olderCommit is the last one before a connection had one owner and the laboratory left
// the daemon.
const olderCommit = "532a113c3b3a4a195bfab36acd4aae57ad478eb2"

// olderVersion is what the older gateway calls itself.
const olderVersion = "older"

// older is the smcgw of olderCommit, built from the history of this repository when a test
// wants it.
var older = sync.OnceValues(func() (string, error) {
	file := filepath.Join(filepath.Dir(built), "smcgw-older")
	if os.Getenv(ProgramsVariable) != "" {
		return file, nil
	}
	tree, err := os.MkdirTemp("", "smcgw-older-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tree)
	files, err := output("../..", "git", "archive", olderCommit)
	if err != nil {
		return "", fmt.Errorf("the history of this repository has to have %s: %w", olderCommit, err)
	}
	unpack := exec.Command("tar", "-x", "-C", tree)
	unpack.Stdin = bytes.NewReader(files)
	if out, err := unpack.CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpack %s: %w: %s", olderCommit, err, out)
	}
	_, err = output(tree, "go", "build", "-ldflags", "-X main.version="+olderVersion, "-o", file, "./cmd/smcgw")
	return file, err
})

// output runs a program in a directory and returns what it writes.
func output(dir, name string, args ...string) ([]byte, error) {
	var complaint bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stderr = dir, &complaint
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %v: %w: %s", name, args, err, complaint.Bytes())
	}
	return out, nil
}
