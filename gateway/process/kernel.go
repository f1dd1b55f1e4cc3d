package process

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
)

// KernelID identifies the kernel that this process runs under without revealing its boot ID:
// two gateways with the same ID can share memory.
func KernelID() (id [16]byte, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id, fmt.Errorf("boot id: %w", err)
	}
	m := hmac.New(sha256.New, []byte("smcgw host id"))
	m.Write([]byte(strings.TrimSpace(string(boot))))
	copy(id[:], m.Sum(nil))
	return id, nil
}

// HostName returns the name of the machine, for people.
func HostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "this host"
	}
	return name
}
