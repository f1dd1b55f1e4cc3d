// Package connlog writes the lines of the log that are about connections: carried ones
// that were reset and those that left their carriers, gathered by the second, and, if
// configured, the access log with lines for each connection. What ends one connection
// often ends all of a peer, so the number of lines is bounded.
package connlog
