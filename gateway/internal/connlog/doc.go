// Package connlog writes the log lines about connections: about carried ones that were reset and those that left their
// carriers, grouped by the second, and, if configured, the access log with lines for each connection. What ends one
// connection often ends all of a peer, so the number of lines is bounded.
package connlog
