// Package peers is what a gateway remembers of its peers, by address and within
// bounds: what they hold of what others want ([Shares]), how often they have refused
// and which carriers work with them ([Book]), and which carriers are left alone after
// they failed ([Rests]). It decides nothing about a connection. The trap: what decides
// about new connections lies in the maps of the programs, and the caller keeps both in
// step.
package peers
