package carrier

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSnakeCase(t *testing.T) {
	for in, want := range map[string]string{
		"Peers": "peers", "BellsSent": "bells_sent", "QPs": "qps", "ICRCErrors": "icrc_errors",
		"NAKsSent": "naks_sent", "RNR": "rnr", "SentRNRNaks": "sent_rnr_naks", "PeersUp": "peers_up",
		"SentRNRNAKs": "sent_rnr_naks", "SentCNPs": "sent_cnps", "SequenceNAKs": "sequence_naks", "TxPackets": "tx_packets",
	} {
		require.Equal(t, want, snakeCase(in))
	}
}
