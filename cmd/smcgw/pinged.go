package main

import (
	"fmt"
	"strings"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/bench"
	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/report"
)

// pingLine describes the result of a connection.
func pingLine(t bench.PingTry) string {
	line := fmt.Sprintf("%v  %d  %s  ", t.Service, t.Sequence, screen.RoundTrip(t.ConnectSeconds))
	if t.Error != "" {
		return line + "no connection: " + t.Error
	}
	line += string(t.Stage)
	if t.Carrier != report.CarrierNone {
		line += "  " + string(t.Carrier)
	}
	if t.MTU > 0 {
		line += fmt.Sprintf("  mtu %d", t.MTU)
	}
	if t.Reason != "" {
		line += "  " + t.Reason
	}
	if t.DecidedBy != "" {
		line += "(" + t.DecidedBy + ")"
	}
	return line
}

// pingSummary counts the results, and explains each reason once.
func pingSummary(s *screen.Screen, r *bench.PingReport) string {
	var b strings.Builder
	line := fmt.Sprintf("%d carried, %d relayed, %d native, %d without a connection", r.Carried, r.Relayed, r.Native, r.Failed)
	if r.Failed < len(r.Tries) {
		line += fmt.Sprintf("; connect %s / %s / %s (least, median, most)", screen.RoundTrip(r.Minimum), screen.RoundTrip(r.Median), screen.RoundTrip(r.Maximum))
	}
	b.WriteString(s.Paragraph(line))
	said := map[string]bool{}
	for _, t := range r.Tries {
		if t.Error == bench.NoAnswer && !said[t.Error] {
			said[t.Error] = true
			b.WriteString(s.Paragraph("no answer: Nothing came back, although the SYN is sent again without the offer."))
			b.WriteString(remedyLine(s, "Look at the service, the firewall of its host and the way there. smcgw off and another try show that it is the same without smcgw."))
		}
		if t.Reason == "" || said[t.Reason] {
			continue
		}
		said[t.Reason] = true
		b.WriteString(reasonHelp(s, t.Reason, r.Offer))
	}
	return b.String()
}

// remedyLine says what to do about the line above it.
func remedyLine(s *screen.Screen, text string) string { return "  > " + s.Hang(text, 4) + "\n" }

// reasonHelp explains a reason.
func reasonHelp(s *screen.Screen, name string, offer bool) string {
	if name == bench.ReasonUnseen {
		return name + ": The gateway knows nothing of the connection.\n" +
			remedyLine(s, "Run this in the network namespace of the gateway; see smcgw status.")
	}
	c, ok := report.CodeNamed(name)
	if !ok {
		return name + ": a reason of a newer version\n"
	}
	text := s.Paragraph(c.Name+": "+c.Meaning) + remedyLine(s, c.Fix)
	if !offer && name == "policy" {
		text += remedyLine(s, "smcgw ping --offer says what the peer would do.")
	}
	return text
}
