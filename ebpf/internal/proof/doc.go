// Package proof makes a test connection that shows whether legs reach applications on a device. It takes the path of a
// carried client's connection: from a socket of the host through routing, netfilter and the device's program to a
// socket in the namespace of the legs, and back.
//
// Nothing else shows whether a host drops what comes from a leg: there are many kinds of rules, and only a packet meets
// all of them. The package decides nothing about connections; its caller does, from the result of [Prover.Prove].
//
// A proof needs an entry of its own in the programs' table. The caller provides it as [Entries], and the programs note
// in it the steps that the proof has taken.
package proof
