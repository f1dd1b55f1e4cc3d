//go:build smcgw_older

package e2e

import "testing"

// Gateways of this tree and of olderCommit carry each other's connections: every byte
// arrives, ends and resets are those of the native control, a carrier that is lost leaves
// the relay, and what one of them refuses is native. `make compat` runs these tests; they
// need the history of the repository.

// TestOlderClient has the older gateway at the client's host.
func TestOlderClient(t *testing.T) { again(t, append(beside(), TestFaultDemotion)...) } // by both devices

// TestOlderServer has the older gateway at the server's host.
func TestOlderServer(t *testing.T) { again(t, append(beside(), TestFaultDemotion)...) }

// TestOlderClientSoft is TestOlderClient between hosts that share no memory.
func TestOlderClientSoft(t *testing.T) { again(t, beside()...) }

// TestOlderServerSoft is TestOlderServer between hosts that share no memory.
func TestOlderServerSoft(t *testing.T) { again(t, beside()...) }

// beside are the tests of what both gateways of a connection have to agree on.
func beside() []func(*testing.T) {
	return []func(*testing.T){
		TestCombination,
		TestSemanticsOfOneConnection, TestSemanticsOfConnectErrors, TestSemanticsOfReuse, TestSemanticsOfUrgentBytes,
		TestSemanticsOfSlowReader, TestSemanticsOfKilledApps,
		TestFaultsOnTheWire, TestSoftPathWithoutUDP, TestSoftBetweenMachines,
		TestFallbackPolicy, TestFallbackSwitched, TestFallbackDeadline, TestFallbackFirewall, TestFallbackLimits,
		TestFallbackBoxStrips, TestFallbackRemembered,
		TestDatagramPrograms, TestDatagramSockets, TestDatagramsBecomeCarried,
		TestFaultUpgrade, // by a process of this tree
	}
}
