package e2e

import (
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// variant is another way to run tests of this package: over another carrier or another network. SMCGW_CARRIER=soft
// runs all of them over soft.
type variant struct {
	via report.Carrier
	box testnet.Box
}

// lossySeed determines which datagrams the lossy network loses.
const lossySeed = 11

// rdmaPort is the UDP port of soft: RoCEv2's, or SMCGW_SOFT_PORT.
var rdmaPort = softPort()

func softPort() uint16 {
	if n, err := strconv.ParseUint(os.Getenv("SMCGW_SOFT_PORT"), 10, 16); err == nil {
		return uint16(n)
	}
	return 4791
}

// onSoftPort replaces the RoCEv2 port in firewall rules by that of soft.
func onSoftPort(rules string) string {
	return strings.ReplaceAll(rules, "4791", strconv.Itoa(int(rdmaPort)))
}

// variants has the variants by the name of the test that runs them.
var variants = map[string]variant{
	"TestOverSoft":          {via: report.CarrierSoft},
	"TestFaultHandoverSoft": {via: report.CarrierSoft},
	// 2 % of the datagrams are lost, 1 % arrive twice, 2 % late. TCP is spared, so whatever fails, fails because of
	// the carrier.
	"TestLossySoft": {via: report.CarrierSoft, box: testnet.Box{UDP: testnet.Datagrams{
		Port: rdmaPort, Loss: 20, Dup: 10, Reorder: 20, Seed: lossySeed,
	}}},
	"TestDatagramSocketsSoft":   {via: report.CarrierSoft},
	"TestDatagramsAllPortsSoft": {via: report.CarrierSoft},
	"TestDatagramsPathLostSoft": {via: report.CarrierSoft},
	"TestDatagramsOverLossySoft": {via: report.CarrierSoft, box: testnet.Box{UDP: testnet.Datagrams{
		Port: rdmaPort, Loss: 20, Dup: 10, Reorder: 20, Seed: lossySeed,
	}}},
}

// variantOf returns the variant in which a test runs.
func variantOf(t *testing.T) variant {
	root, _, _ := strings.Cut(t.Name(), "/")
	if v, ok := variants[root]; ok {
		return v
	}
	via := report.CarrierShm
	if name := os.Getenv("SMCGW_CARRIER"); name != "" {
		via = report.Carrier("rdma-" + name)
	}
	return variant{via: via}
}

// again runs tests of this package as subtests. The variant follows from t.Name.
func again(t *testing.T, tests ...func(*testing.T)) {
	for _, fn := range tests {
		name := runtime.FuncForPC(reflect.ValueOf(fn).Pointer()).Name()
		t.Run(name[strings.LastIndex(name, ".Test")+len(".Test"):], fn)
	}
}

// TestOverSoft tests over soft what is carried, how it ends, and what happens to it when a gateway dies. A run draws
// some of it; make faults runs all, and make repeat also the rest of the suite.
func TestOverSoft(t *testing.T) {
	t.Parallel()
	again(t, matrix.Cells(t, []func(*testing.T){
		TestCombination, TestDiesGuardian,
		TestSemanticsOfOneConnection, TestSemanticsOfConnectErrors, TestSemanticsOfGivingUp, TestSemanticsOfAddresses,
		TestSemanticsOfReuse, TestSemanticsOfSlowReader, TestSemanticsOfSteadyReader, TestSemanticsOfKilledApps,
		TestDatagramPrograms, TestDatagramsBecomeCarried, TestDiesUnderDatagrams,
	}, 7)...)
}

// TestLossySoft checks that a network that loses packets changes nothing but times.
func TestLossySoft(t *testing.T) {
	if !matrix.Whole() { // beside the floods of whole matrices the proof comes too late, and the relay carries
		t.Parallel()
	}
	again(t, TestCombination, TestSemanticsOfOneConnection, TestSemanticsOfSlowReader, TestSemanticsOfKilledApps)
}
