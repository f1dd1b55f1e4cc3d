// Package report puts into the documents of package admin what the parts of a gateway know:
// peers, what is native, the wire TCP, and what of the configuration is not done. It holds
// no state and changes nothing but what it is given to fill in.
package report
