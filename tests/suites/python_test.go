package suites

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// python has modules of CPython's own tests.
var python = []suite{
	unittests("test_socket", 500, "test.test_socket.ThreadedVSOCK*"), // it hangs natively where there is vsock without a peer
	unittests("test_ssl", 150),
	unittests("test_asyncio", 2000),
	unittests("test_ftplib", 90),
	short(unittests("test_selectors test_asyncore", 150)), // selectors alone uses no TCP
	unittests("test_asynchat", 20),
	unittests("-unetwork test_socketserver", 15),
	unittests("test_httplib", 100),
	short(unittests("test_httpservers", 50)),
	unittests("test_smtplib", 60),
	unittests("test_telnetlib test_poplib", 70), // telnetlib alone moves next to nothing
	unittests("test_imaplib", 90),
	short(unittests("test_nntplib", 50)),
	unittests("test_xmlrpc", 50),
	short(unittests("test_docxmlrpc", 4)),
	unittests("test_urllib2_localnet", 20),
	unittests("test_logging", 150),
	unittests("test_multiprocessing_fork", 200),
	unittests("test_multiprocessing_spawn", 200),
}

func short(s suite) suite {
	s.short = true
	return s
}

// unittests runs modules of CPython's tests, and options; the last word names the row. without lists tests that are
// left out.
func unittests(modules string, least int, without ...string) suite {
	words := strings.Fields(modules)
	return suite{
		name: "python/" + words[len(words)-1], limit: 15 * time.Minute, least: least,
		needs: []string{"/usr/bin/python3.11", "/usr/lib/python3.11/test/test_socket.py"},
		run: func(r *round) results {
			report := filepath.Join(r.dir, "report")
			args := []string{"-m", "test", "--timeout", fmt.Sprint((r.limit * busyFor).Seconds()), "--verbose", "--junit-xml", report}
			for _, w := range without {
				args = append(args, "--ignore", w)
			}
			args = append(args, words...)
			said, err := r.output(r.command("/usr/bin/python3.11", args...))
			if err != nil {
				r.Logf("%v: %s", err, tail(said))
			}
			return unittestResults(r, report)
		},
	}
}

// unittestResults reads a report in JUnit's format.
func unittestResults(r *round, report string) results {
	text, err := os.ReadFile(report)
	require.NoError(r, err, "it did not come to its end")
	var read struct {
		Cases []struct {
			Name  string `xml:"name,attr"`
			Kinds []struct {
				XMLName xml.Name
			} `xml:",any"`
		} `xml:"testsuite>testcase"`
	}
	require.NoError(r, xml.Unmarshal(text, &read))
	got := results{}
	for _, c := range read.Cases {
		result := "ok"
		for _, k := range c.Kinds {
			if k.XMLName.Local != "system-out" && k.XMLName.Local != "system-err" {
				result = k.XMLName.Local // error, failure, skipped, or the output of one that is expected to fail
			}
		}
		got[c.Name] = result
	}
	return got
}
