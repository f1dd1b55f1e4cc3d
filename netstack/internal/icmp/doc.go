// Package icmp reads ICMP errors about segments that a wire leg has sent. It knows no flow: whether the quoted segment is on
// its way is the caller's to say.
package icmp
